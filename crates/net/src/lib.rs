//! Network connections: their limits, accepting them, protocol detection, and the threads that serve them.
//! The client port and the peer port both use this crate.
//!
//! # Not here
//!
//! The services, which the caller passes in.

pub mod descriptors;
pub mod listen;
pub mod pace;
pub mod runtime;
