//! Exchanges the directories of two members, so that each runs in the place of the other, as when volumes are attached
//! the wrong way round after maintenance.
//!
//! A member takes its identity from its log, whatever its flags say. No data is lost, and the operator reverses the
//! exchange after a while.
//!
//! A copy of a directory beside its owner is not tried: no consensus can reconcile two processes that have the same
//! identity and different state.

use super::super::hosts::Host;
use super::super::{Event, World};
use crate::clock::{MILLI, SECOND};

impl World {
    /// Gives the directories of two members that run to one another.
    pub(super) fn exchange_directories(&mut self, at: usize) {
        let others: Vec<usize> = (0..self.hosts.len())
            .filter(|other| *other != at && self.is_in_place(*other))
            .collect();
        if others.is_empty() || !self.is_in_place(at) {
            return;
        }
        let other = others[self.draw.position(others.len())];
        self.seen.note("directories are exchanged");
        self.tell(|| format!("the directories of h{at} and h{other} are exchanged"));
        self.exchange(at, other);
        self.hosts[at].exchanged_with = Some(other);
        self.hosts[other].exchanged_with = Some(at);
        let until = self.now + self.draw.below(6 * SECOND);
        self.queue.put(until, Event::GiveBack(at));
    }

    /// Somebody has noticed, and every directory is where it belongs again.
    pub(in crate::world) fn give_back(&mut self, at: usize) {
        let Some(other) = self.hosts[at].exchanged_with.take() else { return };
        self.hosts[other].exchanged_with = None;
        self.tell(|| format!("h{at} and h{other} have their directories back"));
        self.exchange(at, other);
    }

    /// Whether a host has a process of the member that belongs there, on files that nobody has touched.
    fn is_in_place(&self, at: usize) -> bool {
        let host = &self.hosts[at];
        let row = self.row_of(at).map(|row| row.id.0);
        let runs = host.process.as_ref().is_some_and(|process| Some(process.id) == row);
        runs && host.exchanged_with.is_none() && !host.is_tampered
    }

    fn exchange(&mut self, at: usize, other: usize) {
        self.stop_process(at);
        self.stop_process(other);
        let (low, high) = self.hosts.split_at_mut(at.max(other));
        Host::exchange_directories(&mut low[at.min(other)], &mut high[0]);
        for host in [at, other] {
            let when = self.now + MILLI + self.draw.below(100 * MILLI);
            self.queue.put(when, Event::Start(host));
        }
    }
}
