//! Text as Go programs read and write it: quoted strings, numbers, spans of time.
//!
//! etcd's flags, files, messages and log lines have these forms, and people and tools search for
//! them; so they are part of the interface.

pub mod duration;
pub mod number;
pub mod quote;

pub use duration::{ParseDurationError, SignedDuration};
