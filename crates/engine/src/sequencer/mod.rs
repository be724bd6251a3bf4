//! The sequencer: the one server that orders requests and commits them.
//!
//! A term of the sequencer runs several tasks. A request passes through two of them, and a third task
//! then writes the changes to the tables:
//!
//! ```text
//! requests ─► applying: load keys, State::apply ─► committing: append to the log, publish, answer
//!                                                        └─► tail ─► writing: tables
//! ```
//!
//! The waiting requests form the next batch, up to the limits on a batch. The next batch is applied while the previous
//! batch is being committed.
//!
//! # Invariants
//!
//! * The statement that appends a batch locks the row with the current term, and appends nothing if
//!   that term is not the term of the server. A server writes its new term to that row before it
//!   becomes the sequencer. From then on, its predecessor can append no more batches, so the log
//!   contains everything that the predecessor has committed. This mechanism does not depend on a clock.
//! * The same statement appends nothing if the previous batch in the log is not the last batch that
//!   this server knows. So the log has no gaps, even if the database has lost the newest batches.
//! * A term begins with an empty batch in the log, which informs the other servers of the new term.
//! * The position of a batch in the log is its primary key, so a batch is appended at most once,
//!   however often the statement is repeated.
//! * A batch is appended only after its predecessor is known to be committed.
//! * The outcome of a request is sent only after the batch with the request's changes has been committed.
//!   All other batches whose changes the response may reflect have been committed by then, too.
//!
//! # Not here
//!
//! Which server is the sequencer (`role`), and what a request does (`state::apply`).

mod applying;
mod committing;
mod compacting;
mod expiry;
mod term;
mod writing;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use prost::Message as _;
use quorate_api::etcdserverpb as pb;
use quorate_state::apply::{Refusal, Response};
use tokio::sync::{mpsc, oneshot, watch};

pub(crate) use self::term::{Ending, SequencerHandle, TermContext, run_term};
pub(crate) use self::writing::write_records;
use crate::error::EngineError;

/// The maximum number of requests that wait for the sequencer.
pub(crate) const WAITING_MAX: usize = 16_384;
/// Maximum number of bytes of requests that wait for the sequencer. A single waiting request may exceed
/// this limit.
const WAITING_BYTES_MAX: usize = 256 << 20;
/// The maximum number of requests in a batch.
const BATCH_REQUESTS_MAX: usize = 2_000;
/// A batch accepts no more requests once the total size of its requests reaches this number of bytes.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// The outcome of a request.
pub(crate) type Outcome = Result<Result<Response, Refusal>, EngineError>;

/// A request that waits for the sequencer.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) request: pb::InternalRaftRequest,
    pub(crate) author: Author,
    pub(crate) reply: oneshot::Sender<Outcome>,
    held: HeldBytes,
}

/// Bytes of a request that count as waiting until this value is dropped.
#[derive(Debug)]
struct HeldBytes {
    total: Arc<AtomicUsize>,
    bytes: usize,
}

impl HeldBytes {
    /// Adds the bytes of a request to the total. Returns `None` if other requests are already waiting and
    /// the total would exceed the limit.
    fn new(total: &Arc<AtomicUsize>, bytes: usize, bytes_max: usize) -> Option<Self> {
        let before = total.fetch_add(bytes, Ordering::Relaxed);
        let held = Self { total: Arc::clone(total), bytes };
        (before == 0 || before.saturating_add(bytes) <= bytes_max).then_some(held)
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The author of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Author {
    /// A client. The request's header contains the user.
    Client,
    /// The sequencer itself, which has all permissions.
    Sequencer,
}

/// The progress of a term: which batches have been applied, and which have been committed.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    /// The number of the last batch that the term has begun to apply.
    begun: Arc<AtomicU64>,
    /// The number of the last committed batch.
    committed: watch::Receiver<u64>,
}

impl Pipeline {
    /// Waits until every change of the applied state that was visible before this call is committed.
    pub(crate) async fn wait_committed(&self) -> Result<(), EngineError> {
        let begun = self.begun.load(Ordering::SeqCst);
        let mut committed = self.committed.clone();
        let reached = committed.wait_for(|committed| *committed >= begun).await;
        reached.map(drop).map_err(|_| EngineError::SequencerChanged)
    }
}

/// Sends requests to the sequencer that runs on this server.
#[derive(Clone, Debug)]
pub(crate) struct Jobs {
    sender: mpsc::Sender<Job>,
    waiting_bytes: Arc<AtomicUsize>,
    bytes_max: usize,
}

impl Jobs {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Job>) {
        Self::with_limit(WAITING_BYTES_MAX)
    }

    fn with_limit(bytes_max: usize) -> (Self, mpsc::Receiver<Job>) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Self { sender, waiting_bytes: Arc::default(), bytes_max }, receiver)
    }

    /// Sends a request, and waits for the outcome.
    pub(crate) async fn run(&self, request: pb::InternalRaftRequest, author: Author) -> Outcome {
        let held = HeldBytes::new(&self.waiting_bytes, request.encoded_len(), self.bytes_max)
            .ok_or(EngineError::TooManyRequests)?;
        let (reply, outcome) = oneshot::channel();
        let job = Job { request, author, reply, held };
        self.sender.try_send(job).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => EngineError::TooManyRequests,
            mpsc::error::TrySendError::Closed(_) => EngineError::SequencerChanged,
        })?;
        // The reply is missing if the term has ended while the request was in the queue or was being
        // applied, so the request has had no effect. If the batch may have been committed, the caller
        // receives `OutcomeUnknown` instead.
        outcome.await.unwrap_or(Err(EngineError::SequencerChanged))
    }
}

impl Job {
    /// Returns the encoded length of the request.
    pub(crate) const fn byte_count(&self) -> usize {
        self.held.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Poll;

    fn request(len: usize) -> pb::InternalRaftRequest {
        let put = pb::PutRequest { value: vec![0; len].into(), ..pb::PutRequest::default() };
        pb::InternalRaftRequest { put: Some(put), ..pb::InternalRaftRequest::default() }
    }

    #[tokio::test]
    async fn requests_are_refused_while_the_byte_limit_on_waiting_requests_is_reached() {
        let (jobs, mut received) = Jobs::with_limit(1_000);
        let waker = std::task::Waker::noop();
        let mut cx = std::task::Context::from_waker(waker);
        let mut large = Box::pin(jobs.run(request(5_000), Author::Client));
        assert!(
            matches!(large.as_mut().poll(&mut cx), Poll::Pending),
            "the only waiting request is always accepted"
        );
        let refused = jobs.run(request(10), Author::Client).await;
        assert!(matches!(refused, Err(EngineError::TooManyRequests)));
        drop(received.recv().await.unwrap());
        assert!(matches!(large.await, Err(EngineError::SequencerChanged)));
        let mut small = Box::pin(jobs.run(request(10), Author::Client));
        assert!(matches!(small.as_mut().poll(&mut cx), Poll::Pending));
    }
}
