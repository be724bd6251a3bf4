//! A member at work: its threads, what they tell one another, and the handles that others have of it.
//!
//! [`start`] sets the threads going and gives a [`Member`], which is handles: a [`Profile`] to look at, a [`Reader`],
//! a [`Proposer`], an [`Administrator`], and [`StreamEnds`]. What is built on those stands beside them: who leads
//! (`leadership`), renewing leases (`lease_holder`), changing the members (`membership`), agreeing on versions
//! (`versions`), what a member does by itself (`housekeeping`).
//!
//! # Not here
//!
//! In which order things are made durable and carried out (`core`); how members reach one another (`peer`); how
//! clients do (`edge`), and how a member comes to life (`server`).

mod administrator;
pub mod admission;
mod answer;
mod applier;
mod channels;
mod clock;
mod committer;
mod compactor;
mod driver;
mod error;
pub mod fatal;
mod handles;
pub mod housekeeping;
mod identity;
mod inbox;
pub mod leadership;
pub mod lease_holder;
mod limit_notices;
mod limits;
mod mailbox;
pub mod membership;
mod persist;
mod profile;
mod proposer;
mod reader;
mod reports;
mod request_id;
mod standing;
mod start;
mod stream_ends;
mod timeout;
pub mod versions;
mod waiters;

pub use administrator::Administrator;
pub use answer::await_answers;
pub use error::RequestError;
pub use handles::Member;
pub use identity::Identity;
pub use limit_notices::log_limits;
pub use limits::Limits;
pub use profile::Profile;
pub use proposer::Proposer;
pub use reader::{Reader, Weight};
pub use reports::Reports;
pub use request_id::RequestIds;
pub use standing::Standing;
pub use start::{Entrance, Running, Start, start};
pub use stream_ends::{StreamEnd, StreamEnds};
pub use waiters::Load;
