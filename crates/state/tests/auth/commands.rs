//! Commands of the authentication scripts.

use bytes::Bytes;
use quorate_api::authpb;
use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::request_op::Request as Operation;
use quorate_state::apply::{
    AuthCommand, Command, EntryMeta, Request, Response, State, StateOptions,
};
use quorate_state::auth::{Access, Caller};
use quorate_state::units::Millis;

/// The encoded hash of every password in the scripts. The password itself does not matter.
const HASH: &str = "aGFzaA==";

/// A state, and the log index of its last entry.
pub(crate) struct Cluster {
    state: State,
    index: u64,
    now: Millis,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        Self { state: State::new(StateOptions::default()), index: 0, now: Millis(0) }
    }

    /// Runs one line and returns the outcome.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [caller, name, arguments @ ..] = &words[..] else {
            panic!("{line}: the caller or the command is missing")
        };
        let before = self.state.auth().view().revision();
        let (username, revision) = match caller.split_once('@') {
            Some((name, revision)) => (name, revision.parse().unwrap()),
            None if *caller == "-" => ("", 0),
            None => (*caller, before),
        };
        if matches!(*name, "watch" | "admin") {
            return self.look(*name == "admin", Caller { name: username, revision }, arguments);
        }
        match *name {
            "wait" => {
                self.now = self.now.plus_secs(arguments[0].parse().unwrap());
                return "ok".to_owned();
            }
            "show" => return self.show(arguments[0]),
            _ => {}
        }
        self.index += 1;
        let (index, now) = (self.index, self.now);
        let entry = EntryMeta { index, now, reply_wanted: true, ..EntryMeta::default() };
        let request = Request {
            id: self.index,
            username: username.to_owned(),
            auth_revision: revision,
            command: command(name, arguments),
        };
        let applied = self.state.apply(entry, request).unwrap();
        self.state.publish();
        let mut output = match applied.outcome.unwrap() {
            Ok(response) => describe(&response),
            Err(refusal) => refusal.to_string().trim_start_matches("etcdserver: ").to_owned(),
        };
        let after = self.state.auth().view().revision();
        if after != before {
            output = format!("{output} (revision {after})");
        }
        output
    }

    /// Returns the user of a token.
    fn show(&self, text: &str) -> String {
        let published = self.state.published();
        let token = published.auth.tokens().find(text.as_bytes());
        let user = token.as_ref().and_then(|token| token.validate(self.now));
        user.map_or_else(|| "no valid token".to_owned(), ToString::to_string)
    }

    /// Runs a check of the published state, without the log.
    fn look(&self, as_admin: bool, caller: Caller<'_>, arguments: &[&str]) -> String {
        let published = self.state.published();
        let view = published.auth.view();
        let outcome = if as_admin {
            view.check_admin(caller)
        } else {
            let (key, end) = range(arguments[0]);
            view.check_keys(caller, Access::Read, &key, &end)
        };
        outcome.map_or_else(
            |refusal| refusal.to_string().trim_start_matches("etcdserver: ").to_owned(),
            |()| "ok".to_owned(),
        )
    }
}

/// Parses a range, written as `a`, `a..c`, `a..` or `all`.
fn range(text: &str) -> (Bytes, Bytes) {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    match text.split_once("..") {
        None if text == "all" => (bytes("\0"), bytes("\0")),
        None => (bytes(text), Bytes::new()),
        Some((key, "")) => (bytes(key), bytes("\0")),
        Some((key, end)) => (bytes(key), bytes(end)),
    }
}

fn describe(response: &Response) -> String {
    let listed = |names: &[String]| match names {
        [] => "none".to_owned(),
        names => names.join(" "),
    };
    match response {
        Response::AuthStatus(status) => if status.enabled { "on" } else { "off" }.to_owned(),
        Response::Authenticated { response, .. } => {
            format!("token {:?}", response.token)
        }
        Response::AuthUserGet(user) => listed(&user.roles),
        Response::AuthUserList(users) => listed(&users.users),
        Response::AuthRoleList(roles) => listed(&roles.roles),
        Response::AuthRoleGet(role) => {
            let permissions: Vec<_> = role.perm.iter().map(describe_permission).collect();
            listed(&permissions)
        }
        Response::Range(found) => {
            let keys: Vec<_> = found
                .kvs
                .iter()
                .map(|pair| String::from_utf8_lossy(pair.key()).into_owned())
                .collect();
            listed(&keys)
        }
        _ => "ok".to_owned(),
    }
}

fn describe_permission(permission: &authpb::Permission) -> String {
    let kind = authpb::permission::Type::try_from(permission.perm_type).map_or_else(
        |_| permission.perm_type.to_string(),
        |kind| kind.as_str_name().to_lowercase(),
    );
    let (key, end) = (permission.key.escape_ascii(), permission.range_end.escape_ascii());
    match &permission.range_end[..] {
        [] => format!("{kind}:{key}"),
        [0] => format!("{kind}:{key}.."),
        _ => format!("{kind}:{key}..{end}"),
    }
}

fn command(name: &str, arguments: &[&str]) -> Command {
    let argument = |at: usize| (*arguments.get(at).unwrap_or(&"")).to_owned();
    let has = |word: &str| arguments.contains(&word);
    let lease = arguments.iter().find_map(|word| word.strip_prefix("lease=")?.parse().ok());
    match name {
        "get" => Command::Range(range_request(&argument(0))),
        "put" => Command::Put(put_request(&argument(0), has("prev"), lease.unwrap_or_default())),
        "del" => Command::DeleteRange(delete_request(&argument(0), has("prev"))),
        "txn" => Command::Txn(txn(arguments)),
        "lease-grant" => {
            Command::LeaseGrant(pb::LeaseGrantRequest { id: argument(0).parse().unwrap(), ttl: 60 })
        }
        "lease-revoke" => {
            Command::LeaseRevoke(pb::LeaseRevokeRequest { id: argument(0).parse().unwrap() })
        }
        _ => Command::Auth(auth_command(name, &argument(0), &argument(1), &argument(2))),
    }
}

fn auth_command(name: &str, first: &str, second: &str, third: &str) -> AuthCommand {
    let (one, two) = (first.to_owned(), second.to_owned());
    match name {
        "enable" => AuthCommand::Enable,
        "disable" => AuthCommand::Disable,
        "status" => AuthCommand::Status,
        "login" => AuthCommand::Authenticate(pb::InternalAuthenticateRequest {
            name: one,
            password: String::new(),
            simple_token: two,
        }),
        "user-add" => AuthCommand::UserAdd(pb::AuthUserAddRequest {
            name: one,
            hashed_password: HASH.to_owned(),
            options: Some(authpb::UserAddOptions { no_password: second == "no-password" }),
            ..pb::AuthUserAddRequest::default()
        }),
        "user-delete" => AuthCommand::UserDelete(pb::AuthUserDeleteRequest { name: one }),
        "user-get" => AuthCommand::UserGet(pb::AuthUserGetRequest { name: one }),
        "user-list" => AuthCommand::UserList,
        "passwd" => AuthCommand::UserChangePassword(pb::AuthUserChangePasswordRequest {
            name: one,
            hashed_password: if second.is_empty() { HASH.to_owned() } else { two },
            ..pb::AuthUserChangePasswordRequest::default()
        }),
        "grant" => {
            AuthCommand::UserGrantRole(pb::AuthUserGrantRoleRequest { user: one, role: two })
        }
        "revoke" => {
            AuthCommand::UserRevokeRole(pb::AuthUserRevokeRoleRequest { name: one, role: two })
        }
        "role-add" => AuthCommand::RoleAdd(pb::AuthRoleAddRequest { name: one }),
        "role-delete" => AuthCommand::RoleDelete(pb::AuthRoleDeleteRequest { role: one }),
        "role-get" => AuthCommand::RoleGet(pb::AuthRoleGetRequest { role: one }),
        "role-list" => AuthCommand::RoleList,
        "permit" => AuthCommand::RoleGrantPermission(pb::AuthRoleGrantPermissionRequest {
            name: one,
            perm: permission(second, third),
        }),
        "forbid" => {
            let (key, range_end) = range(second);
            let role = one;
            let request = pb::AuthRoleRevokePermissionRequest { role, key, range_end };
            AuthCommand::RoleRevokePermission(request)
        }
        other => panic!("{other}: no such command"),
    }
}

fn permission(kind: &str, keys: &str) -> Option<authpb::Permission> {
    let perm_type = match kind {
        "read" => 0,
        "write" => 1,
        "readwrite" => 2,
        "nothing" => return None,
        number => number.parse().unwrap(),
    };
    let (key, range_end) = range(keys);
    Some(authpb::Permission { perm_type, key, range_end })
}

fn range_request(text: &str) -> pb::RangeRequest {
    let (key, range_end) = range(text);
    pb::RangeRequest { key, range_end, ..pb::RangeRequest::default() }
}

fn put_request(key: &str, prev_kv: bool, lease: i64) -> pb::PutRequest {
    let key = range(key).0;
    pb::PutRequest { key, prev_kv, lease, ..pb::PutRequest::default() }
}

fn delete_request(text: &str, prev_kv: bool) -> pb::DeleteRangeRequest {
    let (key, range_end) = range(text);
    pb::DeleteRangeRequest { key, range_end, prev_kv }
}

/// Parses a transaction. `if:a` adds a condition on a key, and `then:OPERATION` and
/// `else:OPERATION` add operations to the branches. An operation is `get:a`, `put:a`, `del:a`,
/// `put-prev:a`, `del-prev:a`, or `txn:OPERATION` for a nested transaction.
fn txn(words: &[&str]) -> pb::TxnRequest {
    let mut request = pb::TxnRequest::default();
    for word in words {
        let (part, rest) = word.split_once(':').unwrap();
        match part {
            "if" => {
                let (key, range_end) = range(rest);
                request.compare.push(pb::Compare { key, range_end, ..pb::Compare::default() });
            }
            "then" => request.success.push(operation(rest)),
            "else" => request.failure.push(operation(rest)),
            other => panic!("{other}: not a condition or an operation of a transaction"),
        }
    }
    request
}

fn operation(text: &str) -> pb::RequestOp {
    let (kind, rest) = text.split_once(':').unwrap();
    let request = match kind {
        "get" => Operation::RequestRange(range_request(rest)),
        "put" => Operation::RequestPut(put_request(rest, false, 0)),
        "put-prev" => Operation::RequestPut(put_request(rest, true, 0)),
        "del" => Operation::RequestDeleteRange(delete_request(rest, false)),
        "del-prev" => Operation::RequestDeleteRange(delete_request(rest, true)),
        "txn" => Operation::RequestTxn(txn(&[&format!("then:{rest}")])),
        other => panic!("{other}: no such operation"),
    };
    pb::RequestOp { request: Some(request) }
}
