//! The threads of a member, the channels between them, and the state that they share with requests and duties.
//!
//! `driver` runs consensus, `persist` writes the log, `applier` runs the state machine, and `committer` writes the
//! backend file. The threads communicate through `channels`, and their modules do not import each other. Connection
//! runtimes wait for outcomes in `completion`.
//!
//! # Not here
//!
//! The path of a client's request to the threads (`requests`), and the periodic work of a member (`duties`). Nothing
//! here imports from either.

pub(crate) mod accepted_compactions;
pub(crate) mod applier;
pub(crate) mod batch_queue;
pub(crate) mod change_lines;
pub(crate) mod channels;
pub(crate) mod clock;
pub(crate) mod committer;
pub(crate) mod completion;
pub(crate) mod driver;
pub mod fatal;
pub(crate) mod limit_notices;
pub(crate) mod member_status;
pub(crate) mod memory_lock;
pub(crate) mod outcome;
pub(crate) mod pending_proposals;
pub(crate) mod persist;
pub(crate) mod reports;
pub(crate) mod request_id;
pub(crate) mod timed_disk;
pub(crate) mod waitlist;
pub(crate) mod write_stages;
