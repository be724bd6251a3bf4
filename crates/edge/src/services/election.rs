//! The Election service: the candidate with the oldest key under a name is the leader, and the key's value is
//! its proclamation.
//!
//! # Not here
//!
//! The keys and the order of the contenders, and the wait for a contender's turn (`recipes`).

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use quorate_api::etcdserverpb::request_op::Request as Operation;
use quorate_api::etcdserverpb::{PutRequest, RangeResponse, ResponseHeader, TxnResponse};
use quorate_api::mvccpb::event::EventType;
use quorate_api::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ProclaimResponse, ResignRequest, ResignResponse,
};
use tokio_stream::Stream;
use tonic::codegen::BoxStream;
use tonic::{Response, Status};

use super::recipes::{
    Entered, KeyWatch, Recipes, Undo, Written, as_client_error, enter, if_created_at,
};
use crate::calls::authorized::Authorized;
use crate::calls::contended_name::Name;
use crate::calls::large_reply::{StreamPermits, counted};
use crate::calls::status::status;
use crate::calls::streams::until;
use quorate_grpc::head::requires_leader;
use quorate_requests::access::Client;

/// The Election service.
#[derive(Debug)]
pub(crate) struct ElectionService {
    recipes: Arc<Recipes>,
}

impl ElectionService {
    pub(crate) const fn new(recipes: Arc<Recipes>) -> Self {
        Self { recipes }
    }

    /// Sets the value of the leader's key, if the key was created at the leader's revision.
    async fn proclaim_value(
        &self,
        client: &Client,
        leader: &LeaderKey,
        value: Bytes,
    ) -> Result<TxnResponse, Status> {
        let (key, lease) = (leader.key.clone(), leader.lease);
        let put = Operation::RequestPut(PutRequest { key, value, lease, ..PutRequest::default() });
        let txn = if_created_at(&leader.key, leader.rev, put, None);
        let answer = self.recipes.txn(client, txn).await?;
        if answer.succeeded { Ok(answer) } else { Err(Status::unknown("election: not leader")) }
    }

    /// Adds a candidate with this value, or updates the value of an existing candidate.
    async fn stand(
        &self,
        client: &Client,
        mut leader: LeaderKey,
        value: Bytes,
    ) -> Result<Written<(Option<ResponseHeader>, LeaderKey)>, Status> {
        let request = enter(&leader.key, value.clone(), leader.lease);
        let answer = self.recipes.txn(client, request).await?;
        let entered = Entered::read(&answer);
        leader.rev = entered.created;
        let is_new = entered.value.is_none();
        if entered.value.is_some_and(|before| before != value)
            && let Err(why) = self.proclaim_value(client, &leader, value).await
        {
            // The error of the failed update is returned even if the candidate cannot resign.
            drop(self.recipes.resign(client, leader.key, leader.rev).await);
            return Err(why);
        }
        let undo = Undo::DeleteCreatedAt(leader.key.clone(), leader.rev);
        Ok(Written { result: (answer.header, leader), undo, is_new })
    }

    /// Returns the leader key named in a request. If the key names no lease, a new lease is granted for it.
    async fn resume(
        &self,
        client: &Client,
        leader: Option<LeaderKey>,
    ) -> Result<LeaderKey, Status> {
        let leader = leader.ok_or_else(|| Status::unknown("\"leader\" field must be provided"))?;
        let lease = self.recipes.lease(client, leader.lease).await?;
        Ok(LeaderKey { lease, ..leader })
    }
}

/// The methods of the service, which `guarded` calls.
impl ElectionService {
    pub(crate) async fn campaign(
        &self,
        request: Authorized<CampaignRequest>,
    ) -> Result<Response<CampaignResponse>, Status> {
        let (client, request) = request.into_parts();
        let CampaignRequest { name: given, lease, value } = request;
        let name = Name::new(&given);
        let permit = self.recipes.take_permit(name.prefix.len() + value.len())?;
        let lease = self.recipes.lease(&client, lease).await?;
        let leader = LeaderKey { name: given, key: name.key(lease), rev: 0, lease };
        let (service, contender) = (Self::new(Arc::clone(&self.recipes)), client.clone());
        let write = async move { service.stand(&contender, leader, value).await };
        let ((header, leader), withdrawal) = self.recipes.enter(&client, permit, write).await?;
        let won = self.recipes.wait_for_turn(&client, &name, leader.rev).await;
        // If waiting fails, the key is kept. The key is deleted only if the candidate's call is dropped.
        withdrawal.forget();
        won?;
        Ok(Response::new(CampaignResponse { header, leader: Some(leader) }))
    }

    pub(crate) async fn proclaim(
        &self,
        request: Authorized<ProclaimRequest>,
    ) -> Result<Response<ProclaimResponse>, Status> {
        let (client, ProclaimRequest { leader, value }) = request.into_parts();
        let leader = self.resume(&client, leader).await?;
        let answer = self.proclaim_value(&client, &leader, value).await?;
        Ok(Response::new(ProclaimResponse { header: answer.header }))
    }

    pub(crate) async fn leader(
        &self,
        request: Authorized<LeaderRequest>,
    ) -> Result<Response<LeaderResponse>, Status> {
        let (client, request) = request.into_parts();
        let name = Name::new(&request.name);
        let mut found = self.recipes.owner(&client, &name).await?;
        let Some(kv) = found.kvs.pop() else {
            return Err(Status::unknown("election: no leader"));
        };
        let response = LeaderResponse { header: found.header, kv: Some(kv) };
        let replies = &self.recipes.info.admission().replies;
        counted(response, replies).map_err(|error| as_client_error(status(error)))
    }

    pub(crate) async fn observe(
        &self,
        request: Authorized<LeaderRequest>,
    ) -> Result<Response<BoxStream<LeaderResponse>>, Status> {
        let end = self.recipes.streams.wait(requires_leader(request.metadata().as_ref()));
        let (client, request) = request.into_parts();
        let name = Name::new(&request.name);
        let recipes = Arc::clone(&self.recipes);
        let permits = StreamPermits::new(&recipes.info.admission().replies);
        let observer = Observer { recipes, client, name, pending: VecDeque::new(), followed: None };
        let leaders = Leaders { step: Some(observer.step()), permits: permits.clone() };
        let mut response: Response<BoxStream<_>> = Response::new(Box::pin(until(leaders, end)));
        response.extensions_mut().insert(permits);
        Ok(response)
    }

    pub(crate) async fn resign(
        &self,
        request: Authorized<ResignRequest>,
    ) -> Result<Response<ResignResponse>, Status> {
        let (client, request) = request.into_parts();
        let leader = self.resume(&client, request.leader).await?;
        let answer = self.recipes.resign(&client, leader.key, leader.rev).await?;
        Ok(Response::new(ResignResponse { header: answer.header }))
    }
}

/// Observes the leaders of an election and their proclamations.
struct Observer {
    recipes: Arc<Recipes>,
    client: Client,
    name: Name,
    /// Responses not sent yet, all of which result from one watch response.
    pending: VecDeque<LeaderResponse>,
    /// The watch on the current leader's key.
    followed: Option<KeyWatch>,
}

type Step = Pin<Box<dyn Future<Output = (Observer, Option<LeaderResponse>)> + Send>>;

/// The stream of an observer's responses. It fails if the limit on replies is reached.
struct Leaders {
    /// `None` after the stream has ended.
    step: Option<Step>,
    permits: StreamPermits,
}

impl Stream for Leaders {
    type Item = Result<LeaderResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(step) = &mut self.step else { return Poll::Ready(None) };
        let (observer, next) = ready!(step.as_mut().poll(cx));
        self.step = None;
        let Some(next) = next else { return Poll::Ready(None) };
        if let Err(full) = self.permits.count(&next) {
            return Poll::Ready(Some(Err(as_client_error(status(full)))));
        }
        self.step = Some(observer.step());
        Poll::Ready(Some(Ok(next)))
    }
}

impl Observer {
    fn step(mut self) -> Step {
        Box::pin(async move {
            let next = self.next().await;
            (self, next)
        })
    }

    /// Returns the next response. Every failure ends the stream without an error, as in etcd.
    async fn next(&mut self) -> Option<LeaderResponse> {
        loop {
            if let Some(next) = self.pending.pop_front() {
                return Some(next);
            }
            let Some(followed) = &mut self.followed else {
                let found = self.find().await.ok()?;
                self.follow(&found);
                return Some(found);
            };
            let response = followed.next().await.ok()?;
            for event in response.events {
                if event.r#type() == EventType::Delete {
                    self.followed = None;
                    break;
                }
                self.pending.push_back(LeaderResponse { header: response.header, kv: event.kv });
            }
        }
    }

    /// Returns the current leader, or waits for the first leader.
    async fn find(&self) -> Result<LeaderResponse, Status> {
        let RangeResponse { header, mut kvs, .. } =
            self.recipes.owner(&self.client, &self.name).await?;
        if let Some(kv) = kvs.pop() {
            return Ok(LeaderResponse { header, kv: Some(kv) });
        }
        let from = header.map_or(0, |header| header.revision) + 1;
        let (key, end) = (self.name.prefix.clone(), self.name.end.clone());
        let mut watch = self.recipes.watch(&self.client, key, end, from, &[]);
        loop {
            let response = watch.next().await?;
            let first = response.events.into_iter().find(|one| one.r#type() == EventType::Put);
            let Some(kv) = first.and_then(|event| event.kv) else { continue };
            let revision = kv.fields().mod_revision;
            let header = response.header.map(|header| ResponseHeader { revision, ..header });
            return Ok(LeaderResponse { header, kv: Some(kv) });
        }
    }

    fn follow(&mut self, leader: &LeaderResponse) {
        let revision = leader.header.as_ref().map_or(0, |header| header.revision);
        let key = leader.kv.as_ref().map_or_else(Bytes::new, |kv| Bytes::copy_from_slice(kv.key()));
        let watch = self.recipes.watch(&self.client, key, Bytes::new(), revision + 1, &[]);
        self.followed = Some(watch);
    }
}
