//! How a member comes to life, the doors to it, and its end.
//!
//! See `ARCHITECTURE.md` for the threads and how a request travels through them.

mod bootstrap;
mod client_http;
mod grpc;
pub mod http;
mod meters;
mod methods;
mod peer_port;
mod remedy;
mod scrape;
mod server;
pub mod signals;
mod snapshot_stream;
pub mod systemd;
mod transport;

pub(crate) use quorate_config as config;
pub(crate) use quorate_gotext::quote;
pub(crate) use quorate_member as member;
pub(crate) use quorate_member::{
    admission, fatal, housekeeping, leadership, lease_holder, membership, versions,
};
pub(crate) use quorate_net::{descriptors, listen, runtime};
pub(crate) use quorate_peer as peer;
pub(crate) use quorate_release as release;
pub(crate) use quorate_telemetry::{log, metrics};

pub use server::main;
