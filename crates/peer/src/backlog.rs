//! Received messages that wait for the consensus core, and the limit on them.
//!
//! A stream reader acquires space before it passes on a batch, and only then continues to read. An overloaded member
//! therefore slows down its peers through TCP flow control instead of filling its own memory. The space is released as
//! soon as the consensus thread takes the batch from its queue. From then on, the limits of the consensus core apply.

use std::sync::Arc;

use quorate_raft::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum total size, over all peers, of received messages that wait for the consensus core.
pub(crate) const WAITING_BYTES_MAX: usize = 64 << 20;

/// Messages from one peer, in order, with the space that they occupy until they are processed.
#[derive(Debug)]
pub struct Received {
    messages: Vec<Message>,
    room: OwnedSemaphorePermit,
}

impl Received {
    /// Takes the messages and releases their space.
    pub fn into_messages(self) -> Vec<Message> {
        drop(self.room);
        self.messages
    }
}

/// The limit on received messages.
#[derive(Clone, Debug)]
pub(crate) struct Backlog {
    free_bytes: Arc<Semaphore>,
}

impl Backlog {
    pub(crate) fn new() -> Self {
        Self { free_bytes: Arc::new(Semaphore::new(WAITING_BYTES_MAX)) }
    }

    /// Returns the total size of the waiting messages in bytes.
    pub(crate) fn waiting_bytes(&self) -> usize {
        WAITING_BYTES_MAX - self.free_bytes.available_permits()
    }

    /// Waits until there is space for these messages, which took up `bytes` bytes when they were received. A batch
    /// larger than the limit takes all the space.
    pub(crate) async fn admit(&self, messages: Vec<Message>, bytes: usize) -> Received {
        let wanted = u32::try_from(bytes.min(WAITING_BYTES_MAX)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.free_bytes).acquire_many_owned(wanted).await;
        Received { messages, room: room.expect("the semaphore is never closed") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    #[test]
    fn a_batch_waits_until_an_earlier_batch_releases_space() {
        let backlog = Backlog::new();
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(first) =
            pin!(backlog.admit(Vec::new(), 2 * WAITING_BYTES_MAX)).poll(&mut context)
        else {
            panic!("an empty backlog did not accept a large batch");
        };
        let mut second = pin!(backlog.admit(Vec::new(), 1));
        assert!(second.as_mut().poll(&mut context).is_pending());
        assert_eq!(backlog.waiting_bytes(), WAITING_BYTES_MAX);
        drop(first.into_messages());
        let Poll::Ready(_second) = second.as_mut().poll(&mut context) else {
            panic!("the backlog did not accept a batch after space was released");
        };
        assert_eq!(backlog.waiting_bytes(), 1);
    }
}
