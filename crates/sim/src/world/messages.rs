//! The messages between members: sends, loses and delivers them.

use quorate_core::incoming::{self, Sender};
use quorate_raft::{Message, MessageKind, encoded_bytes, payload_bytes};
use quorate_seeded_random::SplitMix64;
use quorate_state::units::MemberId;

use super::hosts::RESUMED_TURNS;
use super::{Event, World};
use crate::clock::{MILLI, Micros};
use crate::network::{Cargo, Sent};
use crate::plan::Kind;

/// The size of a message without entries, in bytes.
const EMPTY_MESSAGE_BYTES: u64 = 64;

impl World {
    /// Sends a message over the network.
    pub(super) fn send(&mut self, from: usize, message: Message) {
        self.trace.add(message.kind.to_wire().unsigned_abs().into());
        self.trace.add(message.index.get() ^ message.term.get() << 32);
        self.judge.check_vote(&message);
        let Some(to) = self.member_hosts.get(&message.to).copied() else {
            return self.note_lost(from, message.to);
        };
        let (link, cargo) = ((from, to), cargo_of(&message));
        let sent = self.network.send(link, &cargo, self.now, &self.plan, &mut self.rng);
        let arrivals = match sent {
            Sent::Arrives(arrivals) => arrivals,
            Sent::Lost => return self.note_lost(from, message.to),
            Sent::Full => {
                self.rare_states.note("the queue for a peer is full");
                return self.note_lost(from, message.to);
            }
        };
        self.check_in_flight(from, to, &cargo);
        let connection = self.network.connection(from, to);
        for at in arrivals {
            let message = Box::new(message.clone());
            self.queue.push(at, Event::Message { from, to, connection, message });
        }
    }

    /// Checks that a leader does not send more than its limit before the follower acknowledges some entries. With
    /// reordering, it is not known which messages are in flight.
    fn check_in_flight(&mut self, from: usize, to: usize, sent: &Cargo) {
        let bytes_max = self.plan.settings.flow_limits.inflight_bytes + sent.entry_bytes;
        if let Some(bytes) = self.network.unacknowledged_bytes(from, to)
            && sent.entry_bytes > 0
            && bytes > bytes_max
            && !self.plan.has(Kind::Reordering)
        {
            self.judge.fail(|| format!("h{from} has {bytes} bytes of appends in flight to h{to}"));
        }
    }

    pub(super) fn note_lost(&mut self, from: usize, peer: u64) {
        if let Some(process) = self.hosts[from].process.as_mut() {
            process.note_lost(peer);
        }
    }

    pub(super) fn deliver(
        &mut self,
        (from, to): (usize, usize),
        connection: u64,
        message: Message,
    ) {
        let until = self.read_again_at(from, to);
        if until > self.now {
            let message = Box::new(message);
            return self.queue.push(until, Event::Message { from, to, connection, message });
        }
        self.network.note_arrival(from, to, &cargo_of(&message));
        if connection != self.network.connection(from, to) {
            return self.note_lost(from, message.to);
        }
        // An in-flight message may be lost when its link is cut.
        if !self.network.is_open(from, to) && self.one_in(2) {
            return;
        }
        let sender = self.sender_of(from, to, &message);
        let Some(own) = self.hosts[to].process.as_ref().map(|process| process.id) else { return };
        if sender.is_none_or(|sender| incoming::admit(own, &message, sender).is_err()) {
            return;
        }
        let same_read = self.one_in(2);
        let host = &mut self.hosts[to];
        if let Some(process) = host.process.as_mut() {
            let is_beyond = process.terms().at(message.commit).is_err();
            if message.kind == MessageKind::Heartbeat && is_beyond {
                host.loss_proven_in = Some(message.term);
            }
            if message.kind == MessageKind::AppendResponse && !message.reject {
                self.network.note_acknowledged(to, from, message.term, message.index);
            }
            process.receive(message, same_read);
            self.schedule(to);
        }
    }

    /// Returns the time from which a paused member reads its connection from another member again. Each connection has
    /// its own time, because a resumed process reads its connections in any order. The messages of one connection keep
    /// their order.
    fn read_again_at(&self, from: usize, to: usize) -> Micros {
        let until = self.hosts[to].paused_until;
        let mut rng = SplitMix64::new(until << 8 | from as u64);
        until + rng.below(RESUMED_TURNS * self.plan.step_max)
    }

    /// Returns how the receiver classifies the sender. A sender counts as a member if the receiver knows it, or if the
    /// sender's member list contains both of them. Returns `None` if their cluster ids differ, because the connection
    /// handshake then fails.
    pub(super) fn sender_of(
        &mut self,
        from: usize,
        to: usize,
        message: &Message,
    ) -> Option<Sender> {
        let sender = self.hosts[from].process.as_deref();
        let receiver = self.hosts[to].process.as_deref()?;
        if sender.is_some_and(|sender| sender.cluster_id != receiver.cluster_id) {
            return None;
        }
        if receiver.removed.contains(&message.from) {
            // The sender is informed of its removal, and its process ends.
            let life = self.hosts[from].life;
            if self.network.is_open(to, from) && self.hosts[from].id == message.from {
                let at = self.now + self.rng.below(20 * MILLI);
                self.queue.push(at, Event::MemberRemoved { host: from, life });
            }
            return Some(Sender::Removed);
        }
        let lists = |id| {
            let members = sender.map(|process| process.published_state().facts().members.clone());
            members.is_some_and(|members| members.get(MemberId(id)).is_some())
        };
        let is_member =
            receiver.members.contains(&message.from) || lists(message.from) && lists(message.to);
        Some(if is_member { Sender::Member } else { Sender::Unknown })
    }
}

fn cargo_of(message: &Message) -> Cargo {
    let is_append = message.kind == MessageKind::Append;
    let ends = message.entries.first().zip(message.entries.last()).filter(|_| is_append);
    Cargo {
        bytes: EMPTY_MESSAGE_BYTES + encoded_bytes(&message.entries),
        entry_bytes: if is_append { payload_bytes(&message.entries) } else { 0 },
        entries: ends.map(|(first, last)| (message.term, first.index..=last.index)),
        may_repeat: message.kind != MessageKind::Propose,
    }
}
