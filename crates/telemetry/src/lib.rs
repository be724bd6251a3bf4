//! A member's log, metrics, spans of traced calls, and audit log.
//!
//! This crate does not depend on any other part of a member. The other parts of a member report to
//! this crate.

pub mod audit;
pub mod init_system;
pub mod log;
pub mod metrics;
pub mod threads;
pub mod throttle;
pub mod trace;
