//! The format for programs that use the protocol: only the encoded reply.

use prost::Message;

use super::{Reply, Shown};

/// Formats a reply. Returns false if the reply is not a protocol message.
pub(super) fn render(reply: &Reply, shown: &mut Shown) -> bool {
    shown.output.extend(match reply {
        Reply::Put(response) => response.encode_to_vec(),
        Reply::Get(response, _) => response.encode_to_vec(),
        Reply::Delete(response) => response.encode_to_vec(),
        Reply::Txn(response) => response.encode_to_vec(),
        Reply::Watch(response) => response.encode_to_vec(),
        Reply::LeaseGrant(response) => response.encode_to_vec(),
        Reply::LeaseRevoke(_, response) => response.encode_to_vec(),
        Reply::LeaseKeepAlive(response) => response.encode_to_vec(),
        Reply::LeaseTimeToLive(response, _) => response.encode_to_vec(),
        Reply::LeaseList(response) => response.encode_to_vec(),
        Reply::MemberAdd(response) => response.encode_to_vec(),
        Reply::MemberRemove(_, response) => response.encode_to_vec(),
        Reply::MemberUpdate(_, response) => response.encode_to_vec(),
        Reply::MemberPromote(_, response) => response.encode_to_vec(),
        Reply::MemberList(response) => response.encode_to_vec(),
        Reply::MoveLeader { response, .. } => response.encode_to_vec(),
        Reply::Downgrade(_, response) => response.encode_to_vec(),
        Reply::Alarm(response) => response.encode_to_vec(),
        Reply::Access(reply) => reply.encode(),
        Reply::Health(_) | Reply::Status(_) | Reply::HashKv(_) => return false,
    });
    true
}
