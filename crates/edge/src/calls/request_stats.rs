//! What a call of the KV service asked for and was answered, for etcd's line `request stats`.
//!
//! Only the service knows it, and only the call knows whether the line is written, once the answer is there. Both
//! happen in one poll, on one thread, and that is how it is handed over: the service leaves it, the call takes it. It is
//! made only where a line will be written, so that a call that is in time pays for the question alone.
//!
//! # Not here
//!
//! The line (`observe`), and the texts of requests (`quorate_member::request_text`).

use std::cell::Cell;
use std::time::Instant;

use bytes::Bytes;
use prost::Message;
use quorate_api::etcdserverpb::{DeleteRangeResponse, PutResponse, RangeRequest, TxnResponse};
use quorate_api::etcdserverpb::{RangeResponse, TxnRequest};
use quorate_member::{Profile, request_text};
use quorate_telemetry::log;

thread_local! {
    static LEFT: Cell<Option<Box<RequestStats>>> = const { Cell::new(None) };
}

/// What is told of a call, as etcd counts it; -1 for what is not counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestStats {
    pub(crate) requests: i64,
    pub(crate) request_bytes: i64,
    pub(crate) responses: i64,
    pub(crate) response_bytes: i64,
    pub(crate) text: String,
}

/// Of a call that is none of the KV service's.
impl Default for RequestStats {
    fn default() -> Self {
        let text = String::new();
        Self { requests: -1, request_bytes: -1, responses: -1, response_bytes: -1, text }
    }
}

/// Whether a line will be written of a call that began then and ends now.
pub(crate) fn is_wanted(profile: &Profile, started: Instant) -> bool {
    log::enabled(log::Level::Debug) || started.elapsed() > profile.limits().slow_unary
}

/// Leaves it for the call whose answer this thread is about to give.
pub(crate) fn leave(stats: RequestStats) {
    LEFT.set(Some(Box::new(stats)));
}

/// Takes what was left on this thread.
pub(crate) fn take() -> Option<RequestStats> {
    LEFT.take().map(|stats| *stats)
}

/// An answer to a write.
pub(crate) trait WriteResponse: Message {
    /// How many answers it counts for.
    fn responses(&self) -> i64 {
        0
    }

    /// Whether the first branch was taken, where there are branches.
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
    /// Of a range.
    pub(crate) fn of_range(request: &RangeRequest, response: Option<&RangeResponse>) -> Self {
        Self {
            requests: 0,
            request_bytes: count(request.encoded_len()),
            responses: response.map_or(0, |response| response.count),
            response_bytes: response.map_or(0, |response| count(response.encoded_len())),
            text: request_text::of_range(request),
        }
    }

    /// Of a write, by the data of its log entry, which is empty if it did not come to that.
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

    /// Of a transaction that only reads.
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
