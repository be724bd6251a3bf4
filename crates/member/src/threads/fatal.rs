//! How a fault anywhere stops the member, and how its removal from the cluster does, or that its state is bad.
//!
//! A fault is this machine's failure: a disk that fails, a file that is corrupt. The thread that meets one
//! reports it here and ends; whoever waits for the member's end sees the first report and takes the
//! process down. Nothing is answered in between: an answer that cannot be kept is worse than none.

use std::error::Error;
use std::sync::Arc;

use parking_lot::Mutex;
use quorate_node::LogFault;
use tokio::sync::watch;

/// Why the member stops by itself.
#[derive(Clone, Debug)]
pub enum End {
    /// This machine has failed.
    Fault(Fatal),
    /// Its log and its cluster's contradict each other.
    LogFault(LogFault),
    /// It is no member of its cluster any more.
    Removed,
    /// What it holds is not what a quorum of the others holds, and it is to fetch theirs. Says how that was found.
    Rebuild(String),
}

/// A failure of this machine.
#[derive(Clone, Debug)]
pub struct Fatal {
    /// What was being done.
    pub task: &'static str,
    /// How it failed.
    pub error: Arc<dyn Error + Send + Sync>,
}

/// Where faults are reported. One per member, shared.
#[derive(Clone, Debug)]
pub struct FaultReports {
    sender: Arc<Mutex<watch::Sender<Option<End>>>>,
    receiver: watch::Receiver<Option<End>>,
}

impl Default for FaultReports {
    fn default() -> Self {
        Self::new()
    }
}

impl FaultReports {
    /// Nothing is reported yet.
    pub fn new() -> Self {
        let (sender, receiver) = watch::channel(None);
        Self { sender: Arc::new(Mutex::new(sender)), receiver }
    }

    /// Reports a fault. Only the first is kept: what follows is its consequence.
    pub fn report(&self, task: &'static str, error: impl Error + Send + Sync + 'static) {
        self.end(End::Fault(Fatal { task, error: Arc::new(error) }));
    }

    /// Reports that consensus has found this member's log or its cluster to have lost entries.
    pub fn report_log_fault(&self, fault: LogFault) {
        self.end(End::LogFault(fault));
    }

    /// Reports that this member was removed from its cluster.
    pub fn report_removal(&self) {
        self.end(End::Removed);
    }

    /// Reports that this member's state is to be fetched anew, and why.
    pub fn report_rebuild(&self, reason: String) {
        self.end(End::Rebuild(reason));
    }

    fn end(&self, end: End) {
        self.sender.lock().send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(end);
            is_first
        });
    }

    /// The first report, if there is one by now.
    pub fn so_far(&self) -> Option<End> {
        self.receiver.borrow().clone()
    }

    /// Waits for the first report.
    pub async fn first(&self) -> End {
        let mut receiver = self.receiver.clone();
        match receiver.wait_for(Option::is_some).await {
            Ok(first) => first.clone().expect("it was waited for"),
            // The sender lives in `self`.
            Err(_) => std::future::pending().await,
        }
    }
}
