//! Tests of the problems: each rule finds its problem, and no problem is reported for a healthy cluster.

use std::fs;
use std::path::Path;
use std::time::Duration;

use quorate_top::prefixes::{Form, Group};
use quorate_top::report::Latency;
use quorate_top::sample::{Alarm, Standing};

use super::*;

const NOW_MS: u64 = 1_790_000_000_000;

fn member(id: u64, role: Role) -> MemberRow {
    let is_there = !matches!(role, Role::Unreachable(..));
    let standing = Standing {
        version: "3.7.1".to_owned(),
        leader: 1,
        term: 2,
        index: 100,
        applied: 100,
        revision: 50,
        db_bytes: 10 << 20,
        used_bytes: Some(8 << 20),
        quota_bytes: Some(2 << 30),
        ..Standing::default()
    };
    MemberRow {
        id,
        name: format!("m{id}"),
        role,
        is_learner: false,
        peer_urls: Vec::new(),
        client_urls: Vec::new(),
        standing: is_there.then_some(standing),
        lag: Some(0),
        took: None,
        requests_per_sec: None,
        failures_per_sec: None,
        requests: Latency::default(),
        stages: BTreeMap::new(),
        gauges: BTreeMap::new(),
        counters: BTreeMap::new(),
        counters_per_sec: BTreeMap::new(),
        certificates: BTreeMap::new(),
        clock: Some(1_000.0),
        at: Duration::ZERO,
    }
}

fn healthy() -> Report {
    let members =
        vec![member(1, Role::Leader), member(2, Role::Follower), member(3, Role::Follower)];
    Report { leader_id: Some(1), members, keys: Some(1_000.0), revision: 50, ..Report::default() }
}

/// Returns the ids of the problems that are found after `change` is applied to the report of a healthy cluster.
fn ids(change: impl FnOnce(&mut Report)) -> Vec<&'static str> {
    let mut report = healthy();
    change(&mut report);
    let found = Observer::default().problems(&report, &[], NOW_MS);
    found.into_iter().map(|problem| problem.kind.id).collect()
}

fn standing(report: &mut Report) -> &mut Standing {
    report.members[1].standing.as_mut().unwrap()
}

#[test]
fn a_healthy_cluster_has_no_problems() {
    assert!(ids(|_| {}).is_empty());
}

#[test]
fn unreachable_members_and_a_missing_leader_are_reported() {
    let down = || Role::Unreachable(Duration::from_secs(3), "refused".to_owned());
    assert_eq!(ids(|it| it.members[2] = member(3, down())), ["quorum-at-risk", "member-down"]);
    let five = |it: &mut Report| {
        it.members.extend([member(4, Role::Follower), member(5, down())]);
    };
    assert_eq!(ids(five), ["member-down"], "the cluster tolerates one more failure");
    let lost = |it: &mut Report| {
        it.leader_id = None;
        it.members[2].role = Role::Lost;
    };
    assert_eq!(ids(lost), ["no-leader", "no-leader"]);
}

#[test]
fn a_member_that_is_not_queried_because_it_has_no_tls_is_not_reported_as_down() {
    let plaintext = Role::Plaintext("the client URL http://m3 does not use TLS".to_owned());
    assert_eq!(ids(|it| it.members[2] = member(3, plaintext)), ["member-plaintext"]);
}

#[test]
fn slow_disks_slow_networks_and_lagging_members_are_reported() {
    let slow = |stage: Stage, secs: f64| {
        ids(move |it| {
            let latency = Latency { p50: Some(secs), p99: Some(secs) };
            it.members[0].stages.insert(stage, latency);
        })
    };
    assert_eq!(slow(Stage::Fsync, 0.2), ["disk-slow"]);
    assert!(slow(Stage::Fsync, 0.01).is_empty());
    assert_eq!(slow(Stage::Commit, 0.3), ["commit-slow"]);
    assert_eq!(slow(Stage::RoundTrip, 0.2), ["peer-slow"]);
    assert_eq!(ids(|it| it.members[1].lag = Some(5_000)), ["member-behind"]);
    let failing = |it: &mut Report| {
        it.members[0].counters_per_sec.insert(Counter::FailedProposals, 1.0);
    };
    assert_eq!(ids(failing), ["proposals-fail"]);
}

#[test]
fn space_and_size_problems_are_reported() {
    assert_eq!(ids(|it| standing(it).quota_bytes = Some(11 << 20)), ["quota-near"]);
    let free = |it: &mut Report| {
        standing(it).db_bytes = 500 << 20;
        standing(it).used_bytes = Some(100 << 20);
        it.keys = Some(1e6);
    };
    assert_eq!(ids(free), ["defragmentation"]);
    let old = |it: &mut Report| {
        it.revision = 2_000_000;
        it.members[0].gauges.insert(Gauge::CompactRevision, 10.0);
    };
    assert_eq!(ids(old), ["no-compaction"]);
    assert_eq!(ids(|it| it.keys = Some(10.0)), ["large-values"]);
}

#[test]
fn alarms_slow_watchers_and_clock_or_version_differences_are_reported() {
    for (name, id) in [("NOSPACE", "no-space"), ("CORRUPT", "corrupt")] {
        let raised = |it: &mut Report| {
            let alarm = Alarm { member: 2, name: name.to_owned() };
            for member in &mut it.members {
                member.standing.as_mut().unwrap().alarms.push(alarm.clone());
            }
        };
        assert_eq!(
            ids(raised),
            [id],
            "the alarm is reported once, although every member reports it"
        );
    }
    let slow = |it: &mut Report| {
        it.members[0].gauges.insert(Gauge::SlowWatchers, 1.0);
    };
    assert_eq!(ids(slow), ["watchers-slow"]);
    assert_eq!(ids(|it| it.members[0].clock = Some(1_010.0)), ["clock-difference"]);
    let late = |it: &mut Report| {
        it.members[0].clock = Some(1_010.0);
        it.members[0].at = Duration::from_secs(10);
    };
    assert!(ids(late).is_empty(), "a late response is not reported as a clock difference");
    assert_eq!(ids(|it| standing(it).version = "3.6.0".to_owned()), ["versions-differ"]);
}

#[test]
fn frequent_leader_changes_are_reported() {
    let mut observer = Observer::default();
    let mut found = Vec::new();
    for minute in 0..5 {
        let report = Report { leader_id: Some(1 + minute % 2), ..healthy() };
        found = observer.problems(&report, &[], NOW_MS + minute * 60_000);
    }
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].kind, LEADER_CHANGES_OFTEN);
    let later = NOW_MS + 2 * LEADER_CHANGES_MS;
    let report = Report { leader_id: Some(1), ..healthy() };
    assert!(observer.problems(&report, &[], later).is_empty());
}

#[test]
fn certificates_that_expire_soon_are_reported() {
    let severity = |days: i64| {
        let certificate = Certificate {
            member: 1,
            place: "https://127.0.0.1:2379".to_owned(),
            not_after_ms: Some(i64::try_from(NOW_MS).unwrap() + days * 86_400_000),
            ..Certificate::default()
        };
        let found = Observer::default().problems(&healthy(), &[certificate], NOW_MS);
        found.first().map(|problem| problem.severity)
    };
    assert_eq!(severity(60), None);
    assert_eq!(severity(20), Some(Severity::Warning));
    assert_eq!(severity(3), Some(Severity::Critical));
    assert_eq!(severity(-1), Some(Severity::Critical));
}

#[test]
fn hot_prefixes_and_large_values_are_reported() {
    let row = |name: &str, puts: f64, bytes: f64| Prefix {
        group: Group { name: name.into(), form: Form::Full },
        keys: Some(10),
        bytes: Some(bytes),
        puts_per_sec: Some(puts),
        deletes_per_sec: None,
        bytes_per_sec: None,
    };
    let found = of_prefixes(&[row("a/", 1_000.0, 10.0), row("b/", 10.0, 1e7)]);
    let ids: Vec<_> = found.iter().map(|problem| problem.kind.id).collect();
    assert_eq!(ids, ["hot-key", "large-values"]);
    assert!(of_prefixes(&[row("a/", 10.0, 10.0), row("b/", 10.0, 10.0)]).is_empty());
}

#[test]
fn every_problem_is_described_in_a_section_of_the_documentation() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let all = [
        NO_LEADER,
        MEMBER_DOWN,
        QUORUM_AT_RISK,
        MEMBER_BEHIND,
        DISK_SLOW,
        COMMIT_SLOW,
        PEER_SLOW,
        QUOTA_NEAR,
        NO_SPACE,
        CORRUPT,
        LEADER_CHANGES_OFTEN,
        PROPOSALS_FAIL,
        CERTIFICATE_EXPIRES,
        DEFRAGMENTATION,
        NO_COMPACTION,
        WATCHERS_SLOW,
        CLOCK_DIFFERENCE,
        HOT_KEY,
        LARGE_VALUES,
        VERSIONS_DIFFER,
    ];
    for kind in all {
        let page = fs::read_to_string(docs.join(kind.page)).unwrap();
        let has_heading = page.lines().any(|line| {
            line.starts_with('#') && line.trim_start_matches('#').trim() == kind.section
        });
        assert!(has_heading, "{} has no section {:?}", kind.page, kind.section);
    }
    let problem = Problem::new(NO_COMPACTION, Severity::Info, "t".to_owned(), "x").json();
    assert!(problem["runbook_url"].as_str().unwrap().ends_with("docs/console.md#no-compaction"));
}
