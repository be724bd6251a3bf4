//! A member at work: its threads, what they tell one another, and the handles that others have of it.
//!
//! [`start`] sets the threads going and gives [`Handles`]: a [`Profile`] to look at, a [`Reader`], a [`Proposer`],
//! an [`Administrator`], and [`StreamEnds`]. A client's requests pass the gate of `access`. What is built on those stands beside them: who leads
//! (`leadership`), renewing leases (`lease_holder`), changing the members (`membership`), agreeing on versions
//! (`versions`), what a member does by itself (`housekeeping`).
//!
//! # Not here
//!
//! In which order things are made durable and carried out (`core`); how members reach one another (`peer`); how
//! clients do (`edge`), and how a member comes to life (`server`).

mod accepted_compactions;
pub mod access;
pub mod accounts;
mod administrator;
pub mod admission;
mod applier;
mod batch_queue;
mod channels;
mod clock;
mod committer;
mod compaction_point;
mod compactor;
mod completion;
pub mod corruption;
mod driver;
mod error;
pub mod fatal;
mod handles;
pub mod housekeeping;
pub mod leadership;
pub mod lease_holder;
mod limit_notices;
mod limits;
pub mod membership;
mod memory_lock;
mod outcome;
mod passwords;
mod pending_proposals;
mod persist;
mod profile;
mod proposer;
mod reader;
mod reports;
mod request_id;
pub mod request_text;
mod slow;
pub mod space;
mod standing;
mod start;
mod stream_ends;
mod ticks;
mod timed_disk;
mod timeout;
pub mod versions;
mod write_stages;

pub use administrator::Administrator;
pub use error::RequestError;
pub use handles::Handles;
pub use limit_notices::log_limits;
pub use limits::Limits;
pub use memory_lock::MemoryLock;
pub use outcome::deliver_outcomes;
pub use passwords::PasswordsLoad;
pub use pending_proposals::Load;
pub use profile::Profile;
pub use proposer::Proposer;
pub use quorate_core::bootstrap::Identity;
pub use quorate_core::request::{Ask, Ready};
pub use reader::{Reader, Weight};
pub use reports::Reports;
pub use request_id::RequestIds;
pub use slow::{ReadKind, ReadTimes};
pub use standing::Standing;
pub use start::{Entrance, Running, Start, start};
pub use stream_ends::{StreamEnd, StreamEnds};
pub use timed_disk::{DiskTimes, TimedDisk};
