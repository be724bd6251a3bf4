//! The Watch service: watchers of clients that want the same share one watch of a member.
//!
//! ```text
//! session (one client's stream) ─► hub ─► room (all who want the same) ─► feed (watches of a member, on one stream)
//!    ▲                                        │                       └► catching_up (one watch, of the past)
//!    └──── events and notices, by `mailbox` ◄─┘
//! ```
//!
//! The watchers of one watch of a member are a `Group`. A new watcher begins one, so that a member checks its token and its
//! right to the range. Once the member has made the watch, the group is joined to another as soon as that can be done without
//! losing anything. A watcher whose client is slow leaves its group, and begins where it was when the client has caught
//! up: others never wait for it. Watches that tell what happens now share streams, so that a member sees few of them;
//! one that tells of the past has its own until it has caught up.
//!
//! # Guarantees
//!
//! * Every watcher is told every event from its start on, once and in order, whatever groups it has been in and
//!   whichever members were lost meanwhile; or it is told that it was cancelled, and why.
//! * Watchers share a watch only if the same user asks, by the same token: what he may see is the member's to judge, for each
//!   new watcher once more. As at a member, a watcher goes on when its token is withdrawn later.
//!
//! # Bound
//!
//! What waits for a client is bounded by its outbox; what is shared is held once. A group reads without waiting for
//! anybody.

mod catching_up;
mod feed;
mod hub;
mod mailbox;
mod member;
mod response;
mod room;
mod rooms;
mod session;

pub(crate) use hub::Hub;
pub(crate) use session::serve;
