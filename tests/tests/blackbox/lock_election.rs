//! The lock and election services: the order of contenders, blocking calls, clients that give up, and the responses to
//! each client.

use std::time::Duration;

use quorate_api::authpb;
use quorate_api::etcdserverpb as pb;
use quorate_api::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ResignRequest,
};
use quorate_api::v3lockpb::{LockRequest, LockResponse, UnlockRequest};
use quorate_tests::{
    Client, Cluster, Kind, Options, Server, TIMEOUT, delete, eventually, eventually_within, key,
    on_both_servers, on_quorate, prefix, refused, within,
};
use tokio::task::JoinHandle;
use tonic::{Code, Request, Status, Streaming};

on_both_servers! {
    a_free_lock_is_acquired_at_once,
    the_holder_of_a_lock_may_request_it_again,
    unlock_deletes_the_key,
    a_lock_passes_to_the_next_waiter,
    a_cancelled_wait_for_a_lock_deletes_its_key,
    a_lock_passes_to_the_next_waiter_when_its_lease_is_revoked,
    a_waiter_with_a_revoked_lease_is_refused_once_the_lock_is_free,
    lock_names_are_arbitrary_bytes,
    a_candidate_without_rivals_is_elected,
    candidates_are_elected_in_turn,
    a_candidate_may_campaign_with_another_value,
    a_cancelled_campaign_deletes_its_key,
    only_the_leader_may_proclaim_and_resign,
    observers_see_each_leader_and_proclamation,
    an_observer_waits_for_a_leader,
    locks_use_the_permissions_of_the_caller,
}

on_both_servers! {
    alone:
    waiters_survive_the_loss_of_the_raft_leader,
}

on_quorate! {
    a_campaign_cancelled_at_any_time_leaves_no_key,
}

on_quorate! {
    alone:
    hundreds_of_waiters_get_a_lock_in_order_of_arrival,
    waiters_are_notified_when_the_member_stops,
    the_memory_of_lock_waiters_is_reported_in_bytes,
}

fn lock_request(name: &str, lease: i64) -> LockRequest {
    LockRequest { name: name.to_owned().into(), lease }
}

async fn lock(client: &Client, name: &str, lease: i64) -> Result<LockResponse, Status> {
    client.lock(lock_request(name, lease)).await
}

/// Requests a lock that another client holds.
async fn wait_for_lock(
    client: &Client,
    name: &str,
    lease: i64,
) -> JoinHandle<Result<LockResponse, Status>> {
    let (asking, request) = (client.clone(), lock_request(name, lease));
    let waiting = tokio::task::spawn_local(async move { asking.lock(request).await });
    await_key(client, &format!("{name}/{lease:x}")).await;
    waiting
}

async fn await_key(client: &Client, name: &str) {
    eventually("the waiter has created its key", async || client.read(name).await.map(drop)).await;
}

async fn await_no_key(client: &Client, name: &str) {
    let gone = async || client.read(name).await.is_none().then_some(());
    eventually("the key of the waiter is deleted", gone).await;
}

async fn unlock(client: &Client, key: impl AsRef<[u8]>) -> i64 {
    let key = key.as_ref().to_vec().into();
    client.unlock(UnlockRequest { key }).await.unwrap().header.unwrap().revision
}

fn revision(answer: &LockResponse) -> i64 {
    answer.header.unwrap().revision
}

async fn keys(client: &Client, name: &str) -> Vec<String> {
    let found = client.range(prefix(name)).await.unwrap();
    found.kvs.iter().map(|record| String::from_utf8_lossy(record.key()).into_owned()).collect()
}

async fn a_free_lock_is_acquired_at_once(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(0x1abc, 60).await;
    let held = lock(&client, "l", 0x1abc).await.unwrap();
    assert_eq!(held.key, "l/1abc");
    let record = client.range(key("l/1abc")).await.unwrap().kvs.remove(0);
    let fields = record.fields();
    assert_eq!((fields.value, fields.lease), (&b""[..], 0x1abc));
    assert_eq!(fields.create_revision, revision(&held));
    let header = held.header.unwrap();
    assert!(header.cluster_id != 0 && header.member_id != 0 && header.raft_term != 0);

    let own = lock(&client, "other", 0).await.unwrap();
    let record = client.range(prefix("other/")).await.unwrap().kvs.remove(0);
    assert_eq!(record.key(), own.key);
    let lease = record.fields().lease;
    assert_eq!(own.key, format!("other/{lease:x}"));
    let request = pb::LeaseTimeToLiveRequest { id: lease, keys: false };
    assert_eq!(client.lease_time_to_live(request).await.unwrap().granted_ttl, 60);

    let text = "etcdserver: requested lease not found";
    refused(lock(&client, "l", 77).await, Code::Unknown, text);
}

async fn the_holder_of_a_lock_may_request_it_again(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(7, 60).await;
    let first = lock(&client, "l", 7).await.unwrap();
    let written = client.write("k", "v").await;
    let second = lock(&client, "l", 7).await.unwrap();
    assert_eq!((second.key.clone(), revision(&second)), (first.key, written));
    let record = client.range(key(second.key)).await.unwrap().kvs.remove(0);
    assert_eq!(record.fields().mod_revision, written - 1);
}

async fn unlock_deletes_the_key(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let held = lock(&client, "l", 0).await.unwrap();
    assert_eq!(unlock(&client, &held.key).await, revision(&held) + 1);
    assert_eq!(unlock(&client, &held.key).await, revision(&held) + 1);
    client.write("k", "v").await;
    unlock(&client, "k").await;
    assert_eq!(client.read("k").await, None);
    let text = "etcdserver: key is not provided";
    refused(client.unlock(UnlockRequest::default()).await, Code::Unknown, text);
}

async fn a_lock_passes_to_the_next_waiter(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for lease in 1..=4 {
        client.grant(lease, 60).await;
    }
    let first = lock(&client, "l", 1).await.unwrap();
    let second = wait_for_lock(&client, "l", 2).await;
    let third = wait_for_lock(&client, "l", 3).await;
    let fourth = wait_for_lock(&client, "l", 4).await;
    // Deleting the key of one waiting client does not change the order of the other clients.
    unlock(&client, "l/3").await;
    client.write("k", "v").await;
    let freed = unlock(&client, &first.key).await;
    let second = within("the lock for the second client", second).await.unwrap().unwrap();
    assert_eq!((&second.key[..], revision(&second)), (&b"l/2"[..], freed));
    unlock(&client, "l/2").await;
    let fourth = within("the lock for the fourth client", fourth).await.unwrap().unwrap();
    assert_eq!(fourth.key, "l/4");
    let third = within("the lock for the third client", third).await.unwrap();
    refused(third, Code::Unknown, "mutex: session is expired");
}

async fn a_cancelled_wait_for_a_lock_deletes_its_key(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for lease in 1..=3 {
        client.grant(lease, 60).await;
    }
    let first = lock(&client, "l", 1).await.unwrap();
    let mut request = client.signed(lock_request("l", 2));
    request.set_timeout(Duration::from_millis(300));
    let answer = within("the timeout of the request", client.locks().lock(request)).await;
    assert!(matches!(answer.unwrap_err().code(), Code::DeadlineExceeded | Code::Cancelled));
    await_no_key(&client, "l/2").await;

    let second = wait_for_lock(&client, "l", 2).await;
    let third = wait_for_lock(&client, "l", 3).await;
    second.abort();
    await_no_key(&client, "l/2").await;
    assert_eq!(keys(&client, "l/").await, ["l/1", "l/3"]);
    unlock(&client, first.key).await;
    assert_eq!(within("the lock for the third client", third).await.unwrap().unwrap().key, "l/3");
}

async fn a_lock_passes_to_the_next_waiter_when_its_lease_is_revoked(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for lease in 1..=3 {
        client.grant(lease, 60).await;
    }
    lock(&client, "l", 1).await.unwrap();
    let second = wait_for_lock(&client, "l", 2).await;
    let third = wait_for_lock(&client, "l", 3).await;
    client.lease_revoke(pb::LeaseRevokeRequest { id: 1 }).await.unwrap();
    assert_eq!(within("the lock for the second client", second).await.unwrap().unwrap().key, "l/2");
    client.lease_revoke(pb::LeaseRevokeRequest { id: 2 }).await.unwrap();
    assert_eq!(within("the lock for the third client", third).await.unwrap().unwrap().key, "l/3");
}

async fn a_waiter_with_a_revoked_lease_is_refused_once_the_lock_is_free(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(1, 60).await;
    client.grant(2, 60).await;
    lock(&client, "l", 1).await.unwrap();
    let second = wait_for_lock(&client, "l", 2).await;
    client.lease_revoke(pb::LeaseRevokeRequest { id: 2 }).await.unwrap();
    await_no_key(&client, "l/2").await;
    assert!(!second.is_finished());
    unlock(&client, "l/1").await;
    let answer = within("the lock for the second client", second).await.unwrap();
    refused(answer, Code::Unknown, "mutex: session is expired");
}

async fn lock_names_are_arbitrary_bytes(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(-255, 60).await;
    let held = client.lock(LockRequest { name: "".into(), lease: -255 }).await.unwrap();
    assert_eq!(held.key, "/-ff");
    let name = b"\x00\xff/".to_vec();
    let held = client.lock(LockRequest { name: name.into(), lease: -255 }).await.unwrap();
    assert_eq!(&held.key[..], b"\x00\xff//-ff");
    // Every existing key under the name contends for the lock, and this key is older than the client's key.
    client.write("l/anything", "v").await;
    let waiting = wait_for_lock_of_negative(&client).await;
    client.delete_range(delete("l/anything", "")).await.unwrap();
    assert_eq!(within("the lock", waiting).await.unwrap().unwrap().key, "l/-ff");
}

async fn wait_for_lock_of_negative(client: &Client) -> JoinHandle<Result<LockResponse, Status>> {
    let (asking, request) = (client.clone(), lock_request("l", -255));
    let waiting = tokio::task::spawn_local(async move { asking.lock(request).await });
    await_key(client, "l/-ff").await;
    waiting
}

fn campaign_request(name: &str, lease: i64, value: &str) -> CampaignRequest {
    let (name, value) = (name.to_owned().into(), value.to_owned().into());
    CampaignRequest { name, lease, value }
}

async fn campaign(client: &Client, lease: i64, value: &str) -> LeaderKey {
    let answer = client.campaign(campaign_request("e", lease, value)).await;
    answer.unwrap().leader.unwrap()
}

async fn stand(
    client: &Client,
    lease: i64,
    value: &str,
) -> JoinHandle<Result<CampaignResponse, Status>> {
    let (asking, request) = (client.clone(), campaign_request("e", lease, value));
    let standing = tokio::task::spawn_local(async move { asking.campaign(request).await });
    await_key(client, &format!("e/{lease:x}")).await;
    standing
}

fn leader_request() -> LeaderRequest {
    LeaderRequest { name: "e".into() }
}

async fn leader(client: &Client) -> Option<String> {
    match client.leader(leader_request()).await {
        Ok(answer) => Some(value(&answer)),
        Err(status) => {
            assert_eq!((status.code(), status.message()), (Code::Unknown, "election: no leader"));
            None
        }
    }
}

fn value(answer: &LeaderResponse) -> String {
    String::from_utf8_lossy(answer.kv.as_ref().unwrap().value()).into_owned()
}

async fn proclaim(client: &Client, leader: Option<LeaderKey>, value: &str) -> Result<i64, Status> {
    let request = ProclaimRequest { leader, value: value.to_owned().into() };
    client.proclaim(request).await.map(|answer| answer.header.unwrap().revision)
}

async fn resign(client: &Client, leader: Option<LeaderKey>) -> Result<i64, Status> {
    let answer = client.resign(ResignRequest { leader }).await;
    answer.map(|answer| answer.header.unwrap().revision)
}

async fn a_candidate_without_rivals_is_elected(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    assert_eq!(leader(&client).await, None);
    client.grant(0xbeef, 60).await;
    let answer = client.campaign(campaign_request("e", 0xbeef, "v1")).await.unwrap();
    let elected = answer.leader.unwrap();
    let rev = answer.header.unwrap().revision;
    let expected = LeaderKey { name: "e".into(), key: "e/beef".into(), rev, lease: 0xbeef };
    assert_eq!(elected, expected);
    let answer = client.leader(leader_request()).await.unwrap();
    let fields = answer.kv.as_ref().unwrap().fields();
    assert_eq!((fields.key, fields.value, fields.lease), (&b"e/beef"[..], &b"v1"[..], 0xbeef));
    assert_eq!((fields.create_revision, answer.header.unwrap().revision), (rev, rev));

    let own = client.campaign(campaign_request("f", 0, "v")).await.unwrap().leader.unwrap();
    let request = pb::LeaseTimeToLiveRequest { id: own.lease, keys: true };
    let lease = client.lease_time_to_live(request).await.unwrap();
    assert_eq!((lease.granted_ttl, &lease.keys[..]), (60, &[own.key][..]));
    let text = "etcdserver: requested lease not found";
    refused(client.campaign(campaign_request("e", 77, "v")).await, Code::Unknown, text);
}

async fn candidates_are_elected_in_turn(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for lease in 1..=3 {
        client.grant(lease, 60).await;
    }
    let first = campaign(&client, 1, "one").await;
    let second = stand(&client, 2, "two").await;
    let third = stand(&client, 3, "three").await;
    let stood_at = client.range(key("e/2")).await.unwrap().kvs[0].fields().create_revision;
    assert_eq!(leader(&client).await.as_deref(), Some("one"));
    resign(&client, Some(first)).await.unwrap();
    let answer = within("the election of the second candidate", second).await.unwrap().unwrap();
    assert_eq!(
        answer.header.unwrap().revision,
        stood_at,
        "the header has the revision of the candidate's key"
    );
    assert_eq!(leader(&client).await.as_deref(), Some("two"));
    client.lease_revoke(pb::LeaseRevokeRequest { id: 2 }).await.unwrap();
    let answer = within("the election of the third candidate", third).await.unwrap().unwrap();
    assert_eq!(answer.leader.unwrap().key, "e/3");
}

async fn a_candidate_may_campaign_with_another_value(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(1, 60).await;
    let first = campaign(&client, 1, "one").await;
    assert_eq!(campaign(&client, 1, "one").await, first);
    assert_eq!(client.revision().await, first.rev);
    let answer = client.campaign(campaign_request("e", 1, "more")).await.unwrap();
    assert_eq!(answer.header.unwrap().revision, first.rev);
    assert_eq!(answer.leader, Some(first));
    assert_eq!(leader(&client).await.as_deref(), Some("more"));
}

async fn a_cancelled_campaign_deletes_its_key(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(1, 60).await;
    client.grant(2, 60).await;
    let first = campaign(&client, 1, "one").await;
    let second = stand(&client, 2, "two").await;
    second.abort();
    await_no_key(&client, "e/2").await;
    assert_eq!(keys(&client, "e/").await, ["e/1"]);

    // The deletion of a waiting candidate's key goes unnoticed, and the candidate is elected without the key.
    let second = stand(&client, 2, "two").await;
    client.delete_range(delete("e/2", "")).await.unwrap();
    resign(&client, Some(first)).await.unwrap();
    let answer = within("the election of the second candidate", second).await.unwrap().unwrap();
    assert_eq!(answer.leader.unwrap().key, "e/2");
    assert_eq!(leader(&client).await, None);
}

/// Some of the calls are cancelled while the candidate's key is being written.
async fn a_campaign_cancelled_at_any_time_leaves_no_key(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(1, 60).await;
    campaign(&client, 1, "one").await;
    let mut campaigns = Vec::new();
    for number in 0..40 {
        let lease = 100 + number;
        client.grant(lease, 60).await;
        let (asking, request) = (client.clone(), campaign_request("e", lease, "x"));
        let campaigning = async move {
            let limit = Duration::from_micros(100 * u64::try_from(number).unwrap());
            tokio::time::timeout(limit, asking.campaign(request)).await.is_err()
        };
        campaigns.push(tokio::task::spawn_local(campaigning));
    }
    for campaigning in campaigns {
        assert!(campaigning.await.unwrap(), "the leader has not resigned");
    }
    // Writes of cancelled calls that are still in progress are applied before this write.
    client.write("k", "v").await;
    eventually("only the leader's key remains", async || {
        (keys(&client, "e/").await == ["e/1"]).then_some(())
    })
    .await;
}

async fn only_the_leader_may_proclaim_and_resign(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let text = "\"leader\" field must be provided";
    refused(proclaim(&client, None, "v").await, Code::Unknown, text);
    refused(resign(&client, None).await, Code::Unknown, text);

    client.grant(1, 60).await;
    let first = campaign(&client, 1, "one").await;
    let said = proclaim(&client, Some(first.clone()), "new").await.unwrap();
    assert_eq!(said, first.rev + 1);
    assert_eq!(leader(&client).await.as_deref(), Some("new"));
    let stale = LeaderKey { rev: first.rev - 1, ..first.clone() };
    let not_leader = "election: not leader";
    refused(proclaim(&client, Some(stale.clone()), "v").await, Code::Unknown, not_leader);
    assert_eq!(resign(&client, Some(stale)).await.unwrap(), said);
    let no_key = "etcdserver: key is not provided";
    let nobody = Some(LeaderKey { lease: 1, ..LeaderKey::default() });
    refused(proclaim(&client, nobody.clone(), "v").await, Code::Unknown, no_key);
    refused(resign(&client, nobody).await, Code::Unknown, no_key);

    // If the request names no lease, a new lease is granted, and the key is attached to the new lease.
    let without = LeaderKey { lease: 0, ..first.clone() };
    proclaim(&client, Some(without), "moved").await.unwrap();
    let answer = client.leader(leader_request()).await.unwrap();
    let lease = answer.kv.as_ref().unwrap().fields().lease;
    assert!(lease != 0 && lease != 1, "{lease}");

    assert_eq!(resign(&client, Some(first.clone())).await.unwrap(), said + 2);
    assert_eq!(leader(&client).await, None);
    refused(proclaim(&client, Some(first), "v").await, Code::Unknown, not_leader);
}

async fn observe(client: &Client) -> Streaming<LeaderResponse> {
    let request: Request<LeaderRequest> = client.signed(leader_request());
    client.elections().observe(request).await.unwrap().into_inner()
}

async fn next(observed: &mut Streaming<LeaderResponse>) -> (String, i64) {
    let answer = within("a response to the observer", observed.message()).await.unwrap().unwrap();
    (value(&answer), answer.header.unwrap().revision)
}

async fn observers_see_each_leader_and_proclamation(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(1, 60).await;
    client.grant(2, 60).await;
    let first = campaign(&client, 1, "one").await;
    let mut observed = observe(&client).await;
    assert_eq!(next(&mut observed).await, ("one".to_owned(), first.rev));
    let said = proclaim(&client, Some(first.clone()), "more").await.unwrap();
    assert_eq!(next(&mut observed).await, ("more".to_owned(), said));
    let second = stand(&client, 2, "two").await;
    let resigned = resign(&client, Some(first)).await.unwrap();
    assert_eq!(next(&mut observed).await, ("two".to_owned(), resigned));
    let second =
        within("the election of the second candidate", second).await.unwrap().unwrap().leader;
    let said = proclaim(&client, second.clone(), "and more").await.unwrap();
    assert_eq!(next(&mut observed).await, ("and more".to_owned(), said));

    // For a while there is no leader.
    resign(&client, second).await.unwrap();
    client.write("k", "v").await;
    let again = campaign(&client, 1, "again").await;
    assert_eq!(next(&mut observed).await, ("again".to_owned(), again.rev));
}

async fn an_observer_waits_for_a_leader(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let observing = {
        let client = client.clone();
        tokio::task::spawn_local(async move {
            let mut observed = observe(&client).await;
            next(&mut observed).await
        })
    };
    client.grant(1, 60).await;
    let first = campaign(&client, 1, "one").await;
    assert_eq!(
        within("the first response to the observer", observing).await.unwrap(),
        ("one".to_owned(), first.rev)
    );
}

/// Creates ann with permission to read and write everything under `l/` and `e/`, and eve with permission to write there
/// but not to read. Returns root's client.
async fn guard(client: &Client) -> Client {
    for (name, kind) in [("ann", 2), ("eve", 1)] {
        client.role_add(pb::AuthRoleAddRequest { name: name.to_owned() }).await.unwrap();
        for (key, end) in [("l/", "l0"), ("e/", "e0")] {
            let (key, range_end) = (key.into(), end.into());
            let perm = Some(authpb::Permission { perm_type: kind, key, range_end });
            let request = pb::AuthRoleGrantPermissionRequest { name: name.to_owned(), perm };
            client.role_grant_permission(request).await.unwrap();
        }
    }
    for name in ["ann", "eve", "root"] {
        let (user, password) = (name.to_owned(), "p".to_owned());
        let request = pb::AuthUserAddRequest { name: user.clone(), password, ..Default::default() };
        client.user_add(request).await.unwrap();
        let request = pb::AuthUserGrantRoleRequest { user, role: name.to_owned() };
        client.user_grant_role(request).await.unwrap();
    }
    client.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
    client.log_in("root", "p").await.unwrap()
}

async fn locks_use_the_permissions_of_the_caller(kind: Kind) {
    let server = Options::new(kind).flag("--bcrypt-cost=4").start().await;
    let nobody = server.client();
    nobody.grant(1, 60).await;
    nobody.grant(2, 60).await;
    let root = guard(&nobody).await;
    let ann = nobody.log_in("ann", "p").await.unwrap();
    let eve = nobody.log_in("eve", "p").await.unwrap();
    let bad = nobody.with_token("bad.1");
    const EMPTY: &str = "etcdserver: user name is empty";
    const BAD: &str = "etcdserver: invalid auth token";
    const DENIED: &str = "etcdserver: permission denied";
    for (client, text) in [(&nobody, EMPTY), (&bad, BAD), (&eve, DENIED)] {
        refused(lock(client, "l", 1).await, Code::Unknown, text);
        refused(client.leader(leader_request()).await, Code::Unknown, text);
    }
    for (client, text) in [(&nobody, EMPTY), (&bad, BAD)] {
        refused(lock(client, "l", 0).await, Code::Unknown, text);
        refused(client.unlock(UnlockRequest { key: "l/1".into() }).await, Code::Unknown, text);
        let request = campaign_request("e", 1, "v");
        refused(client.campaign(request).await, Code::Unknown, text);
        let leader = LeaderKey { key: "e/1".into(), rev: 1, lease: 1, name: "e".into() };
        refused(proclaim(client, Some(leader.clone()), "v").await, Code::Unknown, text);
        refused(resign(client, Some(leader)).await, Code::Unknown, text);
        // A refused observer receives no error: the stream just ends.
        assert!(observe(client).await.message().await.unwrap().is_none());
    }
    assert_eq!(keys(&root, "l/").await, Vec::<String>::new());
    refused(lock(&ann, "m", 1).await, Code::Unknown, DENIED);
    lock(&ann, "l", 1).await.unwrap();
    let second = wait_for_lock(&ann, "l", 2).await;
    unlock(&ann, "l/1").await;
    assert_eq!(within("the lock for the second client", second).await.unwrap().unwrap().key, "l/2");
    let elected = campaign(&ann, 1, "v").await;
    let mut observed = observe(&ann).await;
    assert_eq!(next(&mut observed).await, ("v".to_owned(), elected.rev));
    resign(&ann, Some(elected)).await.unwrap();
}

async fn waiters_survive_the_loss_of_the_raft_leader(kind: Kind) {
    let mut cluster = Cluster::start(kind, 3).await;
    let old = cluster.leader().await;
    let [first, second] = [1, 2].map(|step| (old + step) % 3);
    let (client, other) = (cluster.client(first), cluster.client(second));
    client.grant(1, 60).await;
    client.grant(2, 60).await;
    lock(&other, "l", 1).await.unwrap();
    campaign(&other, 1, "one").await;
    let waiting = wait_for_lock(&client, "l", 2).await;
    let standing = stand(&client, 2, "two").await;
    let mut observed = observe(&client).await;
    assert_eq!(next(&mut observed).await.0, "one");
    cluster.kill(old);
    let freed = async || other.unlock(UnlockRequest { key: "l/1".into() }).await.ok().map(drop);
    eventually_within(TIMEOUT, "the new leader releases the lock", freed).await;
    assert_eq!(within("the lock", waiting).await.unwrap().unwrap().key, "l/2");
    assert!(!standing.is_finished());
    other.delete_range(delete("e/1", "")).await.unwrap();
    let elected = within("the election", standing).await.unwrap().unwrap();
    assert_eq!(elected.leader.unwrap().key, "e/2");
    assert_eq!(next(&mut observed).await.0, "two");
}

async fn hundreds_of_waiters_get_a_lock_in_order_of_arrival(kind: Kind) {
    const WAITERS: i64 = 1000;
    let server = Server::start(kind).await;
    let client = server.client();
    let mut waiting = Vec::new();
    for lease in 1..=WAITERS {
        client.grant(lease, 600).await;
        let (asking, request) = (client.clone(), lock_request("l", lease));
        let lock = async move { asking.lock(request).await };
        waiting.push(tokio::task::spawn_local(lock));
        if lease == 1 {
            await_key(&client, "l/1").await;
        }
    }
    let all = async || (keys(&client, "l/").await.len() as i64 == WAITERS).then_some(());
    eventually("all clients wait", all).await;
    // Clients get the lock in the order in which they arrived, not in the order of their lease ids.
    let request = pb::RangeRequest {
        sort_order: pb::range_request::SortOrder::Ascend.into(),
        sort_target: pb::range_request::SortTarget::Create.into(),
        ..prefix("l/")
    };
    for record in client.range(request).await.unwrap().kvs {
        let text = std::str::from_utf8(record.key()).unwrap().strip_prefix("l/").unwrap();
        let lease = usize::from_str_radix(text, 16).unwrap();
        let held = within("the next lock", &mut waiting[lease - 1]).await.unwrap().unwrap();
        assert_eq!(held.key, record.key());
        unlock(&client, held.key).await;
    }
}

async fn waiters_are_notified_when_the_member_stops(kind: Kind) {
    let mut server = Server::start(kind).await;
    let client = server.client();
    client.grant(1, 60).await;
    client.grant(2, 60).await;
    lock(&client, "l", 1).await.unwrap();
    let second = wait_for_lock(&client, "l", 2).await;
    server.stop().await;
    let answer = within("the end of the wait", second).await.unwrap();
    assert_eq!(answer.unwrap_err().code(), Code::Unavailable);
    // The waiting client's key survives the restart.
    server.start_again().await;
    let client = server.client();
    assert_eq!(keys(&client, "l/").await, ["l/1", "l/2"]);
    unlock(&client, "l/1").await;
    assert_eq!(lock(&client, "l", 2).await.unwrap().key, "l/2");
}

async fn the_memory_of_lock_waiters_is_reported_in_bytes(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let bytes = || server.metric("quorate_waiters_bytes").unwrap();
    client.grant(1, 60).await;
    client.grant(2, 60).await;
    lock(&client, "l", 1).await.unwrap();
    assert_eq!(bytes(), 0.0);
    let second = wait_for_lock(&client, "l", 2).await;
    assert!(bytes() > 40_000.0, "the memory of a waiter is counted in addition to its key");
    second.abort();
    await_no_key(&client, "l/2").await;
    eventually("the memory of all waiters is released", async || (bytes() == 0.0).then_some(()))
        .await;
}
