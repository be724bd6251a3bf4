//! Distributed tracing: the selection of traced calls, and their spans in OTLP encoding.
//!
//! A call is traced ([`CallTrace`]) if its `traceparent` header states that its caller traces it. Without this header,
//! calls are sampled at random ([`Sampling`]). A span is created from recorded times when its work has ended, and is
//! encoded immediately. One bounded [queue](queue) holds the encoded spans until they are sent.
//!
//! # Cost
//!
//! A call that is not traced costs one check of its headers and, without `traceparent`, one random id. A member
//! without tracing has no [`Tracer`].
//!
//! # Not here
//!
//! Sending spans to the collector (`server::collector`), and the choice of work that has spans, which the call sites
//! make.

mod call;
mod context;
mod encode;
mod queue;

#[cfg(test)]
mod tests;

use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quorate_seeded_random::mix;

pub use self::call::{CallTrace, Operation, SpanEnd, SpanId};
use self::context::Parent;
pub use self::encode::{Attribute, AttributeValue, Resource, refused_spans};
pub use self::queue::Batch;
use self::queue::SpanQueue;
use crate::metrics::TracingMetrics;

/// The denominator of the sampling rate.
const MILLION: u32 = 1_000_000;

/// The sampling rate of calls without a `traceparent` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// The sampling bound. A trace is sampled if the number in the last 8 bytes of its id, without the lowest bit, is
    /// below the bound.
    bound: u64,
}

impl Sampling {
    /// Creates a sampling rule for this many calls per million.
    #[must_use]
    pub fn per_million(rate: u32) -> Self {
        let part = u128::from(rate.min(MILLION)) << 63;
        let bound = u64::try_from(part / u128::from(MILLION));
        Self { bound: bound.expect("a part of 2^63 fits in 64 bits") }
    }

    /// Returns whether a trace with this id is sampled. All members and collectors with the same rule make the same
    /// decision.
    fn takes(self, trace_id: &[u8; 16]) -> bool {
        let [_, _, _, _, _, _, _, _, low @ ..] = *trace_id;
        u64::from_be_bytes(low) >> 1 < self.bound
    }
}

/// Selects the calls to trace, and queues their spans until they are sent.
#[derive(Debug)]
pub struct Tracer {
    sampling: Sampling,
    resource: Resource,
    queue: SpanQueue,
    metrics: TracingMetrics,
    /// The state of the id generator.
    draws: AtomicU64,
}

impl Tracer {
    /// Creates a tracer whose spans have this resource.
    #[must_use]
    pub fn new(sampling: Sampling, resource: Resource, metrics: TracingMetrics) -> Self {
        // The seed is drawn from the standard library's random state.
        let seed = std::hash::RandomState::new().hash_one(0);
        Self {
            sampling,
            resource,
            queue: SpanQueue::default(),
            metrics,
            draws: AtomicU64::new(seed),
        }
    }

    /// Starts tracing a call if its headers `traceparent` and `tracestate`, or the sampling rule, select it.
    #[must_use]
    pub fn follow(
        self: &Arc<Self>,
        parent: Option<&[u8]>,
        state: Option<&[u8]>,
    ) -> Option<CallTrace> {
        let parent = match parent.and_then(Parent::read) {
            Some(parent) if !parent.is_sampled => return None,
            parent => parent,
        };
        let trace_id = match &parent {
            Some(parent) => parent.trace_id,
            None => {
                let drawn = self.draw_trace_id();
                if !self.sampling.takes(&drawn) {
                    return None;
                }
                drawn
            }
        };
        let state = parent.as_ref().and(state).map_or_else(Box::default, context::kept_state);
        let parent = parent.map(|parent| parent.span_id);
        Some(CallTrace::begin(Arc::clone(self), trace_id, (parent, state)))
    }

    /// Returns the next batch of queued spans, oldest first. The spans count as queued until the batch is dropped.
    pub fn take_batch(&self) -> Option<Batch<'_>> {
        self.queue.take(&self.resource)
    }

    /// Records that a batch was sent, and how many of its spans the collector refused.
    pub fn note_sent(&self, batch: Batch<'_>, refused: u64) {
        let refused = refused.min(batch.len() as u64);
        self.metrics.exported.add(batch.len() as u64 - refused);
        self.metrics.dropped.add(refused);
        self.metrics.waiting_bytes.add(-batch.bytes());
    }

    /// Records that a batch was dropped.
    pub fn note_given_up(&self, batch: Batch<'_>) {
        self.metrics.dropped.add(batch.len() as u64);
        self.metrics.waiting_bytes.add(-batch.bytes());
    }

    /// Returns how many spans were dropped by this process or refused by the collector.
    #[must_use]
    pub fn dropped_count(&self) -> u64 {
        self.metrics.dropped.value()
    }

    fn push(&self, scope: encode::Scope, span: Vec<u8>) {
        let bytes = i64::try_from(span.len()).unwrap_or(i64::MAX);
        if self.queue.push(scope, span) {
            self.metrics.waiting_bytes.add(bytes);
        } else {
            self.metrics.dropped.inc();
        }
    }

    fn draw(&self) -> u64 {
        // The step of splitmix64. With this step, every number occurs once before any number repeats.
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        loop {
            let drawn = mix(self.draws.fetch_add(STEP, Ordering::Relaxed));
            // An id is never zero.
            if drawn != 0 {
                return drawn;
            }
        }
    }

    fn draw_trace_id(&self) -> [u8; 16] {
        let (high, low) = (self.draw(), self.draw());
        (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
    }
}
