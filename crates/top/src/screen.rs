//! The screen: a pure function of the report, the view, the time and the size.
//!
//! # Guarantees
//!
//! - The screen has as many lines as the terminal. No line is wider than the terminal or contains a control character.

use std::time::Duration;

use super::line::{Line, Style};
use super::panes::{member_table, prefix_table, request_table, stage_table, watch_table};
use super::report::{Report, Role};
use super::text::{count, escaped, span, time_of_day};
use super::view::{Pane, View};
use crate::gotext::duration;

/// The maximum number of warnings in the header.
const TROUBLES_MAX: usize = 3;
/// The number of prefixes in printed reports.
const PRINTED_PREFIXES: usize = 20;
/// The number of request kinds in the overview.
const OVERVIEW_KINDS: usize = 6;

const KEYS: &str = "q quit  1-5 or tab panes  s sort  r reverse  / filter  p pause  h help";

const HELP: &[&str] = &[
    "1-5, tab   overview, members, requests, watches and leases, prefixes",
    "s > <      sort by the next column, or the previous one",
    "r          reverse the order",
    "/          show only names that contain the typed text; escape shows all",
    "up, down   scroll, also by page; home goes to the top",
    "+ -        double or halve the refresh interval",
    "p, space   pause; no requests are sent during a pause",
    "q, ctrl-c  quit",
    "",
    "REQ/S P50 P99  client requests; latencies need 3.7 or --metrics=extensive",
    "FSYNC COMMIT   99th percentile of WAL syncs, and of backend commits",
    "PEERS ANSWER   99th percentile of peer round trips; time the last answer took",
    "LAG USED       entries not applied yet; share of the backend file in use",
    "KEYS ~SIZE     keys at the last count; size estimated from a sample",
    "PUT/S BYTES/S  rates measured while a watch was active",
    "-              not reported by this member",
];

/// Returns the lines of the screen.
pub(super) fn screen(
    report: &Report,
    view: &View,
    since_1970: Duration,
    (width, height): (usize, usize),
) -> Vec<Line> {
    let mut lines = head(report, view, since_1970);
    lines.push(tabs(view));
    let left = height.saturating_sub(lines.len() + 1);
    lines.extend(if view.shows_help { help() } else { body(report, view, width, left) });
    lines.truncate(height.saturating_sub(1));
    lines.resize(height.saturating_sub(1), Line::default());
    lines.push(foot(view).filled(width));
    lines.truncate(height);
    lines.iter().map(|line| line.fitted(width)).collect()
}

/// Formats the whole report as text, for output that is not a terminal.
pub(super) fn print(report: &Report, view: &View, since_1970: Duration, width: usize) -> String {
    let mut lines = head(report, view, since_1970);
    for table in [
        noted_members(report, view, width),
        request_table(report, width),
        stage_table(report, width),
        watch_table(report, view, width),
        prefix_table(report, view, width, PRINTED_PREFIXES),
    ] {
        lines.push(Line::default());
        lines.extend(table);
    }
    lines.push(Line::of(Style::Plain, report.prefixes.note.clone()));
    lines.iter().map(|line| line.fitted(width).plain() + "\n").collect()
}

fn head(report: &Report, view: &View, since_1970: Duration) -> Vec<Line> {
    let mut first = Line::of(Style::Strong, "quorate top")
        .and(Style::Plain, format!("  {} UTC", time_of_day(since_1970)))
        .and(Style::Faint, format!("  every {}", duration(view.interval)));
    if view.is_paused {
        first.push(Style::Reversed, " paused ");
    }
    let answering = report.members.iter().filter(|member| member.standing.is_some()).count();
    let all = report.members.len();
    let style = if answering < all { Style::Bad } else { Style::Plain };
    first.push(Style::Plain, "  ");
    first.push(style, format!("{answering} of {all} members respond"));
    if report.cluster_id != 0 {
        first.push(Style::Faint, format!("  cluster {:x}", report.cluster_id));
    }
    let mut second = match &report.leader {
        Some(name) => Line::of(Style::Plain, "leader ").and(Style::Good, escaped(name.as_bytes())),
        None => Line::of(Style::Bad, "no leader"),
    };
    let mut rest = format!("  term {}  revision {}", report.term, report.revision);
    if let Some(rate) = report.revisions_per_sec {
        rest.push_str(&format!(" (+{}/s)", count(rate)));
    }
    let figure =
        |name, number: Option<f64>| number.map(|number| format!("  {name} {}", count(number)));
    rest.extend(figure("keys", report.keys));
    // The number of leases is small enough to be exact as a floating-point number.
    rest.extend(figure("leases", report.leases.map(|leases| leases as f64)));
    second.push(Style::Plain, rest);
    let mut lines = vec![first, second];
    let troubles = troubles(report);
    let shown = if troubles.len() > TROUBLES_MAX { TROUBLES_MAX - 1 } else { TROUBLES_MAX };
    let unsaid = troubles.len().saturating_sub(shown);
    lines.extend(troubles.into_iter().take(shown).map(|text| Line::of(Style::Bad, text)));
    if unsaid > 0 {
        lines.push(Line::of(Style::Bad, format!("and {unsaid} more")));
    }
    lines
}

/// Returns the warnings that the user should see first.
pub(super) fn troubles(report: &Report) -> Vec<String> {
    let mut troubles: Vec<_> =
        report.alarms.iter().map(|alarm| format!("alarm {}", escaped(alarm.as_bytes()))).collect();
    for member in &report.members {
        let name = escaped(member.name.as_bytes());
        match &member.role {
            Role::Unreachable(since, reason) => {
                let reason = escaped(reason.as_bytes());
                troubles.push(format!("{name} has not responded for {}: {reason}", span(*since)));
            }
            Role::Refused(reason) | Role::Plaintext(reason) => {
                let reason = escaped(reason.as_bytes());
                troubles.push(format!("{name} does not report its status: {reason}"));
            }
            Role::Lost => troubles.push(format!("{name} has no leader")),
            Role::Leader | Role::Follower | Role::Learner => {}
        }
        let errors = member.standing.iter().flat_map(|standing| &standing.errors);
        // The header already shows that there is no leader.
        let others = errors.filter(|error| !error.ends_with("no leader"));
        troubles.extend(others.map(|error| format!("{name}: {}", escaped(error.as_bytes()))));
    }
    troubles
}

fn tabs(view: &View) -> Line {
    let mut line = Line::default();
    for (at, pane) in Pane::ALL.into_iter().enumerate() {
        let style = if pane == view.pane { Style::Reversed } else { Style::Faint };
        line.push(style, format!(" {} {} ", at + 1, pane.name()));
    }
    if !view.filter.is_empty() {
        line.push(Style::Warning, format!("  filter: {}", view.filter));
    }
    line
}

fn foot(view: &View) -> Line {
    if view.is_typing {
        return Line::of(Style::Strong, format!("show only names containing: {}_", view.filter));
    }
    Line::of(Style::Faint, KEYS)
}

fn help() -> Vec<Line> {
    let lines = HELP.iter().map(|line| Line::of(Style::Plain, *line));
    [Line::default()].into_iter().chain(lines).collect()
}

fn body(report: &Report, view: &View, width: usize, height: usize) -> Vec<Line> {
    let gap = || [Line::default()];
    let scrolled = |table: Vec<Line>| {
        let (heading, rows) = table.split_at(1);
        let offset = view.offset.min(rows.len().saturating_sub(1));
        [heading, &rows[offset..]].concat()
    };
    match view.pane {
        Pane::Members => {
            let mut lines = scrolled(member_table(report, view, width));
            lines.extend(round_trip_note(report, &lines));
            lines
        }
        Pane::Watches => scrolled(watch_table(report, view, width)),
        Pane::Requests => {
            let mut lines = scrolled(requests(report, width));
            lines.extend(gap());
            lines.extend(stage_table(report, width));
            lines
        }
        Pane::Prefixes => noted_prefixes(report, view, width, height),
        Pane::Overview => {
            let mut lines = noted_members(report, view, width);
            lines.extend(gap());
            let mut kinds = requests(report, width);
            let dropped = kinds.len().saturating_sub(1 + OVERVIEW_KINDS);
            kinds.truncate(1 + OVERVIEW_KINDS);
            lines.extend(kinds);
            if dropped > 0 {
                let text = format!("{dropped} more kinds of requests in pane 3");
                lines.push(Line::of(Style::Faint, text));
            }
            lines.extend(gap());
            let left = height.saturating_sub(lines.len());
            lines.extend(noted_prefixes(report, view, width, left));
            lines
        }
    }
}

fn requests(report: &Report, width: usize) -> Vec<Line> {
    let mut table = request_table(report, width);
    if report.kinds.is_empty() {
        let text = "no rates yet, or no member serves /metrics";
        table.push(Line::of(Style::Faint, text));
    }
    table
}

/// Draws the table of members, with a note about empty columns below it.
fn noted_members(report: &Report, view: &View, width: usize) -> Vec<Line> {
    let mut lines = member_table(report, view, width);
    lines.extend(round_trip_note(report, &lines));
    lines
}

/// Returns the note about missing round-trip times, if the table has their column.
fn round_trip_note(report: &Report, table: &[Line]) -> Option<Line> {
    let is_shown = table.first().is_some_and(|heading| heading.plain().contains("PEERS"));
    let note = report.round_trip_note().filter(|_| is_shown)?;
    Some(Line::of(Style::Faint, note))
}

/// Draws the table of prefixes, with a note below it.
fn noted_prefixes(report: &Report, view: &View, width: usize, height: usize) -> Vec<Line> {
    let mut lines = prefix_table(report, view, width, height.saturating_sub(2));
    lines.push(Line::of(Style::Faint, report.prefixes.note.clone()));
    lines
}

#[cfg(test)]
mod tests;
