//! Certificates, users and permissions change under load while members are restarted. Authorised clients continue to be
//! served, and unauthorised clients are refused at all times.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use quorate_api::authpb::{Permission, permission};
use quorate_api::etcdserverpb as pb;
use quorate_tests::pki::{Authority, Leaf, replace};
use quorate_tests::{
    Client, Cluster, ClusterOptions, Kind, TIMEOUT, bytes, eventually_within, key, prefix_end, put,
    suite_authority,
};
use tempfile::TempDir;
use tonic::{Code, Status};

use crate::{Ordeal, on_clusters_of_quorate};

on_clusters_of_quorate! {
    security_settings_can_change_under_load,
}

const VISITOR: &str = "visitor";
const PASSWORD: &str = "the first password";
const SECOND_PASSWORD: &str = "the second password";
/// Keys that the visitor may read and, at times, write.
const HALL: &str = "hall/";
/// Pause between two attempts of one intruder.
const PAUSE: Duration = Duration::from_millis(5);
/// Serial number of a certificate that is revoked at the end.
const LOST: u64 = 7;

async fn security_settings_can_change_under_load(kind: Kind) {
    let home = TempDir::new().unwrap();
    let list = home.path().join("list");
    let revoke = |numbers: &[u64]| replace(&list, &suite_authority().revoke(numbers));
    revoke(&[99]);
    // Simple tokens stay valid when other users change.
    let options = ClusterOptions::new(kind, 3)
        .guarded()
        .flag("--auth-token=simple")
        .flag(format!("--client-crl-file={}", list.display()))
        .flag(format!("--peer-crl-file={}", list.display()));
    let summary = Ordeal::run(options, async |ordeal| {
        add_visitor(&ordeal.cluster.client(0)).await;
        let intruders = Intruders::start(&ordeal.cluster);
        let follower = ordeal.cluster.follower().await;
        ordeal.cluster.stop(follower).await;
        ordeal.progress().await;
        ordeal.cluster.restart(follower).await;
        rotate_authority(ordeal).await;
        let leader = ordeal.cluster.leader().await;
        ordeal.cluster.kill(leader);
        ordeal.progress().await;
        ordeal.cluster.restart(leader).await;
        ordeal.progress().await;
        revoke_certificate(ordeal, &revoke).await;
        change_users(ordeal).await;
        intruders.end().await;
    })
    .await;
    for (failure, count) in &summary.failures {
        assert!(
            is_of_an_unavailable_member(failure),
            "an unexpected error occurred {count} times: {failure}: {summary:?}"
        );
    }
}

/// Returns whether the error comes from a member that was killed, is stopping or starting, or has lost its leader.
/// Client libraries retry after such errors without reporting them.
fn is_of_an_unavailable_member(failure: &str) -> bool {
    let codes = ["Unavailable", "DeadlineExceeded", "Cancelled", "Unknown: transport error"];
    // Simple tokens are lost with the process, and root logs in again once the process serves. A request in flight
    // during a change of users must be repeated. Client libraries do both.
    let repeated = ["invalid auth token", "revision of auth store is old"];
    codes.iter().any(|code| failure.starts_with(code))
        || repeated.iter().any(|text| failure.contains(text))
}

async fn add_visitor(client: &Client) {
    let name = || VISITOR.to_owned();
    client.role_add(pb::AuthRoleAddRequest { name: name() }).await.unwrap();
    let (name, user) = (name(), name());
    grant(client, permission::Type::Read).await;
    let password = PASSWORD.to_owned();
    let add = pb::AuthUserAddRequest { name: name.clone(), password, ..Default::default() };
    client.user_add(add).await.unwrap();
    client.user_grant_role(pb::AuthUserGrantRoleRequest { user, role: name }).await.unwrap();
}

/// Sets the visitor's permissions for the keys in [`HALL`].
async fn grant(client: &Client, kind: permission::Type) {
    let perm = Permission {
        perm_type: kind.into(),
        key: bytes(HALL),
        range_end: prefix_end(HALL.as_bytes()).into(),
    };
    let name = VISITOR.to_owned();
    let grant = pb::AuthRoleGrantPermissionRequest { name, perm: Some(perm) };
    client.role_grant_permission(grant).await.unwrap();
}

/// Clients that continually send forbidden requests to every member.
struct Intruders {
    stop: Rc<Cell<bool>>,
    tasks: Vec<tokio::task::JoinHandle<u64>>,
}

impl Intruders {
    fn start(cluster: &Cluster) -> Self {
        let stop = Rc::new(Cell::new(false));
        let mut tasks = Vec::new();
        for member in cluster.members() {
            let stranger = cluster.server(member).client_without_token();
            let tries: [Try; 4] = [
                |client| Box::pin(async move { client.put(put("k", "v")).await.map(drop) }),
                |client| Box::pin(async move { client.range(key("load/0")).await.map(drop) }),
                |client| Box::pin(async move { client.log_in(VISITOR, "guessed").await.map(drop) }),
                |client| {
                    let client = client.with_token("made-up.17");
                    Box::pin(async move { client.put(put("k", "v")).await.map(drop) })
                },
            ];
            for attempt in tries {
                let (stop, client) = (Rc::clone(&stop), stranger.clone());
                tasks.push(tokio::task::spawn_local(async move {
                    let mut refusals = 0;
                    while !stop.get() {
                        refusals += u64::from(is_refused(attempt(client.clone()).await));
                        tokio::time::sleep(PAUSE).await;
                    }
                    refusals
                }));
            }
            tasks.push(Self::without_permission(Rc::clone(&stop), stranger));
        }
        Self { stop, tasks }
    }

    /// Requests keys as a valid user without permission.
    fn without_permission(stop: Rc<Cell<bool>>, client: Client) -> tokio::task::JoinHandle<u64> {
        tokio::task::spawn_local(async move {
            let mut refusals = 0;
            while !stop.get() {
                let Ok(visitor) = client.log_in(VISITOR, PASSWORD).await else {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                };
                for _ in 0..20 {
                    refusals += u64::from(is_refused(visitor.range(key("load/0")).await.map(drop)));
                    refusals += u64::from(is_refused(visitor.put(put("k", "v")).await.map(drop)));
                    tokio::time::sleep(PAUSE).await;
                }
            }
            refusals
        })
    }

    /// Stops the intruders, and checks that each was refused at least once.
    async fn end(self) {
        self.stop.set(true);
        for task in self.tasks {
            assert!(task.await.unwrap() > 0, "an intruder never reached a member");
        }
    }
}

type Try = fn(Client) -> std::pin::Pin<Box<dyn Future<Output = Result<(), Status>>>>;

/// Returns whether a request was refused. Returns false if it failed for another reason, such as a lost connection. An
/// accepted request fails the test.
fn is_refused(answer: Result<(), Status>) -> bool {
    let status = answer.expect_err("an intruder's request must fail");
    match status.code() {
        Code::InvalidArgument | Code::Unauthenticated | Code::PermissionDenied => true,
        Code::FailedPrecondition => panic!("authentication was off: {status:?}"),
        _ => false,
    }
}

/// Replaces the certificates of every member and client with certificates that another CA has signed. At the end, only
/// the new CA is trusted.
async fn rotate_authority(ordeal: &Ordeal) {
    let (old, new) = (suite_authority().pem(), Authority::new());
    let members = ordeal.cluster.members();
    let dirs: Vec<_> =
        members.iter().map(|member| ordeal.cluster.server(*member).guard_dir()).collect();
    let trust = |text: &str| {
        dirs.iter().for_each(|dir| replace(&dir.join("ca"), text.as_bytes()));
    };
    let sign = |name: &str| {
        dirs.iter().for_each(|dir| drop(new.sign(&Leaf::new("")).write(dir, name)));
    };
    trust(&[old, new.pem()].concat());
    ordeal.progress().await;
    sign("server");
    ordeal.progress().await;
    sign("client");
    ordeal.progress().await;
    trust(&new.pem());
    ordeal.progress().await;
    // A certificate from the old CA is now refused, and so is a self-signed certificate.
    for member in members {
        let server = ordeal.cluster.server(member);
        for credentials in [suite_authority().sign(&Leaf::new("")), Leaf::new("").self_signed()] {
            let visitor = server.visitor(&credentials, &new.pem());
            let refused = visitor.client().log_in(VISITOR, PASSWORD).await;
            assert_ne!(
                refused.unwrap_err().code(),
                Code::InvalidArgument,
                "the member processed the password"
            );
        }
    }
    // This certificate will be revoked as compromised.
    let lost = new.sign(&Leaf { serial: LOST, ..Leaf::new("") });
    for dir in &dirs {
        lost.write(dir, "lost");
        replace(&dir.join("new-ca"), new.pem().as_bytes());
    }
}

/// Revokes a valid certificate on every member.
async fn revoke_certificate(ordeal: &Ordeal, revoke: &impl Fn(&[u64])) {
    let read = |name: &str, member: usize| {
        let dir = ordeal.cluster.server(member).guard_dir();
        std::fs::read_to_string(dir.join(name)).unwrap()
    };
    let come = async |member: usize| {
        let credentials = quorate_tests::pki::Credentials {
            cert: read("lost", member),
            key: read("lost.key", member),
        };
        let visitor = ordeal.cluster.server(member).visitor(&credentials, &read("new-ca", member));
        visitor.client().log_in(VISITOR, PASSWORD).await
    };
    for member in ordeal.cluster.members() {
        come(member).await.unwrap();
    }
    revoke(&[99, LOST]);
    for member in ordeal.cluster.members() {
        let refused = come(member).await.unwrap_err();
        let is_cut_off = matches!(refused.code(), Code::Unavailable | Code::Unknown);
        assert!(is_cut_off, "m{member}: {refused:?}");
    }
    ordeal.progress().await;
}

/// Allows the visitor to write for a while, then deletes the user and creates it again with another password.
async fn change_users(ordeal: &Ordeal) {
    let root = ordeal.cluster.client(0);
    let all: Vec<Client> =
        ordeal.cluster.members().into_iter().map(|member| ordeal.cluster.client(member)).collect();
    let mut visitors = Vec::new();
    for client in &all {
        visitors.push(client.log_in(VISITOR, PASSWORD).await.unwrap());
    }
    for (kind, is_writer) in [(permission::Type::Readwrite, true), (permission::Type::Read, false)]
    {
        grant(&root, kind).await;
        for visitor in &visitors {
            // A member may apply the change later than the member that received the request.
            let what = format!("the permission to write is {is_writer}");
            eventually_within(TIMEOUT, &what, async || {
                let answer = visitor.put(put(format!("{HALL}k"), "v")).await;
                (answer.is_ok() == is_writer).then_some(())
            })
            .await;
        }
        ordeal.progress().await;
    }
    let (name, password) = (VISITOR.to_owned(), SECOND_PASSWORD.to_owned());
    let change = pb::AuthUserChangePasswordRequest { name, password, ..Default::default() };
    root.user_change_password(change).await.unwrap();
    for client in &all {
        client.log_in(VISITOR, SECOND_PASSWORD).await.unwrap();
        let refused = client.log_in(VISITOR, PASSWORD).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    }
    for visitor in &visitors {
        // Tokens from logins with the old password are invalid.
        let read = key(format!("{HALL}k"));
        eventually_within(TIMEOUT, "old tokens become invalid", async || {
            visitor.range(read.clone()).await.is_err().then_some(())
        })
        .await;
    }
    ordeal.progress().await;
}
