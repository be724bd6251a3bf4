//! The web console: a page for viewing and operating a cluster, and the server that serves it.
//!
//! ```text
//! browser ─► service (checks, assets) ─► worker (one thread) ─► keys, history, live, leases, accounts  ─► cluster
//!                                             │                 operations, snapshots (with --allow-writes)
//!                                             ├──► access (logins, who may call at all)
//!                                             └──► overview (collected once for all pages) ─► problems, certificates
//! ```
//!
//! `quorate console` runs a standalone console, and a member runs one with `--listen-console-url`. Decision record 0034
//! gives the reasons for the design.
//!
//! # Guarantees
//!
//! - The console is a client of the public API without permissions of its own. A user sees only what the user's own
//!   calls would return, because every call carries the user's token. The figures of the overview are the exception:
//!   they are collected once for all users (`overview`).
//! - Requests from other sites are refused before any other part of the console processes them (`checks`).
//! - Tokens and passwords are never written to a file, logged, or part of a URL or cookie.
//!
//! # Not here
//!
//! The page (`assets`), the figures that `ctl top` shows as well (`top`), and accepting connections (`net`).

#![cfg_attr(
    test,
    expect(clippy::cast_possible_truncation, reason = "tests convert only small numbers")
)]

mod access;
mod accounts;
mod assets;
mod attempts;
mod certificates;
mod checks;
mod clients;
mod cluster;
mod cursor;
mod encode;
mod guard;
mod history;
mod input;
mod keys;
mod leases;
mod live;
mod members;
mod operations;
mod overview;
mod problems;
mod refusal;
mod reply;
mod secret;
mod service;
mod settings;
mod snapshots;
mod start;
mod worker;

pub use access::Exposure;
pub use cluster::Cluster;
pub use quorate_client::Timeouts;
pub use quorate_client::transport::Transport;
pub use reply::Content;
pub use service::{Console, NoHttp2};
pub use settings::Settings;
pub use start::{FLAGS, ListenFlags, Running, StartError, open, serve};
