//! Validates the entries of a forwarded proposal: only entries that members can apply are accepted.
//!
//! An entry that cannot be applied would, once in the log, stop every member, and would stop it again after each
//! restart. An entry with text that is not valid UTF-8 is refused as well, because members of etcd 3.7 cannot apply it,
//! and so is an entry with a name that is too long, because no etcd member can apply it.

use prost::Message as _;
use quorate_api::raftpb::ConfChange;
use quorate_raft::{Entry, EntryKind};
use quorate_state::apply::{AuthRefusal, Command, Request, RequestFault};

/// Why an entry is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    #[error(transparent)]
    Request(#[from] RequestFault),
    #[error("cannot read the membership change: {0}")]
    Change(#[from] prost::DecodeError),
    #[error("the request contains a plaintext password")]
    PlainPassword,
    #[error(transparent)]
    Name(#[from] AuthRefusal),
    #[error("membership changes of this form are not supported")]
    ChangeV2,
}

/// Checks that every member can apply the entry.
pub(crate) fn check(entry: &Entry) -> Result<(), Unfit> {
    match entry.kind {
        EntryKind::Normal if entry.data.is_empty() => {}
        EntryKind::Normal => {
            if let Command::Auth(command) = Request::decode_valid(&entry.data)?.command {
                command.check_new_name()?;
                if command.has_plain_password() {
                    return Err(Unfit::PlainPassword);
                }
            }
        }
        EntryKind::ConfChange => drop(ConfChange::decode(entry.data.clone())?),
        EntryKind::ConfChangeV2 => return Err(Unfit::ChangeV2),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use quorate_api::etcdserverpb::{AuthRoleAddRequest, InternalRaftRequest, RequestHeader};
    use quorate_raft::{LogIndex, Term};
    use quorate_state::auth::NAME_BYTES_MAX;

    use super::*;

    fn check_request(data: Vec<u8>) -> Result<(), Unfit> {
        let (term, index, kind) = (Term(1), LogIndex(1), EntryKind::Normal);
        check(&Entry { term, index, kind, data: data.into() })
    }

    #[test]
    fn a_name_that_is_too_long_is_refused() {
        let check_role = |name_bytes: usize| {
            let name = "n".repeat(name_bytes);
            let header = Some(RequestHeader { id: 7, ..RequestHeader::default() });
            let auth_role_add = Some(Box::new(AuthRoleAddRequest { name }));
            let request =
                InternalRaftRequest { header, auth_role_add, ..InternalRaftRequest::default() };
            check_request(request.encode_to_vec())
        };
        assert!(check_role(NAME_BYTES_MAX).is_ok());
        assert!(matches!(check_role(NAME_BYTES_MAX + 1), Err(Unfit::Name(_))));
    }

    #[test]
    fn text_that_is_not_valid_utf_8_is_refused() {
        let check_role = |name: &[u8]| {
            // A request with id 7 to add a role.
            check_request([b"\x08\x07\x82\x4b\x03\x0a\x01", name].concat())
        };
        assert!(check_role(b"r").is_ok());
        assert!(matches!(check_role(b"\xff"), Err(Unfit::Request(_))));
    }
}
