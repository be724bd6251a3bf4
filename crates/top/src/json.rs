//! Formats a report as one line of JSON, for programs.
//!
//! Ids are hexadecimal strings, as in all human-readable output of `ctl`. Times are in seconds, except
//! `unix_ms`. Unknown values are `null`. In prefix names, bytes that are not printable ASCII appear as `\xNN`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::metrics::{Counter, Gauge, Stage};
use super::prefixes::{Form, Prefix};
use super::report::{KindRow, Latency, MemberRow, Report, Role};
use super::screen::troubles;
use super::text::escaped;

/// Formats a report. `since_1970` is the current time.
pub(super) fn line(report: &Report, since_1970: Duration) -> String {
    let value = json!({
        "unix_ms": u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX),
        "cluster": format!("{:x}", report.cluster_id),
        "leader": report.leader.as_deref(),
        "term": report.term,
        "revision": report.revision,
        "revisions_per_sec": report.revisions_per_sec,
        "keys": report.keys,
        "leases": report.leases,
        "alarms": report.alarms,
        "troubles": troubles(report),
        "members": report.members.iter().map(member).collect::<Vec<_>>(),
        "requests": report.kinds.iter().map(|row| kind(row, report)).collect::<Vec<_>>(),
        "prefixes": report.prefixes.rows.iter().map(prefix).collect::<Vec<_>>(),
        "prefixes_note": report.prefixes.note,
        "prefixes_age_secs": report.prefixes.age.map(|age| age.as_secs_f64()),
        "round_trip_note": report.round_trip_note(),
    });
    value.to_string() + "\n"
}

/// Returns the median and the 99th percentile.
pub fn latency(latency: Latency) -> Value {
    json!({ "p50": latency.p50, "p99": latency.p99 })
}

/// Returns the figures of a member.
pub fn member(row: &MemberRow) -> Value {
    let (role, down_secs) = match &row.role {
        Role::Leader => ("leader", None),
        Role::Follower => ("follower", None),
        Role::Learner => ("learner", None),
        Role::Lost => ("no leader", None),
        Role::Unreachable(since, _) => ("down", Some(since.as_secs_f64())),
        Role::Refused(_) => ("refused", None),
        Role::Plaintext(_) => ("no TLS", None),
    };
    let standing = row.standing.as_ref();
    let stage = |of: Stage| latency(row.stages.get(&of).copied().unwrap_or_default());
    json!({
        "id": format!("{:x}", row.id),
        "name": row.name,
        "role": role,
        "down_secs": down_secs,
        "version": standing.map(|standing| &standing.version),
        "term": standing.map(|standing| standing.term),
        "index": standing.map(|standing| standing.index),
        "applied": standing.map(|standing| standing.applied),
        "lag": row.lag,
        "db_bytes": standing.map(|standing| standing.db_bytes),
        "db_used_bytes": standing.and_then(|standing| standing.used_bytes),
        "quota_bytes": standing.and_then(|standing| standing.quota_bytes),
        "answer_secs": row.took.map(|took| took.as_secs_f64()),
        "requests_per_sec": row.requests_per_sec,
        "failures_per_sec": row.failures_per_sec,
        "request_secs": latency(row.requests),
        "queue_secs": stage(Stage::Queue),
        "apply_secs": stage(Stage::Apply),
        "fsync_secs": stage(Stage::Fsync),
        "commit_secs": stage(Stage::Commit),
        "round_trip_secs": stage(Stage::RoundTrip),
        "gauges": named(&row.gauges, gauge),
        "per_sec": named(&row.counters_per_sec, counter),
    })
}

fn named<K>(values: &BTreeMap<K, f64>, name: impl Fn(&K) -> &'static str) -> Value {
    let fields = values.iter().map(|(key, value)| (name(key).to_owned(), json!(value)));
    Value::Object(fields.collect::<Map<_, _>>())
}

const fn gauge(gauge: &Gauge) -> &'static str {
    match gauge {
        Gauge::Keys => "keys",
        Gauge::Watchers => "watchers",
        Gauge::WatchStreams => "watch_streams",
        Gauge::SlowWatchers => "slow_watchers",
        Gauge::PendingEvents => "pending_events",
        Gauge::PendingProposals => "pending_proposals",
        Gauge::ResidentBytes => "resident_bytes",
        Gauge::Quota => "quota_bytes",
        Gauge::CompactRevision => "compact_revision",
        Gauge::StartTime => "start_time",
    }
}

const fn counter(counter: &Counter) -> &'static str {
    match counter {
        Counter::Events => "events",
        Counter::LeasesGranted => "leases_granted",
        Counter::LeasesRevoked => "leases_revoked",
        Counter::LeasesExpired => "leases_expired",
        Counter::LeasesRenewed => "leases_renewed",
        Counter::BytesIn => "bytes_in",
        Counter::BytesOut => "bytes_out",
        Counter::LeaderChanges => "leader_changes",
        Counter::FailedProposals => "failed_proposals",
        Counter::CpuSeconds => "cpu_seconds",
    }
}

fn kind(row: &KindRow, report: &Report) -> Value {
    let members = report.members.iter().zip(&row.by_member);
    let by_member = members.map(|(member, rate)| (member.name.clone(), json!(rate)));
    json!({
        "kind": row.kind.name(),
        "per_sec": row.per_sec,
        "failures_per_sec": row.failures_per_sec,
        "secs": latency(row.latency),
        "by_member": Value::Object(by_member.collect::<Map<_, _>>()),
    })
}

fn prefix(row: &Prefix) -> Value {
    let form = match row.group.form {
        Form::Full => "prefix",
        Form::Short => "keys",
        Form::Stem => "stem",
    };
    json!({
        "name": escaped(&row.group.name),
        "form": form,
        "keys": row.keys,
        "bytes_estimated": row.bytes,
        "puts_per_sec": row.puts_per_sec,
        "deletes_per_sec": row.deletes_per_sec,
        "bytes_per_sec": row.bytes_per_sec,
    })
}
