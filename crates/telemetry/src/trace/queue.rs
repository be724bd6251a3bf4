//! The queue of spans for the collector.
//!
//! # Bound
//!
//! The queue holds at most [`SPANS_QUEUED_MAX`] spans and [`SPAN_BYTES_QUEUED_MAX`] bytes, including a batch that is
//! being sent. Further spans are dropped, so that no call has to wait.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::encode::{self, Resource, Scope};

/// The maximum number of queued spans.
const SPANS_QUEUED_MAX: usize = 16_384;

/// The maximum size of all queued spans, in bytes.
const SPAN_BYTES_QUEUED_MAX: usize = 8 << 20;

/// The maximum number of spans in a batch.
const SPANS_OF_A_BATCH: usize = 512;

/// The queue of spans.
#[derive(Debug, Default)]
pub(super) struct SpanQueue {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(Scope, Vec<u8>)>,
    /// The number of spans that are waiting or being sent.
    count: usize,
    bytes: usize,
}

impl SpanQueue {
    /// Queues a span, or drops it if the queue is full.
    pub(super) fn push(&self, scope: Scope, span: Vec<u8>) -> bool {
        let mut state = self.state.lock();
        let bytes = state.bytes + span.len();
        if state.count == SPANS_QUEUED_MAX || bytes > SPAN_BYTES_QUEUED_MAX {
            return false;
        }
        (state.count, state.bytes) = (state.count + 1, bytes);
        state.waiting.push_back((scope, span));
        true
    }

    /// Takes the oldest spans for a request with this resource.
    pub(super) fn take(&self, resource: &Resource) -> Option<Batch<'_>> {
        let mut state = self.state.lock();
        let len = state.waiting.len().min(SPANS_OF_A_BATCH);
        let spans: Vec<_> = state.waiting.drain(..len).collect();
        drop(state);
        let bytes = spans.iter().map(|(_, span)| span.len()).sum();
        let request = (len > 0).then(|| encode::request(resource, &spans))?;
        Some(Batch { queue: self, len, bytes, request })
    }
}

/// A batch of spans that is being sent.
#[derive(Debug)]
pub struct Batch<'a> {
    queue: &'a SpanQueue,
    len: usize,
    bytes: usize,
    request: Vec<u8>,
}

impl Batch<'_> {
    /// Returns the number of spans.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the size of the spans in bytes.
    pub(super) fn bytes(&self) -> i64 {
        i64::try_from(self.bytes).unwrap_or(i64::MAX)
    }

    /// Returns the encoded `ExportTraceServiceRequest`.
    #[must_use]
    pub fn request(&self) -> &[u8] {
        &self.request
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        state.count -= self.len;
        state.bytes -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_beyond_the_queue_limits_are_dropped_until_queued_spans_are_sent() {
        let (queue, resource) = (SpanQueue::default(), Resource::new("s", ""));
        for _ in 0..SPANS_QUEUED_MAX {
            assert!(queue.push(Scope::Etcd, vec![0; 8]));
        }
        assert!(!queue.push(Scope::Etcd, vec![0; 8]));
        let batch = queue.take(&resource).unwrap();
        assert_eq!(batch.len(), SPANS_OF_A_BATCH);
        assert!(!queue.push(Scope::Etcd, vec![0; 8]), "the earlier span is not sent yet");
        drop(batch);
        for _ in 0..SPANS_OF_A_BATCH {
            assert!(queue.push(Scope::Etcd, vec![0; 8]));
        }
        while let Some(batch) = queue.take(&resource) {
            drop(batch);
        }
        assert_eq!(queue.state.lock().bytes, 0);
        assert!(queue.push(Scope::Stages, vec![0; SPAN_BYTES_QUEUED_MAX - 1]));
        assert!(!queue.push(Scope::Stages, vec![0; 2]));
        assert!(queue.push(Scope::Stages, vec![0; 1]));
    }
}
