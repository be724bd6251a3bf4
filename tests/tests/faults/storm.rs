//! Random faults, some one after another and some at the same time.
//!
//! A seed determines the number of members, the faults and their targets and durations, and the actions of the clients.
//! Elections and the exact timing depend on the machine. A short run has a few rounds, and a long run takes an hour:
//!
//! ```text
//! QUORATE_SEED=<seed> cargo xtask test --long storm
//! ```
//!
//! Each round runs a load with its own keys, and checks the load once all faults have ended. The store is compacted
//! after each round, so that an hour needs no more space than a minute.

use std::time::{Duration, Instant};

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Cluster, ClusterOptions, Kind, Load, Random, Rule, State, Syncing, Syncs, is_long, notice, put,
};
use tonic::Code;

use crate::{SOME, on_clusters, on_clusters_of_quorate};

on_clusters! {
    the_cluster_survives_random_faults,
}

on_clusters_of_quorate! {
    a_mixed_cluster_survives_random_faults,
}

const SHORT_ROUNDS: u32 = 2;
const LONG_TIME: Duration = Duration::from_secs(3_600);

async fn the_cluster_survives_random_faults(kind: Kind) {
    let mut random = Random::by_chance();
    let size = if random.below(3) == 0 { 5 } else { 3 };
    storm(&vec![kind; size], random).await;
}

/// Runs members of both kinds in one cluster. The test is registered for one kind only, because it always uses both
/// kinds.
async fn a_mixed_cluster_survives_random_faults(kind: Kind) {
    let mut random = Random::by_chance();
    if !Kind::Etcd.is_present() {
        return;
    }
    let others = if random.below(2) == 0 { [Kind::Etcd, kind] } else { [Kind::Etcd; 2] };
    storm(&[kind, others[0], others[1]], random).await;
}

async fn storm(kinds: &[Kind], random: Random) {
    if is_long() {
        let seed = random.seed();
        notice(&format!(
            "this test injects faults for an hour; to repeat it: QUORATE_SEED={seed} cargo xtask test --long storm"
        ));
    }
    let syncing: Vec<Option<Syncing>> = kinds.iter().map(|kind| Syncing::of(*kind)).collect();
    let mut options = ClusterOptions::new(kinds[0], kinds.len()).linked();
    for (member, (kind, syncing)) in kinds.iter().zip(&syncing).enumerate() {
        options = options.member(member, |member| {
            let member = member.kind(*kind);
            syncing.iter().fold(member, |member, syncing| syncing.prepare(member))
        });
    }
    let cluster = options.start().await;
    let mut storm = Storm { cluster, syncing, random, said: Vec::new() };
    let start = Instant::now();
    let mut round = 0;
    while if is_long() { start.elapsed() < LONG_TIME } else { round < SHORT_ROUNDS } {
        round += 1;
        storm.round(round).await;
    }
}

/// The kinds of faults.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    KillMany,
    Stop,
    Pause,
    Isolate,
    Split,
    Deafen,
    Mute,
    Flap,
    Delay,
    Cut,
    Refuse,
    MoveLeader,
    Replace,
    FailSyncs,
    SlowSyncs,
}

const FAULTS: [Fault; 16] = [
    Fault::Kill,
    Fault::KillMany,
    Fault::Stop,
    Fault::Pause,
    Fault::Isolate,
    Fault::Split,
    Fault::Deafen,
    Fault::Mute,
    Fault::Flap,
    Fault::Delay,
    Fault::Cut,
    Fault::Refuse,
    Fault::MoveLeader,
    Fault::Replace,
    Fault::FailSyncs,
    Fault::SlowSyncs,
];

struct Storm {
    cluster: Cluster,
    /// Controls each member's syncs, if possible.
    syncing: Vec<Option<Syncing>>,
    random: Random,
    /// Descriptions of this round's faults.
    said: Vec<String>,
}

impl Drop for Storm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            notice(&format!("this round of the storm: {}", self.said.join("; ")));
        }
    }
}

impl Storm {
    async fn round(&mut self, round: u32) {
        self.said.clear();
        let prefix = format!("storm{round}/");
        let load = Load::start_with(&self.cluster, &mut self.random, &prefix).await;
        load.progress(SOME).await;
        for _ in 0..=self.random.below(if is_long() { 6 } else { 3 }) {
            self.inject_fault().await;
            load.work(Duration::from_millis(200 + self.random.below(2_000))).await;
            if self.random.below(2) == 0 {
                self.end_all_faults().await;
            }
        }
        self.end_all_faults().await;
        load.progress(SOME).await;
        let summary = load.finish(&self.cluster).await;
        if is_long() {
            let (done, events) = (summary.acknowledged, self.said.join("; "));
            notice(&format!("round {round}: {events}; {done} changes"));
        }
        self.compact().await;
    }

    fn say(&mut self, what: String) {
        self.said.push(what);
    }

    /// Injects a random fault.
    async fn inject_fault(&mut self) {
        let choice = self.random.below(FAULTS.len() as u64);
        let fault = FAULTS[usize::try_from(choice).unwrap()];
        // The target is always drawn, so that later draws do not depend on the faults.
        let aims_at_leader = self.random.below(2) == 0;
        let (number, amount) = (self.random.below(1_000), self.random.below(1_000));
        let running = self.cluster.running();
        let leader = if aims_at_leader { self.cluster.leader_now().await } else { None };
        let anybody = running.get(usize::try_from(number).unwrap() % running.len().max(1)).copied();
        let Some(victim) = leader.or(anybody) else { return };
        self.say(format!("{fault:?} m{victim} ({number}, {amount})"));
        match fault {
            Fault::Kill | Fault::KillMany | Fault::Stop | Fault::Pause => {
                self.strike_process(fault, victim, number).await;
            }
            Fault::Isolate
            | Fault::Split
            | Fault::Deafen
            | Fault::Mute
            | Fault::Flap
            | Fault::Delay
            | Fault::Cut
            | Fault::Refuse => self.inject_link_fault(fault, victim, number, amount),
            Fault::MoveLeader => self.move_leader(victim).await,
            // Without the last member of the older release, the cluster version would rise and could not be lowered
            // again.
            Fault::Replace if self.is_last_of_its_kind(victim) => {}
            Fault::Replace => {
                // Members switch to the other program one at a time, and only while there are no other faults.
                self.end_all_faults().await;
                self.cluster.kill(victim);
                self.cluster.replace(victim).await;
            }
            Fault::FailSyncs => {
                // The member exits at its next sync. While other faults are active, it might not reach a sync.
                self.end_all_faults().await;
                if self.set_syncs(victim, Syncs::Fail) {
                    self.cluster.ended(victim).await;
                    self.set_syncs(victim, Syncs::Work);
                }
            }
            Fault::SlowSyncs => {
                self.set_syncs(victim, Syncs::Take(Duration::from_millis(amount / 3)));
            }
        }
    }

    fn is_last_of_its_kind(&self, member: usize) -> bool {
        let kind = |member: usize| self.cluster.server(member).kind();
        let members = self.cluster.members();
        members.into_iter().all(|other| other == member || kind(other) != kind(member))
    }

    /// Returns false if this member's syncs cannot be controlled.
    fn set_syncs(&mut self, member: usize, syncs: Syncs) -> bool {
        let Some(syncing) = &mut self.syncing[member] else { return false };
        syncing.set(self.cluster.server(member), syncs);
        true
    }

    async fn strike_process(&mut self, fault: Fault, victim: usize, number: u64) {
        match fault {
            Fault::Stop if self.cluster.server(victim).kind() == Kind::Quorate => {
                self.cluster.stop(victim).await;
            }
            // etcd may wait for a majority that does not exist, so the test limits the time for the stop.
            Fault::Stop => {
                self.cluster.server(victim).signal("TERM");
                let ended = self.cluster.ended(victim);
                if tokio::time::timeout(Duration::from_secs(5), ended).await.is_err() {
                    self.cluster.kill(victim);
                }
            }
            Fault::Pause => self.cluster.pause(victim).await,
            Fault::KillMany => {
                for member in self.cluster.running() {
                    if member == victim || number >> member & 1 == 1 {
                        self.cluster.kill(member);
                    }
                }
            }
            _ => self.cluster.kill(victim),
        }
    }

    fn inject_link_fault(&self, fault: Fault, victim: usize, number: u64, amount: u64) {
        let links = self.cluster.links();
        let (one_side, other_side): (Vec<usize>, Vec<usize>) =
            self.cluster.members().into_iter().partition(|member| number >> member & 1 == 1);
        let others = self.cluster.members().into_iter().filter(|member| *member != victim);
        match fault {
            Fault::Split => links.split(&one_side, &other_side, Rule::Drop),
            Fault::Deafen => others.for_each(|other| links.set(other, victim, Rule::Drop)),
            Fault::Mute => others.for_each(|other| links.set(victim, other, Rule::Drop)),
            Fault::Flap => {
                links.set_links_of(victim, Rule::Flap { turn: Duration::from_millis(50 + amount) });
            }
            Fault::Delay => {
                let base = Duration::from_millis(amount / 10);
                links.set_all(Rule::Delay { base, jitter: base });
            }
            Fault::Cut => links.set_all(Rule::Cut { one_in: 20 + amount / 5 }),
            Fault::Refuse => links.refuse(victim),
            _ => links.isolate(victim),
        }
    }

    async fn move_leader(&self, victim: usize) {
        if let Some(leader) = self.cluster.leader_now().await {
            let request = pb::MoveLeaderRequest { target_id: self.cluster.id(victim) };
            let client = self.cluster.client(leader);
            // The transfer may fail while other faults are active.
            drop(tokio::time::timeout(Duration::from_secs(2), client.move_leader(request)).await);
        }
    }

    /// Ends all faults.
    async fn end_all_faults(&mut self) {
        self.cluster.links().heal();
        for member in self.cluster.members() {
            self.set_syncs(member, Syncs::Work);
            if self.cluster.state(member) == State::Paused {
                self.cluster.resume(member);
            }
        }
        let down = |member: &usize| self.cluster.state(*member) == State::Down;
        let down: Vec<usize> = self.cluster.members().into_iter().filter(down).collect();
        self.cluster.restart_all(&down).await;
        self.cluster.leader().await;
        self.say("calm".to_owned());
    }

    async fn compact(&self) {
        let everyone = self.cluster.everyone();
        // If no key existed, the hash would cover records that the compaction has not deleted yet.
        everyone.ask("a write", async |client| client.put(put("storm", "alive")).await).await;
        let revision = self.cluster.settle().await;
        let request = pb::CompactionRequest { revision, physical: false };
        let compacted = async |client: quorate_tests::Client| match client.compact(request).await {
            // The revision is already compacted, because an earlier attempt succeeded although its response was lost.
            Err(status) if status.code() == Code::OutOfRange => Ok(()),
            answer => answer.map(drop),
        };
        everyone.ask("a compaction", compacted).await;
    }
}
