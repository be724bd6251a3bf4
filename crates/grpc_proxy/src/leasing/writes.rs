//! Writes: done on condition that nobody else owns what they write, and owners asked to give it up where they do.

use std::time::Duration;

use http::HeaderMap;
use quorate_api::etcdserverpb::TxnRequest;
use quorate_api::etcdserverpb::request_op::Request;
use quorate_api::etcdserverpb::response_op::Response;
use tonic::{Code, Status};

use super::Leasing;
use super::guard::{self, CHANGED_MAX, Done, Guarded, LeasingKey, Outcome};
use super::holdings::Writing;
use super::members::{Store, is_refusal};
use crate::call::forwarded;
use crate::span::{Span, written};

/// How long somebody else is waited for, before it is looked again: at first, and at most. It is told earlier if he gives
/// up what was asked for.
const PATIENCE: Duration = Duration::from_millis(100);
const PATIENCE_MAX: Duration = Duration::from_secs(2);

/// See [`Leasing::make_way`].
#[derive(Debug)]
pub(crate) struct Way<'a> {
    _writing: Writing<'a>,
}

impl<S: Store> Leasing<S> {
    /// Carries out a write, once nobody else owns what it writes; nothing if it writes nothing, or if its user may do
    /// nothing about it: then it is as any other call.
    pub(crate) async fn write(
        &self,
        headers: &HeaderMap,
        request: Request,
    ) -> Result<Option<Response>, Status> {
        let spans = written(&request, false);
        if spans.is_empty() {
            return Ok(None);
        }
        let done = self.carry_out(headers, request, &spans).await?;
        Ok(done.map(|(writing, done)| {
            writing.done(done.header.revision, done.refreshed);
            self.tell_load();
            done.response
        }))
    }

    /// Sees to it that nobody owns these keys, which a member is going to write by itself, and that this proxy owns none of
    /// them until what is returned is dropped.
    pub(crate) async fn make_way(&self, headers: &HeaderMap, span: Span) -> Option<Way<'_>> {
        let nothing = Request::RequestTxn(TxnRequest::default());
        let spans = [span];
        // What cannot be asked of members now they will say to who asks them for more.
        let (writing, _) = self.carry_out(headers, nothing, &spans).await.ok().flatten()?;
        Some(Way { _writing: writing })
    }

    /// Has a write of these keys done, once nobody else owns them; nothing if its user may do nothing about that.
    async fn carry_out(
        &self,
        headers: &HeaderMap,
        request: Request,
        spans: &[Span],
    ) -> Result<Option<(Writing<'_>, Done)>, Status> {
        let mut has_few_conditions = false;
        let mut patience = PATIENCE;
        loop {
            let writing = self.holdings.begin_writing(spans);
            let request = request.clone();
            let (asked, guarded) =
                Guarded::new(&self.names, request, spans, &writing.owned, has_few_conditions);
            let answer = match self.members.txn(forwarded(headers), asked).await {
                Ok(answer) => answer,
                Err(status) if is_refusal(&status) => {
                    writing.nothing();
                    if is_too_long(&status) && !has_few_conditions {
                        has_few_conditions = true;
                        continue;
                    }
                    return may_go_without(status).map(|()| None);
                }
                // What was owned of it is not any more.
                Err(status) => return Err(status),
            };
            self.latest.see(answer.header.as_ref());
            match guarded.outcome(answer)? {
                Outcome::Done(done) => return Ok(Some((writing, done))),
                Outcome::Owned(found) => {
                    self.forget_what_is_not(writing, &found);
                    if let Err(status) = self.clear(headers, found, patience).await {
                        return may_go_without(status).map(|()| None);
                    }
                    patience = (patience * 2).min(PATIENCE_MAX);
                }
            }
        }
    }

    /// What was taken for owned, and is not as was found.
    fn forget_what_is_not(&self, writing: Writing<'_>, found: &[LeasingKey]) {
        let owned = writing.owned.clone();
        writing.nothing();
        for (key, made) in owned {
            let name = self.names.leasing_key(&key);
            let is_there = found.iter().any(|it| it.name == name && it.created == made);
            if !is_there {
                self.holdings.lose(&key, made + 1);
            }
        }
    }

    /// Sees to it that these leasing keys go, as far as it can be done for now.
    async fn clear(
        &self,
        headers: &HeaderMap,
        found: Vec<LeasingKey>,
        patience: Duration,
    ) -> Result<(), Status> {
        let own_lease = self.holdings.lease();
        let (own, others): (Vec<_>, Vec<_>) = found
            .into_iter()
            .filter(|key| key.lease != 0)
            .partition(|key| Some(key.lease) == own_lease);
        for own in own.chunks(CHANGED_MAX) {
            let given_up: Vec<_> = own.iter().map(|it| (it.name.clone(), it.created)).collect();
            for (name, made) in &given_up {
                if let Some(key) = self.names.key(name) {
                    self.holdings.lose(&key, *made + 1);
                }
            }
            self.own_txn(guard::give_up(&given_up)).await?;
        }
        if others.is_empty() {
            return Ok(());
        }
        let waiting = self.departures.watch(others.iter().map(|it| &it.name));
        let unasked: Vec<_> = others.into_iter().filter(|it| !it.is_revoked).collect();
        for unasked in unasked.chunks(CHANGED_MAX) {
            self.members.txn(forwarded(headers), guard::revoke(unasked)).await?;
        }
        waiting.until_gone(patience).await;
        Ok(())
    }
}

/// A write whose user may not look at leasing keys is as any other: it is a matter between members and him.
fn may_go_without(status: Status) -> Result<(), Status> {
    if status.code() == Code::PermissionDenied { Ok(()) } else { Err(status) }
}

/// Whether members take no transaction of so many operations.
fn is_too_long(status: &Status) -> bool {
    status.message() == "etcdserver: too many operations in txn request"
}
