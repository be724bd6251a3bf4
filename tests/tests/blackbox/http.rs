//! The HTTP requests served on the client port: health, versions and metrics.

use std::time::Duration;

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Cluster, ClusterOptions, DEADLINE, Kind, Options, Place, Server, Syncing, Syncs, eventually,
    eventually_ok, get, get_and_shut_down, on_both_servers, on_quorate, put, request, request_with,
    try_request_with,
};

on_both_servers! {
    health_fails_under_an_alarm_that_is_not_excluded,
    the_version_page_reports_the_server_and_cluster_versions,
    metrics_are_exposed,
    metrics_count_writes_and_applied_proposals,
    unknown_paths_return_404,
    a_client_that_has_closed_its_sending_side_is_answered,
}

on_both_servers! {
    alone:
    a_restarted_member_without_a_quorum_answers_probes_and_scrapers,
    a_leader_reports_the_progress_of_each_member,
    debug_vars_are_served_while_a_write_waits_for_the_disk,
}

on_quorate! {
    livez_and_readyz_report_each_check,
    readyz_fails_under_a_corrupt_alarm,
    the_log_level_changes_while_the_member_runs,
}

async fn alarm(server: &Server, action: i32, alarm: i32) {
    let request = pb::AlarmRequest { action, member_id: 1, alarm };
    server.client().alarm(request).await.unwrap();
}

async fn health_fails_under_an_alarm_that_is_not_excluded(kind: Kind) {
    let server = Server::start(kind).await;
    for path in ["/health", "/health?serializable=true", "/health?exclude=NOSPACE"] {
        let answer = server.get(path);
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.text(), "{\"health\":\"true\",\"reason\":\"\"}", "{path}");
    }
    for method in ["POST", "PUT", "DELETE"] {
        let answer = request(server.port(), method, "/health", "");
        assert_eq!(answer.status, 405, "{method}");
        assert_eq!(answer.header("allow"), Some("GET"));
        assert_eq!(answer.text(), "Method Not Allowed\n");
    }
    alarm(&server, 1, 1).await;
    let answer = server.get("/health");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.text(), "{\"health\":\"false\",\"reason\":\"ALARM NOSPACE\"}\n");
    assert_eq!(server.get("/health?exclude=NOSPACE").status, 200);
    assert_eq!(server.get("/health?exclude=CORRUPT").status, 503);
    alarm(&server, 1, 2).await;
    assert_eq!(server.get("/health?exclude=NOSPACE&exclude=CORRUPT").status, 200);
    alarm(&server, 2, 1).await;
    alarm(&server, 2, 2).await;
    assert_eq!(server.get("/health").status, 200);
}

async fn a_client_that_has_closed_its_sending_side_is_answered(kind: Kind) {
    let server = Server::start(kind).await;
    let answer = get_and_shut_down(server.port(), "/version");
    assert_eq!((answer.status, answer.text().contains("etcdserver")), (200, true));
}

async fn the_version_page_reports_the_server_and_cluster_versions(kind: Kind) {
    let server = Server::start(kind).await;
    let expected = if server.is_3_7() {
        r#"{"etcdserver":"3.7.1","etcdcluster":"3.7.0","storage":"3.7.0"}"#
    } else {
        "\"etcdcluster\":\"3.5.0\""
    };
    // Members that start together take a moment to agree on the cluster version, and a single etcd member takes a
    // moment to set it. A single Quorate member knows the cluster version before it answers the first client.
    let knows_at_once = server.is_3_7() && Place::of_suite() == Place::Alone;
    let timeout = if knows_at_once { Duration::ZERO } else { DEADLINE };
    let answer = eventually_ok(timeout, "the member reports its version", async || {
        let answer = server.get("/version");
        if answer.text().contains(expected) { Ok(answer) } else { Err(answer.text()) }
    })
    .await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    if server.is_3_7() {
        assert_eq!(answer.text(), expected);
    }
    assert_eq!(request(server.port(), "POST", "/version", "").status, 405);
}

async fn metrics_are_exposed(kind: Kind) {
    let server = Server::start(kind).await;
    server.client().write("k", "v").await;
    let answer = server.get("/metrics");
    assert_eq!(answer.status, 200);
    let form = answer.header("content-type").unwrap();
    assert!(form.starts_with("text/plain; version=0.0.4"), "{form}");
    let text = answer.text();
    for name in [
        "etcd_server_has_leader",
        "etcd_server_is_leader",
        "etcd_server_proposals_committed_total",
        "etcd_server_proposals_applied_total",
        "etcd_server_proposals_pending",
        "etcd_server_proposals_failed_total",
        "etcd_disk_wal_fsync_duration_seconds",
        "etcd_disk_backend_commit_duration_seconds",
        "etcd_mvcc_db_total_size_in_bytes",
        "etcd_mvcc_db_total_size_in_use_in_bytes",
        "etcd_debugging_mvcc_keys_total",
        "etcd_mvcc_put_total",
        "process_resident_memory_bytes",
        "process_open_fds",
    ] {
        let line = format!("\n# TYPE {name} ");
        assert!(text.contains(&line), "the metrics do not contain {name}");
    }
    // Every line is a comment or a sample with a numeric value.
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let value = line.rsplit(' ').next().unwrap();
        assert!(value.parse::<f64>().is_ok() || value == "+Inf", "{line}");
    }
}

async fn metrics_count_writes_and_applied_proposals(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let puts = "etcd_mvcc_put_total";
    let before = server.metric(puts).unwrap();
    for number in 0..10 {
        client.write(format!("k{number}"), "v").await;
    }
    assert_eq!(server.metric(puts), Some(before + 10.0));
    assert_eq!(server.metric("etcd_server_has_leader"), Some(1.0));
    let leads = if Place::of_suite() == Place::Follower { 0.0 } else { 1.0 };
    assert_eq!(server.metric("etcd_server_is_leader"), Some(leads));
    assert_eq!(server.metric("etcd_debugging_mvcc_keys_total"), Some(10.0));
    let applied = server.metric("etcd_server_proposals_applied_total").unwrap();
    assert!(applied >= 10.0, "{applied}");
    let fsyncs = server.metric("etcd_disk_wal_fsync_duration_seconds_count").unwrap();
    assert!(fsyncs >= 10.0, "{fsyncs} syncs for ten consecutive writes");
}

async fn unknown_paths_return_404(kind: Kind) {
    let server = Server::start(kind).await;
    for path in ["/", "/nothing", "/healthz", "/config/local/log"] {
        let answer = server.get(path);
        assert_eq!(answer.status, 404, "{path}");
        assert_eq!(answer.text(), "404 page not found\n", "{path}");
    }
}

async fn livez_and_readyz_report_each_check(kind: Kind) {
    let server = Server::start(kind).await;
    let whole = [
        ("/livez", vec!["serializable_read"]),
        (
            "/readyz",
            vec!["data_corruption", "linearizable_read", "non_learner", "serializable_read"],
        ),
    ];
    for (path, checks) in whole {
        let answer = server.get(path);
        assert_eq!((answer.status, answer.text().as_str()), (200, "ok\n"), "{path}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        let text = server.get(&format!("{path}?verbose")).text();
        let mut lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.pop(), Some("ok"), "{text}");
        lines.sort_unstable();
        let expected: Vec<String> = checks.iter().map(|check| format!("[+]{check} ok")).collect();
        assert_eq!(lines, expected);
        for check in checks {
            let answer = server.get(&format!("{path}/{check}"));
            assert_eq!((answer.status, answer.text().as_str()), (200, "ok\n"), "{path}/{check}");
        }
    }
    for path in ["/livez/", "/readyz/", "/livez/linearizable_read", "/readyz/nothing"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    alarm(&server, 1, 1).await;
    assert_eq!(server.get("/livez").status, 200, "a member with a full backend is alive");
    assert_eq!(server.get("/readyz").status, 200, "a member with a full backend is ready");
}

async fn readyz_fails_under_a_corrupt_alarm(kind: Kind) {
    let server = Server::start(kind).await;
    alarm(&server, 1, 2).await;
    assert_eq!(server.get("/livez").status, 200);
    let answer = server.get("/readyz");
    assert_eq!(answer.status, 503);
    let text = answer.text();
    assert!(text.contains("[-]data_corruption failed: alarm activated: CORRUPT\n"), "{text}");
    assert!(text.contains("[+]linearizable_read ok\n"), "{text}");
    assert_eq!(server.get("/readyz?exclude=data_corruption").status, 200);
    assert_eq!(server.get("/readyz/data_corruption").status, 503);
}

/// The request is `PUT /config/local/log`, as in etcd up to 3.4. With authentication enabled, only an administrator may
/// change the level.
async fn the_log_level_changes_while_the_member_runs(kind: Kind) {
    let server = Server::start(kind).await;
    let path = "/config/local/log";
    let put = |token: Option<&str>, body: &str| {
        let headers: Vec<_> = token.map(|token| ("Authorization", token)).into_iter().collect();
        request_with(server.port(), "PUT", path, &headers, body.as_bytes())
    };
    let debugs = || {
        drop(server.get("/health"));
        server.log_of_this_run().matches("/health OK").count()
    };
    let is_quiet = server.user_of_tools().is_none();
    if is_quiet {
        assert_eq!(debugs(), 0);
        let answer = put(None, "{\"Level\":\"DEBUG\"}");
        assert_eq!((answer.status, &*answer.text()), (204, ""));
        eventually_ok(DEADLINE, "the log contains lines of the new level", async || {
            if debugs() > 0 { Ok(()) } else { Err("none") }
        })
        .await;
        server.wait_for_log("\"changed the log level\",\"level\":\"debug\"").await;
        let answer = put(None, "{\"Level\":\"loud\"}");
        assert_eq!(
            (answer.status, &*answer.text()),
            (400, "{\"message\":\"Invalid log level loud\"}")
        );
        let answer = put(None, "junk");
        assert_eq!((answer.status, &*answer.text()), (400, "{\"message\":\"Invalid json body\"}"));
        assert_eq!(put(None, "{\"Level\":\"info\"}").status, 204);
        let client = server.client();
        for name in ["root", "ann"] {
            let (name, password) = (name.to_owned(), "pw".to_owned());
            client
                .user_add(pb::AuthUserAddRequest { name, password, ..Default::default() })
                .await
                .unwrap();
        }
        let (user, role) = ("root".to_owned(), "root".to_owned());
        client.user_grant_role(pb::AuthUserGrantRoleRequest { user, role }).await.unwrap();
        client.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
        let token_of = |name: &str| {
            let body = format!("{{\"name\":\"{name}\",\"password\":\"pw\"}}");
            let answer = request(server.port(), "POST", "/v3/auth/authenticate", &body).text();
            let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
            answer["token"].as_str().unwrap().to_owned()
        };
        let debug = "{\"Level\":\"DEBUG\"}";
        for (token, status) in [
            (None, 400),
            (Some("junk".to_owned()), 401),
            (Some(token_of("ann")), 403),
            (Some(token_of("root")), 204),
        ] {
            let answer = put(token.as_deref(), debug);
            assert_eq!(answer.status, status, "{token:?}: {}", answer.text());
        }
        eventually("a line about the refusal", async || {
            server.log_of_this_run().contains("refused to change the log level").then_some(())
        })
        .await;
    } else {
        assert_ne!(put(None, "{\"Level\":\"DEBUG\"}").status, 204);
    }
}

async fn a_restarted_member_without_a_quorum_answers_probes_and_scrapers(kind: Kind) {
    // This port is reserved for a server that never starts.
    let metrics = Options::new(kind).prepare();
    let flag = format!("--listen-metrics-urls=http://127.0.0.1:{}", metrics.port());
    let options = ClusterOptions::new(kind, 3).member(0, |options| options.flag(flag));
    let mut cluster = options.start().await;
    let version = if cluster.server(0).is_3_7() { "3.7" } else { "3.5" };
    let version = format!("\netcd_cluster_version{{cluster_version=\"{version}\"}} 1\n");
    eventually("the cluster has a version", async || {
        get(metrics.port(), "/metrics").text().contains(&version).then_some(())
    })
    .await;
    for member in [1, 2, 0] {
        cluster.stop(member).await;
    }
    cluster.server_mut(0).launch();
    eventually("the member is alive", async || {
        let answer = try_request_with(metrics.port(), "GET", "/livez", &[], b"").ok()?;
        (answer.status == 200).then_some(())
    })
    .await;
    let answer = get(metrics.port(), "/health");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.text(), "{\"health\":\"false\",\"reason\":\"RAFT NO LEADER\"}\n");
    assert_eq!(get(metrics.port(), "/readyz/data_corruption").status, 200);
    let text = get(metrics.port(), "/metrics").text();
    assert!(text.contains("\netcd_server_has_leader 0\n"), "{text}");
    // Without a quorum, etcd may not know that the entry with the version is committed.
    if kind == Kind::Quorate {
        assert!(text.contains(&version), "{text}");
        assert!(!text.contains("\netcd_server_proposals_applied_total 0\n"), "{text}");
    }
}

async fn a_leader_reports_the_progress_of_each_member(kind: Kind) {
    let cluster = Cluster::start(kind, 2).await;
    let leader = cluster.leader().await;
    let status = eventually("the leader replicates to both members", async || {
        let page = cluster.server(leader).get("/debug/vars").text();
        let page: serde_json::Value = serde_json::from_str(&page).unwrap();
        let status = page["raft.status"].clone();
        let progress = status["progress"].as_object()?;
        let all_follow = progress.values().all(|one| one["state"] == "StateReplicate");
        (progress.len() == 2 && all_follow).then_some(status)
    })
    .await;
    let ids = cluster.ids();
    let own = format!("{:x}", ids[leader]);
    for field in ["id", "vote", "lead"] {
        assert_eq!(status[field], own, "{field}: {status}");
    }
    assert_eq!(
        (&status["raftState"], &status["leadtransferee"]),
        (&"StateLeader".into(), &"0".into())
    );
    for id in ids {
        let one = &status["progress"][format!("{id:x}")];
        assert!(
            one["match"].as_u64() > Some(0) && one["next"].as_u64() > one["match"].as_u64(),
            "{status}"
        );
    }
}

async fn debug_vars_are_served_while_a_write_waits_for_the_disk(kind: Kind) {
    let Some(mut syncing) = Syncing::of(kind) else { return };
    let server = syncing.prepare(Options::new(kind)).start().await;
    let raft_status = || {
        let page = server.get("/debug/vars").text();
        serde_json::from_str::<serde_json::Value>(&page).unwrap()["raft.status"].clone()
    };
    let pending = || server.metric("etcd_server_proposals_pending");
    let before = raft_status();
    syncing.set(&server, Syncs::Take(Duration::from_secs(20)));
    let client = server.client();
    let _write = tokio::spawn(async move { client.put(put("k", "v")).await });
    eventually("the write waits", async || (pending() == Some(1.0)).then_some(())).await;
    let status = raft_status();
    assert_eq!(pending(), Some(1.0), "the page waited for the disk");
    for field in ["id", "term", "vote", "lead", "raftState"] {
        assert_eq!(status[field], before[field], "{field}");
    }
    syncing.set(&server, Syncs::Work);
}
