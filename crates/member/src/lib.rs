//! A running member: its threads, the handles for other crates, and its background duties.
//!
//! [`start`] starts the threads and returns [`Running`], which contains the [`Handles`]: a [`MemberInfo`] for status, a
//! [`Reader`], a [`Proposer`], an [`Administrator`], [`StreamEnds`] and more. The modules form three layers, and each
//! layer imports only from the layers below it (`cargo xtask tidy` checks this):
//!
//! | layer | contains |
//! |---|---|
//! | `duties` | background work: housekeeping, leases, versions, membership changes |
//! | `requests` | the path of a client's request: admission, access control, reads, proposals |
//! | `threads` | the threads, their channels, and the state that they share |
//!
//! # Not here
//!
//! The order in which entries are made durable and applied (`core`), connections between members (`peer`), client ports
//! (`edge`), and the start of a whole server (`server`).

mod duties;
mod error;
mod handles;
mod requests;
mod start;
mod threads;

pub use duties::{corruption, housekeeping, leadership, lease_holder, membership, space, versions};
pub use error::RequestError;
pub use handles::Handles;
pub use quorate_core::bootstrap::Identity;
pub use quorate_core::request::{Ask, Ready};
pub use requests::administrator::Administrator;
pub use requests::limits::Limits;
pub use requests::member_info::MemberInfo;
pub use requests::passwords::PasswordsLoad;
pub use requests::proposer::Proposer;
pub use requests::reader::{Reader, Weight};
pub use requests::slow::{ReadKind, ReadTimes};
pub use requests::stream_ends::{StreamEnd, StreamEnds};
pub use requests::{access, accounts, admission};
pub use start::{MemberInputs, Running, Start, start};
pub use threads::limit_notices::log_limits;
pub use threads::member_status::MemberStatus;
pub use threads::memory_lock::MemoryLock;
pub use threads::outcome::deliver_outcomes;
pub use threads::pending_proposals::Load;
pub use threads::reports::Reports;
pub use threads::request_id::RequestIds;
pub use threads::timed_disk::{DiskTimes, TimedDisk};
pub use threads::{fatal, request_text};
