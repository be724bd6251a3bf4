//! Counts how often runs reach rare states.

use std::collections::BTreeMap;

/// States that at least one run in a large batch should reach.
pub const RARE_STATES: &[&str] = &[
    "a bit flips in the log",
    "a client's request is denied",
    "a client's write is acknowledged",
    "a compaction is durable",
    "a damaged file is found at startup",
    "a disk is full when a snapshot arrives",
    "a follower is sent a snapshot",
    "a full disk ends a process",
    "a host hangs",
    "a host refuses connections while its process runs",
    "a leader asks only some of the voters to confirm a read",
    "a leader confirms its leadership for a lease",
    "a leader defers its commit notices",
    "a leader's snapshot is installed",
    "a lease expires",
    "a lease is checkpointed",
    "a lease is renewed",
    "a lease is renewed at once",
    "a lease to renew does not exist",
    "a member detects that its log is lost",
    "a member is added",
    "a member is defragmented",
    "a member is promoted",
    "a member is removed",
    "a member joins",
    "a member refuses to start",
    "a membership change is refused by the log",
    "a membership change that had to wait is refused",
    "a one-member cluster acknowledges a write",
    "a process is killed between two disk operations",
    "a process is started twice",
    "a process is suspended for longer than a lease",
    "a read of a compacted revision is refused",
    "a running process is reported as ended",
    "a snapshot message names a different index than its image",
    "a snapshot transfer is interrupted",
    "a starting member installs a snapshot that arrived earlier",
    "a wall clock steps back",
    "a watcher is behind",
    "a watcher is cancelled by a compaction",
    "a watcher receives a progress notification",
    "a watcher's events are split into fragments",
    "a write exceeds the quota",
    "an alarm is disarmed",
    "an old directory is restored",
    "an old log is restored",
    "an operation has no response",
    "an unknown process sends a snapshot",
    "authentication is enabled",
    "connections are reset while the process runs",
    "directories are exchanged",
    "leadership changes",
    "leadership is transferred",
    "the cluster has lost its quorum for good",
    "the cluster version is lowered",
    "the disk fails during a step",
    "the log directory is lost",
    "the network is partitioned",
    "the power fails during a step",
    "there is no room for the backend",
    "there is no room to preallocate the log",
    "there is room for the backend again",
    "two membership changes are requested at once",
];

/// Number of times that each state was reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RareStates(BTreeMap<String, u64>);

impl RareStates {
    /// Counts one occurrence of a state.
    pub fn note(&mut self, what: &str) {
        self.add(what, 1);
    }

    /// Counts several occurrences of a state.
    pub fn add(&mut self, what: &str, count: u64) {
        match self.0.get_mut(what) {
            Some(known) => *known += count,
            None => _ = self.0.insert(what.to_owned(), count),
        }
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(what, count)| self.add(what, *count));
    }

    /// Returns all counts.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(what, count)| (what.as_str(), *count))
    }

    /// Returns the expected states that were never reached.
    pub fn unreached(&self) -> impl Iterator<Item = &'static str> + use<'_> {
        RARE_STATES.iter().copied().filter(|what| !self.0.contains_key(*what))
    }
}
