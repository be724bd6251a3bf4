//! Membership changes and refused changes, learners, transfer of leadership, leases on followers, the peer port, and
//! downgrades.

use std::time::Duration;

use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::downgrade_request::DowngradeAction;
use quorate_api::healthpb::HealthCheckRequest;
use quorate_tests::{
    Client, Cluster, ClusterOptions, Kind, Response, Server, TIMEOUT, changed, eventually,
    eventually_ok, eventually_within, get, key, on_both_servers, on_quorate, put, put_leased,
    refused, request, within,
};
use tokio_stream::StreamExt as _;
use tonic::{Code, Status};

on_both_servers! {
    alone:
    a_learner_refuses_most_requests,
    a_membership_change_that_endangers_the_quorum_is_refused,
    an_invalid_membership_change_is_refused,
    leadership_is_transferred_only_to_voters,
    leases_can_be_renewed_through_any_member,
    a_removed_member_stays_down,
    a_member_that_missed_changes_accepts_new_members,
    members_answer_requests_from_peers,
}

on_quorate! {
    alone:
    urls_are_validated_before_they_are_committed,
    an_election_is_logged_before_its_outcome,
    members_log_a_warning_if_their_settings_differ,
    a_downgrade_is_limited_to_one_minor_version,
    a_cluster_is_downgraded_to_the_oldest_release_and_upgraded_again,
    the_completion_of_a_downgrade_is_checked_at_the_configured_interval,
    members_that_stop_together_do_not_wait_for_one_another,
    a_membership_change_whose_client_has_given_up_does_not_take_effect_later,
}

/// Starts members without the strict check of connections before a change.
async fn start_unchecked(kind: Kind, size: usize) -> Cluster {
    ClusterOptions::new(kind, size).flag("--strict-reconfig-check=false").start().await
}

async fn add(client: &Client, url: &str, is_learner: bool) -> Result<u64, Status> {
    let request = pb::MemberAddRequest { peer_urls: vec![url.to_owned()], is_learner };
    let added = changed(async || client.member_add(request.clone()).await).await?;
    Ok(added.member.unwrap().id)
}

async fn remove(client: &Client, id: u64) -> Result<pb::MemberRemoveResponse, Status> {
    changed(async || client.member_remove(pb::MemberRemoveRequest { id }).await).await
}

async fn promote(client: &Client, id: u64) -> Result<pb::MemberPromoteResponse, Status> {
    changed(async || client.member_promote(pb::MemberPromoteRequest { id }).await).await
}

/// Some settings affect the stored data, so members with different settings would silently diverge.
async fn members_log_a_warning_if_their_settings_differ(kind: Kind) {
    let mut cluster = Cluster::start(kind, 3).await;
    let odd = 1;
    cluster.stop(odd).await;
    cluster.restart_as(odd, kind, &["--max-learners=3"]).await;
    let warnings = |member: usize| -> Vec<String> {
        let log = cluster.server(member).log();
        let lines = log.lines().filter(|line| line.contains("a different value for a setting"));
        lines.map(str::to_owned).collect()
    };
    let notice = |own: &str, other: &str, of: usize| {
        let id = format!("{:x}", cluster.id(of));
        [("local-value", own), ("remote-value", other), ("remote-peer-id", &id)]
            .map(|(name, value)| format!("\"{name}\":\"{value}\""))
    };
    for (member, expected) in [
        (0, vec![notice("1", "3", odd)]),
        (2, vec![notice("1", "3", odd)]),
        (odd, vec![notice("3", "1", 0), notice("3", "1", 2)]),
    ] {
        for fields in &expected {
            eventually("the warning is logged", async || {
                let holds = |line: &String| fields.iter().all(|field| line.contains(field));
                warnings(member).iter().any(holds).then_some(())
            })
            .await;
        }
        let lines = warnings(member);
        assert_eq!(lines.len(), expected.len(), "{lines:?}");
        assert!(lines.iter().all(|line| line.contains("max-learners")), "{lines:?}");
    }
}

async fn a_learner_refuses_most_requests(kind: Kind) {
    const TEXT: &str = "etcdserver: rpc not supported for learner";
    let mut cluster = start_unchecked(kind, 1).await;
    cluster.client(0).write("k", "v").await;
    let learner = cluster.add_learner().await;
    if kind == Kind::Quorate {
        // The metric is correct from the start, not only after the next check.
        assert_eq!(cluster.server(learner).metric("etcd_server_is_learner"), Some(1.0));
    }
    let client = cluster.client(learner);
    let status = client.status(pb::StatusRequest {}).await.unwrap();
    assert!(status.is_learner);
    let local = pb::RangeRequest { serializable: true, ..key("k") };
    eventually("the learner has the key", async || {
        (client.range(local.clone()).await.unwrap().count == 1).then_some(())
    })
    .await;
    assert!(!client.snapshot().await.unwrap().is_empty());
    // These tests use an older release of etcd, which returns a different code.
    let refusal = match kind {
        Kind::Quorate => Code::FailedPrecondition,
        Kind::Etcd => Code::Unavailable,
    };
    refused(client.range(key("k")).await, refusal, TEXT);
    refused(client.put(put("k", "w")).await, refusal, TEXT);
    refused(client.lease_leases(pb::LeaseLeasesRequest {}).await, refusal, TEXT);
    refused(client.member_list(pb::MemberListRequest { linearizable: false }).await, refusal, TEXT);
    refused(client.hash_kv(pb::HashKvRequest { revision: 0 }).await, refusal, TEXT);
    refused(client.renew(7).await, refusal, TEXT);
    let check = HealthCheckRequest { service: String::new() };
    refused(client.health().check(check).await, refusal, TEXT);
    let watching = client.watch().watch(tokio_stream::pending()).await;
    let ended = match watching {
        Ok(stream) => within("the end of the stream", stream.into_inner().next()).await.unwrap(),
        Err(status) => Err(status),
    };
    refused(ended, refusal, TEXT);
    assert_eq!(cluster.server(learner).get("/health").status, 200);

    // After the promotion, the member answers all requests.
    cluster.promote(learner).await;
    eventually("the voter accepts a write", async || client.put(put("k", "w")).await.ok()).await;
    refused(
        promote(&client, cluster.id(learner)).await,
        Code::FailedPrecondition,
        "etcdserver: can only promote a learner member",
    );
}

async fn a_membership_change_that_endangers_the_quorum_is_refused(kind: Kind) {
    const UNHEALTHY: &str = "etcdserver: unhealthy cluster";
    const UNSTARTED: &str = "etcdserver: re-configuration failed due to not enough started members";
    let mut cluster = ClusterOptions::new(kind, 3).start().await;
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    // A change is accepted only after the connections between the members have lasted for some time.
    let id = eventually_ok(TIMEOUT, "a learner", async || {
        add(&client, "http://127.0.0.1:1", true).await
    })
    .await;
    remove(&client, id).await.unwrap();
    let [down, up] = [(leader + 1) % 3, (leader + 2) % 3];
    cluster.kill(down);
    for is_learner in [false, true] {
        let added = eventually("a refusal", async || {
            let added = add(&client, "http://127.0.0.1:1", is_learner).await;
            // Until the leader notices the failure, the request may be refused for another reason: the new voter has
            // the id of the removed learner if both are added within the same second.
            added.as_ref().is_err_and(|error| error.code() == Code::Unavailable).then_some(added)
        });
        refused(added.await, Code::Unavailable, UNHEALTHY);
    }
    refused(remove(&client, cluster.id(up)).await, Code::Unavailable, UNHEALTHY);
    remove(&client, cluster.id(down)).await.unwrap();
    // While both of the remaining members are up, one of them may be removed. The last member may not be removed.
    eventually_ok(TIMEOUT, "a removal", async || remove(&client, cluster.id(up)).await).await;
    refused(remove(&client, cluster.id(leader)).await, Code::Unknown, UNSTARTED);
    // A second member may join a single member, but a third member may not join before the second member has started.
    add(&client, "http://127.0.0.1:2", false).await.unwrap();
    refused(add(&client, "http://127.0.0.1:3", false).await, Code::Unknown, UNSTARTED);
}

async fn an_invalid_membership_change_is_refused(kind: Kind) {
    let cluster = start_unchecked(kind, 3).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let url = cluster.server(leader).peer_url();
    // A member added within the same second with the same URL would get the id of a removed member, so each addition
    // uses another URL.
    let newcomers = [
        ["http://127.0.0.1:1", "http://127.0.0.1:2"],
        ["http://127.0.0.1:3", "http://127.0.0.1:4"],
    ];
    for (member, [first, second]) in [leader, follower].into_iter().zip(newcomers) {
        let client = cluster.client(member);
        let refusal = Code::FailedPrecondition;
        let exists = "etcdserver: Peer URLs already exists";
        refused(add(&client, &url, false).await, refusal, exists);
        let update = async |id, url: &str| {
            let peer_urls = vec![url.to_owned()];
            let request = pb::MemberUpdateRequest { id, peer_urls };
            changed(async || client.member_update(request.clone()).await).await
        };
        refused(update(cluster.id(follower), &url).await, refusal, exists);
        let unknown = "etcdserver: member not found";
        refused(update(17, first).await, Code::NotFound, unknown);
        refused(remove(&client, 17).await, Code::NotFound, unknown);
        refused(promote(&client, 17).await, Code::NotFound, unknown);
        refused(
            promote(&client, cluster.id(leader)).await,
            refusal,
            "etcdserver: can only promote a learner member",
        );
        let bad = "etcdserver: given member URLs are invalid";
        for url in ["", "a:1", "http://a", "http://a:1/path"] {
            refused(add(&client, url, false).await, Code::InvalidArgument, bad);
        }
        let learner = add(&client, first, true).await.unwrap();
        refused(
            add(&client, second, true).await,
            refusal,
            "etcdserver: too many learner members in cluster",
        );
        refused(
            promote(&client, learner).await,
            refusal,
            "etcdserver: can only promote a learner member which is in sync with leader",
        );
        remove(&client, learner).await.unwrap();
        refused(remove(&client, learner).await, Code::NotFound, unknown);
        let listed = cluster.list().await;
        assert!(listed.is_sorted_by_key(|member| member.id) && listed.len() == 3);
    }
}

async fn urls_are_validated_before_they_are_committed(kind: Kind) {
    let cluster = start_unchecked(kind, 1).await;
    let (client, id) = (cluster.client(0), cluster.id(0));
    for peer_urls in [vec![], vec!["::".to_owned()], vec!["http://a".to_owned()]] {
        let updated = client.member_update(pb::MemberUpdateRequest { id, peer_urls }).await;
        let text = "etcdserver: given member URLs are invalid";
        refused(updated, Code::InvalidArgument, text);
    }
}

async fn leadership_is_transferred_only_to_voters(kind: Kind) {
    let cluster = start_unchecked(kind, 3).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let refusal = Code::FailedPrecondition;
    let move_to = async |asked: usize, target_id: u64| {
        cluster.client(asked).move_leader(pb::MoveLeaderRequest { target_id }).await
    };
    let target = cluster.id(follower);
    refused(move_to(follower, target).await, refusal, "etcdserver: not leader");
    let bad = "etcdserver: bad leader transferee";
    refused(move_to(leader, 17).await, refusal, bad);
    let learner = add(&cluster.client(leader), "http://127.0.0.1:1", true).await.unwrap();
    refused(move_to(leader, learner).await, refusal, bad);
    move_to(leader, cluster.id(leader)).await.unwrap();
    // A leader aborts a transfer if its successor is not ready within an election timeout. The caller waits until its
    // own timeout and must retry.
    eventually("the follower becomes leader", async || {
        let asked = tokio::time::timeout(Duration::from_secs(2), move_to(leader, target)).await;
        let status = cluster.client(leader).status(pb::StatusRequest {}).await.unwrap();
        match asked {
            Ok(Ok(_)) => {
                assert_eq!(status.leader, target);
                Some(())
            }
            Ok(Err(refused)) => {
                assert_eq!(refused.message(), "etcdserver: not leader");
                (status.leader == target).then_some(())
            }
            Err(_) => None,
        }
    })
    .await;
}

async fn leases_can_be_renewed_through_any_member(kind: Kind) {
    let mut cluster = start_unchecked(kind, 3).await;
    let leader = cluster.leader().await;
    let [one, other] = [(leader + 1) % 3, (leader + 2) % 3];
    let id = cluster.client(one).grant(77, 60).await;
    cluster.client(one).put(put_leased("k", "v", id)).await.unwrap();
    let look = async |member: usize, id| {
        let request = pb::LeaseTimeToLiveRequest { id, keys: true };
        cluster.client(member).lease_time_to_live(request).await.unwrap()
    };
    for member in [leader, one, other] {
        let client = cluster.client(member);
        assert_eq!(client.renew(id).await.unwrap(), 60);
        assert_eq!(client.renew(78).await.unwrap(), 0, "there is no such lease");
        let found = look(member, id).await;
        assert_eq!(found.header.unwrap().member_id, cluster.id(member));
        assert_eq!(
            (found.id, found.granted_ttl, &found.keys[..]),
            (id, 60, &[b"k"[..].into()][..])
        );
        assert!((50..=60).contains(&found.ttl), "{}", found.ttl);
        let missing = look(member, 78).await;
        assert_eq!((missing.id, missing.ttl, missing.granted_ttl), (78, -1, 0));
    }
    // A follower that has lost its leader forwards the renewal to the next leader.
    cluster.kill(leader);
    assert_eq!(cluster.client(one).renew(id).await.unwrap(), 60);
}

/// A supervisor that restarts failed processes must not restart the removed member forever, so the member exits with
/// code 0.
async fn a_removed_member_stays_down(kind: Kind) {
    let mut cluster = start_unchecked(kind, 3).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    remove(&cluster.client(leader), cluster.id(follower)).await.unwrap();
    assert!(cluster.ended(follower).await.success());
    cluster.launch(follower);
    assert!(cluster.ended(follower).await.success());
    let log = cluster.server(follower).log_of_this_run();
    assert!(log.contains("data-dir used by this member must be removed"), "{log}");
}

async fn a_member_that_missed_changes_accepts_new_members(kind: Kind) {
    let mut cluster = start_unchecked(kind, 3).await;
    let leader = cluster.leader().await;
    let [stays, absent] = [(leader + 1) % 3, (leader + 2) % 3];
    cluster.kill(absent);
    // The new member starts as a learner, because with four voters, the two running members could not commit.
    let newcomer = cluster.add_learner().await;
    cluster.promote(newcomer).await;
    cluster.remove(leader).await;
    cluster.ended(leader).await;
    let client = cluster.client(newcomer);
    eventually("a write succeeds without the removed member", async || {
        client.put(put("k", "v")).await.ok()
    })
    .await;
    cluster.kill(stays);
    // The returning member knows only members that have since been removed.
    cluster.restart(absent).await;
    assert_eq!(cluster.leader().await, newcomer);
    assert_eq!(cluster.client(absent).read("k").await.as_deref(), Some(&b"v"[..]));
}

async fn an_election_is_logged_before_its_outcome(kind: Kind) {
    let server = Server::start(kind).await;
    let said = eventually("the member has elected itself", async || {
        let said = server.log();
        said.contains(" elected leader ").then_some(said)
    })
    .await;
    let place = |text: &str| said.find(text).unwrap_or_else(|| panic!("{text}: {said}"));
    assert!(place("became leader at term 2") < place(" elected leader "), "{said}");
    // The founding member is certain to be elected, so it must not log that it cannot campaign.
    assert!(!said.contains("cannot campaign"), "{said}");
}

async fn members_answer_requests_from_peers(kind: Kind) {
    let cluster = start_unchecked(kind, 3).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let port = |member: usize| {
        let url = cluster.server(member).peer_url();
        url.rsplit(':').next().unwrap().parse::<u16>().unwrap()
    };
    let status = cluster.client(leader).status(pb::StatusRequest {}).await.unwrap();
    let cluster_id = format!("{:x}", status.header.unwrap().cluster_id);
    let is_named = |answer: &Response| answer.header("x-etcd-cluster-id") == Some(&cluster_id);
    for member in [leader, follower] {
        let ask = |method: &str, path: &str, body: &str| request(port(member), method, path, body);
        let members = get(port(member), "/members");
        assert!(members.status == 200 && is_named(&members), "{members:?}");
        assert_eq!(members.header("content-type"), Some("application/json"));
        let rows: Vec<serde_json::Value> = serde_json::from_slice(&members.body).unwrap();
        let ids: Vec<_> = rows.iter().map(|row| row["id"].as_u64().unwrap()).collect();
        let listed: Vec<_> = cluster.list().await.iter().map(|member| member.id).collect();
        assert_eq!(ids, listed);
        let versions: serde_json::Value =
            serde_json::from_slice(&get(port(member), "/version").body).unwrap();
        assert_eq!(versions["etcdserver"], *status.version);
        let downgrading = get(port(member), "/downgrade/enabled");
        assert_eq!((downgrading.status, &*downgrading.text()), (200, "false"));
        let hash = ask("GET", "/members/hashkv", "{\"revision\":1}");
        let json: serde_json::Value = serde_json::from_slice(&hash.body).unwrap();
        assert_eq!((hash.status, &json["compact_revision"]), (200, &(-1).into()));
        for (method, path, body, code, text) in [
            ("GET", "/members/hashkv", "", 400, "error unmarshalling request\n"),
            (
                "GET",
                "/members/hashkv",
                "{\"revision\":99}",
                400,
                "mvcc: required revision is a future revision\n",
            ),
            ("POST", "/members", "", 405, "Method Not Allowed\n"),
            ("GET", "/leases", "", 405, "Method Not Allowed\n"),
            ("POST", "/leases", "\u{1}", 400, "error unmarshalling request\n"),
            ("GET", "/members/promote/1", "", 405, "Method Not Allowed\n"),
            ("POST", "/members/promote/x", "", 404, "member x not found in cluster\n"),
            ("POST", "/members/promote/1", "", 404, "membership: ID not found\n"),
            ("GET", "/health", "", 404, "404 page not found\n"),
        ] {
            let answer = ask(method, path, body);
            assert_eq!((answer.status, &*answer.text()), (code, text), "{method} {path}");
        }
        let voter = format!("/members/promote/{}", cluster.id(leader));
        let answer = ask("POST", &voter, "");
        let text = "membership: can only promote a learner member\n";
        assert_eq!((answer.status, &*answer.text()), (412, text));
        assert!(is_named(&answer));
        // The renewal of a missing lease is refused, but the leader and a follower return different errors.
        let renewed = ask("POST", "/leases", "\u{8}\u{7}");
        let expected = if member == leader {
            (404, "lease not found\n")
        } else {
            (400, "not a primary lessor\n")
        };
        assert_eq!((renewed.status, &*renewed.text()), expected);
    }
}

async fn downgrade(
    client: &Client,
    action: DowngradeAction,
    version: &str,
) -> Result<String, Status> {
    let request = pb::DowngradeRequest { action: action.into(), version: version.to_owned() };
    Ok(client.downgrade(request).await?.version)
}

/// During the test, only the second member checks whether the downgrade is complete. With the default interval, the
/// first member would check first, because it starts earlier.
async fn the_completion_of_a_downgrade_is_checked_at_the_configured_interval(kind: Kind) {
    let mut clusters = Vec::new();
    for interval in ["1h", "300ms"] {
        let mut cluster = start_unchecked(kind, 1).await;
        let client = cluster.client(0);
        downgrade(&client, DowngradeAction::Enable, "3.6").await.unwrap();
        eventually_within(TIMEOUT, "the lower cluster version is reported", async || {
            let status = client.status(pb::StatusRequest {}).await.unwrap();
            status.storage_version.starts_with("3.6").then_some(())
        })
        .await;
        cluster.stop(0).await;
        let interval = format!("--downgrade-check-time={interval}");
        cluster.restart_as(0, kind, &["--hold-cluster-version=3.6", &interval]).await;
        clusters.push(cluster);
    }
    let is_enabled = async |number: usize| {
        let status = clusters[number].client(0).status(pb::StatusRequest {}).await.unwrap();
        status.downgrade_info.unwrap().enabled
    };
    eventually("the downgrade ends", async || (!is_enabled(1).await).then_some(())).await;
    assert!(is_enabled(0).await);
}

async fn a_downgrade_is_limited_to_one_minor_version(kind: Kind) {
    let cluster = start_unchecked(kind, 1).await;
    let client = cluster.client(0);
    let act = async |action, version: &str| downgrade(&client, action, version).await;
    let format = "etcdserver: wrong downgrade target version format";
    for version in ["", "3", "v3.6.0", "x.y"] {
        refused(act(DowngradeAction::Validate, version).await, Code::InvalidArgument, format);
        refused(act(DowngradeAction::Enable, version).await, Code::InvalidArgument, format);
    }
    let target = "etcdserver: invalid downgrade target version";
    for version in ["3.5", "3.7.0", "3.8.0", "4.6.0"] {
        refused(act(DowngradeAction::Validate, version).await, Code::InvalidArgument, target);
    }
    assert_eq!(act(DowngradeAction::Validate, "3.6.9").await.unwrap(), "3.7");
    assert_eq!(
        act(DowngradeAction::Cancel, "").await.unwrap(),
        "3.7",
        "no downgrade is in progress"
    );
    assert_eq!(act(DowngradeAction::Enable, "3.6").await.unwrap(), "3.7");
    refused(
        act(DowngradeAction::Validate, "3.6").await,
        Code::FailedPrecondition,
        "etcdserver: cluster has a downgrade job in progress",
    );
    let request = pb::DowngradeRequest { action: 7, version: String::new() };
    let unknown = client.downgrade(request).await;
    refused(unknown, Code::Unknown, "etcdserver: unknown method");
    let status = eventually_within(TIMEOUT, "the lower cluster version is reported", async || {
        let status = client.status(pb::StatusRequest {}).await.unwrap();
        (status.storage_version == "3.6.0").then_some(status)
    })
    .await;
    let info = status.downgrade_info.unwrap();
    assert_eq!((info.enabled, info.target_version.as_str()), (true, "3.6.0"));
    // After the downgrade is cancelled, the version rises again.
    assert_eq!(act(DowngradeAction::Cancel, "").await.unwrap(), "3.6");
    let status = eventually_within(TIMEOUT, "the earlier version is reported again", async || {
        let status = client.status(pb::StatusRequest {}).await.unwrap();
        (status.storage_version == "3.7.0").then_some(status)
    })
    .await;
    assert!(!status.downgrade_info.unwrap().enabled);
}

/// Quorate is restarted with each older version in turn. Then etcd 3.5 takes over, and Quorate after it.
async fn a_cluster_is_downgraded_to_the_oldest_release_and_upgraded_again(kind: Kind) {
    let mut cluster = start_unchecked(kind, 1).await;
    cluster.client(0).write("k", "v").await;
    for minor in ["3.6", "3.5"] {
        let client = cluster.client(0);
        downgrade(&client, DowngradeAction::Enable, minor).await.unwrap();
        eventually_within(TIMEOUT, "the lower cluster version is reported", async || {
            let status = client.status(pb::StatusRequest {}).await.unwrap();
            status.storage_version.starts_with(minor).then_some(())
        })
        .await;
        cluster.stop(0).await;
        let hold = format!("--hold-cluster-version={minor}");
        cluster.restart_as(0, kind, &[&hold, "--downgrade-check-time=1s"]).await;
        let client = cluster.client(0);
        let status = eventually_within(TIMEOUT, "the downgrade ends", async || {
            let status = client.status(pb::StatusRequest {}).await.unwrap();
            (!status.downgrade_info.as_ref().unwrap().enabled).then_some(status)
        })
        .await;
        assert!(status.version.starts_with(&format!("{minor}.")), "{}", status.version);
        assert_eq!(status.storage_version, format!("{minor}.0"));
        assert_eq!(client.read("k").await.unwrap(), b"v");
    }
    if !Kind::Etcd.is_present() {
        return;
    }
    cluster.stop(0).await;
    cluster.restart_as(0, Kind::Etcd, &[]).await;
    let client = cluster.client(0);
    assert!(client.status(pb::StatusRequest {}).await.unwrap().version.starts_with("3.5."));
    assert_eq!(client.read("k").await.unwrap(), b"v");
    client.write("k", "w").await;
    cluster.stop(0).await;
    cluster.restart_as(0, kind, &[]).await;
    let client = cluster.client(0);
    eventually_within(TIMEOUT, "the earlier version is reported again", async || {
        let status = client.status(pb::StatusRequest {}).await.unwrap();
        (status.storage_version == "3.7.0").then_some(())
    })
    .await;
    assert_eq!(client.read("k").await.unwrap(), b"w");
}

/// All members stop at the same time, so the leader transfers leadership to a member that is stopping as well.
async fn members_that_stop_together_do_not_wait_for_one_another(kind: Kind) {
    let cluster = ClusterOptions::new(kind, 3).start().await;
    cluster.leader().await;
    for member in 0..3 {
        cluster.server(member).signal("TERM");
    }
    for member in 0..3 {
        eventually("the member stops", async || {
            cluster.server(member).log_of_this_run().contains("closed etcd server").then_some(())
        })
        .await;
        let log = cluster.server(member).log_of_this_run();
        assert!(!log.contains("leader transfer took too long"), "{log}");
    }
}

async fn a_membership_change_whose_client_has_given_up_does_not_take_effect_later(kind: Kind) {
    let mut cluster = start_unchecked(kind, 3).await;
    let leader = cluster.leader().await;
    let [first, second] = [(leader + 1) % 3, (leader + 2) % 3];
    cluster.kill(leader);
    cluster.kill(second);
    let client = cluster.client(first);
    eventually("the remaining member has no leader", async || {
        let status = client.status(pb::StatusRequest {}).await.ok()?;
        (status.leader == 0).then_some(())
    })
    .await;
    let removal = pb::MemberRemoveRequest { id: cluster.id(second) };
    let asking = client.member_remove(removal);
    let answered = tokio::time::timeout(Duration::from_millis(500), asking).await;
    assert!(answered.is_err(), "{answered:?}");
    cluster.restart(second).await;
    eventually_ok(TIMEOUT, "a write", async || client.put(put("k", "v")).await).await;
    let members = client.member_list(pb::MemberListRequest { linearizable: true }).await.unwrap();
    assert_eq!(members.members.len(), 3);
}
