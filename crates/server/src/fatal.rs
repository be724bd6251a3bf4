//! How a fault anywhere stops the member.
//!
//! A fault is this machine's failure: a disk that fails, a file that is corrupt. The thread that meets one
//! reports it here and ends; whoever waits for the member's end sees the first report and takes the
//! process down. Nothing is answered in between: an answer that cannot be kept is worse than none.

use std::error::Error;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

/// Why the member stops.
#[derive(Clone, Debug)]
pub(crate) struct Fatal {
    /// What was being done.
    pub(crate) task: &'static str,
    pub(crate) error: Arc<dyn Error + Send + Sync>,
}

/// Where faults are reported. One per member, shared.
#[derive(Clone, Debug)]
pub(crate) struct FaultReports {
    sender: Arc<Mutex<watch::Sender<Option<Fatal>>>>,
    receiver: watch::Receiver<Option<Fatal>>,
}

impl FaultReports {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = watch::channel(None);
        Self { sender: Arc::new(Mutex::new(sender)), receiver }
    }

    /// Reports a fault. Only the first is kept: what follows is its consequence.
    pub(crate) fn report(&self, task: &'static str, error: impl Error + Send + Sync + 'static) {
        self.sender.lock().send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert_with(|| Fatal { task, error: Arc::new(error) });
            is_first
        });
    }

    /// Waits for the first fault.
    pub(crate) async fn first(&self) -> Fatal {
        let mut receiver = self.receiver.clone();
        match receiver.wait_for(Option::is_some).await {
            Ok(first) => first.clone().expect("it was waited for"),
            // The sender lives in `self`.
            Err(_) => std::future::pending().await,
        }
    }
}
