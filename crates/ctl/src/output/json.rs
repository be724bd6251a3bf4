//! The format for programs: one line of JSON, as Go encodes the protocol's messages.
//!
//! Numbers are JSON numbers of any size, bytes are base64, enums are numbers, and zero values are omitted. Messages
//! that the Go client wraps in its own types are exceptions: leases have the header's fields next to their own, and
//! watch responses use Go's field names.

use quorate_api::authpb::Permission;
use quorate_api::etcdserverpb::response_op::Response;
use quorate_api::etcdserverpb::{
    AlarmResponse, DeleteRangeResponse, HashKvResponse, Member, PutResponse, RangeResponse,
    ResponseHeader, StatusResponse, TxnResponse, WatchResponse,
};
use quorate_api::mvccpb::Event;
use quorate_api::record::KeyValue;

use super::{Access, Health, Reply, Shown};

pub(super) fn render(reply: &Reply, is_hex: bool, shown: &mut Shown) {
    shown.line(match reply {
        Reply::Put(response) => put(response),
        Reply::Get(response, _) => range(response),
        Reply::Delete(response) => delete(response),
        Reply::Txn(response) => txn(response),
        Reply::Watch(response) => watch(response),
        Reply::LeaseGrant(response) => flat(response.header.as_ref())
            .raw("ID", response.id)
            .raw("TTL", response.ttl)
            .raw("Error", string(&response.error))
            .end(),
        Reply::LeaseRevoke(_, response) => just_header(response.header.as_ref()),
        Reply::LeaseKeepAlive(response) => {
            flat(response.header.as_ref()).raw("ID", response.id).raw("TTL", response.ttl).end()
        }
        Reply::LeaseTimeToLive(response, _) => flat(response.header.as_ref())
            .raw("id", response.id)
            .raw("ttl", response.ttl)
            .raw("granted-ttl", response.granted_ttl)
            .raw("keys", list_or_null(response.keys.iter().map(|key| bytes(key))))
            .end(),
        Reply::LeaseList(response) => {
            let lease = |lease: &quorate_api::etcdserverpb::LeaseStatus| {
                Object::new().raw("id", lease.id).end()
            };
            let leases = list(response.leases.iter().map(lease));
            flat(response.header.as_ref()).raw("leases", leases).end()
        }
        Reply::MemberAdd(response) if is_hex => Object::new()
            .raw("header", hex_header(response.header.as_ref()))
            .raw("member", response.member.as_ref().map_or("null".to_owned(), hex_member))
            .raw("members", list(response.members.iter().map(hex_member)))
            .end(),
        Reply::MemberAdd(response) => Object::new()
            .header(response.header.as_ref())
            .some("member", response.member.as_ref().map(member))
            .list("members", response.members.iter().map(member))
            .end(),
        Reply::MemberRemove(_, response) => {
            members(response.header.as_ref(), &response.members, is_hex)
        }
        Reply::MemberUpdate(_, response) => {
            members(response.header.as_ref(), &response.members, is_hex)
        }
        Reply::MemberPromote(_, response) => {
            members(response.header.as_ref(), &response.members, is_hex)
        }
        Reply::MemberList(response) => members(response.header.as_ref(), &response.members, is_hex),
        Reply::MoveLeader { response, .. } => just_header(response.header.as_ref()),
        Reply::Downgrade(_, response) => {
            Object::new().header(response.header.as_ref()).text("version", &response.version).end()
        }
        Reply::Alarm(response) => alarms(response),
        Reply::Health(healths) => list(healths.iter().map(health)),
        Reply::Status(statuses) => {
            endpoints("Status", statuses.iter().map(|(name, reply)| (name, status(reply))))
        }
        Reply::HashKv(hashes) => {
            endpoints("HashKV", hashes.iter().map(|(name, reply)| (name, hash_kv(reply))))
        }
        Reply::Access(reply) => access(reply),
    });
}

/// A JSON object under construction.
struct Object {
    text: String,
}

impl Object {
    fn new() -> Self {
        Self { text: "{".to_owned() }
    }

    /// Adds a field whose value is already JSON.
    fn raw(mut self, name: &str, value: impl ToString) -> Self {
        if self.text.len() > 1 {
            self.text.push(',');
        }
        self.text.push_str(&string(name));
        self.text.push(':');
        self.text.push_str(&value.to_string());
        self
    }

    fn some(self, name: &str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.raw(name, value),
            None => self,
        }
    }

    /// Adds a number or a boolean, unless it is zero or false.
    fn nonzero<T: ToString + Default + PartialEq>(self, name: &str, value: T) -> Self {
        if value == T::default() { self } else { self.raw(name, value) }
    }

    fn text(self, name: &str, value: &str) -> Self {
        if value.is_empty() { self } else { self.raw(name, string(value)) }
    }

    fn bytes(self, name: &str, value: &[u8]) -> Self {
        if value.is_empty() { self } else { self.raw(name, bytes(value)) }
    }

    fn list(self, name: &str, items: impl Iterator<Item = String>) -> Self {
        let text = list(items);
        if text == "[]" { self } else { self.raw(name, text) }
    }

    fn header(self, header: Option<&ResponseHeader>) -> Self {
        self.some("header", header.map(|header| flat(Some(header)).end()))
    }

    fn end(mut self) -> String {
        self.text.push('}');
        self.text
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

fn list_or_null(items: impl Iterator<Item = String>) -> String {
    let text = list(items);
    if text == "[]" { "null".to_owned() } else { text }
}

/// Formats a string, with the escapes that Go adds to make JSON safe in HTML.
fn string(text: &str) -> String {
    let mut out = serde_json::Value::from(text).to_string();
    for (c, escape) in [
        ('<', "\\u003c"),
        ('>', "\\u003e"),
        ('&', "\\u0026"),
        ('\u{2028}', "\\u2028"),
        ('\u{2029}', "\\u2029"),
    ] {
        if out.contains(c) {
            out = out.replace(c, escape);
        }
    }
    out
}

/// Formats bytes as base64.
pub(crate) fn bytes(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4 + 2);
    out.push('"');
    for group in bytes.chunks(3) {
        let byte = |position| u32::from(group.get(position).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for position in 0..4 {
            let digit = bits >> (18 - 6 * position) & 0x3f;
            let digit = char::from(DIGITS[digit as usize]);
            out.push(if position <= group.len() { digit } else { '=' });
        }
    }
    out.push('"');
    out
}

/// Returns an object with the fields of a header. The caller can add more fields.
fn flat(header: Option<&ResponseHeader>) -> Object {
    let header = header.cloned().unwrap_or_default();
    Object::new()
        .nonzero("cluster_id", header.cluster_id)
        .nonzero("member_id", header.member_id)
        .nonzero("revision", header.revision)
        .nonzero("raft_term", header.raft_term)
}

fn just_header(header: Option<&ResponseHeader>) -> String {
    Object::new().header(header).end()
}

fn record(record: &KeyValue) -> String {
    let fields = record.fields();
    Object::new()
        .bytes("key", fields.key)
        .nonzero("create_revision", fields.create_revision)
        .nonzero("mod_revision", fields.mod_revision)
        .nonzero("version", fields.version)
        .bytes("value", fields.value)
        .nonzero("lease", fields.lease)
        .end()
}

fn range(response: &RangeResponse) -> String {
    Object::new()
        .header(response.header.as_ref())
        .list("kvs", response.kvs.iter().map(record))
        .nonzero("more", response.more)
        .nonzero("count", response.count)
        .end()
}

fn put(response: &PutResponse) -> String {
    Object::new()
        .header(response.header.as_ref())
        .some("prev_kv", response.prev_kv.as_ref().map(record))
        .end()
}

fn delete(response: &DeleteRangeResponse) -> String {
    Object::new()
        .header(response.header.as_ref())
        .nonzero("deleted", response.deleted)
        .list("prev_kvs", response.prev_kvs.iter().map(record))
        .end()
}

fn txn(response: &TxnResponse) -> String {
    let operation = |operation: &quorate_api::etcdserverpb::ResponseOp| {
        let inner = match &operation.response {
            Some(Response::ResponseRange(reply)) => {
                Object::new().raw("response_range", range(reply))
            }
            Some(Response::ResponsePut(reply)) => Object::new().raw("response_put", put(reply)),
            Some(Response::ResponseDeleteRange(reply)) => {
                Object::new().raw("response_delete_range", delete(reply))
            }
            Some(Response::ResponseTxn(reply)) => Object::new().raw("response_txn", txn(reply)),
            None => Object::new(),
        };
        Object::new().raw("Response", inner.end()).end()
    };
    Object::new()
        .header(response.header.as_ref())
        .nonzero("succeeded", response.succeeded)
        .list("responses", response.responses.iter().map(operation))
        .end()
}

fn watch(response: &WatchResponse) -> String {
    let event = |event: &Event| {
        Object::new()
            .nonzero("type", event.r#type)
            .some("kv", event.kv.as_ref().map(record))
            .some("prev_kv", event.prev_kv.as_ref().map(record))
            .end()
    };
    Object::new()
        .raw("Header", flat(response.header.as_ref()).end())
        .raw("Events", list_or_null(response.events.iter().map(event)))
        .raw("CompactRevision", response.compact_revision)
        .raw("Canceled", response.canceled)
        .raw("Created", response.created)
        .raw("CancelReason", string(&response.cancel_reason))
        .end()
}

fn member(member: &Member) -> String {
    Object::new()
        .nonzero("ID", member.id)
        .text("name", &member.name)
        .list("peerURLs", member.peer_urls.iter().map(|url| string(url)))
        .list("clientURLs", member.client_urls.iter().map(|url| string(url)))
        .nonzero("isLearner", member.is_learner)
        .end()
}

fn hex_member(member: &Member) -> String {
    Object::new()
        .raw("ID", format_args!("\"{:x}\"", member.id))
        .text("name", &member.name)
        .list("peerURLs", member.peer_urls.iter().map(|url| string(url)))
        .list("clientURLs", member.client_urls.iter().map(|url| string(url)))
        .nonzero("isLearner", member.is_learner)
        .end()
}

fn hex_header(header: Option<&ResponseHeader>) -> String {
    let header = header.cloned().unwrap_or_default();
    Object::new()
        .raw("cluster_id", format_args!("\"{:x}\"", header.cluster_id))
        .raw("member_id", format_args!("\"{:x}\"", header.member_id))
        .nonzero("revision", header.revision)
        .nonzero("raft_term", header.raft_term)
        .end()
}

fn members(header: Option<&ResponseHeader>, members: &[Member], is_hex: bool) -> String {
    if is_hex {
        let members = list(members.iter().map(hex_member));
        return Object::new().raw("header", hex_header(header)).raw("members", members).end();
    }
    Object::new().header(header).list("members", members.iter().map(member)).end()
}

fn alarms(response: &AlarmResponse) -> String {
    let alarm = |alarm: &quorate_api::etcdserverpb::AlarmMember| {
        Object::new().nonzero("memberID", alarm.member_id).nonzero("alarm", alarm.alarm).end()
    };
    Object::new()
        .header(response.header.as_ref())
        .list("alarms", response.alarms.iter().map(alarm))
        .end()
}

fn health(health: &Health) -> String {
    Object::new()
        .raw("endpoint", string(&health.endpoint))
        .raw("health", health.healthy)
        .raw("took", string(&health.took))
        .text("error", &health.error)
        .end()
}

fn endpoints<'a>(name: &str, replies: impl Iterator<Item = (&'a String, String)>) -> String {
    let object = |(endpoint, reply): (&String, String)| {
        Object::new().raw("Endpoint", string(endpoint)).raw(name, reply).end()
    };
    list_or_null(replies.map(object))
}

fn status(response: &StatusResponse) -> String {
    let downgrade = response.downgrade_info.as_ref().map(|downgrade| {
        Object::new()
            .nonzero("enabled", downgrade.enabled)
            .text("targetVersion", &downgrade.target_version)
            .end()
    });
    Object::new()
        .header(response.header.as_ref())
        .text("version", &response.version)
        .nonzero("dbSize", response.db_size)
        .nonzero("leader", response.leader)
        .nonzero("raftIndex", response.raft_index)
        .nonzero("raftTerm", response.raft_term)
        .nonzero("raftAppliedIndex", response.raft_applied_index)
        .list("errors", response.errors.iter().map(|error| string(error)))
        .nonzero("dbSizeInUse", response.db_size_in_use)
        .nonzero("isLearner", response.is_learner)
        .text("storageVersion", &response.storage_version)
        .nonzero("dbSizeQuota", response.db_size_quota)
        .some("downgradeInfo", downgrade)
        .end()
}

fn hash_kv(response: &HashKvResponse) -> String {
    Object::new()
        .header(response.header.as_ref())
        .nonzero("hash", response.hash)
        .nonzero("compact_revision", response.compact_revision)
        .nonzero("hash_revision", response.hash_revision)
        .end()
}

fn access(reply: &Access) -> String {
    let permission = |permission: &Permission| {
        Object::new()
            .nonzero("permType", permission.perm_type)
            .bytes("key", &permission.key)
            .bytes("range_end", &permission.range_end)
            .end()
    };
    let names = |names: &[String]| names.iter().map(|name| string(name)).collect::<Vec<_>>();
    let object = Object::new().header(reply.header());
    match reply {
        Access::Status(response) => object
            .nonzero("enabled", response.enabled)
            .nonzero("authRevision", response.auth_revision),
        Access::RoleGet(_, response) => object.list("perm", response.perm.iter().map(permission)),
        Access::RoleList(response) => object.list("roles", names(&response.roles).into_iter()),
        Access::UserGet(_, response) => object.list("roles", names(&response.roles).into_iter()),
        Access::UserList(response) => object.list("users", names(&response.users).into_iter()),
        Access::RoleAdd(..)
        | Access::RoleDelete(..)
        | Access::RoleGrantPermission(..)
        | Access::RoleRevokePermission { .. }
        | Access::UserAdd(..)
        | Access::UserDelete(..)
        | Access::UserChangePassword(_)
        | Access::UserGrantRole { .. }
        | Access::UserRevokeRole { .. } => object,
    }
    .end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_encoded_as_padded_base64() {
        for (input, output) in [
            (&b""[..], r#""""#),
            (b"f", r#""Zg==""#),
            (b"fo", r#""Zm8=""#),
            (b"foo", r#""Zm9v""#),
            (b"\xff\xfe\xfd\xfc", r#""//79/A==""#),
        ] {
            assert_eq!(bytes(input), output);
        }
    }

    #[test]
    fn strings_are_escaped_for_html() {
        assert_eq!(string("a<b>&\"\n\u{1}"), r#""a\u003cb\u003e\u0026\"\n\u0001""#);
    }
}
