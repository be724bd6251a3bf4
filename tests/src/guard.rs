//! Servers that let nobody in who has not shown who he is: authentication is on, and clients and peers have to show
//! certificates.
//!
//! In a run of the suite with `QUORATE_SECURED=1` every server is started so. Clients come through a [`Tunnel`] that has a
//! certificate, and as root: the server is set up when it serves, and logs root in with a signed token, which all
//! members of a cluster know and which stays good when one starts again. So tests that know nothing of it ask for the
//! same as ever. Those that are about something else than a guarded server are named in [`LEFT_OUT`], with the reason.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use quorate_api::etcdserverpb as pb;

use crate::client::SharedToken;
use crate::pki::{Authority, Leaf, replace};
use crate::tunnel::Tunnel;
use crate::{Client, DEADLINE, eventually_ok};

/// Who may everything.
const ROOT: &str = "root";
const PASSWORD: &str = "a password of root";

/// Tests that a guarded run leaves out: what their names begin with, and why.
const LEFT_OUT: &[(&str, &str)] = &[];

/// Whether the servers of this run are guarded.
#[must_use]
pub fn is_guarded_suite() -> bool {
    std::env::var_os("QUORATE_SECURED").is_some_and(|value| value == "1")
}

/// Why a test has no place in this run, by its path.
pub(crate) fn reason_to_leave_out(path: &str) -> Option<&'static str> {
    if !is_guarded_suite() {
        return None;
    }
    let (_, path) = path.split_once("::")?;
    LEFT_OUT.iter().find(|(name, _)| path.starts_with(name)).map(|(_, reason)| *reason)
}

/// What guards one server.
#[derive(Debug)]
pub(crate) struct Guard {
    dir: PathBuf,
    tunnel: Tunnel,
    token: SharedToken,
}

/// The authority that all members and clients of this process trust.
#[must_use]
pub fn suite_authority() -> &'static Authority {
    static AUTHORITY: OnceLock<Authority> = OnceLock::new();
    AUTHORITY.get_or_init(Authority::new)
}

/// The key that all members sign tokens with.
fn token_key() -> &'static rcgen::KeyPair {
    static KEY: OnceLock<rcgen::KeyPair> = OnceLock::new();
    KEY.get_or_init(|| rcgen::KeyPair::generate().unwrap())
}

impl Guard {
    /// Makes the files of a server that will listen on this port.
    pub(crate) fn new(home: &Path, port: u16) -> Self {
        let dir = home.join("guard");
        std::fs::create_dir_all(&dir).unwrap();
        replace(&dir.join("ca"), suite_authority().pem().as_bytes());
        suite_authority().sign(&Leaf::new("server")).write(&dir, "server");
        suite_authority().sign(&Leaf::new("somebody")).write(&dir, "client");
        replace(&dir.join("token"), token_key().serialize_pem().as_bytes());
        replace(&dir.join("token.pub"), token_key().public_key_pem().as_bytes());
        let tunnel = Tunnel::start(port, &dir);
        Self { dir, tunnel, token: SharedToken::default() }
    }

    /// Where clients without a certificate connect.
    pub(crate) const fn port(&self) -> u16 {
        self.tunnel.port()
    }

    /// Where its files are: `ca`, `server`, `server.key`, and `client` with its key, which the way in is opened with.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// What the server is started with.
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

    /// A client with root's token.
    pub(crate) fn client(&self) -> Client {
        Client::with_shared_token(self.port(), Arc::clone(&self.token))
    }

    /// Logs root in at a server that serves; turns authentication on where it is not.
    pub(crate) async fn log_in(&self) {
        let client = Client::new(self.port());
        let request = pb::AuthenticateRequest { name: ROOT.into(), password: PASSWORD.into() };
        let answer = eventually_ok(DEADLINE, "root to be logged in", async || {
            let answer = client.authenticate(request.clone()).await;
            if let Err(status) = &answer
                && status.message().contains("authentication is not enabled")
            {
                enable(&client).await;
            }
            answer
        })
        .await;
        *self.token.write().unwrap() = Some(answer.token.parse().unwrap());
    }
}

/// Makes root and turns authentication on. Where others do the same at this moment, some of it is done already; that it
/// is done in the end is seen in the login.
async fn enable(client: &Client) {
    let (name, user) = (ROOT.to_owned(), ROOT.to_owned());
    let password = PASSWORD.to_owned();
    let user_add = pb::AuthUserAddRequest { name: name.clone(), password, ..Default::default() };
    drop(client.user_add(user_add).await);
    drop(client.role_add(pb::AuthRoleAddRequest { name: name.clone() }).await);
    drop(client.user_grant_role(pb::AuthUserGrantRoleRequest { user, role: name }).await);
    drop(client.auth_enable(pb::AuthEnableRequest {}).await);
}

/// Root's name and password, as `etcdctl` takes them.
pub(crate) fn user_of_tools() -> String {
    format!("{ROOT}:{PASSWORD}")
}
