//! The core of a member, which defines the order in which data is persisted, sent, applied, committed, marked, released
//! and installed.
//!
//! Four state machines exchange values. Each machine is driven by calls. A call does the machine's work, including file
//! accesses, and returns the next actions. The caller chooses the threads and the channels between them.
//!
//! ```text
//!            proposals, messages, ticks
//!                      │
//!                 consensus ── Persist ──► log
//!                   ▲   │ ▲◄── Persisted ───┘▲
//!           verdicts│   │Apply              mark
//!                   │   ▼ InstallSnapshot    │
//!               state machine ── batch ──► backend writer ──► an image for a peer
//!                   ▲                        │
//!                   └── Committed, Installed ┘
//! ```
//!
//! # Invariants
//!
//! * Data is persisted before it is acknowledged: consensus is notified of a write only when the write is on disk
//!   ([`Log`]). A response is sent only for a committed entry whose changes are visible to readers ([`StateMachine`]).
//! * The backend file contains a prefix of the log: it is written in order, in batches of whole entries, and each batch
//!   stores the index of its last entry ([`BackendWriter`]).
//! * A snapshot's file is durable before the log contains its mark. The mark is valid only if a hard state covers it,
//!   and only then are the segments before it released.
//! * Consensus receives the outcome of a membership change before the report that the change is applied
//!   ([`Consensus`]).
//! * A member can start from its disk after a crash at any of these steps, with everything that it acknowledged
//!   ([`start`]). Member attributes that old versions failed to store are restored ([`old_members`]). [`bootstrap`]
//!   decides whether and how the member starts.
//! * A learner becomes a voter only after it has caught up with the leader ([`promotion`]).
//! * [`incoming`] checks messages from other members. A snapshot's message reaches consensus only after its image is
//!   stored.
//!
//! # Not here
//!
//! Threads, queues and clocks (`member`). The time is passed as an argument. The callers that wait for responses. Here
//! they are only identifiers.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]

mod applied_waits;
mod backend_writer;
pub mod bootstrap;
mod consensus;
mod counted_members;
mod image;
pub mod incoming;
mod leadership;
mod lease_care;
pub mod lease_rules;
mod lease_task;
mod log;
pub mod old_members;
mod pending;
pub mod promotion;
pub mod request;
mod snapshot;
pub mod start;
mod state_machine;
mod stop;

pub use applied_waits::AppliedWaits;
pub use backend_writer::{
    BackendError, BackendWriter, CompactionEnd, Defragmented, ORDERS_QUEUED_MAX, Order,
    ROOM_RETRY_INTERVAL, Report, Then,
};
pub use consensus::turn::Intervals;
pub use consensus::{Consensus, WaitingReads};
pub use image::InstallError;
pub use leadership::LeadershipState;
pub use lease_care::{LeaseCare, LeaseProposals, Revocation};
pub use lease_task::{LeaseAnswer, LeaseStep, LeaseTask, LeaseView};
pub use log::{Log, LogError, Marked, Synced};
pub use pending::{Load, Pending};
pub use quorate_node::limits::INFLIGHT_BYTES_MAX;
pub use snapshot::{Purger, SnapshotOrder, configuration_of};
pub use state_machine::{ApplyError, Begun, Job, Next, Now, Outlet, Output, Pace, StateMachine};
pub use stop::StopStep;

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "tests need a real instant as the start of virtual time"
)]
mod tests;
mod ticks;
