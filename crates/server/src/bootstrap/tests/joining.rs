//! Tests of members that join a running cluster.

use quorate_state::units::MemberId;
use quorate_state::versions::Version;

use super::*;

const OWN: &str = "http://127.0.0.1:9";

fn joiner(folder: &TempDir, cluster: &str) -> Config {
    let own = quorate_config::InitialMembers::parse(cluster).unwrap();
    Config {
        name: "j".to_owned(),
        data_dir: folder.path().join("data").to_str().unwrap().to_owned(),
        initial_cluster: cluster.to_owned(),
        initial_cluster_state: ClusterState::Existing,
        initial_advertise_peer_urls: own.urls_of("j").unwrap_or_default().to_vec(),
        ..Config::default()
    }
}

/// Starts one member of a cluster of two. The member returns these responses to requests about versions.
fn member_of_two(cluster_version: &str, downgrade: &str) -> Peer {
    member_of_two_with(version(cluster_version), downgrade)
}

/// Starts one member of a cluster of two. The member returns this response to `/version`.
fn member_of_two_with(versions: String, downgrade: &str) -> Peer {
    Peer::new(|url| {
        vec![
            (
                "/members",
                format!(
                    r#"[{{"id":7,"peerURLs":["{OWN}"],"isLearner":true}},
                       {{"id":18446744073709551615,"peerURLs":["{url}"],"name":"x","clientURLs":["http://c:1"]}}]"#
                ),
            ),
            ("/version", versions.clone()),
            ("/downgrade/enabled", downgrade.to_owned()),
        ]
    })
}

#[test]
fn a_joining_member_receives_its_id_from_the_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let peer = member_of_two("3.7.0", "false");
    let cluster = format!("j={OWN},other={}", peer.url);
    let config = joiner(&folder, &cluster);
    let mut booted = boot_with(&config, &real_disk(), &NoNames).unwrap();
    assert_eq!((booted.identity.cluster_id, booted.identity.member_id), (CLUSTER, 7));
    let [other] = &booted.peers[..] else { panic!("{:?}", booted.peers) };
    assert_eq!((other.id, other.name.as_str()), (MemberId(u64::MAX), "x"));
    assert_eq!(other.peer_urls, [peer.url.as_str()]);
    // The joining member has no log and no voters, so it never starts an election.
    booted.node.start();
    for _ in 0..100 {
        booted.node.handle(quorate_node::Event::Tick);
    }
    assert_eq!(booted.node.unwritten_hard_state(), None);
    drop(booted);
    let log = log_of(&config);
    assert_eq!((log.entries.len(), log.hard_state.is_empty()), (0, true));

    // The member stops before it has received anything from the leader. After that, the flags are no longer required,
    // but they are used if present.
    for (config, knows_others) in [
        (joiner(&folder, &cluster), true),
        (Config { initial_cluster_state: ClusterState::New, ..joiner(&folder, &cluster) }, true),
        (Config { data_dir: config.data_dir, ..Config::default() }, false),
        (joiner(&folder, &format!("j={OWN},other={}", silent_url())), false),
    ] {
        let booted = boot_with(&config, &real_disk(), &NoNames).unwrap();
        assert_eq!((booted.identity.cluster_id, booted.identity.member_id), (CLUSTER, 7));
        assert_eq!(booted.peers.len(), usize::from(knows_others));
        drop(booted);
        assert_eq!(log_of(&config).entries, []);
    }
}

/// Returns a peer whose member list contains this JSON row and the peer itself.
fn peer_that_lists(own: &'static str) -> Peer {
    Peer::new(|url| {
        let other =
            format!(r#"{{"id":9,"peerURLs":["{url}"],"name":"x","clientURLs":["http://c:1"]}}"#);
        vec![("/members", format!("[{own},{other}]")), ("/version", version("3.7.0"))]
    })
}

#[test]
fn a_member_that_has_run_before_cannot_join_with_an_empty_directory() {
    let folder = tempfile::tempdir().unwrap();
    let peer = peer_that_lists(
        r#"{"id":7,"peerURLs":["http://127.0.0.1:9"],"name":"n7","clientURLs":["http://c:7"]}"#,
    );
    let config = joiner(&folder, &format!("j={OWN},other={}", peer.url));
    assert_eq!(
        refusal(&config),
        "member 7 of the cluster has already run, under the name \"n7\", but this data directory is \
         empty and has no log: without the entries that it has acknowledged, the member must not \
         rejoin; remove this member from the cluster (etcdctl member remove 7), delete its data directory and its log directory, and add it \
         again (etcdctl member add NAME --peer-urls=URL, then start it with \
         --initial-cluster-state=existing)"
    );
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    assert!(!dirs.is_initialised(&RealDisk).unwrap() && !dirs.backend().exists());
}

#[test]
fn a_founder_that_has_never_run_may_join() {
    let folder = tempfile::tempdir().unwrap();
    let peer = peer_that_lists(r#"{"id":7,"peerURLs":["http://127.0.0.1:9"],"name":"n7"}"#);
    let config = joiner(&folder, &format!("j={OWN},other={}", peer.url));
    let booted = boot_with(&config, &real_disk(), &NoNames).unwrap();
    assert_eq!(booted.identity.member_id, 7);
}

#[test]
fn a_member_has_run_if_any_peer_lists_its_client_urls() {
    let late = peer_that_lists(r#"{"id":7,"peerURLs":["http://127.0.0.1:9"],"name":"n7"}"#);
    let informed = peer_that_lists(
        r#"{"id":7,"peerURLs":["http://127.0.0.1:9"],"name":"n7","clientURLs":["http://c:7"]}"#,
    );
    let ask = |urls: &[&Peer]| {
        let urls = urls.iter().map(|peer| peer.url.clone()).chain([silent_url()]).collect();
        let timeout = Duration::from_secs(30);
        let dialer = Dialer::default();
        let has_run = |row: &Member| !row.client_urls.is_empty();
        let row = remote::row_of(urls, MemberId(7), has_run, (&dialer, timeout));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(row).map(|row| row.name)
    };
    assert_eq!(ask(&[&late, &informed]).as_deref(), Some("n7"));
    assert_eq!(ask(&[&late]), None);
}

#[test]
fn an_empty_log_of_a_member_that_has_served_clients_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let peer = peer_that_lists(
        r#"{"id":7,"peerURLs":["http://127.0.0.1:9"],"name":"n7","clientURLs":["http://c:7"]}"#,
    );
    for term in [0, 9] {
        let cluster = format!("j={OWN},other={}", peer.url);
        let config = Config {
            data_dir: folder.path().join(term.to_string()).to_str().unwrap().to_owned(),
            ..joiner(&folder, &cluster)
        };
        begin_log(&config, CLUSTER, 7);
        let dirs = DataDir::new(Path::new(&config.data_dir), None);
        let (start, options) = (SnapshotMark::default(), wal_options(&config));
        let (mut wal, _) = Wal::open(real_disk(), dirs.wal(), &start, options).unwrap();
        wal.save(Some(&wal::HardState { term, vote: 0, commit: 0 }), &[]).unwrap();
        drop(wal);
        let refused = refusal(&config);
        assert!(refused.starts_with("member 7 of the cluster has already run"), "{refused}");
    }
}

#[test]
fn peers_without_a_member_list_are_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (member_of_two("3.7.0", "false"), member_of_two("3.7.0", "false"));
    let joining = Peer::new(|_| vec![("/members", "[]".to_owned())]);
    let urls = [&one.url, &joining.url, &two.url];
    // Only one of the peers matches the flags, regardless of the order of the requests.
    let flags = format!("j={OWN},other={},other={},other={}", urls[0], urls[1], urls[2]);
    let refused = refusal(&joiner(&folder, &flags));
    assert!(refused.starts_with("error validating peerURLs {ClusterID:"), "{refused}");
}

#[test]
fn a_joining_member_with_only_a_term_in_its_log_asks_for_the_members_again() {
    let folder = tempfile::tempdir().unwrap();
    let peer = member_of_two("3.7.0", "false");
    let config = joiner(&folder, &format!("j={OWN},other={}", peer.url));
    let mut booted = boot_with(&config, &real_disk(), &NoNames).unwrap();
    booted.wal.save(Some(&wal::HardState { term: 9, vote: 0, commit: 0 }), &[]).unwrap();
    drop(booted);
    let booted = boot_with(&config, &real_disk(), &NoNames).unwrap();
    assert_eq!(booted.peers.len(), 1);
}

#[test]
fn members_are_matched_by_name_or_address() {
    struct Local;
    impl Names for Local {
        fn addresses<'a>(&'a self, host: &'a str) -> Lookup<'a, Vec<IpAddr>> {
            let known = matches!(host, "me" | "127.0.0.1");
            let found = known.then(|| vec![IpAddr::from([127, 0, 0, 1])]);
            Box::pin(std::future::ready(found.ok_or_else(no_such_host)))
        }

        fn services<'a>(&'a self, _name: &'a str) -> Lookup<'a, Vec<Service>> {
            Box::pin(std::future::ready(Err(no_such_host())))
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let peer = member_of_two("3.7.0", "false");
    let config = joiner(&folder, &format!("j=http://me:9,other={}", peer.url));
    let booted = boot_with(&config, &real_disk(), &Local).unwrap();
    assert_eq!(booted.identity.member_id, 7);
}

#[test]
fn a_mismatch_with_the_cluster_is_refused_with_the_error_of_etcd() {
    let folder = tempfile::tempdir().unwrap();
    let peer = member_of_two("3.7.0", "false");
    let url = &peer.url;
    let cluster = format!(
        "{{ClusterID:a08fa521472b8d00 Members:[&{{ID:7 RaftAttributes:{{PeerURLs:[{OWN}] \
         IsLearner:true}} Attributes:{{Name: ClientURLs:[]}}}} &{{ID:ffffffffffffffff \
         RaftAttributes:{{PeerURLs:[{url}] IsLearner:false}} Attributes:{{Name:x \
         ClientURLs:[http://c:1]}}}}] RemovedMemberIDs:[]}}"
    );
    let joining = Peer::new(|_| vec![("/members", "[]".to_owned())]);
    for (flags, expected) in [
        (
            format!("j={OWN},other={}", joining.url),
            "cannot fetch cluster info from peer urls: failed to get raft cluster member(s) from the \
             given URLs"
                .to_owned(),
        ),
        (
            format!("other={url}"),
            "couldn't find local name \"j\" in the initial cluster configuration".to_owned(),
        ),
        (
            format!("j={OWN},other={OWN}"),
            format!("initial cluster j={OWN},other={OWN} has duplicate url"),
        ),
        (
            format!("j={OWN},other={}", silent_url()),
            "cannot fetch cluster info from peer urls: could not retrieve cluster information from \
             the given URLs"
                .to_owned(),
        ),
        (
            format!("j={OWN},other={url},third=http://127.0.0.1:10"),
            format!("error validating peerURLs {cluster}: member count is unequal"),
        ),
        (
            format!("j=http://127.0.0.1:10,other={url}"),
            format!(
                "error validating peerURLs {cluster}: PeerURLs: no match found for existing member \
                 (7, [{OWN}]), last resolver error (resolved urls: \"{OWN}\" != \
                 \"http://127.0.0.1:10\")"
            ),
        ),
    ] {
        assert_eq!(refusal(&joiner(&folder, &flags)), expected);
    }
    let flags = format!("j={OWN},other={url}");
    let none = Config { max_learners: 0, ..joiner(&folder, &flags) };
    assert_eq!(refusal(&none), "membership: too many learner members in cluster");
    let discovery = quorate_config::Discovery {
        endpoints: vec!["http://127.0.0.1:9".to_owned()],
        token: "t".to_owned(),
        ..quorate_config::Discovery::default()
    };
    assert_eq!(
        refusal(&Config { discovery, ..joiner(&folder, &flags) }),
        "discovery URL should not be set when joining existing initial cluster"
    );
}

#[test]
fn only_clusters_of_a_compatible_version_are_joined() {
    let held = Some(Version::new(3, 5));
    for (cluster_version, downgrade, hold, fits) in [
        ("3.7.0", "false", None, true),
        ("3.0.0", "what", None, true),
        ("3.8.0", "false", None, false),
        ("2.3.0", "false", None, false),
        ("not_decided", "false", None, false),
        ("3.7.0", "true", None, false),
        ("3.8.0", "true", None, true),
        ("3.5.0", "false", held, true),
        ("3.6.0", "false", held, false),
        ("3.6.0", "true", held, true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let peer = member_of_two(cluster_version, downgrade);
        let mut config = joiner(&folder, &format!("j={OWN},other={}", peer.url));
        config.hold_cluster_version = hold;
        if fits {
            drop(boot_with(&config, &real_disk(), &NoNames).unwrap());
        } else {
            assert_eq!(refusal(&config), "incompatible with current running cluster");
        }
    }
}

#[test]
fn a_cluster_whose_members_are_older_than_3_5_is_not_joined() {
    for (versions, is_refused) in [
        (versions("3.4.23", "3.4.0"), true),
        (versions("3.4.23", "3.0.0"), true),
        (versions("3.5.0", "3.0.0"), false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let peer = member_of_two_with(versions.clone(), "false");
        let config = joiner(&folder, &format!("j={OWN},other={}", peer.url));
        let booted = boot_with(&config, &real_disk(), &NoNames);
        match booted.map(drop) {
            Ok(()) => assert!(!is_refused, "{versions}"),
            Err(error) => {
                assert!(is_refused, "{versions}: {error}");
                assert!(error.to_string().contains("upgrade all members to etcd 3.5 first"));
            }
        }
    }
}
