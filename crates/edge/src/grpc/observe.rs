//! Counting calls: started, messages, bytes, ended with which code.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::HeaderMap;
use tonic::Code;

use super::body::CallObserver;
use super::head::metadata;
use crate::methods::{Kind, SERVICES};
use quorate_member::Profile;
use quorate_member::admission::CallRoom;
use quorate_telemetry::log;
use quorate_telemetry::metrics::Metrics;

/// Head of a message on the wire, which is not counted as a message's bytes.
const MESSAGE_HEAD_BYTES: usize = 5;

/// One call's counts.
#[derive(Debug)]
pub struct CallStats {
    metrics: Arc<Metrics>,
    service: usize,
    method: usize,
    pub(super) kind: Kind,
    started: Instant,
    /// Taking longer than this is worth a warning.
    slow: Duration,
    /// Whether the head of the message has been sent, where there is only one.
    past_head: bool,
    /// `None` where there was none.
    room: Option<Arc<CallRoom>>,
}

impl CallStats {
    pub(super) fn start(profile: &Profile, service: usize, method: usize, kind: Kind) -> Self {
        let metrics = Arc::clone(profile.metrics());
        let series = metrics.grpc.at(service, method);
        series.started.inc();
        if kind == Kind::Unary {
            series.received.inc();
        }
        Self {
            metrics,
            service,
            method,
            kind,
            started: Instant::now(),
            slow: profile.limits().slow_unary,
            past_head: false,
            room: None,
        }
    }

    /// The call has this place, until nothing of it is left.
    pub(super) fn in_room(mut self, room: Arc<CallRoom>) -> Self {
        self.room = Some(room);
        self
    }

    /// Counts the call by what the client says it is, unless it was turned away before.
    pub(super) fn count_client(&self, headers: &HeaderMap) {
        let call_type = if self.kind == Kind::Unary { "unary" } else { "stream" };
        let version = metadata(headers, "client-api-version", "unknown");
        self.metrics.server.client_requests.with(&[version, call_type]).inc();
    }

    /// The response is there and is about to be sent.
    pub(super) fn responded(&self) {
        if self.kind == Kind::Unary
            && let Some(room) = &self.room
        {
            room.release();
        }
        let took = self.started.elapsed();
        if self.kind == Kind::Unary && (took > self.slow || log::enabled(log::Level::Debug)) {
            self.log_stats(took);
        }
    }

    #[cold]
    fn log_stats(&self, took: Duration) {
        let service = &SERVICES[self.service];
        let method = format!("/{}/{}", service.name, service.methods[self.method].name);
        let started = SystemTime::now() - took;
        if took > self.slow {
            log::warn!(
                "request stats",
                "start time" = started,
                "time spent" = took,
                "response type" = method
            );
        } else {
            log::debug!(
                "request stats",
                "start time" = started,
                "time spent" = took,
                "response type" = method
            );
        }
    }
}

impl CallObserver for CallStats {
    fn sent(&mut self, bytes: usize) {
        let is_first = !std::mem::replace(&mut self.past_head, self.kind == Kind::Unary);
        let bytes = if is_first { bytes.saturating_sub(MESSAGE_HEAD_BYTES) } else { bytes };
        self.metrics.network.client_sent_bytes.add(bytes as u64);
        if self.kind != Kind::Unary {
            self.metrics.grpc.at(self.service, self.method).sent.inc();
        }
    }

    fn ended(&mut self, code: Code) {
        let series = self.metrics.grpc.at(self.service, self.method);
        if self.kind == Kind::Unary {
            series.sent.inc();
        }
        series.handled(code as i32, self.started.elapsed());
    }
}
