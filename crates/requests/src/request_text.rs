//! Formats requests for log lines, as etcd does. The text contains keys and the lengths of values, but no values,
//! passwords or tokens.
//!
//! # Bound
//!
//! The text of a request is limited to [`TEXT_BYTES_MAX`] bytes, because a request may contain megabytes of keys, but
//! a log line must not.

use std::fmt::{self, Display, Write};

use bytes::Bytes;
use prost::Message;
use quorate_api::etcdserverpb::compare::TargetUnion;
use quorate_api::etcdserverpb::request_op::Request as Operation;
use quorate_api::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};
use quorate_gotext::quote::go_quote_bytes;
use quorate_state::apply::{AlarmCommand, AuthCommand, ClusterCommand, Command, Request, Response};

/// Maximum length of a request's text in bytes. Longer text is truncated.
const TEXT_BYTES_MAX: usize = 16 * 1024;

/// Formats the request in the data of a log entry, together with its user.
#[derive(Debug)]
pub struct OfEntry<'a>(pub &'a Bytes);

impl Display for OfEntry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = match Request::decode(self.0.clone()) {
            Ok(request) => request,
            Err(fault) => return write!(f, "cannot decode the request: {fault}"),
        };
        let mut header = Text::default();
        header.number("ID", request.id);
        header.text("username", &request.username);
        header.number("auth_revision", request.auth_revision);
        let mut text = Text::default();
        text.message("header", header);
        command(&mut text, &request.command);
        f.write_str(&text.cut())
    }
}

/// Returns the size of a response as text.
pub fn size_of(response: &Response) -> String {
    let bytes = match response {
        Response::Range(response) => response.encoded_len(),
        Response::Put(response) => response.encoded_len(),
        Response::DeleteRange(response) => response.encoded_len(),
        Response::Txn(response) => response.encoded_len(),
        Response::Compaction(response) => response.encoded_len(),
        Response::LeaseGrant(response) => response.encoded_len(),
        Response::LeaseRevoke(response) => response.encoded_len(),
        Response::LeaseCheckpoint(response) => response.encoded_len(),
        Response::Alarm(response) => response.encoded_len(),
        Response::AuthStatus(response) => response.encoded_len(),
        Response::Authenticated { response, .. } => response.encoded_len(),
        Response::AuthUserGet(response) => response.encoded_len(),
        Response::AuthUserList(response) => response.encoded_len(),
        Response::AuthRoleGet(response) => response.encoded_len(),
        Response::AuthRoleList(response) => response.encoded_len(),
        Response::AuthDone(header) => header.as_ref().map_or(0, Message::encoded_len),
        Response::Empty => return String::new(),
    };
    format!("size:{bytes}")
}

/// Formats a range request.
pub fn of_range(request: &RangeRequest) -> String {
    range(request).cut()
}

/// Formats a transaction request.
pub fn of_txn(request: &TxnRequest) -> String {
    txn(request).cut()
}

/// Properties of a write request, for the log line of its call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The number of requests as etcd counts them: 1 for a put, 0 for a deletion and, for a transaction, the number of
    /// operations in the executed branch.
    pub count: usize,
    /// The encoded size in bytes of the put, of the deletion or of the operations in the executed branch.
    pub bytes: usize,
    /// The text of the request.
    pub text: String,
}

/// Describes a client's write from the data of its log entry. Returns `None` unless the entry is a put, a deletion or a
/// transaction. For a transaction, only the operations in the executed branch are counted. `has_succeeded` selects the
/// branch.
#[must_use]
pub fn of_write(data: &Bytes, has_succeeded: bool) -> Option<Written> {
    let of = |count, bytes, text: Text| Some(Written { count, bytes, text: text.cut() });
    match Request::decode(data.clone()).ok()?.command {
        Command::Put(request) => of(1, request.encoded_len(), put(&request)),
        Command::DeleteRange(request) => of(0, request.encoded_len(), delete_range(&request)),
        Command::Txn(request) => {
            let done = if has_succeeded { &request.success } else { &request.failure };
            of(done.len(), done.iter().map(Message::encoded_len).sum(), txn(&request))
        }
        Command::Range(_)
        | Command::Compaction(_)
        | Command::LeaseGrant(_)
        | Command::LeaseRevoke(_)
        | Command::LeaseCheckpoint(_)
        | Command::Alarm(_)
        | Command::Auth(_)
        | Command::Cluster(_)
        | Command::Nothing => None,
    }
}

/// Builds text from `name:value` pairs. Unset fields are left out.
#[derive(Default)]
struct Text(String);

impl Text {
    fn put(&mut self, name: &str, value: impl Display) {
        if !self.0.is_empty() {
            self.0.push(' ');
        }
        write!(self.0, "{name}:{value}").expect("writing to a string cannot fail");
    }

    fn number<N: Display + Default + PartialEq>(&mut self, name: &str, number: N) {
        if number != N::default() {
            self.put(name, number);
        }
    }

    fn flag(&mut self, name: &str, is_set: bool) {
        if is_set {
            self.put(name, true);
        }
    }

    fn text(&mut self, name: &str, text: &str) {
        self.bytes(name, text.as_bytes());
    }

    fn bytes(&mut self, name: &str, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.put(name, go_quote_bytes(&bytes[..bytes.len().min(TEXT_BYTES_MAX)]));
        }
    }

    fn message(&mut self, name: &str, message: Self) {
        self.put(name, format_args!("<{}>", message.0));
    }

    fn is_long(&self) -> bool {
        self.0.len() > TEXT_BYTES_MAX
    }

    fn cut(self) -> String {
        let mut text = self.0;
        if text.len() > TEXT_BYTES_MAX {
            text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
            text.push('…');
        }
        text
    }
}

fn range(request: &RangeRequest) -> Text {
    let mut text = Text::default();
    text.bytes("key", &request.key);
    text.bytes("range_end", &request.range_end);
    text.number("limit", request.limit);
    text.number("revision", request.revision);
    if request.sort_order != 0 {
        text.put("sort_order", request.sort_order().as_str_name());
    }
    if request.sort_target != 0 {
        text.put("sort_target", request.sort_target().as_str_name());
    }
    text.flag("serializable", request.serializable);
    text.flag("keys_only", request.keys_only);
    text.flag("count_only", request.count_only);
    text.number("min_mod_revision", request.min_mod_revision);
    text.number("max_mod_revision", request.max_mod_revision);
    text.number("min_create_revision", request.min_create_revision);
    text.number("max_create_revision", request.max_create_revision);
    text
}

fn put(request: &PutRequest) -> Text {
    let mut text = Text::default();
    text.bytes("key", &request.key);
    text.number("value_size", request.value.len());
    text.number("lease", request.lease);
    text.flag("prev_kv", request.prev_kv);
    text.flag("ignore_value", request.ignore_value);
    text.flag("ignore_lease", request.ignore_lease);
    text
}

fn delete_range(request: &DeleteRangeRequest) -> Text {
    let mut text = Text::default();
    text.bytes("key", &request.key);
    text.bytes("range_end", &request.range_end);
    text.flag("prev_kv", request.prev_kv);
    text
}

fn compaction(request: &CompactionRequest) -> Text {
    let mut text = Text::default();
    text.number("revision", request.revision);
    text.flag("physical", request.physical);
    text
}

/// Formats a transaction. Empty lists of comparisons and operations are written, too.
fn txn(request: &TxnRequest) -> Text {
    let mut text = Text::default();
    text.message("compare", list(&request.compare, compare));
    text.message("success", list(&request.success, operation));
    text.message("failure", list(&request.failure, operation));
    text
}

/// Formats a list. Stops once the text exceeds [`TEXT_BYTES_MAX`].
fn list<T>(items: &[T], write: impl Fn(&T) -> Text) -> Text {
    let mut text = Text::default();
    for item in items {
        if text.is_long() {
            break;
        }
        if !text.0.is_empty() {
            text.0.push(' ');
        }
        text.0.push_str(&write(item).0);
    }
    text
}

fn compare(compare: &Compare) -> Text {
    let mut text = Text::default();
    if compare.result != 0 {
        text.put("result", compare.result().as_str_name());
    }
    if compare.target != 0 {
        text.put("target", compare.target().as_str_name());
    }
    text.bytes("key", &compare.key);
    match &compare.target_union {
        Some(TargetUnion::Version(version)) => text.put("version", version),
        Some(TargetUnion::CreateRevision(revision)) => text.put("create_revision", revision),
        Some(TargetUnion::ModRevision(revision)) => text.put("mod_revision", revision),
        Some(TargetUnion::Value(value)) => text.put("value_size", value.len()),
        Some(TargetUnion::Lease(lease)) => text.put("lease", lease),
        None => {}
    }
    text.bytes("range_end", &compare.range_end);
    text
}

fn operation(operation: &RequestOp) -> Text {
    let mut text = Text::default();
    match &operation.request {
        Some(Operation::RequestRange(request)) => text.message("request_range", range(request)),
        Some(Operation::RequestPut(request)) => text.message("request_put", put(request)),
        Some(Operation::RequestDeleteRange(request)) => {
            text.message("request_delete_range", delete_range(request));
        }
        Some(Operation::RequestTxn(request)) => text.message("request_txn", txn(request)),
        None => {}
    }
    text
}

fn command(text: &mut Text, command: &Command) {
    let mut inner = Text::default();
    match command {
        Command::Range(request) => text.message("range", range(request)),
        Command::Put(request) => text.message("put", put(request)),
        Command::DeleteRange(request) => text.message("delete_range", delete_range(request)),
        Command::Txn(request) => text.message("txn", txn(request)),
        Command::Compaction(request) => text.message("compaction", compaction(request)),
        Command::LeaseGrant(request) => {
            inner.put("ttl", format_args!("{}-second", request.ttl));
            inner.put("id", format_args!("{:016x}", request.id));
            text.message("lease_grant", inner);
        }
        Command::LeaseRevoke(request) => {
            inner.put("id", format_args!("{:016x}", request.id));
            text.message("lease_revoke", inner);
        }
        Command::LeaseCheckpoint(request) => {
            inner.number("checkpoint_count", request.checkpoints.len());
            text.message("lease_checkpoint", inner);
        }
        Command::Alarm(AlarmCommand { request, .. }) => {
            inner.put("action", request.action().as_str_name());
            inner.put("memberID", request.member_id);
            inner.put("alarm", request.alarm().as_str_name());
            text.message("alarm", inner);
        }
        Command::Auth(command) => auth(text, command),
        Command::Cluster(command) => cluster(text, command),
        Command::Nothing => {}
    }
}

fn auth(text: &mut Text, command: &AuthCommand) {
    let mut inner = Text::default();
    let (name, user, role) = match command {
        AuthCommand::Authenticate(request) => ("authenticate", &*request.name, ""),
        AuthCommand::Enable => ("auth_enable", "", ""),
        AuthCommand::Disable => ("auth_disable", "", ""),
        AuthCommand::Status => ("auth_status", "", ""),
        AuthCommand::UserAdd(request) => ("auth_user_add", &*request.name, ""),
        AuthCommand::UserDelete(request) => ("auth_user_delete", &*request.name, ""),
        AuthCommand::UserGet(request) => ("auth_user_get", &*request.name, ""),
        AuthCommand::UserChangePassword(request) => {
            ("auth_user_change_password", &*request.name, "")
        }
        AuthCommand::UserGrantRole(request) => {
            ("auth_user_grant_role", &*request.user, &*request.role)
        }
        AuthCommand::UserRevokeRole(request) => {
            ("auth_user_revoke_role", &*request.name, &*request.role)
        }
        AuthCommand::UserList => ("auth_user_list", "", ""),
        AuthCommand::RoleAdd(request) => ("auth_role_add", "", &*request.name),
        AuthCommand::RoleDelete(request) => ("auth_role_delete", "", &*request.role),
        AuthCommand::RoleGet(request) => ("auth_role_get", "", &*request.role),
        AuthCommand::RoleGrantPermission(request) => {
            ("auth_role_grant_permission", "", &*request.name)
        }
        AuthCommand::RoleRevokePermission(request) => {
            ("auth_role_revoke_permission", "", &*request.role)
        }
        AuthCommand::RoleList => ("auth_role_list", "", ""),
    };
    inner.text("user", user);
    inner.text("role", role);
    text.message(name, inner);
}

fn cluster(text: &mut Text, command: &ClusterCommand) {
    let mut inner = Text::default();
    let name = match command {
        ClusterCommand::VersionSet(request) => {
            inner.text("ver", &request.ver);
            "cluster_version_set"
        }
        ClusterCommand::MemberAttrSet(request) => {
            inner.put("member_ID", request.member_id);
            "cluster_member_attr_set"
        }
        ClusterCommand::DowngradeInfoSet(request) => {
            inner.flag("enabled", request.enabled);
            inner.text("ver", &request.ver);
            "downgrade_info_set"
        }
    };
    text.message(name, inner);
}

#[cfg(test)]
mod tests {
    use quorate_api::etcdserverpb::compare::{CompareResult, CompareTarget};
    use quorate_api::etcdserverpb::{AuthUserAddRequest, InternalRaftRequest, RequestHeader};

    use super::*;

    fn entry(request: InternalRaftRequest) -> String {
        let header = RequestHeader { id: 7, username: "ann".to_owned(), auth_revision: 3 };
        let request = InternalRaftRequest { header: Some(header), ..request };
        OfEntry(&request.encode_to_vec().into()).to_string()
    }

    #[test]
    fn values_are_replaced_by_their_size_and_passwords_are_omitted() {
        let put = PutRequest {
            key: Bytes::from_static(b"a\x00b"),
            value: Bytes::from_static(b"secret"),
            lease: 5,
            ..PutRequest::default()
        };
        assert_eq!(
            entry(InternalRaftRequest { put: Some(put.clone()), ..InternalRaftRequest::default() }),
            r#"header:<ID:7 username:"ann" auth_revision:3> put:<key:"a\x00b" value_size:6 lease:5>"#
        );
        let user = AuthUserAddRequest {
            name: "bob".to_owned(),
            password: "secret".to_owned(),
            hashed_password: "secret".to_owned(),
            ..AuthUserAddRequest::default()
        };
        assert_eq!(
            entry(InternalRaftRequest {
                auth_user_add: Some(Box::new(user)),
                ..InternalRaftRequest::default()
            }),
            r#"header:<ID:7 username:"ann" auth_revision:3> auth_user_add:<user:"bob">"#
        );
        let compare = Compare {
            result: CompareResult::Greater.into(),
            target: CompareTarget::Value.into(),
            key: Bytes::from_static(b"k"),
            target_union: Some(TargetUnion::Value(Bytes::from_static(b"secret"))),
            ..Compare::default()
        };
        let txn = TxnRequest {
            compare: vec![compare],
            success: vec![RequestOp { request: Some(Operation::RequestPut(put)) }],
            failure: vec![],
        };
        assert_eq!(
            of_txn(&txn),
            "compare:<result:GREATER target:VALUE key:\"k\" value_size:6> \
             success:<request_put:<key:\"a\\x00b\" value_size:6 lease:5>> failure:<>"
        );
    }

    #[test]
    fn long_request_texts_are_truncated() {
        let key = Bytes::from("ä".repeat(TEXT_BYTES_MAX));
        let range = of_range(&RangeRequest { key, ..RangeRequest::default() });
        assert!(range.len() <= TEXT_BYTES_MAX + '…'.len_utf8() && range.ends_with('…'));
        let delete = DeleteRangeRequest {
            key: Bytes::from(vec![b'k'; 1000]),
            ..DeleteRangeRequest::default()
        };
        let operation = RequestOp { request: Some(Operation::RequestDeleteRange(delete)) };
        let txn = TxnRequest { success: vec![operation; 1000], ..TxnRequest::default() };
        assert!(of_txn(&txn).len() <= TEXT_BYTES_MAX + '…'.len_utf8());
    }

    #[test]
    fn an_invalid_request_is_logged_as_invalid() {
        let text = OfEntry(&Bytes::from_static(b"\xff")).to_string();
        assert!(text.starts_with("cannot decode the request: "), "{text}");
    }
}
