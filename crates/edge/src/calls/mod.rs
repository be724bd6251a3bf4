//! What calls of several services need: their bodies, their accounts, their permissions, and the errors that end them.
//!
//! ```text
//! call           a call under way, with its deadline      observe, request_stats, spans   counts, log lines, traces
//! request_body   the request, counted and paced           access, authorized, asked       who calls, what the call needs
//! client_body    where a request comes from               contended_name                  names of locks and elections
//! large_reply    replies that are encoded piece by piece  streams                         streams of several messages
//! status         the one table of errors
//! ```
//!
//! # Not here
//!
//! The services themselves (`services`), and where a call leads (`router`).

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
