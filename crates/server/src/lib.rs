//! The shell of a member: threads, sockets, clocks, files and signals around the pure core.
//!
//! See `ARCHITECTURE.md` for the threads and how a request travels through them.

mod admission;
mod answer;
mod applier;
mod bootstrap;
mod channels;
mod client_http;
mod clock;
mod committer;
mod compactor;
mod driver;
mod fatal;
mod grpc;
mod housekeeping;
pub mod http;
mod identity;
mod inbox;
mod leadership;
mod lease_holder;
mod limit_notices;
mod mailbox;
mod member;
mod membership;
mod meters;
mod methods;
mod peer_port;
mod persist;
mod remedy;
mod request_id;
mod server;
pub mod signals;
mod snapshot_stream;
mod standing;
pub mod systemd;
mod transport;
mod versions;
mod waiters;

pub(crate) use quorate_config as config;
pub(crate) use quorate_gotext::quote;
pub(crate) use quorate_net::{descriptors, listen, runtime};
pub(crate) use quorate_peer as peer;
pub(crate) use quorate_release as release;
pub(crate) use quorate_telemetry::{log, metrics};

pub use server::main;
