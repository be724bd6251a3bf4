//! Simulates the network between hosts. It loses, delays, duplicates and reorders messages, and its links can be cut in
//! one or both directions.
//!
//! As in production, a stream keeps its order while it is connected. Only in runs with reordering may one message
//! overtake another. When a link is cut, in-flight messages are either lost or still arrive.
//!
//! In runs with narrow links, a message takes time in proportion to its size, and the bytes in flight on a link are
//! limited, like the queue for a peer in production.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use quorate_raft::{LogIndex, Term};
use quorate_seeded_random::SplitMix64;

use crate::clock::{Micros, SECOND};
use crate::plan::{Kind, Plan};

/// The maximum number of in-flight messages from one host to another. Further messages are dropped, as in production
/// when a peer's queue is full.
pub const IN_FLIGHT_MAX: usize = 4_096;

/// The maximum number of bytes that a narrow link holds, in addition to four times the limit on unacknowledged entries.
/// In production, the queue for a peer also holds at least this multiple.
const OTHER_BYTES: u64 = 64 << 10;

/// The properties of a message that decide what happens to it on a link.
#[derive(Debug)]
pub struct Cargo {
    /// The size of the message, in bytes.
    pub bytes: u64,
    /// The size of the log entries in an append, in bytes.
    pub entry_bytes: u64,
    /// The term of an append with entries, and the indexes of the entries.
    pub entries: Option<(Term, RangeInclusive<LogIndex>)>,
    /// Whether the message may be duplicated. Proposals that members forward to the leader must not be duplicated,
    /// because the leader would execute them twice, and in production a stream delivers them only once.
    pub may_repeat: bool,
}

/// What happens to a message that is sent.
#[derive(Debug)]
pub enum Sent {
    /// The message arrives at these times: at two times if it is duplicated.
    Arrives(Vec<Micros>),
    /// The message is lost.
    Lost,
    /// The message is dropped, because the link is full.
    Full,
}

/// The messages in flight on a link.
#[derive(Clone, Debug, Default)]
struct InFlight {
    count: usize,
    bytes: u64,
    /// The time at which the last message has left the sender.
    departed: Micros,
    /// The appends with entries in flight: the term, the index of the last entry, and the size of the entries in bytes.
    appends: Vec<(Term, LogIndex, u64)>,
    /// The last entry that the receiver has acknowledged, with the term of the leader that has received the
    /// acknowledgement. The entry may have reached the receiver in a snapshot.
    acknowledged: (Term, LogIndex),
    /// The term of the last append with entries, and the highest index of an entry that was sent in this term.
    highest: (Term, LogIndex),
    /// The number of messages that were sent on the link.
    sent: u64,
    /// The value of `sent` after the last message whose entries may be in flight twice.
    repeated_at: u64,
}

impl InFlight {
    /// Returns the bytes of entries that are in flight and not acknowledged, unless some of them may be in flight twice:
    /// a leader that has lost an append, or is new, sends entries again.
    fn unacknowledged_bytes(&self) -> Option<u64> {
        let unacknowledged =
            self.appends.iter().filter(|(term, last, _)| (*term, *last) > self.acknowledged);
        (self.sent - self.count as u64 >= self.repeated_at)
            .then(|| unacknowledged.map(|(.., bytes)| bytes).sum())
    }
}

/// The links between all hosts, and the messages in flight on each link.
#[derive(Debug)]
pub struct Network {
    /// The link directions that are cut. Messages in these directions are lost.
    cut: BTreeSet<(usize, usize)>,
    /// Arrival time of the last message, by sender and receiver.
    last: Vec<Vec<Micros>>,
    in_flight: Vec<Vec<InFlight>>,
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
            in_flight: vec![vec![InFlight::default(); hosts]; hosts],
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

    /// Sends a message.
    pub fn send(
        &mut self,
        (from, to): (usize, usize),
        cargo: &Cargo,
        now: Micros,
        plan: &Plan,
        rng: &mut SplitMix64,
    ) -> Sent {
        let is_lossy = plan.has(Kind::Loss) && !self.faults_ended;
        let is_lost = is_lossy && rng.below(plan.loss) == 0;
        let is_narrow = plan.has(Kind::NarrowLinks) && !self.faults_ended;
        let bytes_max = 4 * plan.settings.flow_limits.inflight_bytes + OTHER_BYTES;
        let in_flight = &mut self.in_flight[from][to];
        if self.cut.contains(&(from, to)) || is_lost || in_flight.count >= IN_FLIGHT_MAX {
            return Sent::Lost;
        }
        if is_narrow && in_flight.bytes > 0 && in_flight.bytes + cargo.bytes > bytes_max {
            return Sent::Full;
        }
        let repeats = plan.has(Kind::Duplicates) && cargo.may_repeat && !self.faults_ended;
        let count = if repeats && rng.below(20) == 0 { 2 } else { 1 };
        in_flight.count += count;
        in_flight.bytes += cargo.bytes * count as u64;
        in_flight.sent += count as u64;
        if let Some((term, indexes)) = &cargo.entries {
            let append = (*term, *indexes.end(), cargo.entry_bytes);
            in_flight.appends.extend(std::iter::repeat_n(append, count));
            if (*term, *indexes.start()) <= in_flight.highest
                || *term > in_flight.highest.0
                || count > 1
            {
                in_flight.repeated_at = in_flight.sent;
            }
            in_flight.highest = in_flight.highest.max((*term, *indexes.end()));
        }
        let mut departs = now;
        if is_narrow {
            departs = in_flight.departed.max(now) + cargo.bytes * SECOND / plan.bandwidth;
            in_flight.departed = departs;
        }
        Sent::Arrives((0..count).map(|_| self.arrival((from, to), departs, plan, rng)).collect())
    }

    /// Returns the bytes of log entries that are in flight on a link and not acknowledged, unless some of them may be in
    /// flight twice.
    #[must_use]
    pub fn unacknowledged_bytes(&self, from: usize, to: usize) -> Option<u64> {
        self.in_flight[from][to].unacknowledged_bytes()
    }

    /// Records that the leader of this term on host `from` has received an acknowledgement from host `to`.
    pub fn note_acknowledged(&mut self, from: usize, to: usize, term: Term, index: LogIndex) {
        let acknowledged = &mut self.in_flight[from][to].acknowledged;
        *acknowledged = (*acknowledged).max((term, index));
    }

    /// Records that a message has arrived or been dropped.
    pub fn note_arrival(&mut self, from: usize, to: usize, cargo: &Cargo) {
        let in_flight = &mut self.in_flight[from][to];
        in_flight.count -= 1;
        in_flight.bytes -= cargo.bytes;
        if let Some((term, indexes)) = &cargo.entries {
            let append = (*term, *indexes.end(), cargo.entry_bytes);
            let arrived = in_flight.appends.iter().position(|sent| *sent == append);
            in_flight.appends.remove(arrived.expect("a message that arrives was sent"));
        }
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
