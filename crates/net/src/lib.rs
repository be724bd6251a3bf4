//! Network connections: limiting and accepting them, detecting their protocol, and the threads that serve them. The
//! client port and the peer port both use this crate.
//!
//! # Not here
//!
//! The services, which the caller supplies.

pub mod descriptors;
pub mod listen;
pub mod pace;
pub mod runtime;
pub mod ticks;
mod wakes;
