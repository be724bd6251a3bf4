//! Stores the keyspace in a PostgreSQL database, which any number of servers can share.
//!
//! The servers store no data of their own. One of them is the *sequencer*: it orders all requests, applies them with
//! `quorate_state`, and commits them in batches. The other servers forward requests to the sequencer. If the sequencer
//! fails, another server takes over. Every server reads from the database itself, and delivers events to its own
//! watchers.
//!
//! ```text
//!            sequencer: load keys ─► State::apply ─► log table        (a commit is one row)
//!                                                      │
//!            ┌─────────────────────────────────────────┼──────────────► every server: tail, watchers
//!            └─► tables of versions  ◄─── reads at a revision, with the tail laid over them
//! ```
//!
//! [`Engine`] represents one server. `database::migrations` describes the tables, and decision record
//! 0035 gives the reasons for this design.
//!
//! # Not here
//!
//! The effects of requests (`quorate_state`), the services, and the transport between servers
//! ([`Forward`]).

mod batch;
mod counting;
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
mod read_memory;
mod reader;
mod replica;
mod role;
mod secret;
mod sequencer;
mod spans;
mod stored_spans;
mod tail;
mod term_id;
mod url;
mod wire;

pub use database::DatabaseFault;
pub use engine::{BoxFuture, Engine, EngineOptions, EngineStatus, Forward, ForwardError};
pub use error::{EngineError, Indexed};
pub use import::{Imported, import};
pub use read_memory::Reserve;
pub use role::{Destination, ServerIdentity, ServerRow};
pub use secret::Secret;
pub use url::{DatabaseUrl, UrlError};
pub use wire::LeaseTimes;
