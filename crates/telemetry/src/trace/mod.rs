//! Distributed tracing: which calls are followed, and the spans that are told of them, in OTLP's encoding.
//!
//! A call is followed ([`CallTrace`]) if whoever makes it follows it already, by what he says in `traceparent`, or, if
//! he says nothing, by lot ([`Sampling`]). Spans are made when what they tell of has ended, from times that were noted
//! meanwhile, and encoded at once: what waits to be sent is bytes, in one [queue](queue) with bounds.
//!
//! # Cost
//!
//! A call that is not followed costs its look into the head; a member that does not trace has no [`Tracer`].
//!
//! # Not here
//!
//! The way to the collector (`server::collector`), and what is worth a span: the call sites know.

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

/// What a whole is divided into when it is said how many traces are begun here.
const MILLION: u32 = 1_000_000;

/// How many of the calls are followed that nobody follows yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// The middle bits of a trace's id are below this.
    bound: u64,
}

impl Sampling {
    /// So many of a million; all of them from a million on.
    #[must_use]
    pub fn per_million(rate: u32) -> Self {
        let part = u128::from(rate.min(MILLION)) << 63;
        let bound = u64::try_from(part / u128::from(MILLION));
        Self { bound: bound.expect("a part of 2^63 fits 64 bits") }
    }

    /// Whether a trace of this id is followed. Every member, and every collector of this kind, says the same of it.
    fn takes(self, trace_id: &[u8; 16]) -> bool {
        let [_, _, _, _, _, _, _, _, low @ ..] = *trace_id;
        u64::from_be_bytes(low) >> 1 < self.bound
    }
}

/// Decides which calls are followed, and keeps what is told of them until it is sent.
#[derive(Debug)]
pub struct Tracer {
    sampling: Sampling,
    resource: Resource,
    queue: SpanQueue,
    metrics: TracingMetrics,
    /// What ids are drawn by.
    draws: AtomicU64,
}

impl Tracer {
    /// One that tells who it is by this resource.
    #[must_use]
    pub fn new(sampling: Sampling, resource: Resource, metrics: TracingMetrics) -> Self {
        // Hash maps are keyed by the system's chance.
        let seed = std::hash::RandomState::new().hash_one(0);
        Self {
            sampling,
            resource,
            queue: SpanQueue::default(),
            metrics,
            draws: AtomicU64::new(seed),
        }
    }

    /// Follows a call from now on, if it is to be followed, by what its head has as `traceparent` and `tracestate`.
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

    /// What waits to be sent, the oldest first and no more than a batch. It counts as waiting until it is dropped.
    pub fn take_batch(&self) -> Option<Batch<'_>> {
        self.queue.take(&self.resource)
    }

    /// The collector has taken all of a batch but so many.
    pub fn note_sent(&self, batch: Batch<'_>, refused: u64) {
        let refused = refused.min(batch.len() as u64);
        self.metrics.exported.add(batch.len() as u64 - refused);
        self.metrics.dropped.add(refused);
        self.metrics.waiting_bytes.add(-batch.bytes());
    }

    /// A batch is given up.
    pub fn note_given_up(&self, batch: Batch<'_>) {
        self.metrics.dropped.add(batch.len() as u64);
        self.metrics.waiting_bytes.add(-batch.bytes());
    }

    /// How many spans nobody will ever see.
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
        // The published generator's step: every number comes once before any comes again.
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        loop {
            let drawn = mix(self.draws.fetch_add(STEP, Ordering::Relaxed));
            // No id is zero.
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
