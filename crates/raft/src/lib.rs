//! The consensus core: how a group of members agrees on one log. It follows the Raft thesis (Ongaro, "Consensus:
//! Bridging Theory and Practice", Stanford 2014). Message for message, it behaves like etcd's raft library 3.7, because
//! a group may contain members of both implementations.
//!
//! # The protocol in one page
//!
//! Every member keeps a **log** of entries. Each entry is created in a **term** by the leader of that term; a term has
//! at most one leader. An entry is identified by its term and index. If two logs contain the same entry, they are equal
//! up to that entry. An entry is **committed** once every future leader is certain to have it. A member applies the
//! committed entries of its log to a state machine, in order.
//!
//! *Elections.* A follower that receives no message from a leader for some time requests votes from the voters in a new
//! term. A voter votes once per term, and only for a candidate whose log is at least as up to date as the voter's log.
//! Because any two majorities overlap, a term has at most one leader, and every leader has every committed entry. A
//! *pre-vote* first finds out whether an election could be won, so that a member that returns from a network partition
//! does not depose a working leader. With *check-quorum*, a leader that no longer reaches a majority steps down, and
//! followers that receive messages from a leader ignore candidates.
//!
//! *Replication.* The leader appends proposals to its log and sends followers the entries that they lack. It sends
//! further entries before earlier ones are acknowledged, within a window. A follower whose log differs replaces its
//! conflicting entries.
//! When a majority has an entry of the leader's term, that entry and all entries before it are committed. Followers
//! that have fallen too far behind receive a snapshot of the state machine instead.
//!
//! *Membership* changes are entries of the log and take effect when they are applied. They change one voter at a time,
//! or any number of voters through a joint configuration, in which decisions need both the old and the new majority.
//! *Learners* receive the log but have no vote.
//!
//! *Reads* need no log entry. The leader confirms with a round of heartbeats that it still leads. A read is
//! linearizable if it reflects all entries up to the commit index at the start of that round.
//!
//! # Structure of the crate
//!
//! The crate is deterministic: it has no IO, clock, thread, lock, async code or hidden randomness.
//! The caller provides time as [`tick`](Node::tick)s, randomness as a seed, and the disk as a
//! [`Storage`] that the core reads and never writes. A run is a function of the configuration, the
//! storage and the order of calls, so any failure can be replayed from its seed.
//!
//! | module | content |
//! |---|---|
//! | `node`, `ready`, `advance` | the application's interface: [`Node`], [`Ready`]. **Start here.** |
//! | `raft` | a member's state; terms; message dispatch |
//! | `election`, `proposal`, `replication`, `snapshot` | parts of the protocol, as methods of that state |
//! | `read_index`, `transfer`, `membership` | further parts of the protocol, as methods of that state |
//! | `log`, `unstable`, `storage` | the whole log; its unwritten end; its written part |
//! | `tracker`, `progress`, `inflights` | the members; each member's replication progress; its unacknowledged appends |
//! | `pending_reads`, `confirmers` | the leader's pending reads; the followers that it asks to confirm them |
//! | [`quorum`], [`joint`], [`confchange`] | quorum decisions and membership changes |
//! | `received` | messages grouped by the sender's role, with only the fields that each kind uses |
//! | `message`, `entry`, `term`, `log_index`, `state` | plain data, with the fields and numbers of the wire protocol |
//! | `config`, `error`, `note`, `positions`, `status` | settings, refusals, log lines, limits on terms and indexes, status |
//!
//! # Example
//!
//! A group with one member elects itself and commits a proposal.
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
//! # Differences from etcd's library
//!
//! * A message that a correct member never sends is refused with a [`StepError`] instead of causing a panic, and
//!   heartbeat contexts of any length are accepted.
//! * A message from a leader whose log contradicts this member's committed entries is refused; etcd's followers respond
//!   to such a leader forever. A term so high that no election could follow it is refused too.
//! * The only voter of a group delays reads until it has committed an entry of its term. A leader that has left a group
//!   with a single remaining voter answers no read before that voter has confirmed that the leader still leads.
//! * A refused proposal has no effect. In etcd's library, a refused membership change blocks further changes until
//!   later entries are applied.
//! * A transfer request that a follower has forwarded to a former leader is dropped instead of being forwarded again.
//! * With [`Config::skip_repeated_acknowledgements`], a follower does not respond to an append that only raises the
//!   commit index.
//! * With [`Config::asks_few_to_confirm_reads`], a leader asks only as many followers as it needs to confirm a read.
//!
//! # Not here
//!
//! Encoding, sending and receiving messages, the write-ahead log, the state machine, and decisions
//! above the protocol, such as when to take snapshots, which members to admit, and which limits to set.
//!
//! # Tests
//!
//! `tests/interaction` runs golden scripts, including etcd's own. `tests/schedules` runs groups under random faults and
//! checks Raft's safety properties. `tests/properties.rs` and the unit tests compare individual modules with simple
//! models. `benches/proposals.rs` measures the hot path.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]
#![forbid(unsafe_code)]

mod advance;
pub mod confchange;
mod config;
mod confirmers;
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
mod received;
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
