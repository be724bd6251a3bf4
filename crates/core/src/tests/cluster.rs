//! Three members and their network. The network drops the messages from and to a disconnected member.
//!
//! The first member's clock runs faster than the clocks of the other members, so the first member leads while it is
//! running.

use quorate_raft::{ConfChange, ConfChangeKind, SnapshotOutcome};
use quorate_seeded_random::SplitMix64;
use quorate_state::members::Member as Row;
use quorate_state::units::MemberId;
use quorate_storage::disk::FaultyDisk;

use super::member::{Input, Outcome, TURNS, Turn, small_segments};
use super::{Client, Folder, Member};

pub(super) const COUNT: usize = 3;

/// The position of the first member, which leads.
pub(super) const LEADER: usize = 0;

/// The position of the member whose disk loses power.
pub(super) const VICTIM: usize = 2;

/// The id of a learner that is added but never started.
const LEARNER: u64 = 9;

/// The maximum number of turns until a condition is met.
const TURNS_MAX: u64 = 200_000;

pub(super) struct Cluster {
    folders: [Folder; COUNT],
    members: [Option<Member>; COUNT],
    pub(super) is_cut_off: bool,
    pub(super) client: Client,
    draw: SplitMix64,
    /// The number of snapshots that the victim has received.
    pub(super) snapshots: u64,
}

/// The error that stopped the victim after its disk lost power.
#[derive(Debug)]
pub(super) struct PowerCut;

impl Cluster {
    /// Founds a cluster and starts its members.
    pub(super) fn found(seed: u64, stop: Option<u64>) -> (Self, FaultyDisk, Result<(), PowerCut>) {
        let folders = std::array::from_fn(|_| Folder::new());
        let mut cluster = Self {
            members: std::array::from_fn(|_| None),
            is_cut_off: false,
            client: Client::default(),
            draw: SplitMix64::new(seed),
            snapshots: 0,
            folders,
        };
        for folder in &cluster.folders {
            folder.found(&[1, 2, 3], small_segments());
        }
        let disks =
            cluster.folders.each_ref().map(|folder| FaultyDisk::new(folder.path()).unwrap());
        let [_, _, disk] = &disks;
        if let Some(stop) = stop {
            disk.stop_at(stop);
        }
        let disk = disk.clone();
        let mut started = Ok(());
        for (at, disk) in disks.into_iter().enumerate() {
            let member = Member::start(at as u64 + 1, &cluster.folders[at], disk, small_segments());
            match member {
                Ok(member) => cluster.members[at] = Some(member),
                Err(_) if at == VICTIM => started = Err(PowerCut),
                Err(error) => panic!("member {at}: {error}"),
            }
        }
        (cluster, disk, started)
    }

    pub(super) fn member(&mut self, at: usize) -> &mut Member {
        self.members[at].as_mut().expect("the member is running")
    }

    /// Removes the victim, which has lost power.
    pub(super) fn take_victim(&mut self) -> Option<Member> {
        self.members[VICTIM].take()
    }

    /// Returns the content of a member's backend file after its last commit.
    pub(super) fn backend_file(&self, at: usize) -> Vec<u8> {
        let disk = &self.members[at].as_ref().expect("the member is running").disk;
        super::member::read_file(disk, &self.folders[at].dirs().backend())
    }

    /// Restarts the victim from this directory.
    pub(super) fn bring_back(&mut self, folder: Folder, what: &str) {
        let disk = FaultyDisk::new(folder.path()).unwrap();
        let member = Member::start(VICTIM as u64 + 1, &folder, disk, small_segments());
        self.members[VICTIM] = Some(member.unwrap_or_else(|error| panic!("{what}: {error}")));
        self.folders[VICTIM] = folder;
    }

    /// Makes this many writes and waits until they are acknowledged.
    pub(super) fn write(&mut self, count: u64) -> Result<(), PowerCut> {
        let until = self.client.acknowledged + count;
        for _ in 0..count {
            self.member(LEADER).inputs.push_back(Input::Ask);
            for _ in 0..self.draw.below(60) {
                self.take_turn()?;
            }
        }
        self.run_until("all writes are acknowledged", |cluster| {
            cluster.client.acknowledged >= until
        })
    }

    /// Proposes to add or to remove a learner.
    pub(super) fn change_members(&mut self, kind: ConfChangeKind) {
        let row = Row {
            is_learner: true,
            ..Row::new(MemberId(LEARNER), vec!["http://9:2380".to_owned()])
        };
        let context = row.to_json().into();
        let change = ConfChange { kind, node_id: LEARNER, context, ..ConfChange::default() };
        self.member(LEADER).inputs.push_back(Input::Change(change));
    }

    /// Runs the cluster until the first member leads.
    pub(super) fn elect(&mut self) -> Result<(), PowerCut> {
        self.run_until("the first member leads", |cluster| cluster.member(LEADER).leads())
    }

    /// Runs the cluster until all connected members have applied the same entries and are idle.
    pub(super) fn settle(&mut self) -> Result<(), PowerCut> {
        self.run_until("all members are idle", |cluster| {
            let count = if cluster.is_cut_off { VICTIM } else { COUNT };
            let applied = cluster.member(LEADER).applied();
            (0..count).all(|at| {
                let member = cluster.member(at);
                member.applied() == applied && member.is_idle()
            })
        })
    }

    fn run_until(
        &mut self,
        what: &str,
        mut is_done: impl FnMut(&mut Self) -> bool,
    ) -> Result<(), PowerCut> {
        for _ in 0..TURNS_MAX {
            if is_done(self) {
                return Ok(());
            }
            self.take_turn()?;
        }
        let applied = [0, 1, 2].map(|at| self.members[at].as_ref().map(Member::applied));
        panic!(
            "the condition was not met: {what}; applied {applied:?}, {} writes acknowledged",
            self.client.acknowledged
        );
    }

    fn take_turn(&mut self) -> Result<(), PowerCut> {
        let at = self.draw.position(COUNT);
        let turn = TURNS[self.draw.position(TURNS.len())];
        // Ticks are rare, because a leader steps down if its clock runs ahead of the other members' responses.
        if turn == Turn::Time && self.draw.below(10) != 0 {
            return Ok(());
        }
        // The other members receive no ticks before the first member leads, so that they do not start an election.
        // After that, the leader's heartbeats arrive before their election timeouts.
        let leads = self.member(LEADER).leads() && !self.is_cut_off;
        let ticks = at == LEADER || leads && self.draw.below(4) == 0;
        let Some(member) = &mut self.members[at] else { return Ok(()) };
        let done = match turn {
            Turn::Time if !ticks => {
                member.let_time_pass();
                Ok(())
            }
            turn => member.take_turn(turn, &mut self.client, &mut self.draw),
        };
        notice_power_cut(at, done)?;
        self.carry_messages(at)
    }

    /// Delivers the messages and snapshots that a member has sent.
    fn carry_messages(&mut self, from: usize) -> Result<(), PowerCut> {
        let member = self.member(from);
        let (sent, images) = (std::mem::take(&mut member.sent), std::mem::take(&mut member.images));
        for message in sent {
            match self.receiver(from, message.to) {
                Some(to) => self.member(to).receive(message),
                None => self.member(from).note_lost(message.to),
            }
        }
        for (message, image) in images {
            let to = message.to;
            let receiver = self.receiver(from, to);
            let received = receiver.map(|at| self.member(at).receive_snapshot(message, &image));
            let outcome = match &received {
                Some(Ok(())) => SnapshotOutcome::Finished,
                Some(Err(_)) | None => SnapshotOutcome::Failed,
            };
            self.member(from).note_snapshot(to, outcome);
            self.snapshots += u64::from(outcome == SnapshotOutcome::Finished);
            notice_power_cut(receiver.unwrap_or(from), received.unwrap_or(Ok(())))?;
        }
        Ok(())
    }

    /// Returns the position of the member that receives a message, or `None` if the message is lost.
    fn receiver(&self, from: usize, to: u64) -> Option<usize> {
        let at = usize::try_from(to).unwrap() - 1;
        let is_lost = self.is_cut_off && (from == VICTIM || at == VICTIM);
        (!is_lost && self.members.get(at).is_some_and(Option::is_some)).then_some(at)
    }
}

fn notice_power_cut(at: usize, done: Outcome) -> Result<(), PowerCut> {
    match done {
        Ok(()) => Ok(()),
        Err(_) if at == VICTIM => Err(PowerCut),
        Err(error) => panic!("member {at}: {error}"),
    }
}
