//! Counts of the rare states that runs should reach, which show the states that no run reaches.

use std::collections::BTreeMap;

/// What runs should come to at some time.
pub const SOMETIMES: &[&str] = &[
    "a bit flips in the log",
    "a client may not do what it asks for",
    "a client's write is acknowledged",
    "a cluster of one serves",
    "a compaction is durable",
    "a damaged file is found at the start",
    "a disk is full when a snapshot arrives",
    "a follower is sent a snapshot",
    "a full disk ends a process",
    "a leader doubts that it leads",
    "a leader's snapshot is installed",
    "a lease expires",
    "a lease is checkpointed",
    "a lease is kept alive",
    "a member is added",
    "a member is promoted",
    "a member is removed",
    "a member joins",
    "a member refuses to start",
    "a member that has lost its log is told so",
    "a membership change is refused by the log",
    "a power cut strikes in a step",
    "a process is started twice",
    "a process is suspended for longer than a lease",
    "a read is refused: compacted",
    "a renewal finds no lease",
    "a snapshot breaks off on its way",
    "a snapshot's message names another index than its image has",
    "a start finds a snapshot to be installed",
    "a wall clock steps back",
    "a watcher is behind",
    "a watcher is cancelled by a compaction",
    "a watcher is told of progress",
    "a watcher's events come in fragments",
    "a write finds the quota exceeded",
    "an alarm is disarmed",
    "an old directory is put back",
    "an old log is put back",
    "an operation has no answer",
    "an unknown process sends a snapshot",
    "clients are asked who they are",
    "connections are reset while the process lives",
    "directories are exchanged",
    "leadership changes",
    "space is given back",
    "the backend file finds no room",
    "the cluster has lost its quorum for good",
    "the cluster version is lowered",
    "the disk fails in a step",
    "the lead is handed over",
    "the log's folder is lost",
    "there is no room to preallocate the log",
    "there is room for the backend again",
    "two changes are asked for at once",
    "two parts of the cluster are cut apart",
];

/// How often each was come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen(BTreeMap<String, u64>);

impl Seen {
    /// Counts one occurrence.
    pub fn note(&mut self, what: &str) {
        self.add(what, 1);
    }

    /// Counts this many occurrences.
    pub fn add(&mut self, what: &str, count: u64) {
        match self.0.get_mut(what) {
            Some(known) => *known += count,
            None => _ = self.0.insert(what.to_owned(), count),
        }
    }

    /// Adds the counts of another.
    pub fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(what, count)| self.add(what, *count));
    }

    /// All counts.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(what, count)| (what.as_str(), *count))
    }

    /// The expected states that were never reached.
    pub fn never(&self) -> impl Iterator<Item = &'static str> + use<'_> {
        SOMETIMES.iter().copied().filter(|what| !self.0.contains_key(*what))
    }
}
