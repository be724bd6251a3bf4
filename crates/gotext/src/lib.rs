//! Text in Go's formats: quoted strings, numbers, durations.
//!
//! etcd's flags, files, messages and log lines use these formats, and people and tools search for them, so they
//! are part of the interface.

pub mod duration;
pub mod number;
pub mod quote;

pub use duration::{ParseDurationError, SignedDuration};
