//! Faults of a machine: a full disk, syncs that fail, are slow or never return, and a clock that jumps.
//!
//! If the machine that runs the tests cannot simulate a fault, the test prints a notice and is skipped.

mod disk;
mod shim;
mod strace;

pub use disk::SmallDisk;
pub use shim::{Held, Shim};
pub use strace::Strace;

use std::time::Duration;

use crate::{Kind, Options, Server};

/// How syncs behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syncs {
    /// Syncs succeed at normal speed.
    Work,
    /// Syncs fail.
    Fail,
    /// Syncs succeed with this additional delay.
    Take(Duration),
}

/// Controls the syncs of one member. The method depends on the program: C library calls are intercepted or, for a
/// program that does not use the C library, system calls are modified.
#[derive(Debug)]
pub enum Syncing {
    /// Interception within the process.
    Shim(Shim),
    /// Modification from outside the process.
    Strace(Option<Strace>),
}

impl Syncing {
    /// Returns the method for a kind of server, if it is available.
    #[must_use]
    pub fn of(kind: Kind) -> Option<Self> {
        match kind {
            Kind::Quorate => Shim::build().map(Self::Shim),
            Kind::Etcd => Strace::is_present().then_some(Self::Strace(None)),
        }
    }

    /// Prepares the options of the controlled server.
    #[must_use]
    pub fn prepare(&self, options: Options) -> Options {
        match self {
            Self::Shim(shim) => shim.prepare(options),
            Self::Strace(_) => options,
        }
    }

    /// Sets how syncs of the running server behave.
    pub fn set(&mut self, server: &Server, syncs: Syncs) {
        match self {
            Self::Shim(shim) => shim.set_syncs(syncs),
            Self::Strace(strace) => {
                *strace = None;
                if syncs != Syncs::Work {
                    *strace = Some(Strace::attach(server.pid(), syncs));
                }
            }
        }
    }
}
