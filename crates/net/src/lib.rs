//! Connections: how many there may be, how they are accepted and told apart, and the threads that
//! serve them. Both ports of a member stand on this, the clients' and the peers'.
//!
//! # Not here
//!
//! What is said on a connection: services are handed in.

pub mod descriptors;
pub mod listen;
pub mod pace;
pub mod runtime;
