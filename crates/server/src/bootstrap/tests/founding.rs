//! Tests of founding a cluster: the founders, and the cases in which founding is refused.

use quorate_core::bootstrap::{Founding, Refusal};
use quorate_raft::EntryKind;
use quorate_state::members;

use super::*;

const THREE: &str = "n1=http://127.0.0.1:17181,n2=http://127.0.0.1:17182,n3=http://127.0.0.1:17183";

fn founder(folder: &TempDir, name: &str, cluster: &str) -> Config {
    let own = quorate_config::InitialMembers::parse(cluster).unwrap();
    Config {
        name: name.to_owned(),
        data_dir: folder.path().join(name).to_str().unwrap().to_owned(),
        initial_cluster: cluster.to_owned(),
        initial_advertise_peer_urls: own.urls_of(name).unwrap_or_default().to_vec(),
        ..Config::default()
    }
}

/// The expected ids and bytes come from etcd members that were started with the same flags.
#[test]
fn every_founder_starts_with_the_same_log_as_in_etcd() {
    let folder = tempfile::tempdir().unwrap();
    let mut logs = Vec::new();
    for (name, id) in [
        ("n1", 8_654_977_167_160_755_696_u64),
        ("n2", 3_131_651_684_461_204_394),
        ("n3", 16_938_316_412_043_011_415),
    ] {
        let config = founder(&folder, name, THREE);
        let booted = boot_with(&config, &real_disk(), &NoNames).unwrap();
        assert_eq!(booted.identity.member_id, id);
        assert_eq!(booted.identity.cluster_id, 11_569_647_530_084_633_856);
        let others: Vec<&str> = booted.peers.iter().map(|peer| peer.name.as_str()).collect();
        assert_eq!((others.len(), others.contains(&name)), (2, false), "{others:?}");
        drop(booted);
        let log = log_of(&config);
        assert_eq!(log.hard_state, wal::HardState { term: 1, vote: 0, commit: 3 });
        logs.push(log.entries);
    }
    assert_eq!((&logs[0], &logs[0]), (&logs[1], &logs[2]));
    let [first, _, last] = &logs[0][..] else { panic!("not exactly three entries: {logs:?}") };
    assert_eq!((first.index, first.term, first.kind), (1, 1, EntryKind::ConfChange as u8));
    assert_eq!((last.index, last.term, last.kind), (3, 1, EntryKind::ConfChange as u8));
    let json = r#"{"id":3131651684461204394,"peerURLs":["http://127.0.0.1:17182"],"name":"n2"}"#;
    let mut bytes = vec![0x10, 0, 0x18];
    prost::encoding::encode_varint(3_131_651_684_461_204_394, &mut bytes);
    bytes.extend([0x22, json.len() as u8]);
    bytes.extend(json.bytes());
    assert_eq!(first.data, bytes);
}

#[test]
fn restarted_founders_read_the_members_from_their_log() {
    let folder = tempfile::tempdir().unwrap();
    let config = founder(&folder, "n1", THREE);
    drop(boot_with(&config, &real_disk(), &NoNames).unwrap());
    let entries = log_of(&config).entries;
    let booted = boot_with(&config, &real_disk(), &NoNames).unwrap();
    assert_eq!(booted.peers, []);
    drop(booted);
    assert_eq!(log_of(&config).entries, entries);
}

#[test]
fn an_interrupted_bootstrap_is_completed_at_the_next_start() {
    for (name, cluster) in [("default", "default=http://localhost:2380"), ("n2", THREE)] {
        let folder = tempfile::tempdir().unwrap();
        let config = founder(&folder, name, cluster);
        let members = quorate_config::InitialMembers::parse(cluster).unwrap();
        let initial = initial::to_cluster(&members, "etcd-cluster");
        let founding = Founding::of(&initial, &config.name).unwrap();
        begin_log(&config, founding.identity.cluster_id, founding.identity.member_id);
        assert_eq!(log_of(&config).entries, []);
        let booted = boot_with(&config, &real_disk(), &NoNames).unwrap();
        assert_eq!(booted.identity.member_id, founding.identity.member_id);
        assert_eq!(booted.peers, founding.others());
        drop(booted);
        let log = log_of(&config);
        assert_eq!(log.entries.len(), members.count());
        assert_eq!(log.hard_state.commit, members.count() as u64);
        drop(boot_with(&config, &real_disk(), &NoNames).unwrap());
        assert_eq!(log_of(&config).entries, log.entries);
    }
}

#[test]
fn an_interrupted_bootstrap_is_not_completed_with_other_flags() {
    let folder = tempfile::tempdir().unwrap();
    let config = founder(&folder, "default", "default=http://localhost:2380");
    let urls = ["http://localhost:2380".to_owned()];
    let id = members::member_id(&urls, "etcd-cluster", None);
    begin_log(&config, members::cluster_id([id]), id.0);
    let other = Config { initial_cluster_token: "other".to_owned(), ..config };
    let error = boot_with(&other, &real_disk(), &NoNames).unwrap_err();
    assert!(matches!(error, BootError::Refused(Refusal::OtherFounding { .. })), "{error}");
    assert_eq!(log_of(&other).entries, []);
}

#[test]
fn contradictory_flags_are_refused_with_etcd_errors() {
    let folder = tempfile::tempdir().unwrap();
    let stranger = founder(&folder, "n4", THREE);
    assert_eq!(
        refusal(&stranger),
        "couldn't find local name \"n4\" in the initial cluster configuration"
    );
    assert_eq!(
        refusal(&founder(&folder, "a", "a=http://x:1,b=http://x:1")),
        "initial cluster a=http://x:1,b=http://x:1 has duplicate url"
    );
    assert_eq!(
        refusal(&Config {
            initial_cluster: "a".to_owned(),
            ..founder(&folder, "a", "a=http://x:1")
        }),
        "error setting up initial cluster: URL scheme must be http, https, unix, or unixs: "
    );
    let advertised = |cluster: &str, urls: &str| {
        let advertising = quorate_config::InitialMembers::parse(urls).unwrap();
        let urls = advertising.urls_of("a").unwrap().to_vec();
        refusal(&Config { initial_advertise_peer_urls: urls, ..founder(&folder, "a", cluster) })
    };
    assert_eq!(
        advertised("a=http://10.0.0.1:1,a=http://10.0.0.1:2", "a=http://10.0.0.1:1"),
        "--initial-cluster has a=http://10.0.0.1:2 but missing from \
         --initial-advertise-peer-urls=http://10.0.0.1:1 (len([\"http://10.0.0.1:1\"]) != \
         len([\"http://10.0.0.1:1\" \"http://10.0.0.1:2\"]))"
    );
    assert_eq!(
        advertised("a=http://10.0.0.1:1", "a=http://10.0.0.1:1,a=http://10.0.0.1:2"),
        "--initial-advertise-peer-urls has http://10.0.0.1:2 but missing from \
         --initial-cluster=a=http://10.0.0.1:1"
    );
    assert_eq!(
        advertised("a=http://10.0.0.2:1", "a=http://10.0.0.1:1"),
        "--initial-cluster has a=http://10.0.0.2:1 but missing from \
         --initial-advertise-peer-urls=http://10.0.0.1:1 (resolved urls: \"http://10.0.0.1:1\" != \
         \"http://10.0.0.2:1\")"
    );
    let unresolved = BootError::OtherAdvertised {
        advertised: "http://x:1".to_owned(),
        initial_cluster: "a=http://y:1".to_owned(),
        difference: Box::new(same_urls::Difference::NotUrl("y".to_owned())),
    };
    assert_eq!(
        unresolved.to_string(),
        "failed to resolve http://x:1 to match --initial-cluster=a=http://y:1 (failed to parse \
         string to URL: \"y\")"
    );
    // A member that refuses to start leaves no log behind.
    for name in ["a", "n4"] {
        let dirs = DataDir::new(&folder.path().join(name), None);
        assert!(!dirs.is_initialised(&RealDisk).unwrap());
    }
}

/// A resolver that resolves every name to the same address.
struct OneHost;

impl Names for OneHost {
    fn addresses<'a>(&'a self, _host: &'a str) -> Lookup<'a, Vec<IpAddr>> {
        Box::pin(std::future::ready(Ok(vec![IpAddr::from([10, 0, 0, 1])])))
    }

    fn services<'a>(&'a self, _name: &'a str) -> Lookup<'a, Vec<Service>> {
        Box::pin(std::future::ready(Err(no_such_host())))
    }
}

#[test]
fn an_advertised_host_name_matches_its_address_in_initial_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let advertised = quorate_config::InitialMembers::parse("a=http://name:1").unwrap();
    let config = Config {
        initial_advertise_peer_urls: advertised.urls_of("a").unwrap().to_vec(),
        ..founder(&folder, "a", "a=http://10.0.0.1:1")
    };
    let booted = boot_with(&config, &real_disk(), &OneHost).unwrap();
    let urls = ["http://10.0.0.1:1".to_owned()];
    let id = members::member_id(&urls, "etcd-cluster", None);
    assert_eq!(booted.identity.member_id, id.0);
}

#[test]
fn a_member_that_has_already_run_does_not_bootstrap_again() {
    let own = "http://127.0.0.1:9";
    let id = members::member_id(&[own.to_owned()], "etcd-cluster", None).0;
    for (members, refused) in [
        (format!(r#"[{{"id":{id},"peerURLs":["{own}"],"clientURLs":["http://c:1"]}}]"#), true),
        (format!(r#"[{{"id":{id},"peerURLs":["{own}"],"name":"a"}}]"#), false),
        ("[]".to_owned(), false),
        ("nonsense".to_owned(), false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let peer = Peer::new(|_| vec![("/members", members.clone())]);
        let cluster = format!("a={own},b={},c={}", silent_url(), peer.url);
        let config = founder(&folder, "a", &cluster);
        if refused {
            assert_eq!(refusal(&config), format!("member {id:x} has already been bootstrapped"));
        } else {
            drop(boot_with(&config, &real_disk(), &NoNames).unwrap());
        }
    }
}
