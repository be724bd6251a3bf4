//! The trace of a run: a checksum of its events, which tells two runs apart, and optional text for a reader.
//!
//! Every event changes the checksum; the text does not influence it.

use std::fmt;

use quorate_seeded_random::mix;

use crate::clock::{MILLI, Micros};

/// Where the text goes, line by line, as it happens.
pub type Sink = Box<dyn FnMut(String)>;

/// The checksum of a run so far, and the sink of its text.
#[derive(Default)]
pub struct Trace {
    sum: u64,
    sink: Option<Sink>,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("sum", &self.sum).finish_non_exhaustive()
    }
}

impl Trace {
    /// A trace, with its text if it is wanted.
    #[must_use]
    pub const fn new(sink: Option<Sink>) -> Self {
        Self { sum: 0, sink }
    }

    /// Something has happened that these numbers tell.
    pub const fn count(&mut self, number: u64) {
        self.sum = mix(self.sum ^ number);
    }

    /// The number of everything so far.
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.sum
    }

    /// Something worth a line has happened.
    pub fn tell(&mut self, now: Micros, line: impl FnOnce() -> String) {
        if let Some(sink) = &mut self.sink {
            sink(format!("{:>10}.{:03} {}", now / MILLI, now % MILLI, line()));
        }
    }
}
