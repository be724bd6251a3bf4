//! The keyspace in a PostgreSQL database, for any number of servers beside each other.
//!
//! The servers have no data of their own. One of them is the *sequencer*: it orders all requests,
//! applies them with `quorate_state`, and commits them in batches. The others forward requests to it,
//! and take over if it is gone. Every server answers reads from the database, and delivers events to
//! its watchers.
//!
//! ```text
//!            sequencer: load keys ─► State::apply ─► log table        (a commit is one row)
//!                                                      │
//!            ┌─────────────────────────────────────────┼──────────────► every server: tail, watchers
//!            └─► tables of versions  ◄─── reads at a revision, with the tail laid over them
//! ```
//!
//! [`Engine`] is a server, and `database::migrations` describes the tables. Decision record 0035 has the
//! reasons.
//!
//! # Not here
//!
//! The effects of requests (`quorate_state`), the services, and the transport between servers
//! ([`Forward`]).

mod batch;
mod counts;
mod database;
mod dump;
mod engine;
mod error;
mod follower;
mod history;
mod import;
mod key_lengths;
mod loading;
mod needs;
mod reader;
mod replica;
mod role;
mod secret;
mod sequencer;
mod tail;
mod term_id;
mod url;
mod wire;

pub use database::DatabaseFault;
pub use engine::{BoxFuture, Engine, EngineOptions, EngineStatus, Forward, ForwardError};
pub use error::{EngineError, Indexed};
pub use import::{Imported, import};
pub use role::{Destination, ServerIdentity, ServerRow};
pub use secret::Secret;
pub use url::{DatabaseUrl, UrlError};
pub use wire::LeaseTimes;
