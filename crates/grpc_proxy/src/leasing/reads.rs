//! Answers reads of owned keys, and reads with which the proxy acquires a key.

use http::HeaderMap;
use quorate_api::etcdserverpb::response_op::Response;
use quorate_api::etcdserverpb::{RangeRequest, RangeResponse, TxnRequest, TxnResponse};

use super::guard::{self, leasing_key};
use super::members::Store;
use super::owned_keys::{Acquisition, View};
use super::{Leasing, answer, latest};
use crate::call::{Caller, forwarded};

impl<S: Store> Leasing<S> {
    /// Answers a range request from an owned key, or with the result of the transaction that tries to acquire the key.
    /// Returns `None` if the request must be forwarded to a member.
    pub(crate) async fn range(
        &self,
        headers: &HeaderMap,
        request: &RangeRequest,
    ) -> Option<RangeResponse> {
        if !Caller::of(headers).is_anonymous() || !answer::is_of_one_record(request) {
            return None;
        }
        // The header must be read before the records, because a later header could claim a revision at which the
        // records are not known to be current.
        let header = self.latest.header();
        let held = self.owned_keys.read(|| self.members.now(), |view| view.known(&request.key));
        if let Some((known, as_of)) = held {
            self.metrics.owned_reads.inc();
            let header = latest::at_least(header, as_of);
            return Some(answer::range(request, known.as_ref(), header));
        }
        let is_leasing_key = self.names.key(&request.key).is_some();
        if request.serializable || is_leasing_key {
            return None;
        }
        let acquisition = self.owned_keys.begin_acquiring(&request.key, self.members.now())?;
        self.acquire(acquisition, headers, request).await
    }

    /// Tries to acquire a key. Returns the response with the key's record, even if the key could not be acquired, or
    /// `None` if the transaction failed.
    async fn acquire(
        &self,
        acquisition: Acquisition<'_>,
        headers: &HeaderMap,
        request: &RangeRequest,
    ) -> Option<RangeResponse> {
        let asked = guard::acquire(&self.names, &acquisition.key, acquisition.lease);
        let Ok(answer) = self.members.txn(forwarded(headers), asked).await else {
            // The caller forwards the request, so that the client receives a member's error with the reason why the key
            // cannot be read.
            acquisition.decline(self.members.now());
            return None;
        };
        let header = answer.header.unwrap_or_default();
        self.latest.see(Some(&header));
        let mut ranges = answer.responses.into_iter().map(|it| match it.response {
            Some(Response::ResponseRange(range)) => range.kvs.into_iter().next(),
            _ => None,
        });
        let (known, other) = (ranges.next()?, ranges.next().flatten());
        if answer.succeeded {
            acquisition.succeed(header.revision, known.clone(), self.members.now());
            self.report_load();
        } else {
            let own = other.map(|it| leasing_key(&it)).filter(|it| it.lease == acquisition.lease);
            if let Some(own) = own {
                // The leasing key is left over from an earlier attempt whose response was lost.
                self.owned_keys.give_up(&acquisition.key, own.created, self.members.now());
            }
            acquisition.decline(self.members.now());
        }
        Some(answer::range(request, known.as_ref(), header))
    }

    /// Answers a read-only transaction, if all its keys are owned.
    pub(crate) fn txn(&self, headers: &HeaderMap, request: &TxnRequest) -> Option<TxnResponse> {
        if !Caller::of(headers).is_anonymous() || !answer::only_reads_records(request) {
            return None;
        }
        let header = self.latest.header();
        let read = |view: &mut View<'_>| answer::txn(request, &header, |key| view.known(key));
        let (mut answer, as_of) = self.owned_keys.read(|| self.members.now(), read)?;
        self.metrics.owned_reads.inc();
        answer::raise(&mut answer, as_of);
        Some(answer)
    }
}
