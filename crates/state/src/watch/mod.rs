//! Watches: telling clients of every change to the keys they watch, in order, each once.
//!
//! The applier publishes changes to the [`Hub`]; each client stream is a [`WatchStream`] that its
//! connection's task feeds with requests and takes [`Frame`]s from. Events are encoded once and shared by
//! all who get them; a stream that does not keep up costs a bounded amount of memory, and its watchers
//! are served from history when it does.
//!
//! ```text
//! applier ── Publication::deliver ──► index ─► live groups ─► queue of the stream ─► Frame, Frame, ..
//!                                                   ▲  │ no room
//! server ─── Hub::catch_up ─► history ─► queue      │  ▼
//!                              └──────── at the present ◄── behind
//! ```
//!
//! # Invariants
//!
//! * A watcher gets every matching event from its start on, in revision order, each once, until it is
//!   cancelled. Only compaction and the client cancel it.
//! * All matching events of a revision come in one response (unless the client asked for fragments).
//! * Nothing waits for a client: not the applier, not another stream.
//!
//! # Not here
//!
//! Permissions (the caller passes a check), timers (the server calls [`WatchStream::tick_progress`] and
//! [`Hub::catch_up`]), reading the keyspace ([`Source`] stands for it).
//!
//! # Tests
//!
//! `tests.rs`: the rules of the service one by one; then writers, slow readers, cancels and compactions
//! at random against a model that knows what every watcher must see.

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

#[cfg(test)]
mod tests;

pub use self::frame::{Frame, HeaderFields};
pub use self::held::Held;
pub use self::history::{Event, History, HistoryFault, Source};
pub use self::hub::{Hub, HubStats, Publication};
pub use self::limits::{CatchUpLimits, QueueLimits, WatchLimits};
pub use self::stream::WatchStream;
