//! How a member comes to life, and how it ends.
//!
//! See `ARCHITECTURE.md` for the threads and how a request travels through them.

mod assembly;
mod bootstrap;
mod expiry;
mod listeners;
mod meters;
mod remedy;
mod scrape;
mod security;
mod server;
mod serving;
pub mod signals;
mod start_line;
pub mod systemd;
mod tokens;
mod transport;

pub use server::main;
