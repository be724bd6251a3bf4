//! The consensus core: how a group of members agrees on one log, after the Raft thesis (Ongaro,
//! "Consensus: Bridging Theory and Practice", Stanford 2014) and, message for message, with the
//! observable behaviour of etcd's raft library 3.7, beside whose members ours have to work.
//!
//! # The protocol in one page
//!
//! Every member keeps a **log** of entries, each created in a **term** by the one leader that term
//! has. An entry is known by its term and index; where two logs have the same entry, they are
//! equal up to there. A member applies its log, in order, to a state machine, but only what is
//! **committed**: what no future leader can lack.
//!
//! *Elections.* A follower that hears of no leader for a while asks the voters for their votes in
//! a new term. A voter votes once per term, and only for logs that are at least as up to date as
//! its own. As two majorities overlap, a term has one leader at most, and every leader has every
//! committed entry. *Pre-votes* find out first whether an election could be won, so that a member
//! that was cut off does not depose a working leader when it returns; *check-quorum* makes a leader
//! step down that no longer reaches a majority, and followers ignore candidates while it does.
//!
//! *Replication.* The leader appends proposals to its log and sends followers what they lack,
//! ahead of their acknowledgements but within a window. A follower whose log differs loses what is
//! different. Once a majority holds an entry of the leader's term, that entry and all before it
//! are committed. Followers too far behind get a snapshot of the state machine instead.
//!
//! *Membership* changes travel through the log and take effect when applied: one voter at a time,
//! or any number through a joint configuration, in which old and new majorities both decide.
//! *Learners* receive the log without a vote.
//!
//! *Reads* need no entry: the leader confirms by a round of heartbeats that it still leads, and a
//! read at the commit index of before that round is linearizable.
//!
//! # The shape of the crate
//!
//! Values in, values out: no IO, clock, thread, lock, async or hidden randomness. Time comes as
//! [`tick`](Node::tick)s, chance as a seed, the disk as a [`Storage`] that is read and never
//! written. A run is a function of configuration, storage and the order of calls, so any failure
//! can be replayed from its seed.
//!
//! | module | holds |
//! |---|---|
//! | `node`, `ready`, `advance` | what the application calls and gets: [`Node`], [`Ready`]. **Start here.** |
//! | `raft` | the state of a member; terms; which message goes where |
//! | `election`, `proposal`, `replication`, `snapshot`, `read_index`, `transfer`, `membership` | the protocol, by concern, as methods of that state |
//! | `log`, `unstable`, `storage` | the log: as a whole, its end that is still being written, the rest |
//! | `tracker`, `progress`, `inflights`, `pending_reads` | the members, and a leader's books about each and about reads |
//! | [`quorum`], [`joint`], [`confchange`] | the mathematics of agreement and of changing who agrees |
//! | `message`, `entry`, `term`, `log_index`, `state` | plain data, with the fields and numbers of the wire protocol |
//! | `config`, `error`, `note`, `positions`, `status` | settings, refusals, log lines, credible terms, introspection |
//!
//! # Example
//!
//! A group of one elects itself and commits a proposal.
//!
//! ```
//! use quorate_raft::{Config, HardState, LogIndex, MemoryStorage, Node, Snapshot, Term};
//!
//! let mut begin = Snapshot::default();
//! begin.metadata.index = LogIndex(1);
//! begin.metadata.term = Term(1);
//! begin.metadata.conf_state.voters = vec![1];
//! let state = HardState { term: Term(1), vote: 0, commit: LogIndex(1) };
//! let storage = MemoryStorage::recover(state, begin, Vec::new());
//!
//! let mut node = Node::new(Config::new(1, 42), storage)?;
//! node.campaign();
//! let mut applied = Vec::new();
//! while applied.is_empty() {
//!     if node.is_leader() && !node.has_ready() {
//!         node.propose("hello".into())?;
//!     }
//!     let ready = node.ready();
//!     // Here a member writes to disk, and sends `ready.messages`.
//!     node.storage_mut().append(ready.entries);
//!     applied.extend(ready.committed_entries.into_iter().filter(|entry| !entry.data.is_empty()));
//!     node.advance();
//! }
//! assert_eq!(applied[0].data.as_ref(), b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where it differs from etcd's library
//!
//! * What a correct member never sends is refused with a [`StepError`] instead of a panic, and a
//!   heartbeat context of any length is harmless.
//! * A leader whose log contradicts what is committed here is refused too, where etcd's followers answer it
//!   for ever, and so is a term that leaves no room for elections.
//! * The only voter of a group waits with reads until it has committed an entry of its term, and a
//!   leader that has left the group does not answer for the voter that remains.
//! * A refused proposal leaves no trace: it does not block membership changes until later entries
//!   are applied.
//! * A transfer request from a former leader is dropped, not passed on.
//!
//! # Not here
//!
//! Encoding messages, sending and receiving them, the write-ahead log, the state machine, and what
//! a member decides above the protocol: when to take snapshots, whom to admit, what to limit.
//!
//! # Tests
//!
//! `tests/interaction` runs golden scripts, etcd's own among them; `tests/schedules` runs groups
//! under random trouble and checks Raft's safety properties; `tests/properties.rs` and the unit
//! tests compare parts with naive models. `benches/proposals.rs` measures the hot path.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]
#![forbid(unsafe_code)]

mod advance;
pub mod confchange;
mod config;
mod election;
mod entry;
mod error;
mod inflights;
pub mod joint;
mod log;
mod log_index;
mod membership;
mod message;
mod node;
mod note;
mod pending_reads;
mod positions;
mod progress;
mod proposal;
pub mod quorum;
mod raft;
mod read_index;
mod ready;
mod replication;
mod snapshot;
mod state;
mod status;
mod storage;
mod term;
mod tracker;
mod transfer;
mod unstable;

pub use confchange::{
    AnyConfChange, ConfChange, ConfChangeError, ConfChangeKind, ConfChangeStep, ConfChangeV2,
    Transition,
};
pub use config::{Config, ReadOnlyOption};
pub use entry::{Entry, EntryId, EntryKind, MemberId, NONE, encoded_bytes, payload_bytes};
pub use error::{ConfigError, RefusalKind, StepError};
pub use inflights::Inflights;
pub use log_index::LogIndex;
pub use message::{LOCAL_APPEND, LOCAL_APPLY, Message, MessageKind, is_local_target};
pub use node::{Node, SnapshotOutcome};
pub use note::{Note, NoteLevel};
pub use progress::{Progress, ProgressState};
pub use ready::Ready;
pub use state::{ConfState, HardState, ReadState, Role, Snapshot, SnapshotMetadata, SoftState};
pub use status::Status;
pub use storage::{MemoryStorage, Storage, StorageError};
pub use term::Term;
pub use tracker::{Configuration, InflightLimits, ProgressMap};
