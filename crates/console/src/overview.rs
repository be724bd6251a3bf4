//! The overview: members, requests, certificates and problems, collected once per interval for all pages.
//!
//! # Guarantees
//!
//! * Nothing is collected while no page requests the figures: the collection ends after [`IDLE_TIME`].
//! * The figures come from calls made as one of the users whose pages request them. Every user sees the figures only
//!   after the cluster has accepted the user's own token (`access`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use quorate_client::Client;
use quorate_client::credentials::Token;
use quorate_client::failure::Failure;
use quorate_top::metrics::{Counter, Gauge, Stage};
use quorate_top::report::{MemberRow, Report, Role};
use quorate_top::{Reports, json as figures};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::certificates::{self, Certificate};
use crate::cluster::Cluster;
use crate::encode::hex;
use crate::problems::{Observer, Problem, advice_for_alarm};
use crate::refusal::Refusal;

/// The interval at which the figures are collected.
pub(crate) const INTERVAL: Duration = Duration::from_secs(2);

/// Time without a request from a page after which the collection ends.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// Maximum time that a page waits for the first figures.
const FIRST_TIME: Duration = Duration::from_secs(8);

/// Interval between the handshakes that fetch the certificates.
const CERTIFICATES_INTERVAL: Duration = Duration::from_secs(600);

/// Collects the figures that all pages show, and keeps the latest ones.
pub(crate) struct Overview {
    latest: RefCell<Option<(Instant, Map<String, Value>)>>,
    renewed: Notify,
    is_running: Cell<bool>,
    asked: Cell<Instant>,
    /// The token of the user whose page sent the last request.
    token: RefCell<Option<Token>>,
    /// The token with which the figures are collected.
    collecting: RefCell<Option<Token>>,
    /// The time of the last request with the token in `collecting`.
    own_asked: Cell<Instant>,
    sequence: Cell<u64>,
}

impl Overview {
    pub(crate) fn new() -> Self {
        Self {
            latest: RefCell::default(),
            renewed: Notify::new(),
            is_running: Cell::new(false),
            asked: Cell::new(Instant::now()),
            token: RefCell::default(),
            collecting: RefCell::default(),
            own_asked: Cell::new(Instant::now()),
            sequence: Cell::new(0),
        }
    }

    /// Returns the latest figures. Starts the collection if it is not running.
    pub(crate) async fn latest(
        self: &Rc<Self>,
        cluster: &Rc<Cluster>,
        token: Option<Token>,
    ) -> Result<Value, Refusal> {
        self.asked.set(Instant::now());
        if *self.collecting.borrow() == token {
            self.own_asked.set(Instant::now());
        }
        self.token.replace(token);
        if !self.is_running.replace(true) {
            self.latest.replace(None);
            let (own, cluster) = (Rc::clone(self), Rc::clone(cluster));
            tokio::task::spawn_local(async move { own.collect(&cluster).await });
        }
        let waiting = async {
            loop {
                let renewed = self.renewed.notified();
                if self.latest.borrow().is_some() {
                    return;
                }
                renewed.await;
            }
        };
        timeout(FIRST_TIME, waiting).await.map_err(|_| Refusal::no_answer())?;
        let latest = self.latest.borrow();
        let (at, figures) = latest.as_ref().ok_or_else(Refusal::no_answer)?;
        let mut figures = figures.clone();
        figures.insert("age_secs".to_owned(), at.elapsed().as_secs_f64().into());
        Ok(Value::Object(figures))
    }

    async fn collect(&self, cluster: &Cluster) {
        let mut certificates = Certificates::default();
        let mut observer = Observer::default();
        while self.asked.get().elapsed() < IDLE_TIME {
            let token = self.token.borrow().clone();
            Box::pin(self.collect_as(cluster, token, &mut certificates, &mut observer)).await;
        }
        self.is_running.set(false);
        // No page requests the figures any longer, so the token of the last request is dropped.
        self.token.replace(None);
        self.collecting.replace(None);
    }

    /// Collects the figures on behalf of one user. The collection ends when no page requests the figures. If another
    /// user also requests the figures, the collection on behalf of the first user ends when the cluster refuses the
    /// first user, or when the first user's pages stop requesting the figures.
    async fn collect_as(
        &self,
        cluster: &Cluster,
        token: Option<Token>,
        certificates: &mut Certificates,
        observer: &mut Observer,
    ) {
        self.collecting.replace(token.clone());
        self.own_asked.set(Instant::now());
        let own = cluster.token_of(token.clone());
        let connect = |endpoints: Vec<String>| -> Result<Client, Failure> {
            Ok(cluster.connect(endpoints)?.for_user(own.clone()))
        };
        let source = quorate_top::Cluster {
            endpoints: cluster.endpoints.clone(),
            transport: cluster.transport.clone(),
            has_credentials: token.is_some(),
            connect: &connect,
        };
        let mut reports = Reports::new(&source);
        let mut due = interval(INTERVAL);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.asked.get().elapsed() < IDLE_TIME {
            due.tick().await;
            let is_gone = self.own_asked.get().elapsed() >= IDLE_TIME;
            if is_gone && *self.token.borrow() != token {
                return;
            }
            let report = reports.next(INTERVAL).await;
            let is_refused =
                report.members.iter().any(|member| matches!(member.role, Role::Refused(_)));
            if is_refused && *self.token.borrow() != token {
                return;
            }
            certificates.renew(&report, cluster).await;
            let all = certificates.all(&report);
            let now_ms = now_ms();
            let problems = observer.problems(&report, &all, now_ms);
            let sequence = self.sequence.get() + 1;
            self.sequence.set(sequence);
            let mut figures = overview_json(&report, &all, &problems, now_ms);
            figures.insert("sequence".to_owned(), sequence.into());
            self.latest.replace(Some((Instant::now(), figures)));
            self.renewed.notify_waiters();
        }
    }
}

fn now_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)
}

/// The certificates that the members presented at the last handshakes.
#[derive(Default)]
struct Certificates {
    places: BTreeMap<String, u64>,
    asked: Option<Instant>,
    presented: Vec<Certificate>,
}

impl Certificates {
    async fn renew(&mut self, report: &Report, cluster: &Cluster) {
        let places = certificates::places(report);
        let is_due = self.asked.is_none_or(|at| at.elapsed() >= CERTIFICATES_INTERVAL);
        if places.is_empty() || (places == self.places && !is_due) {
            return;
        }
        self.presented = certificates::ask(&places, &cluster.transport).await;
        (self.places, self.asked) = (places, Some(Instant::now()));
    }

    fn all(&self, report: &Report) -> Vec<Certificate> {
        let mut all = self.presented.clone();
        all.extend(certificates::reported(report));
        all
    }
}

fn overview_json(
    report: &Report,
    certificates: &[Certificate],
    problems: &[Problem],
    now_ms: u64,
) -> Map<String, Value> {
    let versions = report.members.iter().filter_map(|member| member.standing.as_ref());
    let oldest = versions.map(|standing| standing.version.clone()).min();
    let mut alarms = BTreeMap::new();
    for standing in report.members.iter().filter_map(|member| member.standing.as_ref()) {
        for alarm in &standing.alarms {
            alarms.insert((alarm.member, alarm.name.clone()), ());
        }
    }
    let alarm = |(member, name): (u64, String)| {
        let advice = advice_for_alarm(&name);
        json!({ "member": hex(member), "name": name, "advice": advice })
    };
    let kinds = report.kinds.iter().map(|row| {
        let members = report.members.iter().zip(&row.by_member);
        let by_member: Map<_, _> =
            members.map(|(member, rate)| (hex(member.id), json!(rate))).collect();
        json!({
            "kind": row.kind.name(),
            "per_sec": row.per_sec,
            "failures_per_sec": row.failures_per_sec,
            "secs": figures::latency(row.latency),
            "by_member": by_member,
        })
    });
    let overview = json!({
        "unix_ms": now_ms,
        "interval_ms": u64::try_from(INTERVAL.as_millis()).unwrap_or(u64::MAX),
        "cluster": {
            "id": hex(report.cluster_id),
            "leader": report.leader_id.map(hex),
            "term": report.term,
            "revision": report.revision,
            "revisions_per_sec": report.revisions_per_sec,
            "keys": report.keys,
            "leases": report.leases,
            "version": oldest,
        },
        "members": report.members.iter().map(|row| member_json(row, now_ms)).collect::<Vec<_>>(),
        "requests": kinds.collect::<Vec<_>>(),
        "alarms": alarms.into_keys().map(alarm).collect::<Vec<_>>(),
        "certificates": certificates.iter().map(Certificate::json).collect::<Vec<_>>(),
        "problems": problems.iter().map(Problem::json).collect::<Vec<_>>(),
    });
    match overview {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn member_json(row: &MemberRow, now_ms: u64) -> Value {
    let mut member = figures::member(row);
    let error = match &row.role {
        Role::Unreachable(_, text) | Role::Refused(text) | Role::Plaintext(text) => {
            Some(text.clone())
        }
        Role::Leader | Role::Follower | Role::Learner | Role::Lost => None,
    };
    let now = now_ms as f64 / 1e3;
    let started = row.gauges.get(&Gauge::StartTime).copied().filter(|secs| *secs > 0.0);
    // A stage that the member does not report is null. A stage through which no write has passed is an object whose
    // latencies are null.
    let stage = |of: Stage| row.stages.get(&of).map(|latency| figures::latency(*latency));
    let stages = json!({
        "queue": stage(Stage::Queue),
        "quorum": stage(Stage::RoundTrip),
        "disk": stage(Stage::Fsync),
        "apply": stage(Stage::Apply),
    });
    let more = [
        ("error", json!(error)),
        ("peer_urls", json!(row.peer_urls)),
        ("client_urls", json!(row.client_urls)),
        ("is_learner", json!(row.is_learner)),
        ("uptime_secs", json!(started.map(|secs| (now - secs).max(0.0)))),
        ("clock_diff_secs", json!(row.clock.map(|secs| clock_difference(secs, now_ms)))),
        ("cpu", json!(row.counters_per_sec.get(&Counter::CpuSeconds))),
        ("leader_changes", json!(row.counters.get(&Counter::LeaderChanges))),
        ("revision", json!(row.standing.as_ref().map(|standing| standing.revision))),
        ("errors", json!(row.standing.as_ref().map(|standing| &standing.errors))),
        ("stages", stages),
    ];
    // The page shows `down` as a role, and the reason separately.
    if let Value::Object(fields) = &mut member {
        for (name, value) in more {
            fields.insert(name.to_owned(), value);
        }
    }
    member
}

/// Returns by how many seconds a member's clock is ahead of the console's clock, rounded to whole seconds. A difference
/// of less than two seconds is within the precision of the measurement, and is returned as 0.
fn clock_difference(secs: f64, now_ms: u64) -> f64 {
    let difference = secs - now_ms as f64 / 1e3;
    if difference.abs() < 2.0 { 0.0 } else { difference.round() }
}
