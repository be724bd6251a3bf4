//! The web console: a page that shows and operates a cluster, and the server behind it.
//!
//! ```text
//! browser ─► service (checks, assets) ─► worker (one thread) ─► keys, history, live, leases, accounts  ─► cluster
//!                                             │                 operations, snapshots (with --allow-writes)
//!                                             ├──► access (logins, who may call at all)
//!                                             └──► overview (collected once for all pages) ─► problems, certificates
//! ```
//!
//! `quorate console` runs it on its own, and a member runs it with `--listen-console-url`. Decision 0034 gives the
//! reasons for its design.
//!
//! # Guarantees
//!
//! - The console is a client of the public API. It has no power of its own, and shows no user more than his own calls
//!   would: every call carries his token.
//! - Requests of other sites are refused before anything else looks at them (`checks`).
//! - Tokens and passwords are never stored, logged, or part of a URL or cookie.
//!
//! # Not here
//!
//! The page (`assets`). The figures that `ctl top` shows as well (`top`). Accepting connections (`net`).

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
