//! Text in Go's formats: quoted strings, numbers and durations.
//!
//! etcd's flags, files, messages and log lines use these formats. People and tools search for such text, so the formats
//! are part of the interface.

pub mod duration;
pub mod number;
pub mod quote;

pub use duration::{ParseDurationError, SignedDuration};
