//! Tests the contents of audit lines, and the rules that select calls.

use super::*;
use crate::metrics::{Metrics, MetricsLevel};

fn outcome(method: &str) -> Outcome<'_> {
    Outcome { method, code: "OK", error: "", took: None }
}

/// Returns the lines that are logged with these rules.
fn lines(rules: &str, record: impl FnOnce(&CallAccount)) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let output = Output::File(path.to_str().unwrap().to_owned());
    let rules = Rules::parse(rules).unwrap();
    let settings = Settings { output, rules, overflow: Overflow::Drop };
    let metrics = Metrics::new(&[], MetricsLevel::Basic).audit;
    let auditor = Arc::new(Auditor::open(settings, &metrics).unwrap());
    record(&auditor.begin("10.0.0.1:7".parse().ok(), Some("ann".into())));
    auditor.finish();
    std::fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn an_audit_line_contains_the_user_the_request_and_the_result() {
    let lines_written = lines("", |account| {
        account.note_user("root".to_owned());
        account.note_asked(Asked::new("put").of_keys(b"a\"b", b"").number("lease", 7));
        account.note_asked(Asked::new("range").of_keys(b"\xff\x01", b"z").when("keys-only", true));
        account.note_revision(12);
        let took = Some(Duration::from_millis(3));
        account.end(Outcome { code: "CANCELLED", error: "why", took, ..outcome("/a.B/C") });
    });
    let [line] = &lines_written[..] else { panic!("not exactly one line: {lines_written:?}") };
    let rest = line.strip_prefix("{\"ts\":\"20").unwrap();
    let (_, rest) = rest.split_once("\",").unwrap();
    assert_eq!(
        rest,
        "\"method\":\"/a.B/C\",\"user\":\"root\",\"certificate\":\"ann\",\
         \"remote\":\"10.0.0.1:7\",\"requests\":[{\"op\":\"put\",\"key\":\"a\\\"b\",\"lease\":7},\
         {\"op\":\"range\",\"key-hex\":\"ff01\",\"range-end\":\"z\",\"keys-only\":true}],\
         \"code\":\"CANCELLED\",\"error\":\"why\",\"revision\":12,\"took\":\"3ms\"}"
    );
}

#[test]
fn an_audit_line_has_a_bounded_number_of_operations_and_truncated_keys() {
    let lines_written = lines("", |account| {
        for number in 0..ASKED_MAX + 5 {
            let key = [number.to_string().as_bytes(), &[b'k'; 100_000]].concat();
            account.note_asked(Asked::new("put").of_keys(&key, b""));
        }
        account.end(outcome("/a.B/C"));
    });
    assert!(lines_written[0].len() < (ASKED_MAX + 2) * 1024, "{}", lines_written[0].len());
    assert!(lines_written[0].contains("\"requests-left-out\":5"));
    assert_eq!(lines_written[0].matches("{\"op\":\"put\",\"key\"").count(), ASKED_MAX);
}

#[test]
fn equal_operations_are_listed_once() {
    let lines_written = lines("", |account| {
        for _ in 0..2 * ASKED_MAX {
            account.note_asked(Asked::new("compare").of_keys(b"k", b""));
        }
        account.note_asked(Asked::new("put").of_keys(b"k", b""));
        account.end(outcome("/a.B/C"));
    });
    let requests =
        "\"requests\":[{\"op\":\"compare\",\"key\":\"k\"},{\"op\":\"put\",\"key\":\"k\"}],\"code\"";
    assert!(lines_written[0].contains(requests), "{}", lines_written[0]);
}

#[test]
fn operations_that_are_not_listed_are_summarised_by_kind_with_the_bounds_of_their_keys() {
    let lines_written = lines("", |account| {
        for number in 0..ASKED_MAX {
            account.note_asked(Asked::new("put").of_keys(number.to_string().as_bytes(), b""));
        }
        for key in [&b"m"[..], b"b\xff", b"c"] {
            account.note_asked(Asked::new("put").of_keys(key, b"").number("lease", 7));
        }
        for (key, range_end) in [("d", "f"), ("x", ""), ("c", "\0"), ("e", "z")] {
            let asked = Asked::new("delete_range");
            account.note_asked(asked.of_keys(key.as_bytes(), range_end.as_bytes()));
        }
        account.note_asked(Asked::new("list").number("at", 1));
        account.end(outcome("/a.B/C"));
    });
    let left_out = "\"requests-left-out\":8,\"left-out\":[\
        {\"op\":\"put\",\"count\":3,\"first-key-hex\":\"62ff\",\"last-key\":\"m\"},\
        {\"op\":\"delete_range\",\"count\":4,\"first-key\":\"c\",\"last-key\":\"x\",\"range-end\":\"\\u0000\"},\
        {\"op\":\"list\",\"count\":1}],\"code\"";
    assert!(lines_written[0].contains(left_out), "{}", lines_written[0]);
}

#[test]
fn audit_rules_apply_to_each_operation_on_a_stream() {
    let lines_written = lines("include method=B/C key=/a/; exclude", |account| {
        account.log_part(Asked::new("watch").of_keys(b"/a/x", b""), outcome("/a.B/C"));
        account.log_part(Asked::new("watch").of_keys(b"/b/x", b""), outcome("/a.B/C"));
        account.end(outcome("/a.B/C"));
    });
    assert_eq!(lines_written.len(), 1);
    assert!(lines_written[0].contains("/a/x"));
}
