//! The shell of a member: threads, sockets, clocks, files and signals around the pure core.
//!
//! See `ARCHITECTURE.md` for the threads and how a request travels through them.

pub mod config;
pub mod duration;
pub mod http;
mod listen;
pub mod log;
mod mailbox;
pub mod metrics;
pub mod quote;
pub mod release;
mod request_id;
mod runtime;
pub mod signals;
mod standing;
pub mod systemd;
