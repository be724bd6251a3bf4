//! Talking to the other members: etcd's peer protocol.
//!
//! # Not here
//!
//! What is said and what follows from it (`raft`, `node`, `driver`).

pub(crate) mod call;
