//! The Watch service: identical watchers of different clients share one watch on a member.
//!
//! ```text
//! session (one client's stream) ─► hub ─► watcher_set (identical watchers) ─► feed (many watches on one stream)
//!    ▲                                           │                        └► catching_up (one watch that is behind)
//!    └──── events and notices, by `mailbox` ◄────┘
//! ```
//!
//! The watchers that share one watch on a member form a `Group`. A new watcher starts in a group of its own, so that a
//! member checks its token and the user's permission for the range. Once the member has created the watch, the group
//! joins another group as soon as no event can be lost. A watcher whose client is slow leaves its group, so that the
//! other watchers do not have to wait. It rejoins at its old position when the client has caught up. Watches that have
//! caught up share streams, so that a member has only a few streams per proxy. A watch that is behind has its own
//! stream until it has caught up.
//!
//! # Guarantees
//!
//! * Every watcher receives every event from its start revision on, once and in order, even if it changes its group or
//!   a member is lost. If that is impossible, it receives a cancellation with the reason.
//! * Watchers share a watch only if they have the same user and token. A member checks the permissions of each new
//!   watcher. As on a member, a watcher continues if its token is revoked later.
//!
//! # Bound
//!
//! The outbox limits the data queued for a client, and the hub limits the memory of all watchers. Messages shared by
//! several clients are stored once. A group reads events without waiting for any client.

mod catching_up;
mod feed;
mod hub;
mod mailbox;
mod member;
mod response;
mod session;
mod watcher_set;
mod watcher_sets;

pub(crate) use hub::Hub;
pub(crate) use session::serve;
