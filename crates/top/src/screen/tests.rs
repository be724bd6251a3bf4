//! Tests of screens for a cluster of three members, one of which is unreachable.

use std::collections::BTreeMap;

use super::*;
use crate::metrics::{Counter, Gauge, Kind, Stage};
use crate::prefixes::{Form, Group, Prefix};
use crate::report::{KindRow, Latency, MemberRow, Prefixes, StageRow};
use crate::sample::Standing;
use crate::view::Sort;

const TIME: Duration = Duration::from_secs(3_661);

fn member(id: u64, name: &str, role: Role) -> MemberRow {
    let is_there = !matches!(role, Role::Unreachable(..));
    let standing = Standing {
        version: "3.7.1".to_owned(),
        leader: 1,
        term: 4,
        index: 1_000,
        applied: 1_000 - id,
        revision: 900,
        db_bytes: 25_000_000,
        used_bytes: Some(20_000_000),
        ..Standing::default()
    };
    MemberRow {
        id,
        name: name.to_owned(),
        role,
        is_learner: false,
        peer_urls: Vec::new(),
        client_urls: Vec::new(),
        standing: is_there.then_some(standing),
        lag: is_there.then_some(id),
        took: is_there.then_some(Duration::from_millis(2)),
        requests_per_sec: is_there.then_some(1_000.0 * id as f64),
        failures_per_sec: is_there.then_some(0.0),
        requests: Latency { p50: Some(0.001), p99: Some(0.2) },
        stages: BTreeMap::from([(Stage::Fsync, Latency { p50: Some(0.001), p99: Some(0.004) })]),
        gauges: BTreeMap::from([(Gauge::Watchers, 12.0)]),
        counters: BTreeMap::new(),
        counters_per_sec: BTreeMap::from([(Counter::BytesOut, 5_000.0)]),
        certificates: BTreeMap::new(),
        clock: None,
        at: Duration::ZERO,
    }
}

fn prefix(name: &str, keys: u64, puts: f64) -> Prefix {
    Prefix {
        group: Group { name: name.into(), form: Form::Full },
        keys: Some(keys),
        bytes: Some(keys as f64 * 1_000.0),
        puts_per_sec: Some(puts),
        deletes_per_sec: Some(0.0),
        bytes_per_sec: None,
    }
}

fn report() -> Report {
    let down = Role::Unreachable(Duration::from_secs(12), "connection refused".to_owned());
    let latency = Latency { p50: Some(0.001), p99: Some(0.2) };
    let kind = |kind| KindRow {
        kind,
        per_sec: Some(1_500.0),
        failures_per_sec: Some(0.5),
        latency,
        by_member: vec![Some(1_000.0), Some(500.0), None],
    };
    let many = (0..40).map(|number| prefix(&format!("/registry/kind{number:02}/"), number, 0.0));
    let odd = prefix("/od\x1b[2Jd/", 5_000, 7.0);
    Report {
        cluster_id: 0xabc,
        revision: 900,
        revisions_per_sec: Some(56.0),
        leader: Some("one".to_owned()),
        leader_id: Some(1),
        term: 4,
        leases: Some(3),
        keys: Some(5_780.0),
        members: vec![
            member(1, "one", Role::Leader),
            member(2, "two", Role::Follower),
            member(3, "three", down),
        ],
        kinds: [Kind::Range, Kind::Put, Kind::Watch].map(kind).to_vec(),
        stages: vec![StageRow {
            stage: Stage::Fsync,
            by_member: vec![latency, latency, Latency::default()],
        }],
        alarms: vec!["NOSPACE of two".to_owned()],
        prefixes: Prefixes {
            rows: many.chain([odd]).collect(),
            note: "a note".to_owned(),
            age: None,
        },
    }
}

fn view(pane: Pane) -> View {
    View { pane, ..View::new(Duration::from_secs(2)) }
}

fn text(view: &View, size: (usize, usize)) -> String {
    let lines: Vec<_> = screen(&report(), view, TIME, size).iter().map(Line::plain).collect();
    lines.join("\n")
}

#[test]
fn every_screen_fits_the_terminal_and_contains_no_control_characters() {
    for pane in Pane::ALL {
        for size in [(0, 0), (1, 1), (10, 3), (40, 12), (80, 24), (132, 40), (200, 60), (500, 200)]
        {
            for shows_help in [false, true] {
                let view = View { shows_help, offset: 3, ..view(pane) };
                let lines = screen(&report(), &view, TIME, size);
                assert_eq!(lines.len(), size.1, "{pane:?} {size:?}");
                for line in lines {
                    assert!(line.width() <= size.0, "{pane:?} {size:?}: {}", line.plain());
                    assert!(!line.plain().contains(char::is_control), "{}", line.plain());
                }
            }
        }
    }
}

#[test]
fn an_80_column_terminal_shows_members_requests_and_the_largest_prefixes() {
    let text = text(&view(Pane::Overview), (80, 24));
    for part in [
        "01:01:01 UTC  every 2s  2 of 3 members respond  cluster abc",
        "leader one  term 4  revision 900 (+56/s)  keys 5780  leases 3",
        "alarm NOSPACE of two",
        "three has not responded for 12s: connection refused",
        "MEMBER    ROLE       VERSION",
        "one       leader     3.7.1     25 MB   80%   1000",
        "three     down 12s   -",
        "range           1500",
        "/od\\x1b[2Jd/                 5000  5.0 MB",
        "/registry/kind39/              39",
        "a note",
        "q quit",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn a_wide_terminal_shows_more_columns() {
    let (narrow, wide) =
        (text(&view(Pane::Members), (80, 24)), text(&view(Pane::Members), (200, 24)));
    for heading in ["COMMIT", "APPLIED", "TERM", "ANSWER"] {
        assert!(!narrow.contains(heading), "{narrow}");
        assert!(wide.contains(heading), "{wide}");
    }
    // The note about an empty column must be omitted together with the column.
    assert!(!narrow.contains("PEERS"), "{narrow}");
    assert!(wide.contains("PEERS is empty until"), "{wide}");
}

#[test]
fn rows_are_sorted_filtered_and_scrolled() {
    let first = |view: &View| {
        let text = text(view, (80, 24));
        let body = text.lines().skip_while(|line| !line.starts_with(['M', 'P'])).nth(1);
        body.unwrap().split(' ').next().unwrap().to_owned()
    };
    let prefixes = view(Pane::Prefixes);
    assert_eq!(first(&prefixes), "/od\\x1b[2Jd/");
    assert_eq!(first(&View { offset: 1, ..prefixes.clone() }), "/registry/kind39/");
    assert_eq!(first(&View { offset: 1_000, ..prefixes.clone() }), "/registry/kind00/");
    assert_eq!(
        first(&View { filter: "d07".to_owned(), ..view(Pane::Prefixes) }),
        "/registry/kind07/"
    );
    assert_eq!(first(&View { is_reversed: true, ..prefixes }), "/registry/kind00/");
    let members = view(Pane::Members);
    assert_eq!(first(&members), "one");
    assert_eq!(first(&View { member_sort: Sort::Requests, ..members.clone() }), "two");
    // Rows without a value must come last in both directions.
    let reversed = View { member_sort: Sort::Requests, is_reversed: true, ..members };
    assert_eq!(first(&reversed), "one");
}

#[test]
fn the_help_fits_in_80_columns() {
    let text = text(&View { shows_help: true, ..view(Pane::Overview) }, (80, 24));
    assert!(HELP.iter().all(|line| line.len() <= 80), "{text}");
    assert!(text.contains("reverse the order"), "{text}");
}

#[test]
fn the_footer_shows_a_filter_while_it_is_typed() {
    let typing = View { is_typing: true, filter: "pods".to_owned(), ..view(Pane::Prefixes) };
    assert!(text(&typing, (80, 24)).ends_with("show only names containing: pods_"));
}

#[test]
fn printed_reports_contain_every_table_and_a_limited_number_of_prefixes() {
    let text = print(&report(), &view(Pane::Overview), TIME, 120);
    for heading in ["MEMBER ", "REQUESTS ", "P50/P99 OF ", "WATCHES", "PREFIX "] {
        assert!(text.contains(heading), "{heading} in\n{text}");
    }
    assert_eq!(text.matches("/registry/kind").count(), PRINTED_PREFIXES - 1);
    assert!(!text.contains('\x1b') && text.lines().all(|line| line.len() <= 120));
}
