//! The sequencer: the one server that orders requests and commits them.
//!
//! A term of the sequencer has three tasks, and a request passes through the first two:
//!
//! ```text
//! requests ─► applying: load keys, State::apply ─► committing: append to the log, publish, answer
//!                                                        └─► tail ─► writing: tables
//! ```
//!
//! All requests that wait form the next batch, and the next batch is applied while the previous one
//! is committed.
//!
//! # Invariants
//!
//! * The statement that appends a batch locks the row with the current epoch, and appends nothing if
//!   the epoch is not its own. A server raises the epoch before it becomes the sequencer. Everything
//!   that its predecessor has committed is in the log by then, and nothing is added later. No clock
//!   takes part in this.
//! * A term begins with an empty batch in the log, by which the other servers notice it.
//! * The position of a batch in the log is its primary key, so a batch is appended once, however often
//!   it is tried.
//! * A batch is appended only after its predecessor is known to be committed.
//! * A request is answered after the batch that contains its changes is committed, and after all
//!   batches on whose changes its answer may depend.
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

use quorate_api::etcdserverpb as pb;
use quorate_state::apply::{Refusal, Response};
use tokio::sync::{mpsc, oneshot};

pub(crate) use self::term::{Ending, SequencerHandle, TermContext, run_term};
pub(crate) use self::writing::write_records;
use crate::error::EngineError;

/// The maximum number of requests that wait for the sequencer.
pub(crate) const WAITING_MAX: usize = 16_384;
/// The maximum number of requests in a batch.
const BATCH_REQUESTS_MAX: usize = 2_000;
/// A batch with this many bytes of requests accepts no more.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// The outcome of a request.
pub(crate) type Outcome = Result<Result<Response, Refusal>, EngineError>;

/// A request that waits for the sequencer.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) request: pb::InternalRaftRequest,
    pub(crate) author: Author,
    pub(crate) reply: oneshot::Sender<Outcome>,
}

/// Who makes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Author {
    /// A client. The request's header contains the user.
    Client,
    /// The sequencer itself, which may do everything.
    Sequencer,
}

/// Sends requests to the sequencer of this server.
#[derive(Clone, Debug)]
pub(crate) struct Jobs {
    sender: mpsc::Sender<Job>,
}

impl Jobs {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Job>) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Self { sender }, receiver)
    }

    /// Waits for the outcome of a request.
    pub(crate) async fn run(&self, request: pb::InternalRaftRequest, author: Author) -> Outcome {
        let (reply, outcome) = oneshot::channel();
        let job = Job { request, author, reply };
        self.sender.try_send(job).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => EngineError::TooManyRequests,
            mpsc::error::TrySendError::Closed(_) => EngineError::SequencerChanged,
        })?;
        // The term ended with the request in its queue, or while it was applied. A batch whose commit
        // may have happened is never dropped: its requests receive `OutcomeUnknown`.
        outcome.await.unwrap_or(Err(EngineError::SequencerChanged))
    }
}
