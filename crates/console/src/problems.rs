//! Finds the problems of a cluster in the collected figures, as an operator would with the runbook.
//!
//! # Guarantees
//!
//! * The rules are pure functions of a report, the certificates and the time. Rules that need more than one report keep
//!   their state in an [`Observer`].
//! * Each problem has an explanation and names a section of the documentation. A test checks that the section exists.
//!
//! # Not here
//!
//! The figures (`overview`), and the alerts for a monitoring system, whose rules are in `packaging/prometheus`. Some
//! rules have lower limits than the alerts for the same figure: for example, the console reports log syncs above 100
//! ms, and the alert fires above 500 ms.

use std::collections::{BTreeMap, VecDeque};

use quorate_top::metrics::{Counter, Gauge, Stage};
use quorate_top::prefixes::Prefix;
use quorate_top::report::{MemberRow, Report, Role};
use serde_json::{Value, json};

use crate::certificates::Certificate;
use crate::encode::hex;

/// The URL of the published documentation.
const DOCUMENTATION: &str = "https://github.com/quorate/quorate/blob/main/docs/";

/// Latencies above which a problem is reported, in seconds.
const FSYNC_SECS: f64 = 0.1;
const COMMIT_SECS: f64 = 0.25;
const ROUND_TRIP_SECS: f64 = 0.15;

/// Number of log entries by which a member may lag behind before a problem is reported.
const LAG_ENTRIES: u64 = 1000;

/// Fractions of the quota in use above which a warning or a critical problem is reported.
const QUOTA_WARNING: f64 = 0.8;
const QUOTA_CRITICAL: f64 = 0.95;

/// The free space in a backend file above which defragmentation is worthwhile, in bytes and as a share of the file.
const FREE_BYTES: u64 = 100 << 20;
const FREE_SHARE: f64 = 0.5;

/// Number of revisions since the last compaction above which a problem is reported.
const UNCOMPACTED_REVISIONS: f64 = 1_000_000.0;

/// Average size of a key together with its value, in bytes, above which values count as large.
const LARGE_BYTES: f64 = 100.0 * 1024.0;

/// Difference between clocks above which a problem is reported, in seconds. Clock readings have a precision of one
/// second.
const CLOCK_SECS: f64 = 2.5;

/// Limits above which a problem is reported: the number of events that watchers have not received yet, and the number
/// of failed proposals per second.
const PENDING_EVENTS: f64 = 10_000.0;
const FAILED_PROPOSALS_PER_SEC: f64 = 0.02;

/// Number of leader changes within [`LEADER_CHANGES_MS`] at which a problem is reported.
const LEADER_CHANGES: usize = 4;
const LEADER_CHANGES_MS: u64 = 15 * 60 * 1000;

/// Remaining validity of a certificate below which a warning or a critical problem is reported, in milliseconds.
const EXPIRY_WARNING_MS: i64 = 30 * 86_400_000;
const EXPIRY_CRITICAL_MS: i64 = 7 * 86_400_000;

/// The number of writes per second, and the share of all writes, above which a prefix counts as hot.
const HOT_PER_SEC: f64 = 500.0;
const HOT_SHARE: f64 = 0.5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    Critical,
    Warning,
    Info,
}

/// A kind of problem: its id, and the section of the documentation that describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    id: &'static str,
    page: &'static str,
    section: &'static str,
}

/// Creates a kind of problem.
const fn kind(id: &'static str, page: &'static str, section: &'static str) -> Kind {
    Kind { id, page, section }
}

const NO_LEADER: Kind = kind("no-leader", "runbook.md", "QuorateNoLeader");
const MEMBER_DOWN: Kind = kind("member-down", "runbook.md", "QuorateMemberDown");
const QUORUM_AT_RISK: Kind = kind("quorum-at-risk", "runbook.md", "QuorateQuorumAtRisk");
const MEMBER_BEHIND: Kind = kind("member-behind", "runbook.md", "QuorateAppliesLate");
const DISK_SLOW: Kind = kind("disk-slow", "runbook.md", "QuorateSyncSlow");
const COMMIT_SLOW: Kind = kind("commit-slow", "runbook.md", "QuorateCommitSlow");
const PEER_SLOW: Kind = kind("peer-slow", "runbook.md", "QuoratePeerSlow");
const QUOTA_NEAR: Kind = kind("quota-near", "runbook.md", "QuorateAlmostFull");
const NO_SPACE: Kind = kind("no-space", "runbook.md", "QuorateNoSpace");
const CORRUPT: Kind = kind("corrupt", "runbook.md", "QuorateCorrupt");
const LEADER_CHANGES_OFTEN: Kind =
    kind("leader-changes", "runbook.md", "QuorateLeaderChangesOften");
const PROPOSALS_FAIL: Kind = kind("proposals-fail", "runbook.md", "QuorateProposalsFail");
const CERTIFICATE_EXPIRES: Kind =
    kind("certificate-expires", "runbook.md", "QuorateCertificateExpires");
const DEFRAGMENTATION: Kind = kind("defragmentation", "runbook.md", "QuorateMuchFreeSpace");
const NO_COMPACTION: Kind = kind("no-compaction", "console.md", "No compaction");
const WATCHERS_SLOW: Kind = kind("watchers-slow", "console.md", "Slow watchers");
const CLOCK_DIFFERENCE: Kind = kind("clock-difference", "console.md", "Clock difference");
const HOT_KEY: Kind = kind("hot-key", "console.md", "Hot keys");
const LARGE_VALUES: Kind = kind("large-values", "console.md", "Large values");
const MEMBER_PLAINTEXT: Kind = kind("member-plaintext", "console.md", "Members without TLS");
const VERSIONS_DIFFER: Kind = kind("versions-differ", "console.md", "Different versions");

/// A problem of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Problem {
    pub(crate) kind: Kind,
    pub(crate) severity: Severity,
    title: String,
    text: String,
    member: Option<u64>,
}

impl Problem {
    fn new(kind: Kind, severity: Severity, title: String, text: &str) -> Self {
        Self { kind, severity, title, text: text.to_owned(), member: None }
    }

    fn of(self, member: &MemberRow) -> Self {
        Self { member: Some(member.id), ..self }
    }

    pub(crate) fn json(&self) -> Value {
        let severity = match self.severity {
            Severity::Critical => "critical",
            Severity::Warning => "warning",
            Severity::Info => "info",
        };
        let Kind { id, page, section } = self.kind;
        json!({
            "id": id,
            "severity": severity,
            "title": self.title,
            "text": self.text,
            "member": self.member.map(hex),
            "since_unix_ms": null,
            "runbook": section,
            "runbook_url": format!("{DOCUMENTATION}{page}#{}", anchor(section)),
        })
    }
}

/// Returns the anchor of a heading in the published documentation.
fn anchor(heading: &str) -> String {
    heading.to_lowercase().replace(' ', "-")
}

/// The state that rules keep from one report to the next.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    leader: Option<u64>,
    /// The times of the last leader changes, in milliseconds since 1970.
    leader_changes: VecDeque<u64>,
}

impl Observer {
    /// Returns the problems found in a report, the most severe first.
    pub(crate) fn problems(
        &mut self,
        report: &Report,
        certificates: &[Certificate],
        now_ms: u64,
    ) -> Vec<Problem> {
        let mut found = Vec::new();
        found.extend(self.leader_changes(report, now_ms));
        of_cluster(report, &mut found);
        for member in &report.members {
            of_member(member, &mut found);
        }
        of_alarms(report, &mut found);
        of_clocks(report, &mut found);
        found.extend(certificates.iter().filter_map(|it| of_certificate(it, report, now_ms)));
        found.sort_by_key(|problem| problem.severity);
        found
    }

    fn leader_changes(&mut self, report: &Report, now_ms: u64) -> Option<Problem> {
        if let Some(leader) = report.leader_id {
            if self.leader.is_some_and(|before| before != leader) {
                self.leader_changes.push_back(now_ms);
                if self.leader_changes.len() > LEADER_CHANGES {
                    self.leader_changes.pop_front();
                }
            }
            self.leader = Some(leader);
        }
        self.leader_changes.retain(|at| now_ms.saturating_sub(*at) < LEADER_CHANGES_MS);
        (self.leader_changes.len() >= LEADER_CHANGES).then(|| {
            Problem::new(
                LEADER_CHANGES_OFTEN,
                Severity::Warning,
                "The leader changes often".to_owned(),
                "Each change interrupts writes. Usual causes are a slow disk, an overloaded machine, or a network that \
                 loses packets.",
            )
        })
    }
}

fn of_cluster(report: &Report, found: &mut Vec<Problem>) {
    let voters = report.members.iter().filter(|member| !member.is_learner);
    let (mut all, mut down) = (0, 0);
    for voter in voters {
        all += 1;
        down += usize::from(matches!(voter.role, Role::Unreachable(..)));
    }
    let tolerated = all.max(1) - (all / 2 + 1).min(all.max(1));
    if report.leader_id.is_none() && !report.members.is_empty() {
        found.push(Problem::new(
            NO_LEADER,
            Severity::Critical,
            "The cluster has no leader".to_owned(),
            "No reachable member has a leader, so writes and linearizable reads wait. Bring back the unreachable \
             members, and check the network between the members.",
        ));
    } else if down > 0 && down == tolerated {
        found.push(Problem::new(
            QUORUM_AT_RISK,
            Severity::Critical,
            "The loss of one more member stops the cluster".to_owned(),
            "Save a snapshot now, and bring back the members that are down before you change anything else.",
        ));
    }
    let mut versions: Vec<&str> = Vec::new();
    for standing in report.members.iter().filter_map(|member| member.standing.as_ref()) {
        if !versions.contains(&&*standing.version) {
            versions.push(&standing.version);
        }
    }
    if versions.len() > 1 {
        let title = format!("The members run different versions ({})", versions.join(", "));
        let text = "That is normal during an upgrade. New features are available once all members have been upgraded.";
        found.push(Problem::new(VERSIONS_DIFFER, Severity::Info, title, text));
    }
    let most = |gauge: Gauge| {
        report
            .members
            .iter()
            .filter_map(|member| member.gauges.get(&gauge).copied())
            .reduce(f64::max)
    };
    if let Some(compacted) = most(Gauge::CompactRevision) {
        let kept = report.revision as f64 - compacted.max(0.0);
        if kept > UNCOMPACTED_REVISIONS {
            let title = format!("{kept:.0} revisions since the last compaction");
            let text = "Every revision stays in the backend file until it is compacted. Turn on automatic compaction \
                        with --auto-compaction-retention, or compact now.";
            found.push(Problem::new(NO_COMPACTION, Severity::Warning, title, text));
        }
    }
    let used = report.members.iter().filter_map(|member| member.standing.as_ref()?.used_bytes);
    if let (Some(keys), Some(used)) = (report.keys.filter(|keys| *keys > 0.0), used.max()) {
        let average = used as f64 / keys;
        if average > LARGE_BYTES {
            let title = format!("A key uses {:.0} KiB on average", average / 1024.0);
            let text = "Large values, or many old revisions of few keys, make the backend file large and restarts slow. \
                        Store large objects elsewhere, and compact.";
            found.push(Problem::new(LARGE_VALUES, Severity::Warning, title, text));
        }
    }
}

fn of_member(member: &MemberRow, found: &mut Vec<Problem>) {
    let name = &member.name;
    match &member.role {
        Role::Unreachable(since, reason) => {
            let title = format!("Member {name} is not responding");
            let mut text = format!("It has not responded for {} s: {reason}.", since.as_secs());
            if !member.is_learner {
                text += " The cluster tolerates one fewer failure until this member is back.";
            }
            found.push(Problem::new(MEMBER_DOWN, Severity::Critical, title, &text).of(member));
        }
        Role::Lost => {
            let title = format!("Member {name} has no leader");
            let text = "It serves only serializable reads and no writes. Check its network connection to the other members.";
            found.push(Problem::new(NO_LEADER, Severity::Critical, title, text).of(member));
        }
        Role::Plaintext(reason) => {
            let title = format!("Member {name} has no client URL with TLS");
            let text = format!("The console shows no figures for this member: {reason}.");
            found.push(Problem::new(MEMBER_PLAINTEXT, Severity::Warning, title, &text).of(member));
        }
        Role::Leader | Role::Follower | Role::Learner | Role::Refused(_) => {}
    }
    if let Some(lag) = member.lag.filter(|lag| *lag > LAG_ENTRIES) {
        let title = format!("Member {name} is {lag} entries behind");
        let text =
            "It applies changes later than the others, so its serializable reads are outdated.";
        found.push(Problem::new(MEMBER_BEHIND, Severity::Warning, title, text).of(member));
    }
    of_latencies(member, found);
    of_sizes(member, found);
    let gauge = |gauge: Gauge| member.gauges.get(&gauge).copied().unwrap_or_default();
    let (slow, pending) = (gauge(Gauge::SlowWatchers), gauge(Gauge::PendingEvents));
    if slow > 0.0 || pending > PENDING_EVENTS {
        let title = format!("Watchers on member {name} are not keeping up");
        let text = format!(
            "{slow:.0} watchers are behind, and {pending:.0} events are pending. A client that does not read its watch \
             delays its own events and uses memory on the member."
        );
        found.push(Problem::new(WATCHERS_SLOW, Severity::Warning, title, &text).of(member));
    }
    let failed = member.counters_per_sec.get(&Counter::FailedProposals).copied();
    if failed.is_some_and(|failed| failed > FAILED_PROPOSALS_PER_SEC) {
        let title = format!("Writes are failing on member {name}");
        let text = "Proposals fail while there is no leader or no quorum.";
        found.push(Problem::new(PROPOSALS_FAIL, Severity::Warning, title, text).of(member));
    }
}

fn of_latencies(member: &MemberRow, found: &mut Vec<Problem>) {
    let name = &member.name;
    let slow = |stage: Stage, limit: f64| {
        member.stages.get(&stage).and_then(|latency| latency.p99).filter(|secs| *secs > limit)
    };
    if let Some(secs) = slow(Stage::Fsync, FSYNC_SECS) {
        let title = format!("The disk of member {name} is slow");
        let text = format!(
            "99% of its log syncs take up to {:.0} ms, and writes wait for these syncs. Dedicate a fast local \
             disk to the log.",
            secs * 1e3
        );
        found.push(Problem::new(DISK_SLOW, Severity::Warning, title, &text).of(member));
    }
    if let Some(secs) = slow(Stage::Commit, COMMIT_SECS) {
        let title = format!("Commits on member {name} are slow");
        let text = format!(
            "99% of the commits to its backend file take up to {:.0} ms. The disk is slow or busy.",
            secs * 1e3
        );
        found.push(Problem::new(COMMIT_SLOW, Severity::Warning, title, &text).of(member));
    }
    if let Some(secs) = slow(Stage::RoundTrip, ROUND_TRIP_SECS) {
        let title = format!("The network of member {name} is slow");
        let text = format!(
            "A round trip to another member takes up to {:.0} ms. Every write needs one.",
            secs * 1e3
        );
        found.push(Problem::new(PEER_SLOW, Severity::Warning, title, &text).of(member));
    }
}

fn of_sizes(member: &MemberRow, found: &mut Vec<Problem>) {
    let Some(standing) = &member.standing else { return };
    let name = &member.name;
    let of_metrics = member.gauges.get(&Gauge::Quota).copied().filter(|quota| *quota > 0.0);
    let quota = standing.quota_bytes.map(|quota| quota as f64).or(of_metrics);
    if let Some(quota) = quota {
        let share = standing.db_bytes as f64 / quota;
        if share > QUOTA_WARNING {
            let severity =
                if share > QUOTA_CRITICAL { Severity::Critical } else { Severity::Warning };
            let title = format!("Member {name} uses {:.0}% of its quota", share * 100.0);
            let text = "At 100% the cluster refuses writes that add data. Compact old revisions, defragment the \
                        members one after the other, or raise --quota-backend-bytes.";
            found.push(Problem::new(QUOTA_NEAR, severity, title, text).of(member));
        }
    }
    let free = standing.used_bytes.map(|used| standing.db_bytes.saturating_sub(used));
    if let Some(free) = free
        && free > FREE_BYTES
        && free as f64 > FREE_SHARE * standing.db_bytes as f64
    {
        let title = format!("Defragmenting member {name} would free {} MiB", free >> 20);
        let text = "Much of its backend file is unused. Defragment one member at a time, because a member that runs \
                    etcd does not respond while it is defragmented.";
        found.push(Problem::new(DEFRAGMENTATION, Severity::Info, title, text).of(member));
    }
}

fn of_alarms(report: &Report, found: &mut Vec<Problem>) {
    let mut alarms = BTreeMap::new();
    for standing in report.members.iter().filter_map(|member| member.standing.as_ref()) {
        alarms.extend(standing.alarms.iter().map(|alarm| (alarm, ())));
    }
    for alarm in alarms.into_keys() {
        let name = report.members.iter().find(|member| member.id == alarm.member);
        let name = name.map_or_else(|| hex(alarm.member), |member| member.name.clone());
        let (kind, title) = match &*alarm.name {
            "NOSPACE" => (NO_SPACE, format!("Member {name} has no space (alarm NOSPACE)")),
            "CORRUPT" => (CORRUPT, format!("Member {name} is corrupt (alarm CORRUPT)")),
            _ => continue,
        };
        let mut problem =
            Problem::new(kind, Severity::Critical, title, advice_for_alarm(&alarm.name));
        problem.member = Some(alarm.member);
        found.push(problem);
    }
}

/// Returns advice on how to handle an alarm.
pub(crate) fn advice_for_alarm(name: &str) -> &'static str {
    match name {
        "NOSPACE" => {
            "The cluster refuses writes that add data. Compact old revisions, defragment the members one after the other, \
             then disarm the alarm."
        }
        "CORRUPT" => {
            "The member's data differs from the other members' data. Do not disarm the alarm before the cause is \
             known; replace the member."
        }
        _ => "See the runbook.",
    }
}

fn of_clocks(report: &Report, found: &mut Vec<Problem>) {
    // The members respond at different times, so each member's clock reading is compared with the arrival time of that
    // member's response.
    let offsets = report
        .members
        .iter()
        .filter_map(|member| Some((member.clock? - member.at.as_secs_f64(), &member.name)));
    let offsets: Vec<_> = offsets.collect();
    let fastest = offsets.iter().max_by(|one, other| one.0.total_cmp(&other.0));
    let slowest = offsets.iter().min_by(|one, other| one.0.total_cmp(&other.0));
    if let (Some((fast, ahead)), Some((slow, behind))) = (fastest, slowest)
        && fast - slow > CLOCK_SECS
    {
        let title = format!(
            "The clock of member {ahead} is about {:.0} s ahead of the clock of {behind}",
            fast - slow
        );
        let text = "The clocks do not affect the data, but certificates, tokens and the times in logs depend on them. \
                    Synchronize the clocks.";
        found.push(Problem::new(CLOCK_DIFFERENCE, Severity::Warning, title, text));
    }
}

fn of_certificate(certificate: &Certificate, report: &Report, now_ms: u64) -> Option<Problem> {
    let left = certificate.not_after_ms? - i64::try_from(now_ms).ok()?;
    if left > EXPIRY_WARNING_MS {
        return None;
    }
    let member = report.members.iter().find(|member| member.id == certificate.member);
    let name = member.map_or("", |member| &*member.name);
    let severity = if left > EXPIRY_CRITICAL_MS { Severity::Warning } else { Severity::Critical };
    let days = left / 86_400_000;
    let when = if left <= 0 { "has expired".to_owned() } else { format!("expires in {days} days") };
    let title = format!("A certificate of member {name} {when} ({})", certificate.place);
    let text = "Connections that use it are refused once it has expired. Replace the file; Quorate and etcd read it again \
                without a restart.";
    let mut problem = Problem::new(CERTIFICATE_EXPIRES, severity, title, text);
    problem.member = Some(certificate.member);
    Some(problem)
}

/// Returns the problems found by measuring prefixes.
pub(crate) fn of_prefixes(rows: &[Prefix]) -> Vec<Problem> {
    let writes = |row: &Prefix| {
        row.puts_per_sec.unwrap_or_default() + row.deletes_per_sec.unwrap_or_default()
    };
    let all: f64 = rows.iter().map(writes).sum();
    let mut found = Vec::new();
    let hottest = rows.iter().max_by(|one, other| writes(one).total_cmp(&writes(other)));
    if let Some(row) = hottest
        .filter(|row| rows.len() > 1 && writes(row) > HOT_PER_SEC && writes(row) > HOT_SHARE * all)
    {
        let name = String::from_utf8_lossy(&row.group.name).into_owned();
        let title = format!("Most writes go to {name:?} ({:.0} per second)", writes(row));
        let text = "Every write to a key creates a revision that stays until the next compaction, and wakes the \
                    watchers of the key.";
        found.push(Problem::new(HOT_KEY, Severity::Info, title, text));
    }
    for row in rows {
        let average = row.bytes.zip(row.keys.filter(|keys| *keys > 0));
        if let Some((bytes, keys)) = average
            && bytes / keys as f64 > LARGE_BYTES
        {
            let name = String::from_utf8_lossy(&row.group.name).into_owned();
            let kib = bytes / keys as f64 / 1024.0;
            let title = format!("The values under {name:?} are large ({kib:.0} KiB on average)");
            let text = "Large values slow down every read and watch that includes them. Store large objects elsewhere.";
            found.push(Problem::new(LARGE_VALUES, Severity::Info, title, text));
        }
        if found.len() >= 10 {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests;
