//! HTTP answers as Go's server makes them, and the debug pages that members and proxies share.
//!
//! `reply` builds answers, `query` reads request targets, `unread_body` receives bodies that an answer does not need;
//! `profiles` serves `/debug/pprof/`, and `requests` renders `/debug/requests`.
//!
//! # Not here
//!
//! Which listener serves which page, and to whom (`edge::http`, `grpc_proxy::http`). How a profile is taken (`profiler`).

pub mod profiles;
pub mod query;
pub mod reply;
pub mod requests;
pub mod unread_body;
