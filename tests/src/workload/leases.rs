//! A lease that is renewed through all faults, and a lease without renewals.
//!
//! A leader that was suspended for longer than the TTL finds the lease expired when it resumes, even if another leader
//! has renewed the lease in the meantime. It must therefore confirm its leadership with a quorum before it revokes the
//! lease. etcd's leader is supposed to do so as well, but the first tick of its clock renews the previous confirmation,
//! and may come before the new leader's message. For this reason the renewed lease is not checked if an etcd member was
//! suspended for that long.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quorate_api::etcdserverpb as pb;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use super::Shared;
use crate::{Client, Cluster, Endpoints, Kind, Random, TIMEOUT, eventually_ok, put_leased};

/// TTL of the renewed lease, in seconds.
const KEPT: u32 = 10;
/// TTL of the lease without renewals, in seconds.
const LEFT: u32 = 2;
/// Tolerance for inexact clocks, and for a deposed leader that renews leases until it notices that it was deposed.
const SLACK: Duration = Duration::from_secs(3);

/// The leases of a load.
#[derive(Debug)]
pub(super) struct Leases {
    kept: i64,
    left: i64,
    state: Arc<Mutex<State>>,
    task: JoinSet<()>,
}

/// Maximum number of recent renewals recorded for the failure message.
const RENEWALS: usize = 40;

#[derive(Debug, Default)]
struct State {
    /// Time at which the last successful renewal was sent.
    renewed: Option<Instant>,
    /// The last requests: when each was sent and answered, relative to the start of the load, and the result.
    renewals: VecDeque<(Duration, Duration, Result<i64, String>)>,
    /// Whether a renewal failed to find a lease that should exist.
    is_lost: bool,
}

impl State {
    /// Returns whether the lease must still exist.
    fn is_due(&self) -> bool {
        let lasts = Duration::from_secs(KEPT.into()) - SLACK;
        self.renewed.is_some_and(|renewed| renewed.elapsed() < lasts)
    }

    /// Records the answer to a request that was sent at the time `sent`. An error shows neither that the lease exists
    /// nor that it is lost.
    fn note(&mut self, start: Instant, sent: Instant, answer: &Result<i64, Status>) {
        match answer {
            Ok(1..) => self.renewed = Some(sent),
            Ok(_) => self.is_lost |= self.is_due(),
            Err(_) => {}
        }
        if self.renewals.len() == RENEWALS {
            self.renewals.pop_front();
        }
        let answer = answer.as_ref().map_err(Status::to_string);
        self.renewals.push_back((sent - start, start.elapsed(), answer.copied()));
    }
}

fn name(shared: &Shared, which: &str) -> String {
    format!("{}lease/{which}", shared.prefix)
}

impl Leases {
    pub(super) fn start(cluster: &Cluster, shared: &Arc<Shared>, random: &mut Random) -> Self {
        let id =
            i64::try_from(random.below(1 << 40)).expect("an id below 2^40 fits into an i64") + 1;
        let state = Arc::new(Mutex::new(State::default()));
        let mut task = JoinSet::new();
        task.spawn_local(keep(cluster.everyone(), Arc::clone(shared), id, Arc::clone(&state)));
        Self { kept: id, left: id + 1, state, task }
    }

    pub(super) async fn check(mut self, cluster: &Cluster, shared: &Shared) {
        while let Some(ended) = self.task.join_next().await {
            ended.unwrap();
        }
        let is_overslept = cluster.longest_pause(Kind::Etcd) >= Duration::from_secs(KEPT.into());
        if !is_overslept {
            let state = self.state.lock().unwrap();
            assert!(!state.is_lost, "a renewed lease no longer exists: {:#?}", state.renewals);
        }
        let everyone = cluster.everyone();
        let due = || self.state.lock().unwrap().is_due();
        let ask = async |id: i64| {
            let request = pb::LeaseTimeToLiveRequest { id, keys: true };
            let ask = async |client: Client| client.lease_time_to_live(request).await;
            everyone.ask("the remaining TTL of a lease", ask).await
        };
        let read = async |which: &str| {
            let request = crate::key(name(shared, which));
            let read = async |client: Client| client.range(request.clone()).await;
            everyone.ask("the key of a lease", read).await.count
        };
        let (answer, count) = (ask(self.kept).await, read("kept").await);
        assert!(
            answer.ttl > 0 && answer.keys.len() == 1 && count == 1 || !due() || is_overslept,
            "a renewed lease or its key no longer exists: {answer:?}"
        );
        eventually_ok(TIMEOUT, "the lease without renewals expires", async || {
            let (answer, count) = (ask(self.left).await, read("left").await);
            if answer.ttl == -1 && count == 0 { Ok(()) } else { Err((answer, count)) }
        })
        .await;
    }
}

async fn keep(everyone: Endpoints, shared: Arc<Shared>, id: i64, state: Arc<Mutex<State>>) {
    for (id, ttl, which) in [(id, KEPT, "kept"), (id + 1, LEFT, "left")] {
        let grant = pb::LeaseGrantRequest { id, ttl: ttl.into() };
        let granted = async |client: Client| match client.lease_grant(grant).await {
            // The lease already exists, because an earlier attempt succeeded although its response was lost.
            Err(status) if status.code() == Code::FailedPrecondition => Ok(()),
            answer => answer.map(drop),
        };
        everyone.ask("a lease", granted).await;
        let write = put_leased(name(&shared, which), format!("under {id}"), id);
        let written = async |client: Client| match client.put(write.clone()).await {
            // The lease without renewals may already have expired.
            Err(status) if status.code() == Code::NotFound && which == "left" => Ok(()),
            answer => answer.map(drop),
        };
        everyone.ask("a key under a lease", written).await;
    }
    while !shared.stopped() && !state.lock().unwrap().is_lost {
        let sent = Instant::now();
        let answer = everyone.try_ask(async |client| client.renew(id).await).await;
        state.lock().unwrap().note(shared.start, sent, &answer);
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}
