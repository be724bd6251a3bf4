//! The statistics of a KV call for etcd's log line `request stats`.
//!
//! The service computes the statistics, but the call decides later, when the response is ready, whether the line is
//! logged. The service and the call run in the same poll on one thread, so the service stores the statistics in a
//! thread-local variable and the call takes them from there. The statistics are created only if the line will be
//! logged, so for a fast call, the only cost is one check.
//!
//! # Not here
//!
//! The log line (`observe`), the texts of requests (`quorate_requests::request_text`).

use std::cell::Cell;
use std::time::Instant;

use bytes::Bytes;
use prost::Message;
use quorate_api::etcdserverpb::{DeleteRangeResponse, PutResponse, RangeRequest, TxnResponse};
use quorate_api::etcdserverpb::{RangeResponse, TxnRequest};
use quorate_requests::{ServerInfo, request_text};
use quorate_telemetry::log;

thread_local! {
    static LEFT: Cell<Option<Box<RequestStats>>> = const { Cell::new(None) };
}

/// Statistics of a call, counted as in etcd; -1 means that a value is not counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestStats {
    pub(crate) requests: i64,
    pub(crate) request_bytes: i64,
    pub(crate) responses: i64,
    pub(crate) response_bytes: i64,
    pub(crate) text: String,
}

/// Returns the statistics of a call to a service other than KV.
impl Default for RequestStats {
    fn default() -> Self {
        let text = String::new();
        Self { requests: -1, request_bytes: -1, responses: -1, response_bytes: -1, text }
    }
}

/// Returns whether the line `request stats` will be logged for a call that began at `started` and ends now.
pub(crate) fn is_wanted(info: &ServerInfo, started: Instant) -> bool {
    log::enabled(log::Level::Debug) || started.elapsed() > info.limits().slow_unary
}

/// Stores the statistics for the call whose response this thread is about to return.
pub(crate) fn leave(stats: RequestStats) {
    LEFT.set(Some(Box::new(stats)));
}

/// Takes the statistics that were stored on this thread.
pub(crate) fn take() -> Option<RequestStats> {
    LEFT.take().map(|stats| *stats)
}

/// A response to a write.
pub(crate) trait WriteResponse: Message {
    /// Returns the `response count` that the log line reports for this write: the number of deleted keys for a delete,
    /// otherwise 0.
    fn responses(&self) -> i64 {
        0
    }

    /// Returns whether a transaction took its first branch; true for other writes.
    fn has_succeeded(&self) -> bool {
        true
    }
}

impl WriteResponse for PutResponse {}

impl WriteResponse for DeleteRangeResponse {
    fn responses(&self) -> i64 {
        self.deleted
    }
}

impl WriteResponse for TxnResponse {
    fn has_succeeded(&self) -> bool {
        self.succeeded
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl RequestStats {
    /// Returns the statistics of a range.
    pub(crate) fn of_range(request: &RangeRequest, response: Option<&RangeResponse>) -> Self {
        Self {
            requests: 0,
            request_bytes: count(request.encoded_len()),
            responses: response.map_or(0, |response| response.count),
            response_bytes: response.map_or(0, |response| count(response.encoded_len())),
            text: request_text::of_range(request),
        }
    }

    /// Returns the statistics of a write, from the data of its log entry. The data is empty if the write was not
    /// proposed.
    pub(crate) fn of_write(data: &Bytes, response: Option<&impl WriteResponse>) -> Self {
        let has_succeeded = response.is_some_and(WriteResponse::has_succeeded);
        let written = request_text::of_write(data, has_succeeded).unwrap_or_default();
        Self {
            requests: count(written.count),
            request_bytes: count(written.bytes),
            responses: response.map_or(0, WriteResponse::responses),
            response_bytes: response.map_or(0, |response| count(response.encoded_len())),
            text: written.text,
        }
    }

    /// Returns the statistics of a read-only transaction.
    pub(crate) fn of_txn(request: &TxnRequest, response: Option<&TxnResponse>) -> Self {
        let has_succeeded = response.is_some_and(|response| response.succeeded);
        let done = if has_succeeded { &request.success } else { &request.failure };
        Self {
            requests: count(done.len()),
            request_bytes: done.iter().map(|operation| count(operation.encoded_len())).sum(),
            responses: 0,
            response_bytes: response.map_or(0, |response| count(response.encoded_len())),
            text: request_text::of_txn(request),
        }
    }
}
