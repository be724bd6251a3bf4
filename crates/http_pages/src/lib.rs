//! HTTP responses in the format of Go's server, and debug pages: the profiles of members and proxies, and the requests
//! of members.
//!
//! `reply` builds responses, `query` parses request targets, `unread_body` receives bodies that a response does not
//! need, `profiles` serves `/debug/pprof/`, and `requests` renders `/debug/requests`.
//!
//! # Not here
//!
//! The assignment of pages to listeners, and access control (`edge::http`, `grpc_proxy::http`). Taking profiles
//! (`profiler`).

pub mod profiles;
pub mod query;
pub mod reply;
pub mod requests;
pub mod unread_body;
