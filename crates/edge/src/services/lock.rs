//! The Lock service: the contender with the oldest key under a name holds the lock until the key is deleted.
//!
//! # Not here
//!
//! The keys and the order of the contenders, and the wait for a contender's turn (`recipes`).

use std::sync::Arc;

use bytes::Bytes;
use quorate_api::etcdserverpb::{RangeRequest, RangeResponse};
use quorate_api::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};
use tonic::{Response, Status};

use super::recipes::{Entered, Recipes, Undo, Written, enter, revision};
use crate::calls::authorized::Authorized;
use crate::calls::contended_name::Name;
use quorate_requests::access::Client;

/// The Lock service.
#[derive(Debug)]
pub(crate) struct LockService {
    recipes: Arc<Recipes>,
}

impl LockService {
    pub(crate) const fn new(recipes: Arc<Recipes>) -> Self {
        Self { recipes }
    }

    /// Waits until the key is the oldest one under the name, then reads the key again.
    async fn wait(
        &self,
        client: &Client,
        name: &Name,
        key: &Bytes,
        created: i64,
    ) -> Result<RangeResponse, Status> {
        self.recipes.wait_for_turn(client, name, created).await?;
        let own = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        self.recipes.range(client, &own).await
    }
}

/// The methods of the service, which `guarded` calls.
impl LockService {
    pub(crate) async fn lock(
        &self,
        request: Authorized<LockRequest>,
    ) -> Result<Response<LockResponse>, Status> {
        let (client, LockRequest { name, lease }) = request.into_parts();
        let name = Name::new(&name);
        let permit = self.recipes.take_permit(name.prefix.len())?;
        let lease = self.recipes.lease(&client, lease).await?;
        let key = name.key(lease);
        self.recipes.check_name(&client, &name)?;
        let (recipes, contender, own) = (Arc::clone(&self.recipes), client.clone(), key.clone());
        let write = async move {
            let answer = recipes.txn(&contender, enter(&own, Bytes::new(), lease)).await?;
            let Entered { created, value } = Entered::read(&answer);
            let undo = Undo::Delete(own);
            Ok(Written { result: (answer, created), undo, is_new: value.is_none() })
        };
        let ((answer, created), withdrawal) = self.recipes.enter(&client, permit, write).await?;
        if self.recipes.is_first_at(&name, created, revision(&answer)).await {
            withdrawal.forget();
            return Ok(Response::new(LockResponse { header: answer.header, key }));
        }
        match self.wait(&client, &name, &key, created).await {
            Ok(own) => {
                withdrawal.forget();
                if own.kvs.is_empty() {
                    return Err(Status::unknown("mutex: session is expired"));
                }
                Ok(Response::new(LockResponse { header: own.header, key }))
            }
            Err(why) => {
                withdrawal.carry_out(&why).await;
                Err(why)
            }
        }
    }

    pub(crate) async fn unlock(
        &self,
        request: Authorized<UnlockRequest>,
    ) -> Result<Response<UnlockResponse>, Status> {
        let (client, UnlockRequest { key }) = request.into_parts();
        let deleted = self.recipes.delete(&client, key).await?;
        Ok(Response::new(UnlockResponse { header: deleted.header }))
    }
}
