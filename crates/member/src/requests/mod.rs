//! The path of a client's request from the ports (`edge`) to the threads.
//!
//! `admission` bounds the work that clients may request at one time, and `access` authenticates and authorises the
//! client. Reads go through `reader`, changes through `proposer`, logins through `accounts` and `passwords`, and orders
//! to the threads (a snapshot, a defragmentation) through `administrator`.
//!
//! # Not here
//!
//! The threads (`threads`), and the member's background work (`duties`).

pub mod access;
pub mod accounts;
pub(crate) mod administrator;
pub mod admission;
mod compaction_point;
pub(crate) mod limits;
pub(crate) mod member_info;
pub(crate) mod passwords;
pub(crate) mod proposer;
pub(crate) mod reader;
pub(crate) mod slow;
pub(crate) mod stream_ends;
mod timeout;
