//! The shell of a member: threads, sockets, clocks, files and signals around the pure core.
//!
//! See `ARCHITECTURE.md` for the threads and how a request travels through them.

mod listen;
mod mailbox;
mod progress;
mod request_id;
mod runtime;
