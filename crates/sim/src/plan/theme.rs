//! The theme of a run.
//!
//! If every kind of fault could occur at any time, no scenario would progress far. For example, a cluster that loses
//! its leader every second takes no snapshots. So half of all runs concentrate on one theme, and faults outside the
//! theme are rare.

use std::fmt;

use quorate_node::SnapshotPolicy;
use quorate_seeded_random::SplitMix64;
use quorate_state::watch::{CatchUpLimits, QueueLimits};

use super::{Kind, Plan, one_of};
use crate::clock::{MILLI, Micros, SECOND};

/// The theme of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    /// The run has no theme.
    Anything,
    /// Leaders change often, while clients read and write the same few keys.
    Elections,
    /// Messages are lost, late, duplicated and reordered.
    Messages,
    /// Followers need snapshots, even while other snapshots are being transferred.
    Snapshots,
    /// Members are added, promoted and removed in quick succession, while links break.
    Membership,
    /// The operator makes mistakes.
    Mistakes,
    /// The power fails soon after snapshots are taken or files are purged.
    Crashes,
    /// Disks fail and fill up.
    Disks,
    /// Leases expire, are renewed late, and pass to a new leader.
    Leases,
    /// Compactions reach up to the newest revision, and processes end during them.
    Compactions,
    /// Watch clients are slow, and their queues are short.
    Watches,
    /// Users and roles change, and members restart between two changes.
    Accounts,
}

impl fmt::Display for Theme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl Theme {
    const ALL: [Self; 11] = [
        Self::Elections,
        Self::Messages,
        Self::Snapshots,
        Self::Membership,
        Self::Mistakes,
        Self::Crashes,
        Self::Disks,
        Self::Leases,
        Self::Compactions,
        Self::Watches,
        Self::Accounts,
    ];

    /// Returns the theme with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().chain([Self::Anything]).find(|theme| theme.to_string() == name)
    }

    pub(super) fn draw(rng: &mut SplitMix64) -> Self {
        let theme = one_of(rng, &Self::ALL);
        if rng.below(2) == 0 { theme } else { Self::Anything }
    }

    /// Returns the kinds that belong to the theme. Each of these kinds occurs in most runs with this theme.
    pub(super) const fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Anything => &[],
            Self::Elections => {
                &[Kind::Cut, Kind::OneWayCut, Kind::Kill, Kind::Pause, Kind::SlowNetwork]
            }
            Self::Messages => {
                &[Kind::Loss, Kind::Duplicates, Kind::Reordering, Kind::SlowNetwork, Kind::Flap]
            }
            Self::Snapshots => &[
                Kind::Cut,
                Kind::DiskStall,
                // A follower that cannot write its backend file may need a snapshot.
                Kind::BackendFull,
                Kind::BrokenSnapshots,
                Kind::Kill,
                Kind::SlowNetwork,
            ],
            Self::Membership => &[Kind::Membership, Kind::Cut, Kind::Kill, Kind::DiskStall],
            Self::Mistakes => &[Kind::Mistakes, Kind::Membership, Kind::Kill],
            Self::Crashes => &[
                Kind::PowerCut,
                Kind::PowerCutInAStep,
                Kind::Kill,
                // While one of a member's disks hangs, the member continues with its queued work on the other disk.
                Kind::DiskStall,
                // With large values, a single write spans several sectors.
                Kind::LargeValues,
            ],
            Self::Disks => &[Kind::DiskFailure, Kind::DiskFull, Kind::DiskStall, Kind::PowerCut],
            Self::Leases => &[
                Kind::Leases,
                Kind::Kill,
                Kind::Pause,
                Kind::Transfer,
                Kind::Cut,
                // While the backend hangs, leadership may change faster than entries are applied.
                Kind::DiskStall,
            ],
            Self::Compactions => &[
                Kind::Compaction,
                Kind::Kill,
                Kind::Watches,
                Kind::PowerCut,
                Kind::Defragmentation,
            ],
            Self::Watches => &[Kind::Watches, Kind::Compaction, Kind::Cut, Kind::LargeValues],
            Self::Accounts => &[Kind::Accounts, Kind::Kill, Kind::PowerCut, Kind::Cut],
        }
    }

    /// Returns the theme's kinds that are in [`Kind::ADDED_LATER`].
    pub(super) const fn later_kinds(self) -> &'static [Kind] {
        match self {
            Self::Leases => &[Kind::HostHang, Kind::Refusal, Kind::Suspension],
            Self::Messages => &[Kind::Reset, Kind::NarrowLinks],
            Self::Snapshots => &[Kind::FullAtSnapshot, Kind::OtherIndex],
            Self::Crashes => &[Kind::WallClock, Kind::OtherIndex, Kind::KillInAStep],
            Self::Anything
            | Self::Elections
            | Self::Membership
            | Self::Mistakes
            | Self::Disks
            | Self::Compactions
            | Self::Watches
            | Self::Accounts => &[],
        }
    }

    /// Returns a number `n` such that a run includes, on average, at most one in `n` of the kinds outside its theme.
    pub(super) fn others_one_in(self) -> u64 {
        if self == Self::Anything { 1 } else { 8 }
    }

    /// Adjusts the rest of the plan to the theme.
    pub(super) fn adjust(self, plan: &mut Plan, rng: &mut SplitMix64) {
        if self == Self::Anything {
            return;
        }
        plan.fault_every = one_of(rng, &[300, 300, 1_000]) * MILLI;
        let busy = one_of(rng, &[5, 20, 50]) * MILLI;
        let settings = &mut plan.settings;
        match self {
            Self::Anything | Self::Disks => {}
            Self::Elections => {
                plan.client_timeout = SECOND;
                plan.think_max = busy;
                plan.keys = one_of(rng, &[1, 3]);
                // With long delays, a new leader may be elected before the old leader notices that it has been deposed.
                plan.delay.1 = one_of(rng, &[2, 10, 20]) * MILLI;
                settings.pre_vote = rng.below(2) == 0;
            }
            Self::Messages => {
                plan.think_max = busy;
                plan.delay.1 = one_of(rng, &[10, 50]) * MILLI;
                plan.loss = one_of(rng, &[10, 30]);
            }
            Self::Snapshots => {
                plan.founders = one_of(rng, &[2, 3, 3, 5]);
                plan.think_max = busy;
                settings.snapshot_policy = frequent_snapshots(rng);
            }
            Self::Membership => grow_and_shrink(plan, busy, rng),
            Self::Mistakes => {
                plan.founders = one_of(rng, &[2, 3, 3, 4]);
                // Other faults are rare, because the operator makes a mistake only while the other members are healthy.
                plan.fault_every = 10 * SECOND;
                plan.operate_every = one_of(rng, &[200, 500]) * MILLI;
                plan.think_max = busy;
                settings.snapshot_policy.entry_count = 50;
            }
            Self::Crashes => {
                plan.think_max = busy;
                plan.purge_every = 500 * MILLI;
                settings.snapshot_policy = frequent_snapshots(rng);
                settings.wal.segment_bytes = one_of(rng, &[1_000, 4_000]);
                settings.segments_max = 1;
                settings.snapshots_max = 1;
            }
            Self::Leases => {
                // Other events must have time to happen between a lease's expiry and its revocation.
                plan.think_max = busy;
                plan.clients = 6;
                plan.delay.1 = one_of(rng, &[2, 50]) * MILLI;
                plan.sync_max = one_of(rng, &[2, 40]) * MILLI;
                settings.pace.batch_ops_max = one_of(rng, &[1, 10]);
                plan.step_max = one_of(rng, &[2, 50]) * MILLI;
            }
            Self::Accounts => {
                plan.operate_every = one_of(rng, &[100, 300]) * MILLI;
                plan.think_max = busy;
                if rng.below(2) == 0 {
                    settings.snapshot_policy = frequent_snapshots(rng);
                }
            }
            Self::Compactions => {
                plan.think_max = one_of(rng, &[20, 200]) * MILLI;
                settings.pace.compaction_step = one_of(rng, &[1, 5]);
                settings.window_bytes = one_of(rng, &[0, 0, 2_000]);
            }
            Self::Watches => {
                plan.think_max = busy;
                plan.watchers = 5;
                settings.queue = QueueLimits { bytes_max: 500, count_max: 3 };
                settings.catch_up = slow_catch_up(rng);
            }
        }
    }
}

fn grow_and_shrink(plan: &mut Plan, busy: Micros, rng: &mut SplitMix64) {
    plan.founders = one_of(rng, &[1, 2, 3, 4]);
    plan.operate_every = one_of(rng, &[100, 300]) * MILLI;
    plan.changes_at_once = rng.below(2) == 0;
    if plan.changes_at_once && plan.founders == 1 {
        // If two of five members are removed at once, a quorum of the remaining three and a quorum of all five can be
        // disjoint.
        plan.founders = 5;
    }
    plan.think_max = busy;
    // Other events must have time to happen between the commit of a membership change and the decision about it.
    plan.step_max = one_of(rng, &[1, 20, 50]) * MILLI;
    if rng.below(2) == 0 {
        plan.settings.snapshot_policy = frequent_snapshots(rng);
    }
}

/// Draws a policy with frequent snapshots that keeps only a few older entries for slow followers.
fn frequent_snapshots(rng: &mut SplitMix64) -> SnapshotPolicy {
    SnapshotPolicy {
        entry_count: one_of(rng, &[1, 5, 20]),
        catch_up_count: one_of(rng, &[0, 3]),
        catch_up_bytes: 1_000,
        transfer_bytes: 64 << 20,
    }
}

/// Draws limits so low that catch-up sends only a few events at a time.
fn slow_catch_up(rng: &mut SplitMix64) -> CatchUpLimits {
    CatchUpLimits {
        response_revisions_max: one_of(rng, &[1, 3]),
        response_bytes: one_of(rng, &[100, 1_000]),
        pass_changes: one_of(rng, &[1, 5]),
        locked_revisions_max: one_of(rng, &[1, 3]),
        locked_bytes_max: one_of(rng, &[100, 1_000]),
    }
}
