//! The path of a client's request from the data store's interface to the threads.
//!
//! Reads go through `reader`, changes through `proposer`, and orders to the threads (a snapshot, a defragmentation)
//! through `administrator`.
//!
//! # Not here
//!
//! The part of the path that does not depend on the data store (the crate `requests`), the threads (`threads`), and the
//! member's background work (`duties`).

pub(crate) mod administrator;
mod compaction_point;
pub(crate) mod member_info;
pub(crate) mod proposer;
pub(crate) mod reader;
pub(crate) mod slow_writes;
mod timeout;
mod weight;
