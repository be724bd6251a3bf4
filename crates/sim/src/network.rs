//! The network between hosts: it loses, delays, duplicates and reorders messages, and cuts links in one or both
//! directions.
//!
//! Production's streams keep their order while they are connected, so a message overtakes another only in runs with
//! reordering. When a link is cut, messages in flight are lost or still arrive.

use std::collections::BTreeSet;

use quorate_seeded_random::SplitMix64;

use crate::clock::Micros;
use crate::plan::{Kind, Plan};

/// The most messages in flight from one host to another. Further messages are dropped, as by a full queue.
pub const IN_FLIGHT_MAX: usize = 4_096;

/// The links between all hosts, and the messages in flight on them.
#[derive(Debug)]
pub struct Network {
    /// Directions in which no message arrives.
    cut: BTreeSet<(usize, usize)>,
    /// When the last message of a direction arrives.
    last: Vec<Vec<Micros>>,
    in_flight: Vec<Vec<usize>>,
    /// How often the connections of each host were reset.
    resets: Vec<u64>,
    is_calm: bool,
}

impl Network {
    /// A network of this many hosts, without cut links.
    #[must_use]
    pub fn new(hosts: usize) -> Self {
        Self {
            cut: BTreeSet::new(),
            last: vec![vec![0; hosts]; hosts],
            in_flight: vec![vec![0; hosts]; hosts],
            resets: vec![0; hosts],
            is_calm: false,
        }
    }

    /// Whether messages can pass in this direction.
    #[must_use]
    pub fn is_open(&self, from: usize, to: usize) -> bool {
        !self.cut.contains(&(from, to))
    }

    /// Cuts one direction.
    pub fn cut(&mut self, from: usize, to: usize) {
        self.cut.insert((from, to));
    }

    /// Cuts a host off from all others.
    pub fn isolate(&mut self, host: usize) {
        for other in 0..self.last.len() {
            self.cut.insert((host, other));
            self.cut.insert((other, host));
        }
    }

    /// Resets the connections of a host: what is on its way on them is lost.
    pub fn reset(&mut self, host: usize) {
        self.resets[host] += 1;
    }

    /// The connection that there is between two hosts now. Another one has another number.
    #[must_use]
    pub fn connection(&self, from: usize, to: usize) -> u64 {
        self.resets[from] + self.resets[to]
    }

    /// Restores all cut links.
    pub fn mend(&mut self) {
        self.cut.clear();
    }

    /// Restores all links; from now on no message is lost, delayed or duplicated.
    pub fn calm(&mut self) {
        self.mend();
        self.is_calm = true;
    }

    /// Whether anything is cut.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.cut.is_empty()
    }

    /// When a message that is sent now arrives: never, once or, if it is of a kind that may, twice. What members pass on
    /// to their leader is carried out as often as it arrives; production's streams carry it once.
    pub fn send(
        &mut self,
        (from, to): (usize, usize),
        may_repeat: bool,
        now: Micros,
        plan: &Plan,
        draw: &mut SplitMix64,
    ) -> Vec<Micros> {
        let is_lossy = plan.has(Kind::Loss) && !self.is_calm;
        let is_lost = is_lossy && draw.below(plan.loss) == 0;
        if !self.is_open(from, to) || is_lost || self.in_flight[from][to] >= IN_FLIGHT_MAX {
            return Vec::new();
        }
        let mut arrivals = vec![self.arrival((from, to), now, plan, draw)];
        let repeats = plan.has(Kind::Duplicates) && may_repeat && !self.is_calm;
        if repeats && draw.below(20) == 0 {
            arrivals.push(self.arrival((from, to), now, plan, draw));
        }
        self.in_flight[from][to] += arrivals.len();
        arrivals
    }

    /// Records that a message has arrived or was dropped.
    pub fn note_arrival(&mut self, from: usize, to: usize) {
        self.in_flight[from][to] -= 1;
    }

    fn arrival(
        &mut self,
        (from, to): (usize, usize),
        now: Micros,
        plan: &Plan,
        draw: &mut SplitMix64,
    ) -> Micros {
        let (least, most) = plan.delay;
        let mut at = now + least + draw.below(most - least + 1);
        if self.is_calm {
            at = now + least;
        } else if plan.has(Kind::SlowNetwork) && draw.below(50) == 0 {
            at += draw.below(most * 100 + 1);
        }
        let last = &mut self.last[from][to];
        let may_overtake = plan.has(Kind::Reordering) && !self.is_calm && draw.below(4) == 0;
        if may_overtake {
            return at;
        }
        *last = at.max(*last);
        *last
    }
}
