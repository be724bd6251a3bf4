//! A running member: its threads, the handles for other crates, and its background duties.
//!
//! [`start`] starts the threads and returns [`Running`], which contains the [`Handles`]: a [`MemberInfo`] for status, a
//! [`Reader`], a [`Proposer`], an [`Administrator`] and more. [`Handles::for_services`] returns the handles for the
//! services of the client ports, which use the member as their data store.
//!
//! The modules `data_store`, `handles` and `start` connect the parts. All other modules form three layers, and each
//! layer imports only from the layers below it (`cargo xtask tidy` checks this):
//!
//! | layer | contains |
//! |---|---|
//! | `duties` | background work: housekeeping, leases, versions, membership changes |
//! | `requests` | the path of a client's request through the member: reads, proposals, orders to the threads |
//! | `threads` | the threads, their channels, and the state that they share |
//!
//! # Not here
//!
//! The order in which entries are made durable and applied (`core`), connections between members (`peer`), admission
//! and access control (`requests`), client ports (`edge`), and starting a whole server (`server`).

mod data_store;
mod duties;
mod handles;
mod requests;
mod start;
mod threads;

pub use duties::compactor::compact_automatically;
pub use duties::{corruption, housekeeping, leadership, lease_holder, membership, space, versions};
pub use handles::Handles;
pub use quorate_core::bootstrap::Identity;
pub use requests::administrator::Administrator;
pub use requests::member_info::MemberInfo;
pub use requests::proposer::Proposer;
pub use requests::reader::Reader;
pub use start::{MemberInputs, Running, Start, start};
pub use threads::fatal;
pub use threads::limit_notices::log_limits;
pub use threads::member_status::MemberStatus;
pub use threads::memory_lock::MemoryLock;
pub use threads::outcome::deliver_outcomes;
pub use threads::pending_proposals::Load;
pub use threads::reports::Reports;
pub use threads::request_id::RequestIds;
pub use threads::timed_disk::{DiskTimes, TimedDisk};
