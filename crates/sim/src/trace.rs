//! The trace of a run: a checksum of its events, for comparing two runs, and optional text for human readers.
//!
//! Every event changes the checksum. The text does not affect it.

use std::fmt;

use quorate_seeded_random::mix;

use crate::clock::{MILLI, Micros};

/// Receives the text of a trace, one line at a time.
pub type Sink = Box<dyn FnMut(String)>;

/// The checksum of a run so far, and the sink for its text.
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
    /// Creates a trace. Without a sink, the trace produces no text.
    #[must_use]
    pub const fn new(sink: Option<Sink>) -> Self {
        Self { sum: 0, sink }
    }

    /// Adds an event, described by a number, to the checksum.
    pub const fn add(&mut self, number: u64) {
        self.sum = mix(self.sum ^ number);
    }

    /// Returns the checksum of all events so far.
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.sum
    }

    /// Writes a line to the sink, if there is one.
    pub fn log(&mut self, now: Micros, line: impl FnOnce() -> String) {
        if let Some(sink) = &mut self.sink {
            sink(format!("{:>10}.{:03} {}", now / MILLI, now % MILLI, line()));
        }
    }
}
