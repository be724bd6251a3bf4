//! How a member stops itself: after a fault, after its removal from the cluster, or because its state is corrupt.
//!
//! A fault is a failure of this machine, for example a failing disk or a corrupt file. The thread that encounters a
//! fault reports it here and ends. The task that waits for the member to end receives the first report and stops the
//! member. Until then, requests that depend on the ended thread are not answered, because a response to a request that
//! may not be durable is worse than no response.

use std::error::Error;
use std::sync::Arc;

use parking_lot::Mutex;
use quorate_node::LogFault;
use tokio::sync::watch;

/// Why the member stops itself.
#[derive(Clone, Debug)]
pub enum End {
    /// This machine has failed.
    Fault(Fatal),
    /// This member's log and the cluster's log contradict each other.
    LogFault(LogFault),
    /// This member was removed from its cluster.
    Removed,
    /// This member's state differs from the state of a quorum, so it has to fetch the quorum's state. The text
    /// describes how the difference was found.
    Rebuild(String),
}

/// A failure of this machine.
#[derive(Clone, Debug)]
pub struct Fatal {
    /// The operation that failed.
    pub task: &'static str,
    /// The error that the operation returned.
    pub error: Arc<dyn Error + Send + Sync>,
}

/// Collects fault reports. Each member has one collection, shared by its threads.
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
    /// Creates a collection without reports.
    pub fn new() -> Self {
        let (sender, receiver) = watch::channel(None);
        Self { sender: Arc::new(Mutex::new(sender)), receiver }
    }

    /// Reports a fault. Only the first report is kept, because later faults are its consequences.
    pub fn report(&self, task: &'static str, error: impl Error + Send + Sync + 'static) {
        self.end(End::Fault(Fatal { task, error: Arc::new(error) }));
    }

    /// Reports that log entries were lost, either by this member or by the rest of the cluster. Consensus detects this.
    pub fn report_log_fault(&self, fault: LogFault) {
        self.end(End::LogFault(fault));
    }

    /// Reports that this member was removed from its cluster.
    pub fn report_removal(&self) {
        self.end(End::Removed);
    }

    /// Reports that this member has to fetch its state again, and the reason.
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

    /// Returns the first report, if there is one.
    pub fn so_far(&self) -> Option<End> {
        self.receiver.borrow().clone()
    }

    /// Waits for the first report.
    pub async fn first(&self) -> End {
        let mut receiver = self.receiver.clone();
        match receiver.wait_for(Option::is_some).await {
            Ok(first) => first.clone().expect("the wait ends when there is a report"),
            // `self` keeps the sender alive, so the channel cannot close.
            Err(_) => std::future::pending().await,
        }
    }
}
