//! How a member comes to life, and how it ends.
//!
//! See `ARCHITECTURE.md` for the threads and how a request travels through them.

mod bootstrap;
mod meters;
mod remedy;
mod scrape;
mod server;
pub mod signals;
pub mod systemd;
mod transport;

pub(crate) use quorate_config as config;
pub(crate) use quorate_gotext::quote;
pub(crate) use quorate_member as member;
pub(crate) use quorate_member::{fatal, housekeeping, versions};
pub(crate) use quorate_net::{descriptors, listen, runtime};
pub(crate) use quorate_peer as peer;
pub(crate) use quorate_release as release;
pub(crate) use quorate_telemetry::{log, metrics};

pub use server::main;
