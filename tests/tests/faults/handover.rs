//! Leaders that hand over leadership, and leaders that keep it because no other member can lead.
//!
//! A leader hands over leadership when its disk stalls, before it stops, and on request. Requests that arrive in the
//! meantime wait for the next leader. A leader with a stalled disk keeps its role if the other members cannot elect a
//! leader.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Client, Cluster, ClusterOptions, Held, Kind, Rule, Shim, Syncs, TIMEOUT, eventually,
    eventually_within, is_long, key, put, within,
};
use tonic::{Code, Status};

use crate::{CALM, on_clusters_of_quorate};

on_clusters_of_quorate! {
    one_of_two_voters_keeps_leadership_while_its_disk_is_stalled,
    a_leader_keeps_leadership_while_the_disks_of_all_members_are_stalled,
    puts_through_followers_succeed_while_a_leader_with_a_stalled_disk_hands_over,
    puts_through_followers_succeed_while_a_stopping_leader_hands_over,
    puts_through_any_member_succeed_or_may_be_retried_while_leadership_moves,
}

/// Time for which reads are checked after the leader has noticed its stalled disk. A leader that sends no heartbeats
/// would lose its followers within this time.
const STALL: Duration = Duration::from_secs(3);
/// Maximum duration of a put during a handover. A put whose proposal is lost fails only after the request timeout,
/// which is five seconds plus two election timeouts.
const PUT_TIME_MAX: Duration = Duration::from_secs(5);
/// Additional duration of a sync while a leader hands over. A candidate writes its own vote before it requests the
/// votes of other members, so a handover takes at least this long, and requests arrive at the leader during the
/// handover.
const SLOW_SYNC: Duration = Duration::from_millis(30);
/// Delay of messages between members while a leader hands over. As a result, requests also arrive at the former leader
/// after it has voted for its successor, and before it knows that the successor was elected.
const SLOW_LINK: Duration = Duration::from_millis(50);
/// Log line of a member that has noticed its stalled disk.
const STALLED: &str = "a write to the write-ahead log has taken longer than an election timeout";
/// Log line of a leader that hands over leadership because its disk has stalled.
const HANDS_OVER: &str = "because this member cannot write its write-ahead log";

async fn one_of_two_voters_keeps_leadership_while_its_disk_is_stalled(kind: Kind) {
    let Some((shims, cluster)) = with_disks(kind, 2).await else { return };
    let leader = cluster.leader().await;
    keeps_its_leader(&cluster, leader, &shims[leader]).await;
}

async fn a_leader_keeps_leadership_while_the_disks_of_all_members_are_stalled(kind: Kind) {
    let Some(shim) = Shim::build() else { return };
    let options = ClusterOptions::new(kind, 3).timing(CALM.0, CALM.1);
    let options = (0..3)
        .fold(options, |options, member| options.member(member, |options| shim.prepare(options)));
    let cluster = options.start().await;
    let leader = cluster.leader().await;
    keeps_its_leader(&cluster, leader, &shim).await;
}

/// Starts a cluster in which each member has its own disk, and tests can disturb the links.
async fn with_disks(kind: Kind, size: usize) -> Option<(Vec<Shim>, Cluster)> {
    let shims: Vec<Shim> = (0..size).map(|_| Shim::build()).collect::<Option<_>>()?;
    let options = ClusterOptions::new(kind, size).timing(CALM.0, CALM.1).linked();
    let options = shims.iter().enumerate().fold(options, |options, (member, shim)| {
        options.member(member, |options| shim.prepare(options))
    });
    Some((shims, options.start().await))
}

/// Slows down the syncs of all members, so that a handover takes longer.
fn slow_down(shims: &[Shim]) {
    shims.iter().for_each(|shim| shim.set_syncs(Syncs::Take(SLOW_SYNC)));
}

fn speed_up(shims: &[Shim]) {
    shims.iter().for_each(|shim| shim.set_syncs(Syncs::Work));
}

async fn term(cluster: &Cluster, member: usize) -> u64 {
    cluster.client(member).status(pb::StatusRequest {}).await.unwrap().raft_term
}

/// Stalls the leader's disk, and checks that the cluster still serves linearizable reads through all members.
async fn keeps_its_leader(cluster: &Cluster, leader: usize, disk: &Shim) {
    cluster.client(leader).write("k", "v").await;
    // The members settle first, because a member whose disk stalls before it has written the entry of `k` could not
    // serve the reads.
    cluster.settle().await;
    let term_before = term(cluster, leader).await;
    disk.hold(Held::Everything);
    let client = cluster.client(leader);
    // The answer does not matter: the put may time out on a slow machine.
    let stalled = tokio::task::spawn_local(async move { client.put(put("stalled", "v")).await });
    eventually("the leader notices its stalled disk", async || {
        cluster.server(leader).log().contains(STALLED).then_some(())
    })
    .await;
    let noticed = Instant::now();
    while noticed.elapsed() < STALL {
        for member in cluster.members() {
            // A quorum must confirm that the leader still leads. No disk is needed for that.
            let read = within("a read", cluster.client(member).range(key("k"))).await;
            let read = read.unwrap_or_else(|status| panic!("m{member} has no leader: {status}"));
            assert_eq!(read.count, 1);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    disk.hold(Held::Nothing);
    within("a put", cluster.client(leader).put(put("after", "v"))).await.unwrap();
    assert_eq!(cluster.leader().await, leader);
    assert_eq!(term(cluster, leader).await, term_before, "an election took place");
    for member in cluster.members() {
        assert!(
            !cluster.server(member).log().contains(HANDS_OVER),
            "m{member} transferred its leadership"
        );
    }
    drop(stalled.await);
}

async fn puts_through_followers_succeed_while_a_leader_with_a_stalled_disk_hands_over(kind: Kind) {
    let Some((shims, cluster)) = with_disks(kind, 3).await else { return };
    for _ in 0..rounds(2) {
        let leader = cluster.leader().await;
        let others: Vec<usize> = (0..3).filter(|member| *member != leader).collect();
        slow_down(&shims);
        cluster.links().set_all(Rule::Delay { base: SLOW_LINK, jitter: Duration::ZERO });
        let writers = Writers::start(&cluster, &others, Pace::Steady);
        writers.progress().await;
        shims[leader].hold(Held::Everything);
        cluster.leader_among(&others).await;
        writers.progress().await;
        writers.finish().await.assert_prompt();
        cluster.server(leader).wait_for_log(HANDS_OVER).await;
        shims[leader].hold(Held::Nothing);
        speed_up(&shims);
        cluster.links().heal();
        cluster.settle().await;
    }
}

async fn puts_through_followers_succeed_while_a_stopping_leader_hands_over(kind: Kind) {
    let Some((shims, mut cluster)) = with_disks(kind, 3).await else { return };
    for _ in 0..rounds(2) {
        let leader = cluster.leader().await;
        let others: Vec<usize> = (0..3).filter(|member| *member != leader).collect();
        slow_down(&shims);
        let writers = Writers::start(&cluster, &others, Pace::Steady);
        writers.progress().await;
        cluster.stop(leader).await;
        cluster.leader_among(&others).await;
        writers.progress().await;
        writers.finish().await.assert_prompt();
        speed_up(&shims);
        cluster.restart(leader).await;
    }
}

async fn puts_through_any_member_succeed_or_may_be_retried_while_leadership_moves(kind: Kind) {
    let cluster = ClusterOptions::new(kind, 3).timing(CALM.0, CALM.1).start().await;
    let writers = Writers::start(&cluster, &[0, 1, 2], Pace::AfterAnswer);
    writers.progress().await;
    for _ in 0..rounds(40) {
        eventually_within(TIMEOUT, "leadership is transferred", async || {
            let leader = cluster.leader_now().await?;
            let target_id = cluster.id((leader + 1) % 3);
            let client = cluster.client(leader);
            let asked = client.move_leader(pb::MoveLeaderRequest { target_id });
            let answer = tokio::time::timeout(Duration::from_secs(2), asked).await;
            // A transfer may fail because the target is behind, so it is repeated until it succeeds.
            matches!(answer, Ok(Ok(_))).then_some(())
        })
        .await;
    }
    let answers = writers.finish().await;
    assert!(answers.count > 100, "{answers:?}");
    let is_final = |status: &Status| status.code() != Code::Unavailable;
    let refused: Vec<&Status> = answers.failures.iter().filter(|one| is_final(one)).collect();
    assert!(refused.is_empty(), "clients do not retry after these errors: {refused:?}");
    answers.assert_prompt();
    cluster.check_same_content().await;
}

/// Returns the number of handovers in one test.
fn rounds(short: usize) -> usize {
    if is_long() { short * 20 } else { short }
}

/// Clients that write through some members until they are stopped.
struct Writers {
    answers: Rc<RefCell<Answers>>,
    must_stop: Rc<Cell<bool>>,
    tasks: tokio::task::JoinSet<()>,
}

/// When the clients of one member send their next put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// At fixed intervals, whether or not the previous puts are answered. Puts are therefore sent in every phase of a
    /// slow handover.
    Steady,
    /// When the previous put is answered. Many puts are therefore sent even during a fast handover.
    AfterAnswer,
}

/// Answers that the writers have received.
#[derive(Debug, Default)]
struct Answers {
    count: u64,
    slowest: Duration,
    failures: Vec<Status>,
}

impl Writers {
    /// Number of clients per member if each client waits for the answer to its previous put.
    const CLIENTS: usize = 16;
    /// Interval between the puts that a member receives at a steady pace.
    const INTERVAL: Duration = Duration::from_millis(5);
    /// Number of answers that prove that the members serve their clients.
    const SOME: u64 = 64;

    fn start(cluster: &Cluster, members: &[usize], pace: Pace) -> Self {
        let (answers, must_stop) = (Rc::<RefCell<Answers>>::default(), Rc::new(Cell::new(false)));
        let mut tasks = tokio::task::JoinSet::new();
        for member in members {
            let clients = if pace == Pace::Steady { 1 } else { Self::CLIENTS };
            for number in 0..clients {
                let client = cluster.client(*member);
                let (answers, must_stop) = (Rc::clone(&answers), Rc::clone(&must_stop));
                let name = format!("m{member}/{number}");
                tasks.spawn_local(async move {
                    let mut puts = tokio::task::JoinSet::new();
                    while !must_stop.get() {
                        puts.spawn_local(write(client.clone(), name.clone(), Rc::clone(&answers)));
                        match pace {
                            Pace::Steady => tokio::time::sleep(Self::INTERVAL).await,
                            Pace::AfterAnswer => puts.join_next().await.unwrap().unwrap(),
                        }
                    }
                    puts.join_all().await;
                });
            }
        }
        Self { answers, must_stop, tasks }
    }

    /// Waits for further answers.
    async fn progress(&self) {
        let before = self.answers.borrow().count;
        eventually_within(TIMEOUT, "clients put keys", async || {
            (self.answers.borrow().count >= before + Self::SOME).then_some(())
        })
        .await;
    }

    /// Waits until all clients have received their last answer.
    async fn finish(mut self) -> Answers {
        self.must_stop.set(true);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        self.answers.take()
    }
}

impl Answers {
    /// Checks that every put succeeded, and that no put waited for the request timeout.
    #[track_caller]
    fn assert_prompt(&self) {
        assert!(self.failures.is_empty(), "{self:?}");
        assert!(self.slowest < PUT_TIME_MAX, "{self:?}");
    }
}

async fn write(client: Client, key: String, answers: Rc<RefCell<Answers>>) {
    let start = Instant::now();
    let answer = client.put(put(key, "v")).await;
    let mut answers = answers.borrow_mut();
    answers.count += 1;
    answers.slowest = answers.slowest.max(start.elapsed());
    answers.failures.extend(answer.err());
}
