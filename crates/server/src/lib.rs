//! Starts and stops a member, as a process or embedded in another program.
//!
//! `ARCHITECTURE.md` describes the threads and the path of a request through them.

#![cfg_attr(
    test,
    expect(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        reason = "tests convert only small numbers"
    )
)]

mod assembly;
mod bootstrap;
mod collector;
mod console;
mod damage;
mod embedded;
mod engine;
mod engine_start_error;
mod expiry;
mod failed_start;
mod listeners;
mod metrics;
mod observing;
mod process;
mod remedy;
mod restored;
mod scrape;
mod security;
mod server;
mod serving;
pub mod signals;
mod start_line;
mod supervisor;
mod tokens;
mod transport;
pub mod watchdog;

pub use embedded::{End, Member, NotReady, StartError};
pub use process::main;
