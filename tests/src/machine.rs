//! What a machine does to a process: a disk that is full, syncs that fail, take long or do not come back, a clock
//! that jumps.
//!
//! Whatever a machine that runs the tests lacks for this is told in a notice, and the test is skipped.

mod disk;
mod shim;
mod strace;

pub use disk::SmallDisk;
pub use shim::{Held, Shim};
pub use strace::Strace;

use std::time::Duration;

use crate::{Kind, Options, Server};

/// What happens when a process asks for its data to be made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syncs {
    /// It takes its time and works.
    Work,
    /// It is an error.
    Fail,
    /// It works, and takes this much longer.
    Take(Duration),
}

/// Control over how the syncs of one member go, by whichever means its program allows: calls of the C
/// library are intercepted, and system calls of a program that goes without it are tampered with.
#[derive(Debug)]
pub enum Syncing {
    /// From within.
    Shim(Shim),
    /// From without.
    Strace(Option<Strace>),
}

impl Syncing {
    /// The means for a kind of server, when it is here.
    #[must_use]
    pub fn of(kind: Kind) -> Option<Self> {
        match kind {
            Kind::Quorate => Shim::build().map(Self::Shim),
            Kind::Etcd => Strace::is_present().then_some(Self::Strace(None)),
        }
    }

    /// Options of the server that is to be controlled.
    #[must_use]
    pub fn prepare(&self, options: Options) -> Options {
        match self {
            Self::Shim(shim) => shim.prepare(options),
            Self::Strace(_) => options,
        }
    }

    /// From now on, syncs of the running server go like this.
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
