//! Work of the member as a whole: periodic work, agreement with other members, and the work of a leader. Requests for
//! such work (membership changes, downgrades, lease renewals) are handled here too.
//!
//! A duty uses the handles of the member (`Handles`), as the services of the gRPC port do. Nothing in `requests` or
//! `threads` imports from here.

pub(crate) mod compactor;
pub mod corruption;
pub mod housekeeping;
pub mod leadership;
pub mod lease_holder;
pub mod membership;
pub mod space;
pub mod versions;
