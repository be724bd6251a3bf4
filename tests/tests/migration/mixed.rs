//! A cluster with members of two kinds under load. All cluster operations are performed with each mix of members.
//!
//! The founding members are on one side, their replacements on the other. As a control, both sides can run the same
//! program: a cluster of that program alone must meet the same requirements.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Client, Cluster, ClusterOptions, Kind, Options, TIMEOUT, eventually_ok, eventually_within,
};
use tokio::time::timeout;

use crate::directory::Directory;
use crate::guarded;
use crate::leases::Leases;
use crate::load::Load;
use crate::witness::Witness;

/// Returns the flags of every member. A member keeps only a short log, so that a member that was briefly absent needs a
/// snapshot.
pub(crate) const fn flags(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Etcd => &[
            "--strict-reconfig-check=false",
            "--snapshot-count=200",
            "--experimental-snapshot-catchup-entries=100",
        ],
        Kind::Quorate => &[
            "--strict-reconfig-check=false",
            "--snapshot-count=200",
            "--snapshot-catchup-entries=100",
            "--hold-cluster-version=3.5",
        ],
    }
}

/// Adds the flags of every member to the options.
pub(crate) fn with_flags(options: Options, kind: Kind) -> Options {
    flags(kind).iter().fold(options.kind(kind), |options, flag| options.flag(*flag))
}

/// Returns the options of three etcd members.
fn founders() -> ClusterOptions {
    (0..3).fold(ClusterOptions::new(Kind::Etcd, 3), |options, number| {
        options.member(number, |member| with_flags(member, Kind::Etcd))
    })
}

/// How a member is made absent.
#[derive(Clone, Copy, Debug)]
enum Absence {
    /// The member's process is killed and later restarted.
    Killed,
    /// The member's process is paused, and the connections of its clients stay open.
    Paused,
}

/// A cluster under load.
#[derive(Debug)]
pub(crate) struct Mixed {
    pub(crate) cluster: Cluster,
    /// Replacements of the founding members.
    newcomers: BTreeSet<usize>,
    directory: Directory,
    load: Load,
    leases: Leases,
    witnesses: BTreeMap<usize, Witness>,
    roaming: Witness,
    is_guarded: bool,
    legs: usize,
}

impl Mixed {
    /// Starts three etcd members, and clients that write, renew leases and watch.
    pub(crate) async fn start() -> Self {
        Self::over(founders().start().await, false).await
    }

    /// Starts a guarded cluster, which has authentication enabled and requires certificates from clients and peers.
    pub(crate) async fn start_guarded() -> Self {
        let cluster = founders().guarded().start().await;
        guarded::prepare(&cluster).await;
        Self::over(cluster, true).await
    }

    async fn over(cluster: Cluster, is_guarded: bool) -> Self {
        let directory = Directory::default();
        directory.set((0..3).map(|member| (member, cluster.client(member))).collect());
        let witnesses = (0..3).map(|member| (member, witness(&cluster, member, 1))).collect();
        Self {
            newcomers: BTreeSet::new(),
            load: Load::start(&directory),
            leases: Leases::start(&directory).await,
            witnesses,
            roaming: Witness::roaming(directory.clone(), 1),
            directory,
            cluster,
            is_guarded,
            legs: 0,
        }
    }

    /// Assigns a member to a side.
    pub(crate) fn take_side(&mut self, member: usize, newcomer: bool) {
        if newcomer {
            self.newcomers.insert(member);
        } else {
            self.newcomers.remove(&member);
        }
    }

    /// Makes clients use an added member, which also gets its own watcher.
    pub(crate) fn admit(&mut self, member: usize) {
        self.witnesses.insert(member, witness(&self.cluster, member, self.roaming.next()));
        self.set_members_of_clients(self.cluster.members());
    }

    /// Makes clients stop using a member. Checks the events that its watcher has received so far.
    pub(crate) async fn remove_from_clients(&mut self, member: usize) {
        let mut members = self.cluster.members();
        members.retain(|other| *other != member);
        self.set_members_of_clients(members);
        let revision = self.witnesses_agree().await;
        let witness = self.witnesses.remove(&member).expect("a member has a watcher");
        witness.check_against(&self.roaming, revision);
    }

    fn set_members_of_clients(&self, members: Vec<usize>) {
        let clients = members.into_iter().map(|member| (member, self.cluster.client(member)));
        self.directory.set(clients.collect());
    }

    /// Makes each side lead in turn and each leader perform all duties of a leader, then compares the members.
    pub(crate) async fn exercise(&mut self) {
        let (new, old): (Vec<usize>, Vec<usize>) =
            self.directory.numbers().into_iter().partition(|one| self.newcomers.contains(one));
        for (side, others) in [(&old, &new), (&new, &old)] {
            // If a side has several members, they lead alternately.
            let Some(leader) = side.get(self.legs % side.len().max(1)).copied() else { continue };
            let target = others.iter().chain(side).copied().find(|other| *other != leader);
            self.lead(leader).await;
            self.leases.leave(self.legs).await;
            self.load.pass_through(&self.directory.numbers()).await;
            self.read_through_all(leader).await;
            self.leases.check_kept().await;
            self.send_snapshot(leader, target.expect("a cluster has several members")).await;
            self.lead(leader).await;
            self.leases.check_left(&self.roaming).await;
            self.legs += 1;
        }
        self.compact().await;
        self.witnesses_agree().await;
        self.members_agree().await;
        self.tools_agree().await;
        if self.is_guarded {
            guarded::check(&self.cluster).await;
        }
    }

    /// Makes a member the leader.
    pub(crate) async fn lead(&self, member: usize) {
        let target_id = self.cluster.id(member);
        eventually_ok(TIMEOUT, &format!("m{member} becomes leader"), async || {
            let leader = self.cluster.leader().await;
            if leader == member {
                return Ok(());
            }
            let request = pb::MoveLeaderRequest { target_id };
            let client = self.cluster.client(leader);
            let answer = timeout(Duration::from_secs(2), client.move_leader(request)).await;
            if answer.as_ref().is_ok_and(Result::is_ok) {
                // The members may take a moment to agree.
                self.cluster.leader_among(&[member]).await;
                return Ok(());
            }
            Err((leader, answer))
        })
        .await;
    }

    /// Checks that every member, including the leader, reads the values that the leader has acknowledged.
    async fn read_through_all(&self, leader: usize) {
        let key = format!("read/{}", self.legs);
        let client = self.cluster.client(leader);
        eventually_ok(TIMEOUT, "a write", async || {
            client.put(quorate_tests::put(&key, "v")).await.map(drop)
        })
        .await;
        for member in self.directory.numbers() {
            let client = self.cluster.client(member);
            let found = eventually_ok(TIMEOUT, "a read", async || {
                client.range(quorate_tests::key(&key)).await
            })
            .await;
            assert_eq!(found.count, 1, "m{member} does not have {key} yet");
        }
    }

    /// Makes the leader send a snapshot to another member, and checks the logs of both.
    async fn send_snapshot(&mut self, leader: usize, target: usize) {
        let sent_before = self.count(leader, "etcd_network_snapshot_send_success") > 0;
        if sent_before && self.cluster.server(leader).kind() == Kind::Etcd {
            // For half a minute after sending a snapshot, etcd keeps its whole log, unless it is restarted.
            self.cluster.stop(leader).await;
            self.cluster.restart(leader).await;
        }
        let absence = if self.legs % 3 == 2 { Absence::Paused } else { Absence::Killed };
        for attempt in 1..=5 {
            self.lead(leader).await;
            let sent = self.snapshots_sent(leader, target);
            let received = match absence {
                Absence::Paused => self.snapshots_received(target),
                // The counter restarts at 0 with the process.
                Absence::Killed => 0,
            };
            self.absent(leader, target, absence, 400 * attempt).await;
            self.catch_up(target).await;
            if self.snapshots_received(target) > received
                && self.snapshots_sent(leader, target) > sent
            {
                return;
            }
        }
        panic!("m{leader} did not send a snapshot to m{target}");
    }

    /// Makes a member absent, writes more than the leader keeps in its log, and brings the member back.
    async fn absent(&mut self, leader: usize, target: usize, absence: Absence, count: usize) {
        match absence {
            Absence::Killed => self.cluster.kill(target),
            Absence::Paused => {
                self.cluster.pause(target).await;
                // A leader keeps sending to a member that it considers healthy, and the data waits in the connections.
                // A new leader probes the member first.
                let mut others = self.directory.numbers();
                others.retain(|other| *other != leader && *other != target);
                self.lead(others[0]).await;
                self.lead(leader).await;
            }
        }
        self.load.fill(leader, &self.cluster.client(leader), count).await;
        match absence {
            Absence::Killed => self.cluster.restart(target).await,
            Absence::Paused => self.cluster.resume(target),
        }
    }

    /// Waits until a member has caught up with the others.
    async fn catch_up(&self, member: usize) {
        let revision = self.revision().await;
        let client = self.cluster.client(member);
        eventually_ok(TIMEOUT, &format!("m{member} catches up"), async || {
            let status = timeout(Duration::from_secs(2), client.status(pb::StatusRequest {})).await;
            let header = status.map_err(|_| "silent".to_owned())?;
            let at = header.map_err(|status| status.to_string())?.header.unwrap().revision;
            if at >= revision {
                Ok(())
            } else {
                Err(format!("m{member} is at revision {at}, the target is {revision}"))
            }
        })
        .await;
    }

    /// Returns the newest revision of a running member.
    async fn revision(&self) -> i64 {
        let statuses = self.cluster.statuses().await.into_iter().filter_map(|(_, status)| status);
        statuses
            .map(|status| status.header.unwrap().revision)
            .max()
            .expect("at least one member returns its status")
    }

    fn snapshots_sent(&self, from: usize, to: usize) -> u64 {
        let to = self.cluster.id(to);
        let series = format!("etcd_network_snapshot_send_success{{To=\"{to:x}\"}}");
        self.count(from, &series)
    }

    fn snapshots_received(&self, member: usize) -> u64 {
        self.count(member, "etcd_network_snapshot_receive_success")
    }

    /// Returns the sum of all series of a metric, or the value of the series with these labels.
    fn count(&self, member: usize, name: &str) -> u64 {
        let text = self.cluster.server(member).get("/metrics").text();
        let samples = text.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
        });
        let values = samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        let sum = values.sum::<f64>() as u64;
        sum
    }

    /// Compacts all revisions that every watcher has received, except the last hundred.
    async fn compact(&self) {
        let seen = self.witnesses.values().chain([&self.roaming]).map(Witness::next).min();
        let request = pb::CompactionRequest { revision: seen.unwrap() - 100, physical: false };
        eventually_ok(TIMEOUT, "a compaction", async || {
            let compacted = "etcdserver: mvcc: required revision has been compacted";
            match self.directory.pick(self.legs).1.compact(request).await {
                // An earlier attempt may have succeeded without an answer.
                Err(status) if status.message() != compacted => Err(status),
                _ => Ok(()),
            }
        })
        .await;
    }

    /// Waits until all watchers have received all events so far. Returns the revision.
    async fn witnesses_agree(&self) -> i64 {
        let revision = self.revision().await;
        for witness in self.witnesses.values().chain([&self.roaming]) {
            witness.reach(revision).await;
        }
        revision
    }

    /// Waits until all members have the newest revision, and checks that their histories are equal, regardless of which
    /// member wrote, installed or compacted them.
    async fn members_agree(&self) {
        let request = pb::HashKvRequest { revision: self.revision().await };
        let what = format!("all members have the same history up to revision {}", request.revision);
        eventually_ok(TIMEOUT, &what, async || {
            let answers: Vec<_> = self
                .cluster
                .ask_running(|client| async move { client.hash_kv(request).await })
                .await
                .into_iter()
                .map(|(_, answer)| answer.map(|answer| (answer.compact_revision, answer.hash)))
                .collect();
            let same = answers.iter().all(|answer| answer.is_some() && *answer == answers[0]);
            if same { Ok(()) } else { Err(answers) }
        })
        .await;
    }

    /// Checks the output of tools: the version of each member, the cluster version, and the member list.
    async fn tools_agree(&self) {
        for member in self.directory.numbers() {
            let version = self.cluster.server(member).get("/version").text();
            let version: serde_json::Value = serde_json::from_str(&version).unwrap();
            let server = version["etcdserver"].as_str().unwrap_or_default();
            assert!(server.starts_with("3.5."), "m{member}: {version}");
            assert_eq!(version["etcdcluster"], "3.5.0", "m{member}: {version}");
        }
        for (number, status) in self.cluster.statuses().await {
            let status = status.unwrap_or_else(|| panic!("m{number} did not return its status"));
            assert!(status.version.starts_with("3.5."), "m{number}: {status:?}");
            assert!(status.errors.is_empty(), "m{number}: {status:?}");
        }
        let expected: BTreeSet<_> = self.cluster.members().into_iter().collect();
        let request = pb::MemberListRequest { linearizable: false };
        let ask = |client: Client| async move { client.member_list(request).await };
        for (number, answer) in self.cluster.ask_running(ask).await {
            let answer = answer.unwrap_or_else(|| panic!("m{number} did not list the members"));
            let mut listed = BTreeSet::new();
            for member in &answer.members {
                let found = self
                    .cluster
                    .by_id(member.id)
                    .expect("the listed member belongs to this cluster");
                let server = self.cluster.server(found);
                assert!(
                    member.name == server.name()
                        && member.client_urls == [server.url()]
                        && member.peer_urls == [server.peer_url()]
                        && !member.is_learner,
                    "m{number} lists m{found} at {} as {:?}",
                    server.url(),
                    answer.members
                );
                listed.insert(found);
            }
            assert_eq!(listed, expected, "m{number} lists {:?}", answer.members);
        }
    }

    /// Stops the load, and compares all promises with all events.
    pub(crate) async fn finish(mut self) {
        self.load.end().await;
        self.leases.check_left(&self.roaming).await;
        self.leases.check_kept().await;
        let revision = self.witnesses_agree().await;
        self.members_agree().await;
        for witness in self.witnesses.values() {
            witness.check_against(&self.roaming, revision);
        }
        self.leases.check_never_expired(&self.roaming);
        let sightings = self.roaming.sightings();
        let promises = self.load.check(&sightings);
        assert!(promises > 1000, "only {promises} writes were acknowledged");
        for member in self.cluster.members() {
            check_state(&self.cluster.client(member), &sightings).await;
        }
    }

    /// Waits until a removed member has exited.
    pub(crate) async fn ends(&mut self, member: usize) {
        eventually_within(TIMEOUT, "the removed member exits", async || {
            (!self.cluster.server_mut(member).is_running()).then_some(())
        })
        .await;
        self.cluster.ended(member).await;
    }
}

fn witness(cluster: &Cluster, member: usize, start: i64) -> Witness {
    Witness::at(Directory::of(member, cluster.client(member)), start)
}

/// Checks that a member has exactly the state that follows from the events.
async fn check_state(client: &Client, sightings: &[crate::witness::Sighting]) {
    let mut expected = BTreeMap::new();
    for one in sightings {
        match one.value() {
            Some(_) => expected.insert(one.key().to_vec(), one.event.kv.clone().unwrap()),
            None => expected.remove(one.key()),
        };
    }
    let found = client.range(quorate_tests::from_key("\0")).await.unwrap().kvs;
    let expected: Vec<_> = expected.into_values().collect();
    assert_eq!(found, expected, "the keys of a member differ from the events of its watchers");
}
