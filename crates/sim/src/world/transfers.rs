//! Snapshot transfers. A snapshot arrives in pieces while other events happen, and its transfer may be interrupted.
//!
//! Production code decides which snapshots a receiver accepts ([`quorate_core::incoming`]).

use quorate_core::incoming::{Arriving, Refused, Sender, Snapshot};
use quorate_raft::{Message, SnapshotOutcome};
use quorate_storage::bolt::ReadTx;

use super::{Event, World};
use crate::clock::{MILLI, Micros};
use crate::plan::Kind;

/// A snapshot in transfer from one host to another.
#[derive(Debug)]
pub(super) struct Transfer {
    from: (usize, u64),
    to: (usize, u64),
    message: Message,
    image: ReadTx,
    sent: u64,
    arriving: Option<Arriving>,
}

/// The reason why a transfer failed.
#[derive(Debug, thiserror::Error)]
enum BrokenOff {
    #[error("the connection has broken")]
    Connection,
    #[error(transparent)]
    Refused(#[from] Refused),
}

impl World {
    pub(super) fn begin_transfer(&mut self, from: usize, message: Message, image: ReadTx) {
        let Some(to) = self.member_hosts.get(&message.to).copied() else {
            return self.end_transfer((from, self.hosts[from].life), message.to, false);
        };
        self.rare_states.note("a follower is sent a snapshot");
        self.log(|| format!("h{from} sends h{to} a snapshot of {} bytes", image.image_len()));
        let message = self.with_other_index(from, message);
        let number = self.new_number();
        let (from, to) = ((from, self.hosts[from].life), (to, self.hosts[to].life));
        let transfer = Transfer { from, to, message, image, sent: 0, arriving: None };
        self.transfers.insert(number, transfer);
        let at = self.piece_at();
        self.queue.push(at, Event::SnapshotPiece(number));
    }

    /// Changes the index in a snapshot message if `names_other_index` is set for the sender. The new index is usually
    /// lower than the image's, as with etcd after a restart. Sometimes it is higher, so that the image is too old, and
    /// sometimes the message comes from an unknown process instead.
    fn with_other_index(&mut self, from: usize, mut message: Message) -> Message {
        if !self.hosts[from].names_other_index || self.faults_ended() || self.one_in(2) {
            return message;
        }
        if self.one_in(4) {
            message.from ^= 1 << 63;
            self.rare_states.note("an unknown process sends a snapshot");
            return message;
        }
        let by = 1 + self.rng.below(3);
        let is_later = self.one_in(4);
        let Some(process) = self.hosts[from].process.as_ref() else { return message };
        let Some(snapshot) = message.snapshot.as_mut() else { return message };
        let index = snapshot.metadata.index;
        let index = if is_later { index + by } else { index.saturating_sub(by) };
        if let Ok(Some(term)) = process.terms().at(index) {
            (snapshot.metadata.index, snapshot.metadata.term) = (index, term);
            self.rare_states.note("a snapshot message names a different index than its image");
        }
        message
    }

    fn piece_at(&mut self) -> Micros {
        let (least, most) = self.plan.delay;
        let mut at = self.now + least + self.rng.below(most + self.plan.sync_max);
        if self.plan.has(Kind::SlowNetwork) && !self.faults_ended() && self.one_in(4) {
            at += self.rng.below(most * 100 + 1);
        }
        at
    }

    /// Interrupts all transfers from and to a host.
    pub(super) fn interrupt_transfers(&mut self, host: usize) {
        let broken: Vec<u64> = self
            .transfers
            .iter()
            .filter(|(_, transfer)| transfer.from.0 == host || transfer.to.0 == host)
            .map(|(number, _)| *number)
            .collect();
        for number in broken {
            if let Some(transfer) = self.transfers.remove(&number) {
                self.end_transfer(transfer.from, transfer.message.to, false);
            }
        }
    }

    /// Reports the outcome of a transfer to the sender.
    fn end_transfer(&mut self, (from, life): (usize, u64), peer: u64, is_done: bool) {
        let host = &mut self.hosts[from];
        let Some(process) = host.process.as_mut().filter(|_| host.life == life) else { return };
        let outcome = match is_done {
            true => SnapshotOutcome::Finished,
            false => SnapshotOutcome::Failed,
        };
        process.note_snapshot(peer, outcome);
        self.schedule(from);
    }

    pub(super) fn handle_piece(&mut self, number: u64) {
        let Some(mut transfer) = self.transfers.remove(&number) else { return };
        let until =
            self.hosts[transfer.from.0].paused_until.max(self.hosts[transfer.to.0].paused_until);
        if until > self.now {
            self.transfers.insert(number, transfer);
            return self.queue.push(until + MILLI, Event::SnapshotPiece(number));
        }
        match self.take_piece(&mut transfer) {
            Ok(None) => {
                self.transfers.insert(number, transfer);
                let at = self.piece_at();
                self.queue.push(at, Event::SnapshotPiece(number));
            }
            Ok(Some(message)) => {
                let Transfer { from, to, .. } = transfer;
                self.log(|| format!("h{} has received a snapshot", to.0));
                // The receiver's acknowledgement may be lost.
                let is_acknowledged = !self.plan.has(Kind::BrokenSnapshots) || !self.one_in(4);
                self.end_transfer(from, message.to, is_acknowledged || self.faults_ended());
                if let Some(process) = self.hosts[to.0].process.as_mut() {
                    process.receive(message, false);
                }
                self.fill_disk(to.0);
                self.after_step(to.0, Ok(()));
            }
            Err(why) => {
                self.log(|| format!("h{} failed to receive a snapshot: {why}", transfer.to.0));
                let is_invalid =
                    matches!(why, BrokenOff::Refused(Refused::Image(_) | Refused::TooLong { .. }));
                let is_expected = self.hosts[transfer.from.0].names_other_index
                    || self.hosts[transfer.to.0].disk.has_faults_hit();
                if is_invalid && !is_expected {
                    self.judge
                        .fail(|| format!("h{} receives an invalid snapshot: {why}", transfer.to.0));
                }
                self.rare_states.note("a snapshot transfer is interrupted");
                if let Some(arriving) = transfer.arriving.take() {
                    // If removing the files fails, they are removed when the member restarts.
                    drop(arriving.discard());
                }
                let (from, to, peer) = (transfer.from, transfer.to.0, transfer.message.to);
                drop(transfer);
                self.end_transfer(from, peer, false);
                // If the disk has failed during the transfer, this ends the process.
                self.after_step(to, Ok(()));
            }
        }
    }

    /// Transfers the next piece. After the last piece, returns the message for consensus.
    fn take_piece(&mut self, transfer: &mut Transfer) -> Result<Option<Message>, BrokenOff> {
        let ((from, _), (to, _)) = (transfer.from, transfer.to);
        let is_interrupted =
            self.plan.has(Kind::BrokenSnapshots) && !self.faults_ended() && self.one_in(8);
        let is_open = self.network.is_open(from, to) && self.network.is_open(to, from);
        if is_interrupted || !is_open || self.hosts[to].life != transfer.to.1 {
            return Err(BrokenOff::Connection);
        }
        if transfer.arriving.is_none() {
            transfer.arriving = Some(self.begin_arriving(transfer)?);
        }
        let mut piece = vec![0; 1 << (10 + self.rng.below(7))];
        let read = transfer.image.read_image_at(transfer.sent, &mut piece);
        let count = read.map_err(|_| BrokenOff::Connection)?;
        let Some(arriving) = transfer.arriving.as_mut() else { return Err(BrokenOff::Connection) };
        if count > 0 {
            transfer.sent += count as u64;
            arriving.write(&piece[..count])?;
            return Ok(None);
        }
        let arriving = transfer.arriving.take();
        Ok(arriving.map(Arriving::finish).transpose()?)
    }

    fn begin_arriving(&mut self, transfer: &Transfer) -> Result<Arriving, BrokenOff> {
        let ((from, _), (to, _)) = (transfer.from, transfer.to);
        let message = transfer.message.clone();
        let Some(sender) = self.sender_of(from, to, &message) else {
            return Err(BrokenOff::Connection);
        };
        let process = self.hosts[to].process.as_mut().ok_or(BrokenOff::Connection)?;
        let claimed = Some(message.from);
        let snapshot = Snapshot::admit(process.id, claimed, sender, message)?;
        let arriving = process.depot.begin(snapshot)?.create()?;
        if sender != Sender::Member {
            self.judge
                .fail(|| format!("h{to} accepts a snapshot from h{from}, which is not a member"));
        }
        Ok(arriving)
    }
}
