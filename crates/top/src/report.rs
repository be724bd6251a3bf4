//! Computes a report from samples: rates, latencies between two samples, the lag of members, and how long members have
//! been unreachable.
//!
//! A report is a pure function of the samples, which include the time.
//!
//! # Guarantees
//!
//! - A rate never spans a restart: if a member restarted between two samples, it has no rate.
//! - A value that was never reported is `None`, not 0.

use std::collections::BTreeMap;
use std::time::Duration;

use super::metrics::{Counter, Gauge, Histogram, Kind, Metrics, Stage};
use super::prefixes::Prefix;
use super::sample::{Alarm, Member, Sample, Standing, Trouble, TroubleKind};

/// The data that `top` displays.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The id of the cluster.
    pub cluster_id: u64,
    /// The highest revision that a member reported.
    pub revision: i64,
    /// The number of new revisions per second.
    pub revisions_per_sec: Option<f64>,
    /// The name of the leader in the newest term.
    pub leader: Option<String>,
    /// The id of the leader in the newest term.
    pub leader_id: Option<u64>,
    /// The newest term.
    pub term: u64,
    /// The number of leases, if it is known.
    pub leases: Option<u64>,
    /// The highest number of keys that a member reports.
    pub keys: Option<f64>,
    /// The members of the cluster.
    pub members: Vec<MemberRow>,
    /// The kinds of requests that have occurred.
    pub kinds: Vec<KindRow>,
    /// The durations of the stages.
    pub stages: Vec<StageRow>,
    /// The active alarms, as strings.
    pub alarms: Vec<String>,
    /// The counts, sizes and write rates of the prefixes.
    pub prefixes: Prefixes,
}

impl Report {
    /// Explains why answering members have no round-trip times. Returns `None` if all answering members have them.
    pub(super) fn round_trip_note(&self) -> Option<&'static str> {
        let timed = |row: &MemberRow| row.stages.get(&Stage::RoundTrip).and_then(|it| it.p99);
        let answering = self.members.iter().filter(|row| row.standing.is_some());
        let untimed: Vec<_> = answering.filter(|row| timed(row).is_none()).collect();
        if untimed.is_empty() {
            return None;
        }
        Some(if self.members.len() == 1 {
            "PEERS is empty: the cluster has one member"
        } else if untimed.iter().all(|row| row.gauges.is_empty()) {
            "PEERS is empty for members that do not serve /metrics"
        } else {
            "PEERS is empty until members measure a round trip, which they do every 30 s"
        })
    }
}

/// The counts, sizes and write rates of the prefixes.
#[derive(Clone, Debug, Default)]
pub struct Prefixes {
    /// The known prefixes.
    pub rows: Vec<Prefix>,
    /// The note on prefixes for the user.
    pub note: String,
    /// The time since the last complete count.
    pub age: Option<Duration>,
}

/// The role of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// The member leads.
    Leader,
    /// The member follows a leader.
    Follower,
    /// The member has no vote.
    Learner,
    /// The member has no leader.
    Lost,
    /// The member does not answer. The values are the time since its last answer, and the reason.
    Unreachable(Duration, String),
    /// The member refuses to answer this user. The value is the reason.
    Refused(String),
    /// The member receives no request, because its client URLs have no TLS and the request would contain credentials.
    /// The value explains this to the user.
    Plaintext(String),
}

/// The median and the 99th percentile of a duration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// The median, in seconds.
    pub p50: Option<f64>,
    /// The 99th percentile, in seconds.
    pub p99: Option<f64>,
}

impl Latency {
    fn of(histogram: &Histogram) -> Self {
        Self { p50: histogram.quantile(0.5), p99: histogram.quantile(0.99) }
    }
}

/// A row of the table of members.
#[derive(Clone, Debug)]
pub struct MemberRow {
    /// The id of the member; 0 if the member at an endpoint is unknown.
    pub id: u64,
    /// The name of the member, or the endpoint if the member is unknown.
    pub name: String,
    /// The role of the member.
    pub role: Role,
    /// Whether the member is a learner.
    pub is_learner: bool,
    /// The URLs at which other members connect.
    pub peer_urls: Vec<String>,
    /// The URLs at which clients connect.
    pub client_urls: Vec<String>,
    /// The reported status; `None` if the member did not answer.
    pub standing: Option<Standing>,
    /// The number of committed entries that the member has not applied.
    pub lag: Option<u64>,
    /// The duration of the status request.
    pub took: Option<Duration>,
    /// The number of requests per second.
    pub requests_per_sec: Option<f64>,
    /// The number of failed requests per second.
    pub failures_per_sec: Option<f64>,
    /// The duration of requests.
    pub requests: Latency,
    /// The duration of each stage.
    pub stages: BTreeMap<Stage, Latency>,
    /// The reported gauges.
    pub gauges: BTreeMap<Gauge, f64>,
    /// The reported counters, since the member's start.
    pub counters: BTreeMap<Counter, f64>,
    /// The increase of each counter per second.
    pub counters_per_sec: BTreeMap<Counter, f64>,
    /// The earliest expiry time of the certificates in each file, in seconds since 1970. The keys are the flags that
    /// name the files.
    pub certificates: BTreeMap<String, f64>,
    /// The member's clock, in seconds since 1970, with a resolution of one second.
    pub clock: Option<f64>,
    /// The time at which the member's responses had arrived, measured from the start of this program.
    pub at: Duration,
}

/// A row of the table of requests: one kind, summed over all members.
#[derive(Clone, Debug)]
pub struct KindRow {
    /// The kind of the requests.
    pub kind: Kind,
    /// The number of requests per second.
    pub per_sec: Option<f64>,
    /// The number of failed requests per second.
    pub failures_per_sec: Option<f64>,
    /// The duration of the requests.
    pub latency: Latency,
    /// The number of requests per second on each member, in member order.
    pub by_member: Vec<Option<f64>>,
}

/// A row of the table of stages: one stage, with its latency on each member.
#[derive(Clone, Debug)]
pub struct StageRow {
    /// The stage that the row describes.
    pub stage: Stage,
    /// The latency of each member, in member order.
    pub by_member: Vec<Latency>,
}

/// Values from previous samples that are needed for rates.
#[derive(Debug, Default)]
pub struct History {
    /// The last metrics of each member, with the time of the sample.
    metrics: BTreeMap<Identity, (Duration, Metrics)>,
    /// The time at which each unreachable member stopped answering.
    gone_since: BTreeMap<Identity, Duration>,
    /// The last round-trip times, which members measure only every 30 seconds.
    round_trips: BTreeMap<Identity, Latency>,
    revision: Option<(Duration, i64)>,
}

/// The identity of a member across samples.
type Identity = (u64, String);

fn identity(member: &Member) -> Identity {
    // Endpoints of unknown members are identified by their names.
    (member.id, if member.id == 0 { member.name.clone() } else { String::new() })
}

/// The difference between two samples of a member.
struct Between {
    secs: f64,
    old: Metrics,
    new: Metrics,
}

impl Between {
    fn per_sec(&self, old: Option<f64>, new: Option<f64>) -> Option<f64> {
        let grown = new? - old.unwrap_or_default();
        (grown >= 0.0).then(|| grown / self.secs)
    }

    fn handled(&self, kind: Kind) -> Option<(f64, f64)> {
        let (old, new) = (self.old.handled.get(&kind), self.new.handled.get(&kind));
        let all = self.per_sec(old.map(|old| old.all), new.map(|new| new.all))?;
        let failed = self.per_sec(old.map(|old| old.failed), new.map(|new| new.failed))?;
        Some((all, failed))
    }

    fn request_times(&self, kind: Kind) -> Option<Histogram> {
        grown(&self.old.requests, &self.new.requests, &kind)
    }

    fn stage(&self, stage: Stage) -> Option<Histogram> {
        grown(&self.old.stages, &self.new.stages, &stage)
    }

    /// Returns all kinds of requests that have occurred.
    fn kinds(&self) -> impl Iterator<Item = Kind> {
        self.new.handled.iter().filter(|(_, handled)| handled.all > 0.0).map(|(kind, _)| *kind)
    }
}

fn grown<K: Ord>(
    old: &BTreeMap<K, Histogram>,
    new: &BTreeMap<K, Histogram>,
    key: &K,
) -> Option<Histogram> {
    let new = new.get(key)?;
    old.get(key).map_or_else(|| Some(new.clone()), |old| new.since(old))
}

impl History {
    /// Adds a sample, and returns the report that includes it.
    pub(super) fn advance(&mut self, sample: Sample, prefixes: Prefixes) -> Report {
        let between: Vec<_> = sample.members.iter().map(|member| self.between(member)).collect();
        let gone: Vec<_> = sample.members.iter().map(|member| self.gone(member)).collect();
        let standings = || sample.members.iter().filter_map(|member| member.standing.as_ref().ok());
        let newest_index = standings().map(|standing| standing.index).max().unwrap_or_default();
        let leader = leader(&sample.members);
        let rows = sample.members.iter().zip(&between).zip(gone);
        let mut members: Vec<_> = rows
            .map(|((member, between), gone)| row(member, between.as_ref(), gone, newest_index))
            .collect();
        for (row, member) in members.iter_mut().zip(&sample.members) {
            self.remember_round_trips(row, identity(member));
        }
        let revision = standings().map(|standing| standing.revision).max().unwrap_or_default();
        let revisions_per_sec = self.revisions_per_sec(sample.at, revision);
        let keys = sample.members.iter().filter_map(|member| {
            member.metrics.as_ref().and_then(|metrics| metrics.gauges.get(&Gauge::Keys)).copied()
        });
        let report = Report {
            cluster_id: sample.cluster_id,
            revision,
            revisions_per_sec,
            leader: leader.map(|id| name_of(&sample.members, id)),
            leader_id: leader,
            term: standings().map(|standing| standing.term).max().unwrap_or_default(),
            leases: sample.leases,
            keys: keys.reduce(f64::max),
            kinds: kinds(&between),
            stages: stages(&members),
            members,
            alarms: alarms(&sample.members),
            prefixes,
        };
        self.forget(&sample);
        report
    }

    fn between(&mut self, member: &Member) -> Option<Between> {
        let new = member.metrics.clone()?;
        let (at, old) = self.metrics.insert(identity(member), (member.at, new.clone()))?;
        let secs = member.at.checked_sub(at)?.as_secs_f64();
        // A counter that has decreased indicates a new process, whose values cannot be compared with the values of the
        // old process.
        let fell = |(counter, old): (&Counter, &f64)| {
            new.counters.get(counter).is_none_or(|new| new < old)
        };
        let is_new_process = old.counters.iter().any(fell)
            || old
                .handled
                .iter()
                .any(|(kind, old)| new.handled.get(kind).is_none_or(|new| new.all < old.all));
        (secs > 0.0 && !is_new_process).then_some(Between { secs, old, new })
    }

    /// Returns how long the member has been unreachable.
    fn gone(&mut self, member: &Member) -> Duration {
        let (identity, at) = (identity(member), member.at);
        if member.standing.as_ref().is_err_and(|trouble| trouble.kind == TroubleKind::Unreachable) {
            let since = *self.gone_since.entry(identity).or_insert(at);
            return at.saturating_sub(since);
        }
        self.gone_since.remove(&identity);
        Duration::ZERO
    }

    fn revisions_per_sec(&mut self, at: Duration, revision: i64) -> Option<f64> {
        if revision == 0 {
            return None;
        }
        let (before, old) = self.revision.replace((at, revision))?;
        let secs = at.checked_sub(before)?.as_secs_f64();
        // The difference may be negative, because the member that now reports the highest revision may be slightly
        // behind the member that reported the highest revision in the last sample.
        (secs > 0.0).then(|| revision.saturating_sub(old).max(0) as f64 / secs)
    }

    /// Stores new round-trip times. If none were measured since the last sample, restores the last known round-trip
    /// times.
    fn remember_round_trips(&mut self, row: &mut MemberRow, identity: Identity) {
        let Some(timed) = row.stages.get_mut(&Stage::RoundTrip) else { return };
        if timed.p99.is_some() {
            self.round_trips.insert(identity, *timed);
        } else if let Some(last) = self.round_trips.get(&identity) {
            *timed = *last;
        }
    }

    /// Drops the history of removed members.
    fn forget(&mut self, sample: &Sample) {
        let known: Vec<_> = sample.members.iter().map(identity).collect();
        self.metrics.retain(|id, _| known.contains(id));
        self.gone_since.retain(|id, _| known.contains(id));
        self.round_trips.retain(|id, _| known.contains(id));
    }
}

/// Returns the leader in the newest term that answering members report.
fn leader(members: &[Member]) -> Option<u64> {
    let mut votes: BTreeMap<(u64, u64), usize> = BTreeMap::new();
    for standing in members.iter().filter_map(|member| member.standing.as_ref().ok()) {
        if standing.leader != 0 {
            *votes.entry((standing.term, standing.leader)).or_default() += 1;
        }
    }
    votes.into_iter().next_back().map(|((_, leader), _)| leader)
}

fn name_of(members: &[Member], id: u64) -> String {
    let member = members.iter().find(|member| member.id == id);
    member.map_or_else(|| format!("{id:x}"), |member| member.name.clone())
}

fn row(member: &Member, between: Option<&Between>, gone: Duration, newest_index: u64) -> MemberRow {
    let standing = member.standing.as_ref().ok();
    let role = match &member.standing {
        Err(Trouble { kind, text }) => match kind {
            TroubleKind::Unreachable => Role::Unreachable(gone, text.clone()),
            TroubleKind::Refusal => Role::Refused(text.clone()),
            TroubleKind::Plaintext => Role::Plaintext(text.clone()),
        },
        Ok(standing) if standing.leader == 0 => Role::Lost,
        Ok(standing) if standing.leader == member.id => Role::Leader,
        Ok(_) if member.is_learner => Role::Learner,
        Ok(_) => Role::Follower,
    };
    let metrics = member.metrics.clone().unwrap_or_default();
    let mut row = MemberRow {
        id: member.id,
        name: member.name.clone(),
        role,
        is_learner: member.is_learner,
        peer_urls: member.peer_urls.clone(),
        client_urls: member.client_urls.clone(),
        standing: standing.cloned(),
        lag: standing.map(|standing| newest_index.saturating_sub(standing.applied)),
        took: standing.map(|_| member.took),
        requests_per_sec: None,
        failures_per_sec: None,
        requests: Latency::default(),
        stages: BTreeMap::new(),
        gauges: metrics.gauges,
        counters: metrics.counters,
        counters_per_sec: BTreeMap::new(),
        certificates: metrics.certificates,
        clock: metrics.clock,
        at: member.at,
    };
    if let Some(between) = between {
        fill(&mut row, between);
    }
    row
}

fn fill(row: &mut MemberRow, between: &Between) {
    let (mut all, mut failed, mut times) = (0.0, 0.0, Histogram::default());
    for kind in between.kinds() {
        let (more, more_failed) = between.handled(kind).unwrap_or_default();
        all += more;
        failed += more_failed;
        if let Some(more) = between.request_times(kind) {
            times.merge(&more);
        }
    }
    row.requests_per_sec = Some(all);
    row.failures_per_sec = Some(failed);
    row.requests = Latency::of(&times);
    for stage in Stage::ALL {
        if let Some(histogram) = between.stage(stage) {
            row.stages.insert(stage, Latency::of(&histogram));
        }
    }
    for (counter, new) in &between.new.counters {
        let old = between.old.counters.get(counter).copied();
        if let Some(rate) = between.per_sec(old, Some(*new)) {
            row.counters_per_sec.insert(*counter, rate);
        }
    }
}

fn kinds(members: &[Option<Between>]) -> Vec<KindRow> {
    let known = || members.iter().flatten();
    let mut kinds: Vec<_> = known().flat_map(Between::kinds).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let row = |kind: Kind| {
        let rates: Vec<_> = members
            .iter()
            .map(|between| between.as_ref().and_then(|between| between.handled(kind)))
            .collect();
        let mut times = Histogram::default();
        known()
            .filter_map(|between| between.request_times(kind))
            .for_each(|more| times.merge(&more));
        KindRow {
            kind,
            per_sec: rates.iter().flatten().map(|(all, _)| *all).reduce(|sum, more| sum + more),
            failures_per_sec: rates
                .iter()
                .flatten()
                .map(|rate| rate.1)
                .reduce(|sum, more| sum + more),
            latency: Latency::of(&times),
            by_member: rates.iter().map(|rate| rate.map(|(all, _)| all)).collect(),
        }
    };
    kinds.into_iter().map(row).collect()
}

fn stages(members: &[MemberRow]) -> Vec<StageRow> {
    let of = |row: &MemberRow, stage| row.stages.get(&stage).copied().unwrap_or_default();
    let row = |stage| StageRow {
        stage,
        by_member: members.iter().map(|member| of(member, stage)).collect(),
    };
    Stage::ALL.into_iter().map(row).collect()
}

/// Returns all alarms that members report, without duplicates.
fn alarms(members: &[Member]) -> Vec<String> {
    let standings = members.iter().filter_map(|member| member.standing.as_ref().ok());
    let mut alarms: Vec<&Alarm> = standings.flat_map(|standing| &standing.alarms).collect();
    alarms.sort_unstable();
    alarms.dedup();
    let text = |alarm: &Alarm| match alarm.member {
        0 => alarm.name.clone(),
        id => format!("{} of {}", alarm.name, name_of(members, id)),
    };
    alarms.into_iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn member(id: u64, secs: u32, leader: u64, metrics: Option<&str>) -> Member {
        let standing = Standing { leader, term: 3, index: 10, applied: 10, ..Standing::default() };
        Member {
            id,
            name: format!("m{id}"),
            is_learner: false,
            peer_urls: Vec::new(),
            client_urls: Vec::new(),
            standing: Ok(standing),
            took: Duration::from_millis(1),
            at: SECOND * secs,
            metrics: metrics.map(Metrics::read),
        }
    }

    fn gone(id: u64, secs: u32) -> Member {
        let text = "connection refused".to_owned();
        let trouble = Trouble { kind: TroubleKind::Unreachable, text };
        Member { standing: Err(trouble), ..member(id, secs, 0, None) }
    }

    fn advance(history: &mut History, secs: u32, members: Vec<Member>) -> Report {
        let sample = Sample { at: SECOND * secs, members, ..Sample::default() };
        history.advance(sample, Prefixes::default())
    }

    fn puts(ok: u32, failed: u32) -> String {
        let line = |code: &str, count: u32| {
            format!(
                "grpc_server_handled_total{{grpc_code=\"{code}\",grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\"}} {count}\n"
            )
        };
        line("OK", ok) + &line("Unavailable", failed)
    }

    #[test]
    fn rates_cover_the_time_between_two_samples() {
        let mut history = History::default();
        let first = advance(&mut history, 0, vec![member(1, 0, 1, Some(&puts(10, 0)))]);
        assert!(first.kinds.is_empty() && first.members[0].requests_per_sec.is_none());
        let second = advance(&mut history, 2, vec![member(1, 2, 1, Some(&puts(30, 4)))]);
        assert_eq!(second.kinds[0].kind, Kind::Put);
        assert_eq!(second.kinds[0].per_sec, Some(12.0));
        assert_eq!(second.kinds[0].failures_per_sec, Some(2.0));
        assert_eq!(second.members[0].requests_per_sec, Some(12.0));
        assert_eq!(second.members[0].requests, Latency::default());
    }

    #[test]
    fn round_trip_times_are_kept_until_the_next_measurement() {
        let mut history = History::default();
        for (secs, timed, known) in [(0, 1, false), (1, 1, false), (2, 3, true), (3, 3, true)] {
            let line = format!(
                "etcd_network_peer_round_trip_time_seconds_bucket{{To=\"2\",le=\"0.001\"}} {timed}\n"
            );
            let report = advance(&mut history, secs, vec![member(1, secs, 1, Some(&line))]);
            let round_trips = report.stages.last().unwrap().by_member[0];
            assert_eq!(round_trips.p99.is_some(), known, "after {secs} s");
        }
    }

    #[test]
    fn a_report_explains_missing_round_trip_times() {
        let timed = |count: u32| {
            format!(
                "etcd_debugging_mvcc_keys_total 5\n\
                 etcd_network_peer_round_trip_time_seconds_bucket{{To=\"2\",le=\"0.001\"}} {count}\n"
            )
        };
        let note = |history: &mut History, secs, metrics: [Option<&str>; 2]| {
            let members = metrics.iter().zip(1..).map(|(it, id)| member(id, secs, 1, *it));
            advance(history, secs, members.collect()).round_trip_note()
        };
        let mut history = History::default();
        let before = note(&mut history, 0, [Some(&timed(1)), Some(&timed(1))]).unwrap();
        assert!(before.contains("every 30 s"), "{before}");
        assert!(note(&mut history, 1, [Some(&timed(1)), Some(&timed(1))]).is_some());
        assert_eq!(note(&mut history, 2, [Some(&timed(2)), Some(&timed(2))]), None);
        assert_eq!(note(&mut history, 3, [Some(&timed(2)), Some(&timed(2))]), None);
        let without = note(&mut History::default(), 0, [None, None]).unwrap();
        assert!(without.contains("/metrics"), "{without}");
        let alone = advance(&mut History::default(), 0, vec![member(1, 0, 1, Some(&timed(0)))]);
        assert!(alone.round_trip_note().unwrap().contains("one member"));
        // A member that has stopped answering must not be listed.
        let mut history = History::default();
        for (secs, count) in [(0, 1), (1, 2)] {
            let members = vec![member(1, secs, 1, Some(&timed(count))), gone(2, secs)];
            let note = advance(&mut history, secs, members).round_trip_note();
            assert_eq!(note.is_some(), secs == 0);
        }
    }

    #[test]
    fn a_restarted_member_has_no_rates_until_the_next_sample() {
        let mut history = History::default();
        for (secs, count, rate) in [(0, 100, None), (1, 5, None), (2, 8, Some(3.0))] {
            let metrics = puts(count, 0);
            let report = advance(&mut history, secs, vec![member(1, secs, 1, Some(&metrics))]);
            assert_eq!(report.members[0].requests_per_sec, rate);
        }
    }

    #[test]
    fn an_unreachable_member_is_reported_with_its_downtime_and_the_new_leader() {
        let mut history = History::default();
        let both = vec![member(1, 0, 1, None), member(2, 0, 1, None)];
        let report = advance(&mut history, 0, both);
        assert_eq!(report.leader.as_deref(), Some("m1"));
        assert_eq!(
            [&report.members[0].role, &report.members[1].role],
            [&Role::Leader, &Role::Follower]
        );
        advance(&mut history, 2, vec![gone(1, 2), member(2, 2, 0, None)]);
        let report = advance(&mut history, 5, vec![gone(1, 5), member(2, 5, 2, None)]);
        let reason = "connection refused".to_owned();
        assert_eq!(report.members[0].role, Role::Unreachable(SECOND * 3, reason.clone()));
        assert_eq!((report.leader.as_deref(), report.members[0].lag), (Some("m2"), None));
        advance(&mut history, 6, vec![member(1, 6, 2, None), member(2, 6, 2, None)]);
        let report = advance(&mut history, 7, vec![gone(1, 7), member(2, 7, 2, None)]);
        assert_eq!(report.members[0].role, Role::Unreachable(Duration::ZERO, reason));
    }

    #[test]
    fn alarms_are_listed_once_with_the_name_of_their_member() {
        let mut members = vec![member(1, 0, 1, None), member(2, 0, 1, None)];
        for member in &mut members {
            let alarm = Alarm { member: 2, name: "NOSPACE".to_owned() };
            member.standing.as_mut().unwrap().alarms.push(alarm);
        }
        let report = advance(&mut History::default(), 0, members);
        assert_eq!(report.alarms, ["NOSPACE of m2"]);
    }
}
