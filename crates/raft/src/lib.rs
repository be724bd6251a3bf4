//! The consensus core: how a group of members agrees on one log, after the Raft thesis (Ongaro,
//! "Consensus: Bridging Theory and Practice", 2014) and with the observable behaviour of etcd's
//! raft library.
#![forbid(unsafe_code)]

pub mod confchange;
mod config;
mod election;
mod entry;
mod error;
mod inflights;
pub mod joint;
mod log;
mod membership;
mod message;
mod node;
mod note;
mod progress;
mod proposal;
pub mod quorum;
mod raft;
mod random;
mod read_index;
mod ready;
mod replication;
mod snapshot;
mod state;
mod status;
mod storage;
mod tracker;
mod transfer;
mod unstable;

pub use confchange::{
    AnyConfChange, ConfChange, ConfChangeError, ConfChangeKind, ConfChangeStep, ConfChangeV2,
    Transition,
};
pub use config::{Config, ReadOnlyOption};
pub use entry::{
    Entry, EntryId, EntryKind, LogIndex, MemberId, NONE, Term, encoded_bytes, payload_bytes,
};
pub use error::{ConfigError, StepError};
pub use inflights::Inflights;
pub use message::{LOCAL_APPEND, LOCAL_APPLY, Message, MessageKind, is_local_target};
pub use node::{Node, SnapshotOutcome};
pub use note::{Note, NoteLevel};
pub use progress::{Progress, ProgressState};
pub use ready::Ready;
pub use state::{ConfState, HardState, ReadState, Role, Snapshot, SnapshotMetadata, SoftState};
pub use status::Status;
pub use storage::{MemoryStorage, Storage, StorageError};
pub use tracker::{Configuration, InflightLimits, ProgressMap};
