//! What a member says of itself: lines of its log, series for scrapers, spans of the calls that are followed, and the audit log.
//!
//! They are apart from everything that they tell of: whoever knows a thing says it here, and
//! nothing here asks.

pub mod audit;
pub mod init_system;
pub mod log;
pub mod metrics;
pub mod threads;
pub mod throttle;
pub mod trace;
