//! Whom a member answers to: the process that it is, or the program that it is a part of.

use std::sync::Arc;

use quorate_member::Handles;
use quorate_telemetry::init_system;
use quorate_telemetry::metrics::Metrics;
use tokio::sync::oneshot;

use crate::signals::{StopSignal, StopSignals};
use crate::watchdog::Watchdog;

/// What a member is told to stop by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A signal to its process.
    Signal(StopSignal),
    /// The program that it is a part of.
    Host,
}

/// How far a member has come.
#[derive(Debug)]
pub(crate) enum Progress {
    /// Its threads are at work.
    Started(Arc<Handles>, Arc<Metrics>),
    /// It answers clients.
    Ready,
}

/// A program that has a member within itself.
pub(crate) struct Host {
    /// Resolves, by a word or by the end of who could say it.
    pub(crate) stop: oneshot::Receiver<()>,
    /// Is told how far the member has come.
    pub(crate) progress: Box<dyn FnMut(Progress) + Send>,
}

/// See the module.
pub(crate) enum Supervisor {
    /// The process, by its signals.
    Process(StopSignals),
    /// A program.
    Host(Host),
}

impl Supervisor {
    /// The member is at work, and stops by itself when it is told.
    pub(crate) fn note_started(&mut self, handles: &Arc<Handles>, metrics: &Arc<Metrics>) {
        match self {
            Self::Process(signals) => signals.take_over(),
            Self::Host(host) => {
                (host.progress)(Progress::Started(Arc::clone(handles), Arc::clone(metrics)));
            }
        }
    }

    /// The member answers clients.
    pub(crate) fn note_ready(&mut self) {
        match self {
            Self::Process(_) => init_system::notify_ready(),
            Self::Host(host) => (host.progress)(Progress::Ready),
        }
    }

    /// The watch that is kept over the process, if the member is the process.
    pub(crate) fn signs_of_life(&self) -> Option<Watchdog> {
        match self {
            Self::Process(_) => Watchdog::over_this_process(),
            Self::Host(_) => None,
        }
    }

    /// Waits until the member is told to stop.
    pub(crate) async fn wait_for_stop(&mut self) -> Stop {
        match self {
            Self::Process(signals) => Stop::Signal(signals.wait().await),
            Self::Host(host) => {
                // Whoever has gone without a word is not there to be asked.
                _ = (&mut host.stop).await;
                Stop::Host
            }
        }
    }
}
