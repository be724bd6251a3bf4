//! Which entries of a forwarded proposal are taken: those that a member can carry out.
//!
//! Once in the log, an entry that cannot be carried out would end its members, and again at each start.

use prost::Message as _;
use quorate_api::raftpb::ConfChange;
use quorate_raft::{Entry, EntryKind};
use quorate_state::apply::{Command, Request, RequestFault};

/// Why an entry is not to be stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    #[error(transparent)]
    Request(#[from] RequestFault),
    #[error("the membership change is not readable: {0}")]
    Change(#[from] prost::DecodeError),
    #[error("it sets a password that is not hashed")]
    PlainPassword,
    #[error("membership changes of this form are not made")]
    ChangeV2,
}

/// Whether an entry could be carried out by any member of this version, once it is in the log.
pub(crate) fn check(entry: &Entry) -> Result<(), Unfit> {
    match entry.kind {
        EntryKind::Normal if entry.data.is_empty() => {}
        EntryKind::Normal => {
            if let Command::Auth(command) = Request::decode(entry.data.clone())?.command
                && command.has_plain_password()
            {
                return Err(Unfit::PlainPassword);
            }
        }
        EntryKind::ConfChange => drop(ConfChange::decode(entry.data.clone())?),
        EntryKind::ConfChangeV2 => return Err(Unfit::ChangeV2),
    }
    Ok(())
}
