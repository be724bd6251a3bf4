//! The shell of a member: threads, sockets, clocks, files and signals around the pure core.
//!
//! See `ARCHITECTURE.md` for the threads and how a request travels through them.

mod admission;
mod answer;
mod applier;
mod bootstrap;
mod client_http;
mod committer;
mod compactor;
pub mod config;
mod descriptors;
mod driver;
pub mod duration;
mod fatal;
mod grpc;
mod housekeeping;
pub mod http;
mod image;
mod inbox;
mod leadership;
mod lease_holder;
mod limit_notices;
mod listen;
pub mod log;
mod mailbox;
mod member;
mod membership;
mod methods;
pub mod metrics;
mod peer;
mod peer_port;
mod persist;
pub mod quote;
pub mod release;
mod remedy;
mod request_id;
mod runtime;
mod server;
pub mod signals;
mod snapshot_stream;
mod snapshots;
mod standing;
pub mod systemd;
mod versions;
mod waiters;

pub use server::main;
