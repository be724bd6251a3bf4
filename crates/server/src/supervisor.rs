//! The supervisor, which starts and stops a member: either the process with its signals, or the host program of an
//! embedded member.

use std::sync::Arc;

use quorate_member::Handles;
use quorate_telemetry::init_system;
use quorate_telemetry::metrics::Metrics;
use tokio::sync::oneshot;

use crate::signals::{StopSignal, StopSignals};
use crate::watchdog::Watchdog;

/// The source of a request to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A signal to the process.
    Signal(StopSignal),
    /// The host program.
    Host,
}

/// The progress of a starting member.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The threads are running.
    Started(Arc<Handles>, Arc<Metrics>),
    /// The member serves clients.
    Ready,
}

/// A program with an embedded member.
pub(crate) struct Host {
    /// Resolves when the host requests a stop or drops the sender.
    pub(crate) stop: oneshot::Receiver<()>,
    /// Receives the progress of the starting member.
    pub(crate) progress: Box<dyn FnMut(Progress) + Send>,
}

/// The supervisor of a member.
pub(crate) enum Supervisor {
    /// The process and its signals.
    Process(StopSignals),
    /// A host program.
    Host(Host),
}

impl Supervisor {
    /// Records that the threads are running. From now on, the member itself handles requests to stop.
    pub(crate) fn note_started(&mut self, handles: &Arc<Handles>, metrics: &Arc<Metrics>) {
        match self {
            Self::Process(signals) => signals.take_over(),
            Self::Host(host) => {
                (host.progress)(Progress::Started(Arc::clone(handles), Arc::clone(metrics)));
            }
        }
    }

    /// Records that the server itself handles requests to stop from now on.
    pub(crate) fn take_over(&mut self) {
        match self {
            Self::Process(signals) => signals.take_over(),
            Self::Host(_) => {}
        }
    }

    /// Records that the member serves clients.
    pub(crate) fn note_ready(&mut self) {
        match self {
            Self::Process(_) => init_system::notify_ready(),
            Self::Host(host) => (host.progress)(Progress::Ready),
        }
    }

    /// Returns the watchdog of the process, unless the member is embedded.
    pub(crate) fn watchdog(&self) -> Option<Watchdog> {
        match self {
            Self::Process(_) => Watchdog::over_this_process(),
            Self::Host(_) => None,
        }
    }

    /// Waits for a request to stop the member.
    pub(crate) async fn wait_for_stop(&mut self) -> Stop {
        match self {
            Self::Process(signals) => Stop::Signal(signals.wait().await),
            Self::Host(host) => {
                // A dropped sender is a request to stop as well.
                _ = (&mut host.stop).await;
                Stop::Host
            }
        }
    }
}
