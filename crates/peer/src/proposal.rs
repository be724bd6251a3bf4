//! Validates the entries of a forwarded proposal: only entries that members can apply are accepted.
//!
//! An entry that cannot be applied would, once in the log, stop every member, and would stop it again after each
//! restart. An entry with text that is not valid UTF-8 is refused as well, because members of etcd 3.7 cannot apply it.

use prost::Message as _;
use quorate_api::raftpb::ConfChange;
use quorate_raft::{Entry, EntryKind};
use quorate_state::apply::{Command, Request, RequestFault};

/// Why an entry is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    #[error(transparent)]
    Request(#[from] RequestFault),
    #[error("cannot read the membership change: {0}")]
    Change(#[from] prost::DecodeError),
    #[error("the request contains a plaintext password")]
    PlainPassword,
    #[error("membership changes of this form are not supported")]
    ChangeV2,
}

/// Checks that every member that runs this version can apply the entry.
pub(crate) fn check(entry: &Entry) -> Result<(), Unfit> {
    match entry.kind {
        EntryKind::Normal if entry.data.is_empty() => {}
        EntryKind::Normal => {
            if let Command::Auth(command) = Request::decode_valid(&entry.data)?.command
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

#[cfg(test)]
mod tests {
    use quorate_raft::{LogIndex, Term};

    use super::*;

    #[test]
    fn text_that_is_not_valid_utf_8_is_refused() {
        let check_role = |name: &[u8]| {
            // A request with id 7 to add a role.
            let data = [b"\x08\x07\x82\x4b\x03\x0a\x01", name].concat().into();
            check(&Entry { term: Term(1), index: LogIndex(1), kind: EntryKind::Normal, data })
        };
        assert!(check_role(b"r").is_ok());
        assert!(matches!(check_role(b"\xff"), Err(Unfit::Request(_))));
    }
}
