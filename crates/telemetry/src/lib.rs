//! What a member says of itself: lines of its log, and series for scrapers.
//!
//! The two are apart from everything that they tell of: whoever knows a thing says it here, and
//! nothing here asks.

pub mod init_system;
pub mod log;
pub mod metrics;
pub mod throttle;
