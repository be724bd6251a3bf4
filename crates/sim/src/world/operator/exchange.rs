//! Exchanges the directories of two members, so that each runs on the other's host. This happens when volumes are
//! attached to the wrong hosts after maintenance.
//!
//! A member takes its identity from its log, regardless of its flags. No data is lost, and the operator reverses the
//! exchange after a while.
//!
//! The simulator never runs a copy of a directory alongside the original, because no consensus algorithm can reconcile
//! two processes with the same identity and different states.

use super::super::hosts::Host;
use super::super::{Event, World};
use crate::clock::{MILLI, SECOND};

impl World {
    /// Exchanges the directory of a running member with the directory of another member.
    pub(super) fn exchange_directories(&mut self, at: usize) {
        let others: Vec<usize> = (0..self.hosts.len())
            .filter(|other| *other != at && self.is_in_place(*other))
            .collect();
        if others.is_empty() || !self.is_in_place(at) {
            return;
        }
        let other = others[self.rng.position(others.len())];
        self.rare_states.note("directories are exchanged");
        self.log(|| format!("h{at} and h{other} exchange their directories"));
        self.exchange(at, other);
        self.hosts[at].exchanged_with = Some(other);
        self.hosts[other].exchanged_with = Some(at);
        let until = self.now + self.rng.below(6 * SECOND);
        self.queue.push(until, Event::ReverseExchange(at));
    }

    /// Reverses the exchange.
    pub(in crate::world) fn reverse_exchange(&mut self, at: usize) {
        let Some(other) = self.hosts[at].exchanged_with.take() else { return };
        self.hosts[other].exchanged_with = None;
        self.log(|| format!("h{at} and h{other} have their own directories again"));
        self.exchange(at, other);
    }

    /// Returns whether a host runs its own member from files that were not tampered with.
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
            let when = self.now + MILLI + self.rng.below(100 * MILLI);
            self.queue.push(when, Event::Start(host));
        }
    }
}
