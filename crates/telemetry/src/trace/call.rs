//! A traced call: its own span and the spans of its operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::Tracer;
use super::encode::{Attribute, Kind, Scope, Span};

/// The id of a span, which is never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId(u64);

/// The parts of a call's own span that are known only when the call ends.
#[derive(Debug)]
pub struct SpanEnd<'a> {
    /// The name of the call.
    pub name: &'a str,
    /// The attributes of the span.
    pub attributes: &'a [Attribute],
    /// The error text, if the server caused the failure.
    pub error: Option<&'a str>,
}

/// A traced call. All methods may be called from any thread.
#[derive(Debug)]
pub struct CallTrace {
    tracer: Arc<Tracer>,
    trace_id: [u8; 16],
    id: SpanId,
    /// The id of the caller's span.
    parent: Option<[u8; 8]>,
    state: Box<str>,
    /// The start time of the call on the monotonic clock.
    started: Instant,
    /// The start time of the call on the wall clock, in nanoseconds since 1970.
    started_nanos: u64,
    /// The id of the innermost operation in progress; 0 if no operation is in progress.
    operation: AtomicU64,
    notes: Mutex<Notes>,
}

/// Events that do not belong to a span yet.
#[derive(Debug, Default)]
struct Notes {
    /// The time at which the response was ready.
    responded: Option<Instant>,
    /// Events that are not in a span yet. They become part of the next operation that ends, or of the call if no
    /// further operation ends.
    events: Vec<(&'static str, u64)>,
}

/// The maximum number of events in a span. Further events are dropped, because a stream may be open for days.
const EVENTS_MAX: usize = 16;

impl CallTrace {
    pub(super) fn begin(
        tracer: Arc<Tracer>,
        trace_id: [u8; 16],
        (parent, state): (Option<[u8; 8]>, Box<str>),
    ) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let id = SpanId(tracer.draw());
        Self {
            tracer,
            trace_id,
            id,
            parent,
            state,
            started: Instant::now(),
            started_nanos: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
            operation: AtomicU64::new(0),
            notes: Mutex::default(),
        }
    }

    /// Returns the id of the span that contains the current work.
    #[must_use]
    pub fn current(&self) -> SpanId {
        match self.operation.load(Ordering::Relaxed) {
            0 => self.id,
            id => SpanId(id),
        }
    }

    /// Starts an operation within the current operation. The new operation ends when it is dropped.
    #[must_use]
    pub fn operation(
        self: &Arc<Self>,
        name: &'static str,
        attributes: Vec<Attribute>,
    ) -> Operation {
        let operation = self.begin_operation(self.current(), name, attributes);
        self.operation.store(operation.id.0, Ordering::Relaxed);
        operation
    }

    /// Starts an operation that runs concurrently with other operations of the call. The new operation receives no
    /// events.
    #[must_use]
    pub fn operation_beside(
        self: &Arc<Self>,
        name: &'static str,
        attributes: Vec<Attribute>,
    ) -> Operation {
        self.begin_operation(self.id, name, attributes)
    }

    fn begin_operation(
        self: &Arc<Self>,
        parent: SpanId,
        name: &'static str,
        attributes: Vec<Attribute>,
    ) -> Operation {
        let (id, started) = (SpanId(self.tracer.draw()), Instant::now());
        Operation { trace: Arc::clone(self), id, parent, name, attributes, started }
    }

    /// Records an event for the current operation.
    pub fn note_event(&self, name: &'static str, at: Instant) {
        let nanos = self.nanos(at);
        let events = &mut self.notes.lock().events;
        if events.len() < EVENTS_MAX {
            events.push((name, nanos));
        }
    }

    /// Adds the span of a stage that has ended, as a child of `parent`.
    pub fn stage(&self, parent: SpanId, name: &'static str, start: Instant, end: Instant) {
        let span = Span {
            trace_id: &self.trace_id,
            id: self.tracer.draw().to_be_bytes(),
            parent: Some(parent.0.to_be_bytes()),
            parent_is_remote: false,
            state: &self.state,
            name,
            kind: Kind::Internal,
            start_nanos: self.nanos(start),
            end_nanos: self.nanos(end.max(start)),
            attributes: &[],
            events: &[],
            error: None,
        };
        self.tracer.push(Scope::Stages, span.encode());
    }

    /// Records that the response is ready to be encoded and sent.
    pub fn note_response(&self) {
        self.notes.lock().responded = Some(Instant::now());
    }

    /// Adds the span of the call, which ends now.
    pub fn end(&self, end: &SpanEnd<'_>) {
        let now = Instant::now();
        let Notes { responded, events } = std::mem::take(&mut *self.notes.lock());
        if let Some(responded) = responded {
            self.stage(self.id, "encode", responded, now);
        }
        let span = Span {
            trace_id: &self.trace_id,
            id: self.id.0.to_be_bytes(),
            parent: self.parent,
            parent_is_remote: self.parent.is_some(),
            state: &self.state,
            name: end.name,
            kind: Kind::Server,
            start_nanos: self.started_nanos,
            end_nanos: self.nanos(now),
            attributes: end.attributes,
            events: &events,
            error: end.error,
        };
        self.tracer.push(Scope::Etcd, span.encode());
    }

    /// Converts an instant to wall-clock time in nanoseconds since 1970, relative to the start of the call.
    fn nanos(&self, at: Instant) -> u64 {
        let nanos = |span: std::time::Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let after = nanos(at.saturating_duration_since(self.started));
        let before = nanos(self.started.saturating_duration_since(at));
        self.started_nanos.saturating_add(after).saturating_sub(before)
    }
}

/// An operation in progress. Dropping the operation adds its span.
#[derive(Debug)]
pub struct Operation {
    trace: Arc<CallTrace>,
    id: SpanId,
    parent: SpanId,
    name: &'static str,
    attributes: Vec<Attribute>,
    started: Instant,
}

impl Drop for Operation {
    fn drop(&mut self) {
        let trace = &self.trace;
        let outer = if self.parent == trace.id { 0 } else { self.parent.0 };
        let (own, order) = (self.id.0, Ordering::Relaxed);
        // If the operation is not the current operation, it ran concurrently with other operations, to which the events
        // belong.
        let is_current = trace.operation.compare_exchange(own, outer, order, order).is_ok();
        let events = &mut trace.notes.lock().events;
        let events = if is_current { std::mem::take(events) } else { Vec::new() };
        let span = Span {
            trace_id: &trace.trace_id,
            id: self.id.0.to_be_bytes(),
            parent: Some(self.parent.0.to_be_bytes()),
            parent_is_remote: false,
            state: &trace.state,
            name: self.name,
            kind: Kind::Internal,
            start_nanos: trace.nanos(self.started),
            end_nanos: trace.nanos(Instant::now()),
            attributes: &self.attributes,
            events: &events,
            error: None,
        };
        trace.tracer.push(Scope::Etcd, span.encode());
    }
}
