//! The path of a client's request from the ports (`edge`) to the threads.
//!
//! `admission` bounds how much clients may ask for at one time, `access` authenticates and authorizes the client.
//! A read goes through `reader`, a change through `proposer`, a login through `accounts` and `passwords`, an order to
//! the threads (a snapshot, a defragmentation) through `administrator`.
//!
//! # Not here
//!
//! The threads (`threads`), and the work of the member that no request starts (`duties`).

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
