//! Guarded servers: authentication is enabled, and clients and peers must present certificates.
//!
//! In a run with `QUORATE_SECURED=1`, every server is guarded. Clients connect as root through a [`Tunnel`] that has a
//! certificate. Once the server is ready, the harness configures the server and obtains a signed token for root, which
//! all members of a cluster accept and which stays valid after a restart. As a result, tests run unchanged in this
//! mode. [`LEFT_OUT`] lists the tests that do not apply to a guarded server, with the reasons.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use quorate_api::etcdserverpb as pb;

use crate::client::SharedToken;
use crate::pki::{Authority, Leaf, replace};
use crate::tunnel::Tunnel;
use crate::{Client, DEADLINE, eventually_ok};

/// Name of the user with all permissions.
const ROOT: &str = "root";
const PASSWORD: &str = "a password of root";

/// Tests that a guarded run skips: the prefix of their names and the reason.
const LEFT_OUT: &[(&str, &str)] = &[
    ("auth::", OWN_USERS),
    ("auth_tools::", OWN_USERS),
    ("bounds::", OWN_HEADS),
    ("brute_force::", OWN_USERS),
    ("cluster_tools::endpoint_commands_print_the_same_as_etcdctl", NO_TOKEN_FOR_MEMBERS),
    ("cluster_tools::move_leader_prints_the_same_as_etcdctl", NO_TOKEN_FOR_MEMBERS),
    (
        "cluster_tools::member_commands_print_the_same_as_etcdctl",
        "etcd 3.5 forwards a promotion without the token",
    ),
    (
        "damage::a_log_with_a_changed_byte_in_a_record_is_refused",
        "the two logs differ because passwords are salted",
    ),
    ("flag_effects::", OWN_FLAGS),
    ("floods::unread_lists_do_not_stop_the_member", OWN_HEADS),
    ("floods::many_calls_with_invented_tokens_do_not_stop_the_member", OWN_USERS),
    ("floods::many_waiters_for_a_lock_do_not_stop_the_member", OWN_HEADS),
    ("floods::watchers_", OWN_HEADS),
    ("gateway::", OWN_HEADS),
    ("grpc_edge::", OWN_HEADS),
    ("grpc_frames::", OWN_HEADS),
    ("lock_election::locks_use_the_permissions_of_the_caller", OWN_USERS),
    ("lost_log::a_forged_heartbeat_does_not_prevent_elections", OWN_PEER),
    ("membership::a_learner_refuses_most_requests", "learners do not accept logins"),
    ("membership::members_answer_requests_from_peers", OWN_PEER),
    ("permissions::", OWN_USERS),
    (
        "resources::a_member_with_few_file_descriptors_serves_and_logs_a_warning",
        "the tunnel connects only once its client sends data",
    ),
    (
        "slow_requests::",
        "the log line of each slow request would include the user `root`, which the tests do not expect",
    ),
    ("takeover::a_taken_over_directory_keeps_its_authentication", OWN_USERS),
    ("takeover::users_that_are_only_in_the_log_are_taken_over", OWN_USERS),
    ("tool_endpoints::silent_endpoints_", OWN_USERS),
    ("tool_top::a_user_sees_only_permitted_keys", OWN_USERS),
];

const OWN_USERS: &str = "the test creates users and enables authentication itself";
const OWN_FLAGS: &str =
    "effects of flags do not depend on the client, and some flags contradict the guard's flags";
const OWN_HEADS: &str = "the test writes request headers itself, without a token";
const OWN_PEER: &str = "the test connects to the peer port without a certificate";
const NO_TOKEN_FOR_MEMBERS: &str = "etcdctl 3.5 lists members without a token, which 3.7 refuses";

/// Returns whether the servers of this run are guarded.
#[must_use]
pub fn is_guarded_suite() -> bool {
    std::env::var_os("QUORATE_SECURED").is_some_and(|value| value == "1")
}

/// Returns the reason, if any, to skip the test with this path in this run.
pub(crate) fn reason_to_leave_out(path: &str) -> Option<&'static str> {
    if !is_guarded_suite() {
        return None;
    }
    let (_, path) = path.split_once("::")?;
    LEFT_OUT.iter().find(|(name, _)| path.starts_with(name)).map(|(_, reason)| *reason)
}

/// Certificates and credentials of one server.
#[derive(Debug)]
pub(crate) struct Guard {
    dir: PathBuf,
    tunnel: Tunnel,
    token: SharedToken,
}

/// Returns the CA that all members and clients of this process trust.
#[must_use]
pub fn suite_authority() -> &'static Authority {
    static AUTHORITY: OnceLock<Authority> = OnceLock::new();
    AUTHORITY.get_or_init(Authority::new)
}

/// Returns the key with which all members sign tokens.
fn token_key() -> &'static rcgen::KeyPair {
    static KEY: OnceLock<rcgen::KeyPair> = OnceLock::new();
    KEY.get_or_init(|| rcgen::KeyPair::generate().unwrap())
}

impl Guard {
    /// Creates the files of a server that will listen on this port. The clients' certificate has no common name,
    /// because the server would otherwise attribute requests without a token to the user with that name.
    pub(crate) fn new(home: &Path, port: u16) -> Self {
        let dir = home.join("guard");
        std::fs::create_dir_all(&dir).unwrap();
        replace(&dir.join("ca"), suite_authority().pem().as_bytes());
        suite_authority().sign(&Leaf::new("server")).write(&dir, "server");
        suite_authority().sign(&Leaf::new("")).write(&dir, "client");
        replace(&dir.join("token"), token_key().serialize_pem().as_bytes());
        replace(&dir.join("token.pub"), token_key().public_key_pem().as_bytes());
        let tunnel = Tunnel::start(port, &dir);
        Self { dir, tunnel, token: SharedToken::default() }
    }

    /// Returns the port for clients without a certificate.
    pub(crate) const fn port(&self) -> u16 {
        self.tunnel.port()
    }

    /// Returns the folder with the server's files: `ca`, `server`, `server.key`, and the tunnel's certificate `client`
    /// with its key.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the flags of the server.
    pub(crate) fn flags(&self) -> Vec<String> {
        let path = |name: &str| self.dir.join(name).display().to_string();
        let (ca, cert, key) = (path("ca"), path("server"), path("server.key"));
        let (public, private) = (path("token.pub"), path("token"));
        let mut flags = vec![
            format!(
                "--auth-token=jwt,pub-key={public},priv-key={private},sign-method=ES256,ttl=1h"
            ),
            "--bcrypt-cost=4".to_owned(),
        ];
        for prefix in ["", "peer-"] {
            flags.extend([
                format!("--{prefix}cert-file={cert}"),
                format!("--{prefix}key-file={key}"),
                format!("--{prefix}trusted-ca-file={ca}"),
                format!("--{prefix}client-cert-auth"),
            ]);
        }
        flags
    }

    /// Returns a client with root's token.
    pub(crate) fn client(&self) -> Client {
        Client::with_shared_token(self.port(), Arc::clone(&self.token))
    }

    /// Adopts the token of another member, because learners do not accept logins.
    pub(crate) fn adopt(&self, other: &Self) {
        let token = other.token.read().unwrap().clone();
        let mut own = self.token.write().unwrap();
        *own = own.take().or(token);
    }

    /// Logs root in on a ready server. Enables authentication if it is disabled.
    pub(crate) async fn log_in(&self) {
        let client = Client::new(self.port());
        let request = pb::AuthenticateRequest { name: ROOT.into(), password: PASSWORD.into() };
        let token = eventually_ok(DEADLINE, "root can log in", async || {
            match client.authenticate(request.clone()).await {
                Ok(answer) => Ok(Some(answer.token)),
                Err(status) if status.message().contains("not supported for learner") => Ok(None),
                Err(status) => {
                    if status.message().contains("authentication is not enabled") {
                        enable(&client).await;
                    }
                    Err(status)
                }
            }
        })
        .await;
        if let Some(token) = token {
            *self.token.write().unwrap() = Some(token.parse().unwrap());
        }
    }
}

/// Creates root and enables authentication. If other members do the same at the same time, some steps may fail because
/// they are already done. The login shows whether all of them have taken effect.
async fn enable(client: &Client) {
    let (name, user) = (ROOT.to_owned(), ROOT.to_owned());
    let password = PASSWORD.to_owned();
    let user_add = pb::AuthUserAddRequest { name: name.clone(), password, ..Default::default() };
    drop(client.user_add(user_add).await);
    drop(client.role_add(pb::AuthRoleAddRequest { name: name.clone() }).await);
    drop(client.user_grant_role(pb::AuthUserGrantRoleRequest { user, role: name }).await);
    drop(client.auth_enable(pb::AuthEnableRequest {}).await);
}

/// Returns root's name and password in the form that `etcdctl` expects.
pub(crate) fn user_of_tools() -> String {
    format!("{ROOT}:{PASSWORD}")
}
