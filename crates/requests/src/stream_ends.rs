//! Ends open streams from the server side. The loss of the leader ends the streams that require a leader, and the
//! shutdown of the member ends all streams. In both cases clients receive UNAVAILABLE, and reopen the stream on another
//! member.

use std::future::Future;
use std::pin::Pin;

use tokio::sync::watch;

use crate::error::RequestError;

/// A future that resolves when the stream must end, and returns the reason.
pub type StreamEnd = Pin<Box<dyn Future<Output = RequestError> + Send>>;

/// Notifies open streams that they must end.
#[derive(Debug, Default)]
pub struct StreamEnds {
    reasons: watch::Sender<Reasons>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Reasons {
    leader_losses: u64,
    is_stopping: bool,
}

impl StreamEnds {
    /// Returns a future that resolves when a stream that starts now must end.
    pub fn wait(&self, requires_leader: bool) -> StreamEnd {
        let mut reasons = self.reasons.subscribe();
        let losses_before = reasons.borrow().leader_losses;
        let is_lost = move |now: &Reasons| requires_leader && now.leader_losses != losses_before;
        Box::pin(async move {
            match reasons.wait_for(|now| now.is_stopping || is_lost(now)).await {
                Ok(now) if is_lost(&now) => RequestError::NoLeader,
                // An error means that the member has stopped.
                Ok(_) | Err(_) => RequestError::Stopped,
            }
        })
    }

    /// Ends the streams that require a leader.
    pub fn lose_leader(&self) {
        self.reasons.send_modify(|reasons| reasons.leader_losses += 1);
    }

    /// Ends all streams, including those that start later.
    pub fn stop(&self) {
        self.reasons.send_modify(|reasons| reasons.is_stopping = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lost_leader_ends_streams_that_require_a_leader_and_shutdown_ends_all_streams() {
        let ends = StreamEnds::default();
        ends.lose_leader();
        let (asking, other) = (ends.wait(true), ends.wait(false));
        ends.lose_leader();
        assert!(matches!(asking.await, RequestError::NoLeader));
        let begun_later = ends.wait(true);
        ends.stop();
        for end in [other, begun_later, ends.wait(true)] {
            assert!(matches!(end.await, RequestError::Stopped));
        }
    }
}
