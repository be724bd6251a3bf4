//! Network connections: limits, acceptance, protocol detection, and the threads that serve the connections. The client
//! port and the peer port both use this crate.
//!
//! # Not here
//!
//! The services, which the caller supplies.

pub mod descriptors;
pub mod listen;
pub mod pace;
pub mod runtime;
