//! The settings with which a member starts: its flags and the sizes of its files.

use std::time::Duration;

use quorate_core::{Intervals, Pace};
use quorate_node::{FlowLimits, SnapshotPolicy};
use quorate_state::apply::StateOptions;
use quorate_state::lease::LessorOptions;
use quorate_state::mvcc::StoreOptions;
use quorate_state::watch::{CatchUpLimits, QueueLimits, WatchLimits};
use quorate_storage::{bolt, wal};

use crate::clock::{MILLI, Micros};

/// The settings of a member.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The time between two ticks.
    pub tick: Micros,
    /// How long a leader may defer its commit notices.
    pub commit_interval: Micros,
    /// The election timeout in ticks.
    pub election_ticks: u32,
    /// Whether a candidate runs a pre-vote before it campaigns.
    pub pre_vote: bool,
    /// Whether the first election timeout is shortened.
    pub initial_tick_advance: bool,
    /// Whether a member with a stalled disk transfers leadership and does not campaign.
    pub fences_stalled_disk: bool,
    /// The policy that decides when snapshots are taken.
    pub snapshot_policy: SnapshotPolicy,
    /// The limits of appends.
    pub flow_limits: FlowLimits,
    /// The pace of batches and compactions.
    pub pace: Pace,
    /// The options of the log.
    pub wal: wal::Options,
    /// The step by which the backend file grows, in bytes.
    pub growth_bytes: u64,
    /// The page size of a new backend file.
    pub page_bytes: usize,
    /// The quota in bytes. A negative value means that there is no quota.
    pub quota_bytes: i64,
    /// The bytes below the quota that are reserved for deletes and compactions.
    pub quota_headroom_bytes: u64,
    /// The maximum number of learners.
    pub learner_max: usize,
    /// The maximum size in bytes of the records in memory.
    pub window_bytes: usize,
    /// Whether the leader replicates the remaining time of leases.
    pub checkpoints: bool,
    /// Whether a leader renews a lease that it knows before it has applied all committed entries.
    pub renews_at_once: bool,
    /// The number of snapshot files to keep.
    pub snapshots_max: usize,
    /// The number of segments to keep.
    pub segments_max: usize,
    /// The maximum number of operations in a transaction.
    pub txn_ops_max: usize,
    /// The maximum size of a request in bytes.
    pub request_bytes_max: usize,
    /// The size in bytes at which watch responses are split.
    pub fragment_bytes_max: usize,
    /// The limits on the queue of a watch stream.
    pub queue: QueueLimits,
    /// The limits on catch-up for watchers that are behind.
    pub catch_up: CatchUpLimits,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tick: 100 * MILLI,
            commit_interval: 2 * MILLI,
            election_ticks: 10,
            pre_vote: true,
            initial_tick_advance: true,
            fences_stalled_disk: true,
            snapshot_policy: SnapshotPolicy {
                entry_count: 100,
                catch_up_count: 50,
                catch_up_bytes: 64 << 10,
                transfer_bytes: 64 << 20,
            },
            flow_limits: FlowLimits::default(),
            pace: Pace {
                batch_interval: Duration::from_millis(100),
                batch_ops_max: 100,
                compaction_step: 20,
                compaction_pause: Duration::from_millis(10),
                lease_extension_millis: 2000,
            },
            wal: wal::Options {
                segment_bytes: 32 << 10,
                zero_lead_bytes: 4 << 10,
                zero_step_bytes: 2 << 10,
                kept_free_bytes: 16 << 10,
                ..wal::Options::default()
            },
            growth_bytes: 32 << 10,
            page_bytes: 4096,
            quota_bytes: -1,
            quota_headroom_bytes: 0,
            learner_max: 1,
            window_bytes: 1 << 20,
            checkpoints: false,
            renews_at_once: true,
            snapshots_max: 2,
            segments_max: 2,
            txn_ops_max: 128,
            request_bytes_max: 1 << 20,
            fragment_bytes_max: 1 << 20,
            queue: QueueLimits::default(),
            catch_up: CatchUpLimits::default(),
        }
    }
}

impl Settings {
    /// Returns the election timeout in milliseconds, which is the minimum time without a leader
    /// before an election.
    pub(crate) const fn election_timeout_millis(&self) -> u64 {
        self.election_ticks as u64 * self.tick / MILLI
    }

    pub(super) const fn intervals(&self) -> Intervals {
        Intervals {
            tick: Duration::from_micros(self.tick),
            election_timeout: Duration::from_millis(self.election_timeout_millis()),
            commit_notice: Duration::from_micros(self.commit_interval),
        }
    }

    pub(super) fn state_options(&self) -> StateOptions {
        let watch =
            WatchLimits { queue: self.queue, catch_up: self.catch_up, ..WatchLimits::default() };
        StateOptions {
            store: StoreOptions {
                window_bytes_max: self.window_bytes,
                recovered_bytes_max: self.window_bytes,
            },
            lessor: LessorOptions {
                ttl_secs_min: 1,
                checkpoints: self.checkpoints,
                checkpoint_interval_secs: 5,
                resubmit_millis: 2_000,
            },
            checkpoint_persist: false,
            quota_bytes: self.quota_bytes,
            learner_count_max: self.learner_max,
            watch,
            // Simulated clients do not log in.
            ..StateOptions::default()
        }
    }

    pub(super) fn bolt_options(&self) -> bolt::Options {
        let mut options = bolt::Options::default();
        options.growth_bytes = self.growth_bytes;
        options.page_bytes_new = self.page_bytes;
        options.map_bytes_min = 1 << 20;
        options
    }
}
