//! A member's log, metrics, spans of traced calls, and audit log.
//!
//! This crate depends on no other part of a member. The other parts report to it.

pub mod audit;
pub mod init_system;
pub mod log;
pub mod metrics;
pub mod threads;
pub mod throttle;
pub mod trace;
