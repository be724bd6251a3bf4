//! Performs writes once no other proxy owns the keys, after asking the owners to release them.

use std::time::Duration;

use http::HeaderMap;
use quorate_api::etcdserverpb::TxnRequest;
use quorate_api::etcdserverpb::request_op::Request;
use quorate_api::etcdserverpb::response_op::Response;
use tonic::{Code, Status};

use super::Leasing;
use super::guard::{self, Done, Guarded, LeasingKey, Outcome};
use super::members::{Store, is_refusal};
use super::owned_keys::Writing;
use crate::call::forwarded;
use crate::span::{Span, Spans, written};

/// The initial time to wait for other owners before their leasing keys are checked again. The time grows up to
/// [`OWNERS_WAIT_MAX`]. A waiter is notified earlier if the owners release the keys.
const OWNERS_WAIT: Duration = Duration::from_millis(100);
const OWNERS_WAIT_MAX: Duration = Duration::from_secs(2);

/// A reservation of keys, created by [`Leasing::reserve`]. While it exists, this proxy neither answers reads of the
/// keys nor acquires them. Dropping the reservation releases the keys that this proxy owns.
#[derive(Debug)]
pub(crate) struct Reservation<'a> {
    _writing: Writing<'a>,
}

impl<S: Store> Leasing<S> {
    /// Performs a write once no other proxy owns its keys. Returns `None` if the request writes nothing or its user has
    /// no access to the leasing keys. The caller then forwards the request like any other request.
    pub(crate) async fn write(
        &self,
        headers: &HeaderMap,
        request: Request,
    ) -> Result<Option<Response>, Status> {
        let spans = written(&request);
        if spans.is_empty() {
            return Ok(None);
        }
        let done = self.write_guarded(headers, request, &spans).await?;
        Ok(done.map(|(writing, done)| {
            writing.done(done.header.revision, done.refreshed);
            self.report_load();
            done.response
        }))
    }

    /// Reserves keys that a member is about to write: waits until no other proxy owns them. This proxy then answers no
    /// reads of them until the returned value is dropped. Returns `None` if the user has no access to the leasing keys,
    /// or if the span contains leasing keys. Locks and elections attach leases to their keys, so among the leasing keys
    /// their keys would look owned: a client would wait for its own lock, and ask for the release of an election's key by
    /// overwriting the value of the candidate.
    pub(crate) async fn reserve(
        &self,
        headers: &HeaderMap,
        span: Span,
    ) -> Result<Option<Reservation<'_>>, Status> {
        if self.names.touched(&span).is_some() {
            return Ok(None);
        }
        let empty = Request::RequestTxn(TxnRequest::default());
        let spans = Spans::new(vec![span]);
        let done = self.write_guarded(headers, empty, &spans).await?;
        Ok(done.map(|(writing, _)| Reservation { _writing: writing }))
    }

    /// Runs a guarded write once no other proxy owns the keys. Returns `None` if the user has no access to
    /// the leasing keys.
    async fn write_guarded(
        &self,
        headers: &HeaderMap,
        request: Request,
        spans: &Spans,
    ) -> Result<Option<(Writing<'_>, Done)>, Status> {
        let mut has_few_conditions = false;
        let mut wait = OWNERS_WAIT;
        loop {
            let writing = self.owned_keys.begin_writing(spans);
            let request = request.clone();
            let (asked, guarded) =
                Guarded::new(&self.names, request, spans, &writing.owned, has_few_conditions);
            let answer = match self.members.txn(forwarded(headers), asked).await {
                Ok(answer) => answer,
                Err(status) if is_refusal(&status) => {
                    writing.not_performed();
                    if is_too_long(&status) && !has_few_conditions {
                        has_few_conditions = true;
                        continue;
                    }
                    return forward_if_denied(status).map(|()| None);
                }
                // The outcome is unknown. Dropping the write releases the owned keys.
                Err(status) => return Err(status),
            };
            self.latest.see(answer.header.as_ref());
            match guarded.outcome(answer)? {
                Outcome::Done(done) => return Ok(Some((writing, done))),
                Outcome::Owned(found) => {
                    self.drop_lost_keys(writing, &found);
                    if let Err(status) = self.ask_owners(headers, found, wait).await {
                        return forward_if_denied(status).map(|()| None);
                    }
                    wait = (wait * 2).min(OWNERS_WAIT_MAX);
                }
            }
        }
    }

    /// Drops ownership of the keys whose leasing keys are missing or have a different creation revision.
    fn drop_lost_keys(&self, writing: Writing<'_>, found: &[LeasingKey]) {
        let owned = writing.owned.clone();
        writing.not_performed();
        for (key, made) in owned {
            let name = self.names.leasing_key(&key);
            let is_there = found.iter().any(|it| it.name == name && it.created == made);
            if !is_there {
                self.owned_keys.lose(&key, made + 1);
            }
        }
    }

    /// Asks the owners to delete these leasing keys, and waits a limited time for the deletions.
    async fn ask_owners(
        &self,
        headers: &HeaderMap,
        found: Vec<LeasingKey>,
        wait: Duration,
    ) -> Result<(), Status> {
        let own_lease = self.owned_keys.lease();
        let (own, others): (Vec<_>, Vec<_>) = found
            .into_iter()
            .filter(|key| key.lease != 0)
            .partition(|key| Some(key.lease) == own_lease);
        for own in guard::batches(&own) {
            let released: Vec<_> = own.iter().map(|it| (it.name.clone(), it.created)).collect();
            for (name, made) in &released {
                if let Some(key) = self.names.key(name) {
                    self.owned_keys.lose(&key, *made + 1);
                }
            }
            self.own_txn(guard::give_up(&released)).await?;
        }
        if others.is_empty() {
            return Ok(());
        }
        let waiting = self.deletion_waiters.watch(others.iter().map(|it| &it.name));
        let unasked: Vec<_> = others.into_iter().filter(|it| !it.is_revoked).collect();
        for unasked in guard::batches(&unasked) {
            self.members.txn(forwarded(headers), guard::revoke(unasked)).await?;
        }
        waiting.until_gone(wait).await;
        Ok(())
    }
}

/// Returns the status as an error, unless it means that the user has no access to leasing keys. In that case the write
/// is forwarded unguarded, and members check its permissions.
fn forward_if_denied(status: Status) -> Result<(), Status> {
    if status.code() == Code::PermissionDenied { Ok(()) } else { Err(status) }
}

/// Returns whether members refuse a transaction because it has too many operations.
fn is_too_long(status: &Status) -> bool {
    status.message() == "etcdserver: too many operations in txn request"
}
