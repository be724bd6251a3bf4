//! Decodes the log entry of a normal proposal into one command and its caller.
//!
//! In addition to the current encoding, bare v2 requests are decoded, because etcd 3.5 members
//! still propose them to publish their attributes and to set the cluster version. Other v2 requests
//! concern data that no longer exists, so they become [`Command::Nothing`].
//!
//! # Not here
//!
//! Conf changes (`conf_change`), and the empty entries that leaders append.

use bytes::Bytes;
use prost::Message;
use quorate_api::etcdserverpb as pb;
use quorate_api::membershippb::{
    Attributes, ClusterMemberAttrSetRequest, ClusterVersionSetRequest, DowngradeInfoSetRequest,
};
use quorate_api::{any_text, deep_txn};

use crate::alarm::Cause;
use crate::auth::{self, AuthRefusal};
use crate::members::{Member, parse_id};

/// The methods of a bare v2 request. In the current encoding, the field with the same number contains a nested message.
/// None of these methods decodes as such a message, so they identify a bare request.
const V2_METHODS: [&[u8]; 7] = [b"PUT", b"POST", b"DELETE", b"QGET", b"GET", b"HEAD", b"SYNC"];

/// A proposal.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The id of the request, which identifies the proposer that waits for the outcome.
    pub id: u64,
    /// The user, as authenticated by the member that received the request; empty without
    /// authentication.
    pub username: String,
    /// Revision of the auth store at which the request was authenticated.
    pub auth_revision: u64,
    /// The command.
    pub command: Command,
}

/// Every command that a log entry can contain.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant contains the request of the same name")]
pub enum Command {
    Range(pb::RangeRequest),
    Put(pb::PutRequest),
    DeleteRange(pb::DeleteRangeRequest),
    Txn(pb::TxnRequest),
    Compaction(pb::CompactionRequest),
    LeaseGrant(pb::LeaseGrantRequest),
    LeaseRevoke(pb::LeaseRevokeRequest),
    LeaseCheckpoint(pb::LeaseCheckpointRequest),
    Alarm(AlarmCommand),
    Auth(AuthCommand),
    Cluster(ClusterCommand),
    /// A command without effect: a marker written by a test, or a request for the v2 store.
    Nothing,
}

/// A request about alarms. Members add a cause to the requests that they propose themselves.
#[derive(Clone, Debug, PartialEq)]
pub struct AlarmCommand {
    /// The request.
    pub request: pb::AlarmRequest,
    /// Why the alarm is raised.
    pub cause: Cause,
}

/// Every command about users and roles.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant contains the request of the same name")]
pub enum AuthCommand {
    Authenticate(pb::InternalAuthenticateRequest),
    Enable,
    Disable,
    Status,
    UserAdd(pb::AuthUserAddRequest),
    UserDelete(pb::AuthUserDeleteRequest),
    UserGet(pb::AuthUserGetRequest),
    UserChangePassword(pb::AuthUserChangePasswordRequest),
    UserGrantRole(pb::AuthUserGrantRoleRequest),
    UserRevokeRole(pb::AuthUserRevokeRoleRequest),
    UserList,
    RoleAdd(pb::AuthRoleAddRequest),
    RoleDelete(pb::AuthRoleDeleteRequest),
    RoleGet(pb::AuthRoleGetRequest),
    RoleGrantPermission(pb::AuthRoleGrantPermissionRequest),
    RoleRevokePermission(pb::AuthRoleRevokePermissionRequest),
    RoleList,
}

impl AuthCommand {
    /// Returns whether the guards require an administrator for the command. The other commands
    /// check the caller themselves.
    #[must_use]
    pub const fn is_for_admins(&self) -> bool {
        match self {
            Self::Enable
            | Self::Disable
            | Self::UserAdd(_)
            | Self::UserDelete(_)
            | Self::UserChangePassword(_)
            | Self::UserGrantRole(_)
            | Self::UserRevokeRole(_)
            | Self::UserList
            | Self::RoleAdd(_)
            | Self::RoleDelete(_)
            | Self::RoleGrantPermission(_)
            | Self::RoleRevokePermission(_)
            | Self::RoleList => true,
            Self::Authenticate(_) | Self::Status | Self::UserGet(_) | Self::RoleGet(_) => false,
        }
    }

    /// Refuses a command whose name for a new user or role is too long in every state. Such an entry must not enter the
    /// log, because an etcd member that applies it exits, and exits again after each restart.
    pub fn check_new_name(&self) -> Result<(), AuthRefusal> {
        match self {
            Self::UserAdd(request) => auth::check_new_name(&request.name),
            Self::RoleAdd(request) => auth::check_new_name(&request.name),
            Self::Authenticate(_)
            | Self::Enable
            | Self::Disable
            | Self::Status
            | Self::UserDelete(_)
            | Self::UserGet(_)
            | Self::UserChangePassword(_)
            | Self::UserGrantRole(_)
            | Self::UserRevokeRole(_)
            | Self::UserList
            | Self::RoleDelete(_)
            | Self::RoleGet(_)
            | Self::RoleGrantPermission(_)
            | Self::RoleRevokePermission(_)
            | Self::RoleList => Ok(()),
        }
    }

    /// Returns whether the command sets a password in plain text. Quorate cannot apply such an
    /// entry. Since etcd 3.5, members hash passwords before they propose a command.
    #[must_use]
    pub fn has_plain_password(&self) -> bool {
        match self {
            Self::UserAdd(request) => {
                let needs_one = !request.options.is_some_and(|options| options.no_password);
                needs_one && !request.password.is_empty() && request.hashed_password.is_empty()
            }
            Self::UserChangePassword(request) => {
                !request.password.is_empty() && request.hashed_password.is_empty()
            }
            Self::Authenticate(_)
            | Self::Enable
            | Self::Disable
            | Self::Status
            | Self::UserDelete(_)
            | Self::UserGet(_)
            | Self::UserGrantRole(_)
            | Self::UserRevokeRole(_)
            | Self::UserList
            | Self::RoleAdd(_)
            | Self::RoleDelete(_)
            | Self::RoleGet(_)
            | Self::RoleGrantPermission(_)
            | Self::RoleRevokePermission(_)
            | Self::RoleList => false,
        }
    }
}

/// Commands that set facts about the cluster. A replayed entry with such a command updates these facts in memory, even
/// if the file already contains the effects of the entry.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant contains the request of the same name")]
pub enum ClusterCommand {
    VersionSet(ClusterVersionSetRequest),
    MemberAttrSet(ClusterMemberAttrSetRequest),
    DowngradeInfoSet(DowngradeInfoSetRequest),
}

/// An entry cannot be decoded, so no member could apply it.
#[derive(Debug, thiserror::Error)]
pub enum RequestFault {
    /// The entry is not a proposal.
    #[error("the entry is not a request: {0}")]
    Undecodable(#[from] prost::DecodeError),
    /// The request has no id.
    #[error("the request has neither a header nor an id")]
    NoHeader,
    /// The kind of the request is unknown to this version.
    #[error("request {id} has a type that this version does not support")]
    UnknownCommand {
        /// The id of the request.
        id: u64,
    },
}

impl Request {
    /// Decodes an entry. Keys and values are slices of `data`. Decoding needs a stack of
    /// [`deep_txn::STACK_BYTES`].
    ///
    /// Text that is not valid UTF-8 is represented as [`any_text`] describes, because members of etcd up to 3.6 propose
    /// and apply such requests.
    pub fn decode(data: Bytes) -> Result<Self, RequestFault> {
        Self::decode_valid(&data).or_else(|fault| {
            if !matches!(fault, RequestFault::Undecodable(_)) {
                return Err(fault);
            }
            let copies = [
                any_text::make_valid::<pb::InternalRaftRequest>,
                any_text::make_valid::<pb::Request>,
            ];
            let mut copies = copies.into_iter().filter_map(|copy| copy(&data));
            copies.find_map(|copy| Self::decode_valid(&copy.into()).ok()).ok_or(fault)
        })
    }

    /// Decodes an entry. Unlike [`Self::decode`], refuses text that is not valid UTF-8.
    pub fn decode_valid(data: &Bytes) -> Result<Self, RequestFault> {
        match Self::decode_shallow(data) {
            Err(RequestFault::Undecodable(error)) => match deep_txn::decode_entry(data) {
                Some(request) => Self::from_message(request),
                None => Err(error.into()),
            },
            decoded => decoded,
        }
    }

    /// Decodes an entry on an ordinary stack, which fails for very deeply nested transactions. This method is for
    /// callers that do not need transactions.
    pub fn decode_shallow(data: &Bytes) -> Result<Self, RequestFault> {
        match EntryMessage::decode(data)? {
            EntryMessage::Current(request) => Self::from_message(request),
            EntryMessage::V2(request) => Ok(Self::from_v2(&request)),
        }
    }

    /// Returns the path that an entry changes with the v2 API, which etcd 3.5 still has. Returns `None` for all other
    /// entries, including the v2 requests of members.
    #[must_use]
    pub fn path_changed_with_v2_api(data: &Bytes) -> Option<String> {
        match EntryMessage::decode(data) {
            Ok(EntryMessage::V2(request)) => {
                let is_change = ["PUT", "POST", "DELETE"].contains(&request.method());
                let is_of_client = is_change && v2_command(&request).is_none();
                is_of_client.then(|| request.path().to_owned())
            }
            Ok(EntryMessage::Current(_)) | Err(_) => None,
        }
    }

    /// Extracts the command and its caller from a message.
    pub fn from_message(mut request: pb::InternalRaftRequest) -> Result<Self, RequestFault> {
        let header = request.header.take();
        if header.is_none() && request.id == 0 {
            return Err(RequestFault::NoHeader);
        }
        let header = header.unwrap_or_default();
        let id = if request.id == 0 { header.id } else { request.id };
        let command = command(&mut request).ok_or(RequestFault::UnknownCommand { id })?;
        Ok(Self { id, username: header.username, auth_revision: header.auth_revision, command })
    }

    fn from_v2(request: &pb::Request) -> Self {
        let command = v2_command(request).unwrap_or(Command::Nothing);
        Self { id: request.id(), username: String::new(), auth_revision: 0, command }
    }
}

/// The message in an entry.
#[expect(clippy::large_enum_variant, reason = "nearly every entry contains the larger message")]
enum EntryMessage {
    /// A request in the current encoding.
    Current(pb::InternalRaftRequest),
    /// A v2 request, bare or inside a message in the current encoding.
    V2(pb::Request),
}

impl EntryMessage {
    fn decode(data: &Bytes) -> Result<Self, prost::DecodeError> {
        match pb::InternalRaftRequest::decode(data.clone()) {
            Ok(request) if request.v2.is_empty() => Ok(Self::Current(request)),
            Ok(request) if !V2_METHODS.contains(&&request.v2[..]) => {
                pb::Request::decode(request.v2).map(Self::V2)
            }
            Ok(_) => pb::Request::decode(data.clone()).map(Self::V2),
            Err(error) => match pb::Request::decode(data.clone()) {
                Ok(v2) if V2_METHODS.contains(&v2.method().as_bytes()) => Ok(Self::V2(v2)),
                Ok(_) | Err(_) => Err(error),
            },
        }
    }
}

/// Returns the request that is set. If several are set, the first one in etcd's order is returned.
fn command(request: &mut pb::InternalRaftRequest) -> Option<Command> {
    if let Some(command) = cluster_command(request) {
        return Some(Command::Cluster(command));
    }
    if request.downgrade_version_test.is_some() {
        return Some(Command::Nothing);
    }
    let cause = if request.alarm_of_full_disk { Cause::FullDisk } else { Cause::Other };
    let alarm = |request| Command::Alarm(AlarmCommand { request, cause });
    let data = unboxed(&mut request.range, Command::Range);
    data.or_else(|| request.put.take().map(Command::Put))
        .or_else(|| unboxed(&mut request.delete_range, Command::DeleteRange))
        .or_else(|| request.txn.take().map(Command::Txn))
        .or_else(|| request.compaction.take().map(Command::Compaction))
        .or_else(|| request.lease_grant.take().map(Command::LeaseGrant))
        .or_else(|| request.lease_revoke.take().map(Command::LeaseRevoke))
        .or_else(|| request.lease_checkpoint.take().map(Command::LeaseCheckpoint))
        .or_else(|| request.alarm.take().map(alarm))
        .or_else(|| auth_command(request).map(Command::Auth))
}

fn cluster_command(request: &mut pb::InternalRaftRequest) -> Option<ClusterCommand> {
    unboxed(&mut request.cluster_version_set, ClusterCommand::VersionSet)
        .or_else(|| unboxed(&mut request.cluster_member_attr_set, ClusterCommand::MemberAttrSet))
        .or_else(|| unboxed(&mut request.downgrade_info_set, ClusterCommand::DowngradeInfoSet))
}

fn auth_command(request: &mut pb::InternalRaftRequest) -> Option<AuthCommand> {
    unboxed(&mut request.authenticate, AuthCommand::Authenticate)
        .or_else(|| unboxed(&mut request.auth_enable, |_| AuthCommand::Enable))
        .or_else(|| unboxed(&mut request.auth_disable, |_| AuthCommand::Disable))
        .or_else(|| unboxed(&mut request.auth_status, |_| AuthCommand::Status))
        .or_else(|| unboxed(&mut request.auth_user_add, AuthCommand::UserAdd))
        .or_else(|| unboxed(&mut request.auth_user_delete, AuthCommand::UserDelete))
        .or_else(|| {
            unboxed(&mut request.auth_user_change_password, AuthCommand::UserChangePassword)
        })
        .or_else(|| unboxed(&mut request.auth_user_grant_role, AuthCommand::UserGrantRole))
        .or_else(|| unboxed(&mut request.auth_user_get, AuthCommand::UserGet))
        .or_else(|| unboxed(&mut request.auth_user_revoke_role, AuthCommand::UserRevokeRole))
        .or_else(|| unboxed(&mut request.auth_role_add, AuthCommand::RoleAdd))
        .or_else(|| {
            unboxed(&mut request.auth_role_grant_permission, AuthCommand::RoleGrantPermission)
        })
        .or_else(|| unboxed(&mut request.auth_role_get, AuthCommand::RoleGet))
        .or_else(|| {
            unboxed(&mut request.auth_role_revoke_permission, AuthCommand::RoleRevokePermission)
        })
        .or_else(|| unboxed(&mut request.auth_role_delete, AuthCommand::RoleDelete))
        .or_else(|| unboxed(&mut request.auth_user_list, |_| AuthCommand::UserList))
        .or_else(|| unboxed(&mut request.auth_role_list, |_| AuthCommand::RoleList))
}

/// Takes a request, if it is set, and converts it.
fn unboxed<R, C>(request: &mut Option<Box<R>>, command: impl FnOnce(R) -> C) -> Option<C> {
    request.take().map(|request| command(*request))
}

fn v2_command(request: &pb::Request) -> Option<Command> {
    if request.method() != "PUT" {
        return None;
    }
    if request.path() == "/0/version" {
        let ver = request.val().to_owned();
        let command = ClusterCommand::VersionSet(ClusterVersionSetRequest { ver });
        return Some(Command::Cluster(command));
    }
    let id = request.path().strip_prefix("/0/members/")?.strip_suffix("/attributes")?;
    let member_id = parse_id(id)?.0;
    let Member { name, client_urls, .. } = Member::from_json(request.val().as_bytes()).ok()?;
    let member_attributes = Some(Attributes { name, client_urls });
    let request = ClusterMemberAttrSetRequest { member_id, member_attributes };
    Some(Command::Cluster(ClusterCommand::MemberAttrSet(request)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(message: &impl Message) -> Result<Request, RequestFault> {
        Request::decode(message.encode_to_vec().into())
    }

    #[test]
    fn proposals_without_an_id_or_a_command_are_refused() {
        let put = pb::PutRequest { key: b"k".as_slice().into(), ..pb::PutRequest::default() };
        let mut message = pb::InternalRaftRequest {
            header: Some(pb::RequestHeader { id: 7, username: "u".into(), auth_revision: 3 }),
            put: Some(put.clone()),
            ..pb::InternalRaftRequest::default()
        };
        let request = decode(&message).unwrap();
        assert_eq!((request.id, request.username.as_str(), request.auth_revision), (7, "u", 3));
        assert_eq!(request.command, Command::Put(put));
        message.id = 9;
        assert_eq!(decode(&message).unwrap().id, 9);
        (message.header, message.id) = (None, 0);
        assert!(matches!(decode(&message), Err(RequestFault::NoHeader)));
        (message.put, message.id) = (None, 5);
        assert!(matches!(decode(&message), Err(RequestFault::UnknownCommand { id: 5 })));
        assert!(matches!(
            Request::decode(Bytes::from_static(b"\xff\xff")),
            Err(RequestFault::Undecodable(_))
        ));
    }

    #[test]
    fn changes_of_clients_with_the_v2_api_are_recognised() {
        let path_of = |method: &str, path: &str, val: &str| {
            let text = |text: &str| Some(text.to_owned());
            let request = pb::Request {
                id: Some(7),
                method: text(method),
                path: text(path),
                val: text(val),
                ..pb::Request::default()
            };
            Request::path_changed_with_v2_api(&request.encode_to_vec().into())
        };
        for method in ["PUT", "POST", "DELETE"] {
            assert_eq!(path_of(method, "/1/foo", "bar").as_deref(), Some("/1/foo"), "{method}");
        }
        for method in ["QGET", "GET", "HEAD", "SYNC"] {
            assert_eq!(path_of(method, "/1/foo", ""), None, "{method}");
        }
        assert_eq!(path_of("PUT", "/0/version", "3.5.0"), None);
        assert_eq!(path_of("PUT", "/0/members/8e9e05c52164694d/attributes", "{}"), None);
        let put = pb::PutRequest { key: b"k".as_slice().into(), ..pb::PutRequest::default() };
        let message = pb::InternalRaftRequest { put: Some(put), id: 7, ..Default::default() };
        let data = message.encode_to_vec().into();
        assert_eq!(Request::path_changed_with_v2_api(&data), None);
    }

    #[test]
    fn the_cause_of_an_alarm_is_decoded() {
        for (alarm_of_full_disk, cause) in [(false, Cause::Other), (true, Cause::FullDisk)] {
            let request = pb::AlarmRequest { action: 1, member_id: 7, alarm: 1 };
            let message = pb::InternalRaftRequest {
                id: 3,
                alarm: Some(request),
                alarm_of_full_disk,
                ..pb::InternalRaftRequest::default()
            };
            let expected = Command::Alarm(AlarmCommand { request, cause });
            assert_eq!(decode(&message).unwrap().command, expected);
        }
    }

    #[test]
    fn names_of_users_and_roles_may_contain_any_bytes() {
        for (field, expected) in [
            (
                1101,
                AuthCommand::UserDelete(pb::AuthUserDeleteRequest {
                    name: any_text::from_bytes(b"\xff"),
                }),
            ),
            (
                1200,
                AuthCommand::RoleAdd(pb::AuthRoleAddRequest {
                    name: any_text::from_bytes(b"\xff"),
                }),
            ),
        ] {
            let mut entry = b"\x08\x07".to_vec();
            prost::encoding::bytes::encode(field, &b"\x0a\x01\xff".to_vec(), &mut entry);
            let entry = Bytes::from(entry);
            assert!(matches!(Request::decode_valid(&entry), Err(RequestFault::Undecodable(_))));
            assert_eq!(Request::decode(entry).unwrap().command, Command::Auth(expected));
        }
        // A write by a user with such a name, and a request for the v2 store with such a value.
        let put = Bytes::from_static(b"\x22\x03\x0a\x01k\xa2\x06\x05\x08\x07\x12\x01\xff");
        assert_eq!(Request::decode(put).unwrap().username, any_text::from_bytes(b"\xff"));
        let v2 = Bytes::from_static(b"\x08\x07\x12\x03PUT\x1a\x04/1/a\x22\x01\xff");
        assert_eq!(Request::decode(v2).unwrap().command, Command::Nothing);
    }

    fn v2(method: &str, path: &str, val: &str) -> pb::Request {
        // The request as Go encodes it, with every field present.
        pb::Request {
            id: Some(77),
            method: Some(method.into()),
            path: Some(path.into()),
            val: Some(val.into()),
            dir: Some(false),
            prev_value: Some(String::new()),
            prev_index: Some(0),
            expiration: Some(0),
            wait: Some(false),
            since: Some(0),
            recursive: Some(false),
            sorted: Some(false),
            quorum: Some(false),
            time: Some(0),
            stream: Some(false),
            ..pb::Request::default()
        }
    }

    #[test]
    fn v2_requests_are_decoded() {
        let version = ClusterCommand::VersionSet(ClusterVersionSetRequest { ver: "3.5.0".into() });
        let attributes = ClusterCommand::MemberAttrSet(ClusterMemberAttrSetRequest {
            member_id: 0xd67d_5bb4_9159_60eb,
            member_attributes: Some(Attributes {
                name: "m1".into(),
                client_urls: vec!["http://127.0.0.1:1".into()],
            }),
        });
        let json = r#"{"name":"m1","clientURLs":["http://127.0.0.1:1"]}"#;
        let member = "/0/members/d67d5bb4915960eb/attributes";
        for (request, expected) in [
            (v2("PUT", "/0/version", "3.5.0"), Command::Cluster(version)),
            (v2("PUT", member, json), Command::Cluster(attributes)),
            (v2("PUT", "/0/members/xyz/attributes", json), Command::Nothing),
            (v2("PUT", member, "{"), Command::Nothing),
            (v2("PUT", "/1/user", "data"), Command::Nothing),
            (v2("DELETE", "/0/version", ""), Command::Nothing),
            (v2("SYNC", "", ""), Command::Nothing),
        ] {
            let bare = decode(&request).unwrap();
            assert_eq!((bare.id, &bare.command), (77, &expected));
            let wrapped = pb::InternalRaftRequest {
                id: 77,
                v2: request.encode_to_vec().into(),
                ..pb::InternalRaftRequest::default()
            };
            assert_eq!(decode(&wrapped).unwrap().command, expected);
        }
    }
}
