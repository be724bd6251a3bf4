//! The settings of a member.

use crate::entry::{MemberId, NONE};
use crate::error::ConfigError;
use crate::log_index::LogIndex;
use crate::message::is_local_target;
use crate::note::NoteLevel;

/// How linearizable reads are confirmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadOnlyOption {
    /// The leader confirms reads with a round of heartbeats to a quorum.
    #[default]
    Safe,
    /// The leader relies on its lease to confirm reads, and sends no messages. This is safe only while clocks run at
    /// nearly the same speed. It requires [`Config::check_quorum`].
    LeaseBased,
}

/// The settings of one member. [`Config::new`] returns etcd's defaults.
#[derive(Clone, Debug)]
pub struct Config {
    /// This member's id.
    pub id: MemberId,
    /// Ticks without a message from a leader before a member campaigns. The actual number is random, between this value
    /// and twice this value.
    pub election_tick: u32,
    /// Ticks between heartbeats.
    pub heartbeat_tick: u32,
    /// Maximum encoded size, in bytes, of the entries in one append. The first entry is sent even if it is larger.
    pub max_size_per_message: u64,
    /// Maximum encoded size, in bytes, of the entries that have been returned for applying but not yet applied. Zero
    /// means `max_size_per_message`.
    pub max_committed_size_per_ready: u64,
    /// Maximum number of payload bytes that a leader appends beyond the applied index. Zero means no limit.
    pub max_uncommitted_size: u64,
    /// Maximum number of in-flight appends to one follower.
    pub max_inflight_count: usize,
    /// Maximum payload size, in bytes, of the in-flight appends to one follower. Zero means no limit.
    pub max_inflight_bytes: u64,
    /// Whether a leader steps down when it receives no messages from a quorum, and whether
    /// followers that receive messages from a leader ignore candidates.
    pub check_quorum: bool,
    /// Whether a candidate runs a pre-vote before it starts a new term (Raft thesis, section 9.6).
    pub pre_vote: bool,
    /// How linearizable reads are confirmed.
    pub read_only: ReadOnlyOption,
    /// Whether followers drop proposals instead of forwarding them to the leader.
    pub disable_proposal_forwarding: bool,
    /// Whether membership changes are proposed without a check against the current configuration.
    /// Only an application that makes its own checks should set this, because an invalid change fails when it is
    /// applied.
    pub disable_conf_change_validation: bool,
    /// Whether a leader that leaves the group, or becomes a learner, steps down immediately.
    pub step_down_on_removal: bool,
    /// Whether a follower leaves an append unanswered if the append only raises the commit index and the follower has
    /// already acknowledged the same entries to this leader. Such a response would contain no new information. etcd's
    /// followers always respond.
    pub skip_repeated_acknowledgements: bool,
    /// Whether a leader asks only as many voters as it needs for a quorum to confirm a read. etcd's leaders always ask
    /// all members. The caller then calls [`Node::ask_others_to_confirm_reads`] if a read is not confirmed in time.
    ///
    /// [`Node::ask_others_to_confirm_reads`]: crate::Node::ask_others_to_confirm_reads
    pub asks_few_to_confirm_reads: bool,
    /// Whether separate storage threads write the log and apply the entries. They receive their work as messages.
    /// Otherwise the application writes and applies between [`Node::ready`](crate::Node::ready) and
    /// [`Node::advance`](crate::Node::advance).
    pub async_storage_writes: bool,
    /// Index of the last entry that the state machine has applied; zero stands for the last
    /// compacted entry.
    pub applied: LogIndex,
    /// Seed of the election timeout jitter. Every member needs a different seed.
    pub seed: u64,
    /// The lowest level of notes to keep.
    pub note_level: NoteLevel,
}

impl Config {
    /// Returns the settings that etcd uses for its members.
    #[must_use]
    pub fn new(id: MemberId, seed: u64) -> Self {
        Self {
            id,
            election_tick: 10,
            heartbeat_tick: 1,
            max_size_per_message: 1 << 20,
            max_committed_size_per_ready: 0,
            max_uncommitted_size: 0,
            max_inflight_count: 512,
            max_inflight_bytes: 0,
            check_quorum: true,
            pre_vote: true,
            read_only: ReadOnlyOption::Safe,
            disable_proposal_forwarding: false,
            disable_conf_change_validation: false,
            step_down_on_removal: false,
            skip_repeated_acknowledgements: false,
            asks_few_to_confirm_reads: false,
            async_storage_writes: false,
            applied: LogIndex::ZERO,
            seed,
            note_level: NoteLevel::Info,
        }
    }

    /// Checks the settings and replaces zeros with the values that they stand for.
    pub(crate) fn validated(mut self) -> Result<Self, ConfigError> {
        if self.id == NONE || is_local_target(self.id) {
            return Err(ConfigError::Id(self.id));
        }
        if self.heartbeat_tick == 0 {
            return Err(ConfigError::HeartbeatTick);
        }
        if self.election_tick <= self.heartbeat_tick {
            return Err(ConfigError::ElectionTick);
        }
        if self.max_inflight_count == 0 {
            return Err(ConfigError::InflightCount);
        }
        if self.max_inflight_bytes != 0 && self.max_inflight_bytes < self.max_size_per_message {
            return Err(ConfigError::InflightBytes);
        }
        if self.read_only == ReadOnlyOption::LeaseBased && !self.check_quorum {
            return Err(ConfigError::LeaseWithoutCheckQuorum);
        }
        let or = |value: u64, zero: u64| if value == 0 { zero } else { value };
        self.max_uncommitted_size = or(self.max_uncommitted_size, u64::MAX);
        self.max_inflight_bytes = or(self.max_inflight_bytes, u64::MAX);
        self.max_committed_size_per_ready =
            or(self.max_committed_size_per_ready, self.max_size_per_message);
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_are_refused() {
        let refuse = |change: fn(&mut Config)| {
            let mut config = Config::new(1, 0);
            change(&mut config);
            config.validated().err()
        };
        assert_eq!(refuse(|_| {}), None);
        assert_eq!(refuse(|c| c.id = 0), Some(ConfigError::Id(0)));
        assert_eq!(refuse(|c| c.id = u64::MAX), Some(ConfigError::Id(u64::MAX)));
        assert_eq!(refuse(|c| c.heartbeat_tick = 0), Some(ConfigError::HeartbeatTick));
        assert_eq!(refuse(|c| c.election_tick = 1), Some(ConfigError::ElectionTick));
        assert_eq!(refuse(|c| c.max_inflight_count = 0), Some(ConfigError::InflightCount));
        assert_eq!(refuse(|c| c.max_inflight_bytes = 5), Some(ConfigError::InflightBytes));
        let lease = refuse(|c| {
            c.check_quorum = false;
            c.read_only = ReadOnlyOption::LeaseBased;
        });
        assert_eq!(lease, Some(ConfigError::LeaseWithoutCheckQuorum));
    }

    #[test]
    fn zero_limits_are_replaced_by_the_defaults() {
        let config = Config::new(1, 0).validated().unwrap();
        assert_eq!(config.max_committed_size_per_ready, 1 << 20);
        assert_eq!(config.max_inflight_bytes, u64::MAX);
        assert_eq!(config.max_uncommitted_size, u64::MAX);
    }
}
