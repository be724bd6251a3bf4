//! A member's log, metrics, spans of traced calls, and audit log.
//!
//! The other parts of a member report to this crate, which does not depend on any of them.

pub mod audit;
pub mod init_system;
pub mod log;
pub mod metrics;
pub mod threads;
pub mod throttle;
pub mod trace;
