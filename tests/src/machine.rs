//! Faults of a machine: a full disk, syncs that fail, are slow or never return, a clock that jumps.
//!
//! If the machine that runs the tests lacks something for a fault, a notice says so and the test is skipped.

mod disk;
mod shim;
mod strace;

pub use disk::SmallDisk;
pub use shim::{Held, Shim};
pub use strace::Strace;

use std::time::Duration;

use crate::{Kind, Options, Server};

/// The result of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syncs {
    /// It succeeds after its normal time.
    Work,
    /// It fails.
    Fail,
    /// It succeeds with this additional delay.
    Take(Duration),
}

/// Control over the syncs of one member, by a means that works with its program: C library calls are intercepted, or
/// system calls of a program without the C library are modified.
#[derive(Debug)]
pub enum Syncing {
    /// Interception in the process.
    Shim(Shim),
    /// Modification from outside.
    Strace(Option<Strace>),
}

impl Syncing {
    /// The means for a kind of server, if it is available.
    #[must_use]
    pub fn of(kind: Kind) -> Option<Self> {
        match kind {
            Kind::Quorate => Shim::build().map(Self::Shim),
            Kind::Etcd => Strace::is_present().then_some(Self::Strace(None)),
        }
    }

    /// Options of the controlled server.
    #[must_use]
    pub fn prepare(&self, options: Options) -> Options {
        match self {
            Self::Shim(shim) => shim.prepare(options),
            Self::Strace(_) => options,
        }
    }

    /// Sets the result of syncs of the running server.
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
