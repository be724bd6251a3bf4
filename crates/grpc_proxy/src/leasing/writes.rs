//! Writes: performed on condition that no other proxy owns the keys, after asking the owners to release them.

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

/// How long to wait for other owners before checking again: the first and the longest. A waiter is notified
/// earlier if the owners release the keys.
const PATIENCE: Duration = Duration::from_millis(100);
const PATIENCE_MAX: Duration = Duration::from_secs(2);

/// Prevents this proxy from answering reads of the keys, and from acquiring them, while it exists. Dropping it
/// releases the keys that this proxy owns. [`Leasing::make_way`] creates it.
#[derive(Debug)]
pub(crate) struct Way<'a> {
    _writing: Writing<'a>,
}

impl<S: Store> Leasing<S> {
    /// Performs a write once no other proxy owns its keys. Returns `None` if the request writes nothing, or
    /// if its user has no access to the leasing keys. The request is then forwarded like any other.
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

    /// Makes sure that no other proxy owns these keys, which a member is about to write, and that this proxy
    /// does not answer reads of them until the returned value is dropped. Returns `None` if members refuse this.
    pub(crate) async fn make_way(&self, headers: &HeaderMap, span: Span) -> Option<Way<'_>> {
        let nothing = Request::RequestTxn(TxnRequest::default());
        let spans = [span];
        // If members refuse this request, the client's own request is sent all the same, and its answer has the
        // reason.
        let (writing, _) = self.carry_out(headers, nothing, &spans).await.ok().flatten()?;
        Some(Way { _writing: writing })
    }

    /// Runs a guarded write once no other proxy owns the keys. Returns `None` if the user has no access to
    /// the leasing keys.
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
                // The outcome is unknown, so dropping the write releases the owned keys.
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

    /// Drops ownership of the keys whose leasing keys were not as expected.
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

    /// Asks the owners to delete these leasing keys, and waits for a limited time.
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

/// A write whose user has no access to leasing keys is forwarded unguarded: members check its permissions.
fn may_go_without(status: Status) -> Result<(), Status> {
    if status.code() == Code::PermissionDenied { Ok(()) } else { Err(status) }
}

/// Returns whether members refuse a transaction because it has too many operations.
fn is_too_long(status: &Status) -> bool {
    status.message() == "etcdserver: too many operations in txn request"
}
