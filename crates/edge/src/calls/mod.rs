//! Code shared by several services: request bodies, records of calls, access control, and errors.
//!
//! ```text
//! call           a call in progress, with its deadline    observe, request_scope,         metrics, log lines,
//! request_body   the request, counted and paced           request_stats, spans            traces
//! client_body    the source of a request                  access, authorized, asked       caller, permissions, audit
//! large_reply    replies that are encoded in parts        contended_name                  names of locks and elections
//! status         the table of errors                      streams                         streams of messages
//! ```
//!
//! # Not here
//!
//! The services (`services`), the routing of calls (`router`).

pub(crate) mod access;
pub(crate) mod asked;
pub(crate) mod authorized;
pub(crate) mod call;
pub(crate) mod client_body;
pub(crate) mod contended_name;
pub(crate) mod large_reply;
pub(crate) mod observe;
pub(crate) mod request_body;
pub(crate) mod request_scope;
pub(crate) mod request_stats;
pub(crate) mod spans;
pub(crate) mod status;
pub(crate) mod streams;
pub(crate) mod whole;
