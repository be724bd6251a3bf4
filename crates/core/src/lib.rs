//! The core of a member: in which order things are persisted, sent, applied, committed, marked, released and
//! installed.
//!
//! Four machines exchange values. Each is driven by a call, does what that asks for, files included, and hands out
//! what has to happen next; which thread calls which, and how the values travel in between, is the caller's affair.
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
//! * Persisted before acknowledged: consensus hears of a write only when it is on disk ([`Log`]), and an answer
//!   leaves only for what consensus says is committed, once it can be read ([`StateMachine`]).
//! * The backend file is a prefix of the log: batches of whole entries, in order, each with its index
//!   ([`BackendWriter`]).
//! * A snapshot's file is durable before the log has its mark, and the mark counts only under a hard state that
//!   covers it. What a mark makes history is given up only then.
//! * Consensus hears what became of a membership change before it hears that the change is applied ([`Consensus`]).
//! * What a disk holds after any of these steps was cut short, a member starts from ([`start`]), without what it
//!   had acknowledged being lost. What old versions failed to store of the members is made good ([`old_members`]).
//!   Whether it may start at all, and as what, is [`bootstrap`]'s verdict.
//! * What comes from other members is admitted by [`incoming`]; a snapshot reaches consensus only behind its image.
//!
//! # Not here
//!
//! Threads, queues and clocks (`member`): time comes as an argument. Who waits for an answer: the machines carry
//! what the caller gives them to know it by.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]

mod applied_waits;
mod backend_writer;
pub mod bootstrap;
mod consensus;
mod image;
pub mod incoming;
mod leadership;
mod lease_care;
pub mod lease_rules;
mod lease_task;
mod log;
pub mod old_members;
mod pending;
pub mod request;
mod snapshot;
pub mod start;
mod state_machine;

pub use applied_waits::AppliedWaits;
pub use backend_writer::{
    BackendError, BackendWriter, CompactionEnd, Defragmented, Order, Report, Then,
};
pub use consensus::{Consensus, Readers};
pub use image::InstallError;
pub use leadership::LeadershipState;
pub use lease_care::{LeaseCare, LeaseProposals};
pub use lease_task::{LeaseAnswer, LeaseStep, LeaseTask, LeaseView};
pub use log::{Log, LogError, Marked, Synced};
pub use pending::{Load, Pending};
pub use snapshot::{Purger, SnapshotOrder};
pub use state_machine::{ApplyError, Begun, Job, Next, Now, Outlet, Output, Pace, StateMachine};

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "an instant has no other beginning")]
mod tests;
