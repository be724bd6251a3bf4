//! The tables of the screen: their rows, the order of the rows, and their cells.

use super::line::{Line, Style};
use super::metrics::{Counter, Gauge, Stage};
use super::prefixes::Prefix;
use super::report::{MemberRow, Report, Role};
use super::table::{Cell, Column, draw};
use super::text::{NONE, count, escaped, latency, span};
use super::view::{Sort, View};
use crate::gotext::size;

/// Formats a value, or a placeholder if it is unknown.
fn or_none<T>(value: Option<T>, shown: impl Fn(T) -> String) -> Cell {
    value.map_or_else(|| Cell::styled(Style::Faint, NONE), |value| shown(value).into())
}

/// Formats a value like [`or_none`], and highlights it if it needs attention.
fn noticed<T: Copy>(
    value: Option<T>,
    shown: impl Fn(T) -> String,
    is_bad: impl Fn(T) -> bool,
) -> Cell {
    let style = if value.is_some_and(is_bad) { Style::Warning } else { Style::Plain };
    Cell { style, ..or_none(value, shown) }
}

fn bytes(number: f64) -> String {
    // Sizes are not negative, and are shown without fractions of a byte.
    let whole = format!("{:.0}", number.max(0.0)).parse();
    size(whole.unwrap_or(u64::MAX))
}

/// Sorts rows by a key. Rows with an unknown key come last in both directions.
fn by<T, K: PartialOrd>(rows: &mut [T], is_falling: bool, key: impl Fn(&T) -> Option<K>) {
    rows.sort_by(|one, other| match (key(one), key(other)) {
        (Some(one), Some(other)) => {
            let order = one.partial_cmp(&other).unwrap_or(std::cmp::Ordering::Equal);
            if is_falling { order.reverse() } else { order }
        }
        (None, Some(_)) => std::cmp::Ordering::Greater,
        (Some(_), None) => std::cmp::Ordering::Less,
        (None, None) => std::cmp::Ordering::Equal,
    });
}

/// Returns the members that match the filter, sorted.
fn members<'a>(report: &'a Report, view: &View) -> Vec<&'a MemberRow> {
    let is_shown = |member: &&MemberRow| escaped(member.name.as_bytes()).contains(&view.filter);
    let mut rows: Vec<_> = report.members.iter().filter(is_shown).collect();
    let is_falling = view.member_sort.is_falling() != view.is_reversed;
    let standing = |row: &&'a MemberRow| row.standing.as_ref();
    match view.member_sort {
        Sort::Requests => by(&mut rows, is_falling, |row| row.requests_per_sec),
        Sort::Latency => by(&mut rows, is_falling, |row| row.requests.p99),
        Sort::Db => {
            by(&mut rows, is_falling, |row| standing(row).map(|standing| standing.db_bytes));
        }
        Sort::Lag => by(&mut rows, is_falling, |row| row.lag),
        Sort::Name | Sort::Bytes | Sort::Keys | Sort::Writes | Sort::Prefix => {
            by(&mut rows, is_falling, |row| Some((row.name.clone(), row.id)));
        }
    }
    rows
}

const fn member_heading(sort: Sort) -> &'static str {
    match sort {
        Sort::Requests => "REQ/S",
        Sort::Latency => "P99",
        Sort::Db => "DB",
        Sort::Lag => "LAG",
        Sort::Name | Sort::Bytes | Sort::Keys | Sort::Writes | Sort::Prefix => "MEMBER",
    }
}

fn role(role: &Role) -> Cell {
    match role {
        Role::Leader => Cell::styled(Style::Good, "leader"),
        Role::Follower => "follower".into(),
        Role::Learner => "learner".into(),
        Role::Lost => Cell::styled(Style::Warning, "no leader"),
        Role::Unreachable(since, _) => Cell::styled(Style::Bad, format!("down {}", span(*since))),
        Role::Refused(_) => Cell::styled(Style::Warning, "refused"),
        Role::Plaintext(_) => Cell::styled(Style::Warning, "no TLS"),
    }
}

/// Fraction of the quota in use above which the size is highlighted.
const QUOTA_SHARE_MAX: f64 = 0.9;
/// The number of entries above which a member's lag is highlighted.
const LAG_MAX: u64 = 5_000;
/// The latency of log syncs above which etcd's own alert rule fires.
const FSYNC_SECS_MAX: f64 = 0.5;
/// The latency of backend commits above which etcd's own alert rule fires.
const COMMIT_SECS_MAX: f64 = 0.25;
/// The latency of requests above which etcd's own alert rule fires.
const REQUEST_SECS_MAX: f64 = 0.15;

/// Draws the table of members: role, position in the log, sizes and rates.
pub(super) fn member_table(report: &Report, view: &View, width: usize) -> Vec<Line> {
    let columns = [
        Column::text("MEMBER", 0, 8),
        Column::text("ROLE", 0, 9),
        Column::text("VERSION", 4, 7),
        Column::number("DB", 1, 6),
        Column::number("USED", 3, 4),
        Column::number("REQ/S", 1, 5),
        Column::number("FAIL/S", 6, 5),
        Column::number("P50", 5, 5),
        Column::number("P99", 2, 5),
        Column::number("FSYNC", 2, 5),
        Column::number("LAG", 1, 4),
        Column::number("COMMIT", 7, 6),
        Column::number("PEERS", 8, 5),
        Column::number("ANSWER", 7, 6),
        Column::number("QUOTA", 9, 6),
        Column::number("MEMORY", 8, 6),
        Column::number("TERM", 10, 4),
        Column::number("INDEX", 10, 8),
        Column::number("APPLIED", 11, 8),
        Column::text("ID", 12, 16),
    ];
    let rows: Vec<_> = members(report, view).into_iter().map(member_cells).collect();
    draw(&columns, &rows, Some(member_heading(view.member_sort)), width)
}

fn member_cells(row: &MemberRow) -> Vec<Cell> {
    let standing = row.standing.as_ref();
    let db = standing.map(|standing| standing.db_bytes);
    let used = standing.and_then(|standing| {
        let used = standing.used_bytes.filter(|_| standing.db_bytes > 0)?;
        Some(used as f64 * 100.0 / standing.db_bytes as f64)
    });
    let reported = standing.and_then(|standing| standing.quota_bytes).map(|quota| quota as f64);
    let quota =
        reported.or_else(|| row.gauges.get(&Gauge::Quota).copied().filter(|quota| *quota > 0.0));
    let is_nearly_full = |db: u64| quota.is_some_and(|quota| db as f64 > quota * QUOTA_SHARE_MAX);
    let stage = |stage| row.stages.get(&stage).and_then(|latency| latency.p99);
    let number = |value: Option<u64>| or_none(value, |value| value.to_string());
    vec![
        escaped(row.name.as_bytes()).into(),
        role(&row.role),
        or_none(standing, |standing| escaped(standing.version.as_bytes())),
        noticed(db, size, is_nearly_full),
        or_none(used, |used| format!("{used:.0}%")),
        or_none(row.requests_per_sec, count),
        noticed(row.failures_per_sec, count, |rate| rate > 0.0),
        or_none(row.requests.p50, latency),
        noticed(row.requests.p99, latency, |secs| secs > REQUEST_SECS_MAX),
        noticed(stage(Stage::Fsync), latency, |secs| secs > FSYNC_SECS_MAX),
        noticed(row.lag, |lag| lag.to_string(), |lag| lag > LAG_MAX),
        noticed(stage(Stage::Commit), latency, |secs| secs > COMMIT_SECS_MAX),
        or_none(stage(Stage::RoundTrip), latency),
        or_none(row.took, |took| latency(took.as_secs_f64())),
        or_none(quota, bytes),
        or_none(row.gauges.get(&Gauge::ResidentBytes).copied(), bytes),
        number(standing.map(|standing| standing.term)),
        number(standing.map(|standing| standing.index)),
        number(standing.map(|standing| standing.applied)),
        if row.id == 0 {
            or_none(None::<u64>, |_| String::new())
        } else {
            format!("{:x}", row.id).into()
        },
    ]
}

/// Draws the table of watches, leases and network traffic, by member.
pub(super) fn watch_table(report: &Report, view: &View, width: usize) -> Vec<Line> {
    let columns = [
        Column::text("MEMBER", 0, 8),
        Column::number("WATCHES", 1, 7),
        Column::number("STREAMS", 4, 7),
        Column::number("SLOW", 2, 4),
        Column::number("PENDING", 3, 7),
        Column::number("EVENT/S", 1, 6),
        Column::number("GRANT/S", 5, 6),
        Column::number("REVOKE/S", 6, 6),
        Column::number("EXPIRE/S", 7, 6),
        Column::number("RENEW/S", 5, 6),
        Column::number("IN/S", 3, 6),
        Column::number("OUT/S", 3, 6),
    ];
    let cells = |row: &MemberRow| {
        let gauge = |gauge| or_none(row.gauges.get(&gauge).copied(), count);
        let rate = |counter| or_none(row.counters_per_sec.get(&counter).copied(), count);
        let flow = |counter| or_none(row.counters_per_sec.get(&counter).copied(), bytes);
        let slow = row.gauges.get(&Gauge::SlowWatchers).copied();
        vec![
            escaped(row.name.as_bytes()).into(),
            gauge(Gauge::Watchers),
            gauge(Gauge::WatchStreams),
            noticed(slow, count, |slow| slow > 0.0),
            gauge(Gauge::PendingEvents),
            rate(Counter::Events),
            rate(Counter::LeasesGranted),
            rate(Counter::LeasesRevoked),
            rate(Counter::LeasesExpired),
            rate(Counter::LeasesRenewed),
            flow(Counter::BytesIn),
            flow(Counter::BytesOut),
        ]
    };
    let rows: Vec<_> = members(report, view).into_iter().map(cells).collect();
    draw(&columns, &rows, Some(member_heading(view.member_sort)), width)
}

/// Draws the table of requests by kind, for the cluster and for each member.
pub(super) fn request_table(report: &Report, width: usize) -> Vec<Line> {
    let mut columns = vec![
        Column::text("REQUESTS", 0, 12),
        Column::number("ALL/S", 0, 6),
        Column::number("FAIL/S", 1, 6),
        Column::number("P50", 1, 6),
        Column::number("P99", 1, 6),
    ];
    let names = report.members.iter().map(|member| escaped(member.name.as_bytes()));
    columns.extend(names.enumerate().map(|(at, name)| Column::number(name, rank(at), 6)));
    let row = |row: &super::report::KindRow| {
        let mut cells = vec![
            row.kind.name().into(),
            or_none(row.per_sec, count),
            noticed(row.failures_per_sec, count, |rate| rate > 0.0),
            or_none(row.latency.p50, latency),
            noticed(row.latency.p99, latency, |secs| secs > REQUEST_SECS_MAX),
        ];
        cells.extend(row.by_member.iter().map(|rate| or_none(*rate, count)));
        cells
    };
    let rows: Vec<_> = report.kinds.iter().map(row).collect();
    draw(&columns, &rows, None, width)
}

/// Returns the rank at which a member's column is omitted from a narrow table. The columns of the last members are
/// omitted first.
fn rank(at: usize) -> u8 {
    u8::try_from(at + 2).unwrap_or(u8::MAX)
}

/// Draws the table of stages, with their median and 99th percentile.
pub(super) fn stage_table(report: &Report, width: usize) -> Vec<Line> {
    let mut columns = vec![Column::text("P50/P99 OF", 0, 15)];
    let names = report.members.iter().map(|member| escaped(member.name.as_bytes()));
    columns.extend(names.enumerate().map(|(at, name)| Column::number(name, rank(at), 13)));
    let row = |row: &super::report::StageRow| {
        let of_member = row.by_member.iter().map(|times| {
            let both = times.p50.zip(times.p99);
            or_none(both, |(p50, p99)| format!("{}/{}", latency(p50), latency(p99)))
        });
        [row.stage.name().into()].into_iter().chain(of_member).collect()
    };
    let rows: Vec<_> = report.stages.iter().map(row).collect();
    draw(&columns, &rows, None, width)
}

/// Returns the prefixes that match the filter, sorted.
fn prefixes<'a>(report: &'a Report, view: &View) -> Vec<&'a Prefix> {
    let is_shown = |prefix: &&Prefix| prefix.group.label().contains(&view.filter);
    let mut rows: Vec<_> = report.prefixes.rows.iter().filter(is_shown).collect();
    let is_falling = view.prefix_sort.is_falling() != view.is_reversed;
    let writes = |row: &&Prefix| Some(row.puts_per_sec? + row.deletes_per_sec?);
    match view.prefix_sort {
        Sort::Bytes => by(&mut rows, is_falling, |row| row.bytes),
        Sort::Keys => by(&mut rows, is_falling, |row| row.keys),
        Sort::Writes => by(&mut rows, is_falling, writes),
        Sort::Prefix | Sort::Name | Sort::Requests | Sort::Latency | Sort::Db | Sort::Lag => {
            by(&mut rows, is_falling, |row| Some(row.group.name.clone()));
        }
    }
    rows
}

/// Draws the table of prefixes, with at most `height` rows, starting at the scroll offset.
pub(super) fn prefix_table(
    report: &Report,
    view: &View,
    width: usize,
    rows_max: usize,
) -> Vec<Line> {
    let columns = [
        Column::text("PREFIX", 0, 24),
        Column::number("KEYS", 1, 7),
        Column::number("~SIZE", 1, 6),
        Column::number("PUT/S", 2, 5),
        Column::number("DEL/S", 3, 5),
        Column::number("BYTES/S", 4, 7),
    ];
    let marked = match view.prefix_sort {
        Sort::Keys => "KEYS",
        Sort::Writes => "PUT/S",
        Sort::Prefix => "PREFIX",
        Sort::Bytes | Sort::Name | Sort::Requests | Sort::Latency | Sort::Db | Sort::Lag => "~SIZE",
    };
    let cells = |row: &Prefix| {
        vec![
            row.group.label().into(),
            or_none(row.keys, |keys| keys.to_string()),
            or_none(row.bytes, bytes),
            or_none(row.puts_per_sec, count),
            or_none(row.deletes_per_sec, count),
            or_none(row.bytes_per_sec, bytes),
        ]
    };
    let all = prefixes(report, view);
    let offset = view.offset.min(all.len().saturating_sub(1));
    let rows: Vec<_> = all.into_iter().skip(offset).take(rows_max).map(cells).collect();
    draw(&columns, &rows, Some(marked), width)
}
