//! Simulates the network between hosts. It loses, delays, duplicates and reorders messages, and its links can be cut in
//! one or both directions.
//!
//! As in production, a stream keeps its order while it is connected. Only in runs with reordering may one message
//! overtake another. When a link is cut, in-flight messages are either lost or still arrive.

use std::collections::BTreeSet;

use quorate_seeded_random::SplitMix64;

use crate::clock::Micros;
use crate::plan::{Kind, Plan};

/// The maximum number of in-flight messages from one host to another. Further messages are dropped, as in production
/// when a peer's queue is full.
pub const IN_FLIGHT_MAX: usize = 4_096;

/// The links between all hosts, and the number of in-flight messages on each link.
#[derive(Debug)]
pub struct Network {
    /// The link directions that are cut. Messages in these directions are lost.
    cut: BTreeSet<(usize, usize)>,
    /// Arrival time of the last message, by sender and receiver.
    last: Vec<Vec<Micros>>,
    in_flight: Vec<Vec<usize>>,
    /// Number of connection resets of each host.
    resets: Vec<u64>,
    faults_ended: bool,
}

impl Network {
    /// Creates a network without cut links.
    #[must_use]
    pub fn new(hosts: usize) -> Self {
        Self {
            cut: BTreeSet::new(),
            last: vec![vec![0; hosts]; hosts],
            in_flight: vec![vec![0; hosts]; hosts],
            resets: vec![0; hosts],
            faults_ended: false,
        }
    }

    /// Returns whether messages can pass from one host to the other.
    #[must_use]
    pub fn is_open(&self, from: usize, to: usize) -> bool {
        !self.cut.contains(&(from, to))
    }

    /// Cuts one direction of a link.
    pub fn cut(&mut self, from: usize, to: usize) {
        self.cut.insert((from, to));
    }

    /// Cuts all links of a host.
    pub fn isolate(&mut self, host: usize) {
        for other in 0..self.last.len() {
            self.cut.insert((host, other));
            self.cut.insert((other, host));
        }
    }

    /// Resets the connections of a host. In-flight messages on them are lost.
    pub fn reset(&mut self, host: usize) {
        self.resets[host] += 1;
    }

    /// Returns the number of the current connection between two hosts. The number changes with every reset.
    #[must_use]
    pub fn connection(&self, from: usize, to: usize) -> u64 {
        self.resets[from] + self.resets[to]
    }

    /// Restores all cut links.
    pub fn restore_links(&mut self) {
        self.cut.clear();
    }

    /// Restores all links, and stops losing, delaying and duplicating messages.
    pub fn end_faults(&mut self) {
        self.restore_links();
        self.faults_ended = true;
    }

    /// Returns whether no link is cut.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.cut.is_empty()
    }

    /// Returns the arrival times of a message that is sent now: none if it is lost, two if it is duplicated, otherwise
    /// one. `may_repeat` permits duplication. Proposals that members forward to the leader must not be duplicated,
    /// because the leader would execute them twice, and in production a stream delivers them only once.
    pub fn send(
        &mut self,
        (from, to): (usize, usize),
        may_repeat: bool,
        now: Micros,
        plan: &Plan,
        rng: &mut SplitMix64,
    ) -> Vec<Micros> {
        let is_lossy = plan.has(Kind::Loss) && !self.faults_ended;
        let is_lost = is_lossy && rng.below(plan.loss) == 0;
        if !self.is_open(from, to) || is_lost || self.in_flight[from][to] >= IN_FLIGHT_MAX {
            return Vec::new();
        }
        let mut arrivals = vec![self.arrival((from, to), now, plan, rng)];
        let repeats = plan.has(Kind::Duplicates) && may_repeat && !self.faults_ended;
        if repeats && rng.below(20) == 0 {
            arrivals.push(self.arrival((from, to), now, plan, rng));
        }
        self.in_flight[from][to] += arrivals.len();
        arrivals
    }

    /// Records that a message has arrived or been dropped.
    pub fn note_arrival(&mut self, from: usize, to: usize) {
        self.in_flight[from][to] -= 1;
    }

    fn arrival(
        &mut self,
        (from, to): (usize, usize),
        now: Micros,
        plan: &Plan,
        rng: &mut SplitMix64,
    ) -> Micros {
        let (least, most) = plan.delay;
        let mut at = now + least + rng.below(most - least + 1);
        if self.faults_ended {
            at = now + least;
        } else if plan.has(Kind::SlowNetwork) && rng.below(50) == 0 {
            at += rng.below(most * 100 + 1);
        }
        let last = &mut self.last[from][to];
        let may_overtake = plan.has(Kind::Reordering) && !self.faults_ended && rng.below(4) == 0;
        if may_overtake {
            return at;
        }
        *last = at.max(*last);
        *last
    }
}
