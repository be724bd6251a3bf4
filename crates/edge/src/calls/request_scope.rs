//! Collects all records of one KV request in one value: its span, its duration, the log line of a slow read, and the
//! request statistics.
//!
//! The service creates a [`RequestScope`] when it receives the decoded request, begins the span when the request has
//! passed its checks, and ends the scope with the response. The service states the kind, the keys and the outcome of
//! the request once, and the scope passes them to every record that needs them.
//!
//! # Cost
//!
//! A scope allocates memory only if the call is traced, the request is slow, or debug lines are logged.
//!
//! # Not here
//!
//! The metrics, the trace and the audit line of the whole call (`observe`); the keys in the audit log, which
//! `authorized` records for the requests of all services.

use std::time::Instant;

use bytes::Bytes;
use quorate_api::etcdserverpb::response_op::Response as OpResponse;
use quorate_api::etcdserverpb::{RangeRequest, RangeResponse, TxnRequest, TxnResponse};
use quorate_requests::access::Client;
use quorate_requests::slow::{self, ReadKind, ReadTimes};
use quorate_requests::{RequestError, ServerInfo, request_text};
use quorate_telemetry::metrics::RequestKind;
use quorate_telemetry::trace::Operation;
use tonic::Status;

use super::large_reply::{Large, Reply};
use super::request_stats::{self, RequestStats, WriteResponse};
use super::spans::{self, ReadTxn, Spanned};

/// The records of one request while it is executed.
#[derive(Debug)]
pub(crate) struct RequestScope<'a> {
    info: &'a ServerInfo,
    client: &'a Client,
    /// The time at which the service received the request; `None` for requests made by locks and elections, which have
    /// no request statistics.
    received: Option<Instant>,
    /// The span, if the call is traced.
    operation: Option<Operation>,
    /// The times of a read that has passed its checks.
    times: Option<ReadTimes>,
    /// Log entry of a write. The statistics of the write are read from it.
    entry: Bytes,
}

impl<'a> RequestScope<'a> {
    /// Starts observing a call to the KV service.
    pub(crate) fn of_call(info: &'a ServerInfo, client: &'a Client) -> Self {
        Self { received: Some(Instant::now()), ..Self::within_call(info, client) }
    }

    /// Starts observing a request made on behalf of a call to another service.
    pub(crate) const fn within_call(info: &'a ServerInfo, client: &'a Client) -> Self {
        let entry = Bytes::new();
        Self { info, client, received: None, operation: None, times: None, entry }
    }

    /// Returns the client that sent the request.
    pub(crate) const fn client(&self) -> &'a Client {
        self.client
    }

    /// Begins the span of a request that has passed its checks.
    pub(crate) fn begin(&mut self, request: &impl Spanned) {
        self.operation = spans::begin(self.client, request);
    }

    /// Begins the span and the times of a read that has passed its checks.
    pub(crate) fn begin_read(&mut self, request: &impl Read) {
        self.begin(request);
        self.times = Some(ReadTimes::start());
    }

    /// Records that the read has passed its barrier.
    pub(crate) fn note_barrier(&mut self) {
        if let Some(times) = &mut self.times {
            times.note_barrier();
        }
    }

    /// Returns the buffer in which the proposer stores the log entry of a write. The statistics are read from it.
    pub(crate) const fn entry(&mut self) -> &mut Bytes {
        &mut self.entry
    }

    /// Returns the span, for a stream that outlives the scope.
    pub(crate) fn into_operation(self) -> Option<Operation> {
        self.operation
    }

    /// Records a completed read: its duration, its trace, its log line if it was slow, and its statistics.
    pub(crate) fn end_read<R: Read>(
        self,
        request: &R,
        result: &Result<Reply<R::Response>, RequestError>,
    ) {
        if let Some(times) = self.times {
            let took = times.elapsed();
            let durations = &self.info.metrics().server.request_duration;
            durations.observe(R::SERIES, result.is_ok(), took);
            times.tell(self.client, took);
            slow::note_read(self.info, (R::LINE, times), took, || {
                (request.text(), result.as_ref().map(R::response_text))
            });
        }
        self.leave_stats(|| request.stats(result.as_ref().ok().map(Reply::message)));
    }

    /// Records the statistics of a completed write. The proposer has already recorded the duration of the write.
    pub(crate) fn end_write(self, result: &Result<impl WriteResponse, Status>) {
        self.leave_stats(|| RequestStats::of_write(&self.entry, result.as_ref().ok()));
    }

    fn leave_stats(&self, stats: impl FnOnce() -> RequestStats) {
        if let Some(received) = self.received
            && request_stats::is_wanted(self.info, received)
        {
            request_stats::leave(stats());
        }
    }
}

/// A read request.
pub(crate) trait Read: Spanned {
    /// The response to the request.
    type Response: Large;

    /// The kind of read, as named in the log line of a slow request.
    const LINE: ReadKind;
    /// The metric series for the request's duration.
    const SERIES: RequestKind;

    /// Returns the request as text for the log.
    fn text(&self) -> String;

    /// Returns the response as text for the log.
    fn response_text(reply: &Reply<Self::Response>) -> String;

    /// Returns the request statistics.
    fn stats(&self, response: Option<&Self::Response>) -> RequestStats;
}

impl Read for RangeRequest {
    type Response = RangeResponse;

    const LINE: ReadKind = ReadKind::Range;
    const SERIES: RequestKind = RequestKind::Range;

    fn text(&self) -> String {
        request_text::of_range(self)
    }

    fn response_text(reply: &Reply<RangeResponse>) -> String {
        let (count, bytes) = (reply.message().kvs.len(), reply.encoded_len());
        format!("range_response_count:{count} size:{bytes}")
    }

    fn stats(&self, response: Option<&RangeResponse>) -> RequestStats {
        RequestStats::of_range(self, response)
    }
}

impl<T: AsRef<TxnRequest>> Read for ReadTxn<T> {
    type Response = TxnResponse;

    const LINE: ReadKind = ReadKind::Txn;
    const SERIES: RequestKind = RequestKind::ReadonlyTxn;

    fn text(&self) -> String {
        request_text::of_txn(self.0.as_ref())
    }

    fn response_text(reply: &Reply<TxnResponse>) -> String {
        let counts = reply.message().responses.iter().map(|response| match &response.response {
            Some(OpResponse::ResponseRange(range)) => {
                format!("range_response_count:{}", range.kvs.len())
            }
            _ => "range_response:nil".to_owned(),
        });
        let counts = counts.collect::<Vec<_>>().join(" ");
        format!("responses:<{counts}> size:{}", reply.encoded_len())
    }

    fn stats(&self, response: Option<&TxnResponse>) -> RequestStats {
        RequestStats::of_txn(self.0.as_ref(), response)
    }
}
