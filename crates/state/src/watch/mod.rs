//! Watches: every change to a watched key is sent to its watchers in order and exactly once.
//!
//! The applier publishes changes to the [`Hub`]. Each client stream is a [`WatchStream`]. The connection's task passes
//! requests to the stream and takes [`Frame`]s from it. Events are encoded once and shared by all watchers that receive
//! them. A stream whose client does not keep up costs a bounded amount of memory, and its watchers read history when
//! the client resumes reading.
//!
//! ```text
//! applier ── Publication::deliver ──► index ─► live groups ─► queue of the stream ─► Frame, Frame, ..
//!                                                   ▲  │ no room
//! member ─── Hub::catch_up ─► history ─► queue      │  ▼
//!                              └───── current revision ◄── behind
//! ```
//!
//! # Invariants
//!
//! * A watcher receives every matching event at or after its start revision, exactly once and in revision order, until
//!   it is cancelled. Only the client, a compaction or a loss of committed changes cancels a watcher.
//! * All matching events of a revision are in one response, unless the client requested fragments.
//! * Neither the applier nor another stream waits for a client.
//!
//! # Not here
//!
//! Permissions (the caller passes a check), timers (`edge` calls [`WatchStream::tick_progress`], and
//! `member::housekeeping` calls [`Hub::catch_up`]), and reading the keyspace (through the trait [`Source`]).
//!
//! # Tests
//!
//! `tests.rs` tests each rule of the service separately. `tests/random.rs` compares random writes, slow readers,
//! cancels and compactions with a model that computes the events that every watcher must receive.

mod behind;
mod catch_up;
mod events;
mod frame;
mod held;
mod history;
mod hub;
mod index;
mod intervals;
mod limits;
mod queue;
mod slab;
mod stream;
mod unsynced;

#[cfg(test)]
mod tests;

pub use self::frame::{Frame, HeaderFields};
pub use self::held::Held;
pub use self::history::{Event, History, HistoryFault, Source};
pub use self::hub::{Hub, HubStats, Publication};
pub use self::limits::{CatchUpLimits, QueueLimits, WatchLimits};
pub use self::stream::WatchStream;
