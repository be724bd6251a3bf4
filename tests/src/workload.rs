//! Clients that use a cluster during faults, and checks of everything that they observed.
//!
//! [`Load::start`] starts clients that read, write, swap and delete a few keys through random members, a watcher for
//! each member, and the renewal of a lease. [`Load::finish`] stops them, waits until the members agree, and checks that
//!
//! * all members have the same contents (`HashKV`);
//! * one order of all operations explains every answer that a client received ([`crate::linear`]);
//! * every acknowledged change is in the history at the revision that the client received, no change was made twice,
//!   and each read agrees with the history at its revision;
//! * each watcher received every event of the history exactly once and in order, despite all interruptions;
//! * the renewed lease still exists, and the lease without renewals has expired.
//!
//! An operation with an unknown outcome may or may not have taken effect. Only a refused connection proves that it has
//! not.

mod clients;
mod events;
mod leases;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::linear::{Operations, Value};
use crate::{Cluster, Random, TIMEOUT, eventually_ok};
use clients::Traits;
use events::{Event, Watcher};
use leases::Leases;

/// Number of clients that send all kinds of operations.
const CLIENTS: u64 = 6;
/// Number of keys that the clients share.
const KEYS: u64 = 4;
/// Time limit of the checker for each key.
const BUDGET: Duration = Duration::from_secs(60);

/// An observation that a client made at a revision.
#[derive(Clone, Debug)]
enum Fact {
    /// The client stored a value.
    Stored { key: String, value: Value, revision: i64 },
    /// The client deleted a key.
    Deleted { key: String, revision: i64 },
    /// While the store was at a revision, the client found a value and the revision that stored it, or found no value.
    Found { key: String, found: Option<(Value, i64)>, revision: i64 },
}

#[derive(Debug, Default)]
struct Record {
    operations: Operations,
    facts: Vec<Fact>,
    /// Number of occurrences of each error.
    failures: BTreeMap<String, u64>,
}

/// State shared by all clients.
#[derive(Debug)]
struct Shared {
    prefix: String,
    start: Instant,
    stop: AtomicBool,
    record: Mutex<Record>,
    acknowledged: AtomicU64,
    values: AtomicU64,
}

impl Shared {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos())
            .expect("the duration of a test fits into 64 bits")
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn next_value(&self) -> Value {
        self.values.fetch_add(1, Ordering::Relaxed)
    }
}

/// Results of a load.
#[derive(Debug)]
pub struct Summary {
    /// Number of operations that may have had an effect.
    pub operations: usize,
    /// Number of acknowledged changes.
    pub acknowledged: u64,
    /// Errors that clients received, and the number of occurrences of each.
    pub failures: BTreeMap<String, u64>,
    /// Number of times that watchers were restarted.
    pub interruptions: u64,
}

/// Running clients. Dropping the value stops them without any check.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    clients: JoinSet<()>,
    watchers: Vec<Watcher>,
    leases: Leases,
    /// First revision to be checked.
    first: i64,
}

impl Load {
    /// Starts clients for all members of a cluster.
    pub async fn start(cluster: &Cluster, random: &mut Random) -> Self {
        Self::start_with(cluster, random, "load/").await
    }

    /// Starts clients that use keys with this prefix, so that several loads can run one after another.
    pub async fn start_with(cluster: &Cluster, random: &mut Random, prefix: &str) -> Self {
        let revision = async |client: crate::Client| {
            let answer = client.range(crate::key("\0")).await?;
            Ok(answer.header.map_or(0, |header| header.revision))
        };
        let first = 1 + cluster.everyone().ask("the revision", revision).await;
        let shared = Arc::new(Shared {
            prefix: prefix.to_owned(),
            start: Instant::now(),
            stop: AtomicBool::new(false),
            record: Mutex::default(),
            acknowledged: AtomicU64::new(0),
            values: AtomicU64::new(1),
        });
        let members = cluster.members();
        let watchers =
            members.iter().map(|member| Watcher::start(*member, cluster.client(*member), first));
        let mut load = Self {
            clients: JoinSet::new(),
            watchers: watchers.collect(),
            leases: Leases::start(cluster, &shared, random),
            shared,
            first,
        };
        for _ in 0..CLIENTS {
            let clients = members.iter().map(|member| cluster.client(*member)).collect();
            load.spawn(clients, Traits::ANY, random);
        }
        load
    }

    /// Adds clients that only read, through one member and with a long timeout.
    pub fn read_from(&mut self, cluster: &Cluster, member: usize, random: &mut Random) {
        for _ in 0..CLIENTS {
            self.spawn(vec![cluster.client(member)], Traits::PATIENT_READER, random);
        }
    }

    fn spawn(&mut self, clients: Vec<crate::Client>, traits: Traits, random: &mut Random) {
        let number = self.clients.len();
        let seed = Random::new(random.below(u64::MAX));
        let client = clients::Worker::new(&self.shared, number, clients, seed, traits);
        self.clients.spawn_local(client.run());
    }

    /// Returns the number of changes acknowledged so far.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// Waits until this number of further changes has been acknowledged, which shows that the cluster serves its
    /// clients.
    pub async fn progress(&self, changes: u64) {
        let goal = self.acknowledged() + changes;
        eventually_ok(TIMEOUT, "more changes are acknowledged", async || {
            if self.acknowledged() >= goal {
                return Ok(());
            }
            Err(self.shared.record.lock().unwrap().failures.clone())
        })
        .await;
    }

    /// Waits for this duration while the clients work.
    pub async fn work(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Stops the clients and checks all their observations. All members of the cluster must run.
    pub async fn finish(mut self, cluster: &Cluster) -> Summary {
        self.shared.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.unwrap();
        }
        self.leases.check(cluster, &self.shared).await;
        let revision = cluster.check_same_content().await;
        let leader = cluster.leader().await;
        let history = events::read(&cluster.client(leader), self.first, revision).await;
        let mut interruptions = 0;
        for watcher in self.watchers {
            interruptions += watcher.check(&history).await;
        }
        let record = std::mem::take(&mut *self.shared.record.lock().unwrap());
        check_once(&self.shared.prefix, &history);
        check_facts(&record.facts, &history);
        let operations = record.operations.len();
        record.operations.check(BUDGET);
        let acknowledged = self.shared.acknowledged.load(Ordering::Relaxed);
        assert!(acknowledged > 0, "no change was acknowledged: {:?}", record.failures);
        Summary { operations, acknowledged, failures: record.failures, interruptions }
    }
}

/// Checks that no value was stored twice.
fn check_once(prefix: &str, history: &[Event]) {
    let mut values = BTreeSet::new();
    for event in history.iter().filter(|event| event.key.starts_with(prefix)) {
        if let Some(value) = &event.value {
            assert!(values.insert(value), "a value was stored twice: {event:?}");
        }
    }
}

/// Checks that all observations of clients agree with the history.
fn check_facts(facts: &[Fact], history: &[Event]) {
    let mut by_key: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for event in history {
        by_key.entry(&event.key).or_default().push(event);
    }
    // Returns the last event of a key up to a revision.
    let at = |key: &str, revision: i64| {
        let events = by_key.get(key).map_or(&[][..], Vec::as_slice);
        let count = events.partition_point(|event| event.revision <= revision);
        count.checked_sub(1).map(|last| events[last])
    };
    for fact in facts {
        let holds = match fact {
            Fact::Stored { key, value, revision } => at(key, *revision)
                .is_some_and(|event| event.revision == *revision && event.number() == Some(*value)),
            Fact::Deleted { key, revision } => at(key, *revision)
                .is_some_and(|event| event.revision == *revision && event.value.is_none()),
            Fact::Found { key, found, revision } => {
                let event = at(key, *revision);
                *found == event.and_then(|event| Some((event.number()?, event.revision)))
            }
        };
        assert!(holds, "the history contradicts {fact:?}");
    }
}
