//! The theme of a run.
//!
//! Where every kind of fault may occur at once, no scenario gets far: a cluster that loses its leader every second
//! takes no snapshots. So half of all runs emphasize one thing, and other things are rare in them.

use std::fmt;

use quorate_node::SnapshotPolicy;
use quorate_seeded_random::SplitMix64;
use quorate_state::watch::{CatchUpLimits, QueueLimits};

use super::{Kind, Plan, one_of};
use crate::clock::{MILLI, Micros, SECOND};

/// The theme of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    /// Nothing in particular.
    Anything,
    /// Leaders come and go, while clients read and write what others do.
    Elections,
    /// Messages are lost, late, twice, out of order.
    Messages,
    /// Followers need snapshots, again while others are under way.
    Snapshots,
    /// Members are added, promoted and removed, one upon the other, while links break.
    Membership,
    /// The operator makes mistakes.
    Mistakes,
    /// Power goes, soon after snapshots were taken and files were given up.
    Crashes,
    /// Disks fail and fill up.
    Disks,
    /// Leases end, are renewed late, and change their leader.
    Leases,
    /// History is forgotten up to the newest revision, and processes end meanwhile.
    Compactions,
    /// Watchers are slow, and queues are short.
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

    pub(super) fn draw(draw: &mut SplitMix64) -> Self {
        let theme = one_of(draw, &Self::ALL);
        if draw.below(2) == 0 { theme } else { Self::Anything }
    }

    /// What it takes, most of which a run has.
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
                // While a follower cannot write its backend file, it may need a snapshot.
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
                // While one of its disks stands still, a member goes on with what it has in hand.
                Kind::DiskStall,
                // What is written at once does not fit a sector.
                Kind::LargeValues,
            ],
            Self::Disks => &[Kind::DiskFailure, Kind::DiskFull, Kind::DiskStall, Kind::PowerCut],
            Self::Leases => &[
                Kind::Leases,
                Kind::Kill,
                Kind::Pause,
                Kind::Transfer,
                Kind::Cut,
                // While the backend stands still, leadership may change faster than entries are applied.
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

    /// The same, of [`Kind::LATER`].
    pub(super) const fn later_kinds(self) -> &'static [Kind] {
        match self {
            Self::Leases => &[Kind::HostHang, Kind::Refusal, Kind::Suspension],
            Self::Messages => &[Kind::Reset],
            Self::Snapshots => &[Kind::FullAtSnapshot, Kind::OtherIndex],
            Self::Crashes => &[Kind::WallClock, Kind::OtherIndex],
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

    /// One in so many of the other kinds a run has, at most.
    pub(super) fn others_one_in(self) -> u64 {
        if self == Self::Anything { 1 } else { 8 }
    }

    /// Makes the rest of the plan fit.
    pub(super) fn sharpen(self, plan: &mut Plan, draw: &mut SplitMix64) {
        if self == Self::Anything {
            return;
        }
        plan.fault_every = one_of(draw, &[300, 300, 1_000]) * MILLI;
        let busy = one_of(draw, &[5, 20, 50]) * MILLI;
        let settings = &mut plan.settings;
        match self {
            Self::Anything | Self::Disks => {}
            Self::Elections => {
                plan.patience = SECOND;
                plan.think_max = busy;
                plan.keys = one_of(draw, &[1, 3]);
                // What is late comes when others may have been elected, and the leader of before does not know.
                plan.delay.1 = one_of(draw, &[2, 10, 20]) * MILLI;
                settings.pre_vote = draw.below(2) == 0;
            }
            Self::Messages => {
                plan.think_max = busy;
                plan.delay.1 = one_of(draw, &[10, 50]) * MILLI;
                plan.loss = one_of(draw, &[10, 30]);
            }
            Self::Snapshots => {
                plan.founders = one_of(draw, &[2, 3, 3, 5]);
                plan.think_max = busy;
                settings.snapshot_policy = snapshots_often(draw);
            }
            Self::Membership => grow_and_shrink(plan, busy, draw),
            Self::Mistakes => {
                plan.founders = one_of(draw, &[2, 3, 3, 4]);
                // Members have to be well for it to do no more harm than it should.
                plan.fault_every = 10 * SECOND;
                plan.operate_every = one_of(draw, &[200, 500]) * MILLI;
                plan.think_max = busy;
                settings.snapshot_policy.entry_count = 50;
            }
            Self::Crashes => {
                plan.think_max = busy;
                plan.purge_every = 500 * MILLI;
                settings.snapshot_policy = snapshots_often(draw);
                settings.wal.segment_bytes = one_of(draw, &[1_000, 4_000]);
                settings.segments_max = 1;
                settings.snapshots_max = 1;
            }
            Self::Leases => {
                // Between a lease's end and the entry that tells of it, there is to be time for something.
                plan.think_max = busy;
                plan.clients = 6;
                plan.delay.1 = one_of(draw, &[2, 50]) * MILLI;
                plan.sync_max = one_of(draw, &[2, 40]) * MILLI;
                settings.pace.batch_ops_max = one_of(draw, &[1, 10]);
                plan.step_max = one_of(draw, &[2, 50]) * MILLI;
            }
            Self::Accounts => {
                plan.operate_every = one_of(draw, &[100, 300]) * MILLI;
                plan.think_max = busy;
                if draw.below(2) == 0 {
                    settings.snapshot_policy = snapshots_often(draw);
                }
            }
            Self::Compactions => {
                plan.think_max = one_of(draw, &[20, 200]) * MILLI;
                settings.pace.compaction_step = one_of(draw, &[1, 5]);
                settings.window_bytes = one_of(draw, &[0, 0, 2_000]);
            }
            Self::Watches => {
                plan.think_max = busy;
                plan.watchers = 5;
                settings.queue = QueueLimits { bytes_max: 500, count_max: 3 };
                settings.catch_up = short_of_breath(draw);
            }
        }
    }
}

fn grow_and_shrink(plan: &mut Plan, busy: Micros, draw: &mut SplitMix64) {
    plan.founders = one_of(draw, &[1, 2, 3, 4]);
    plan.operate_every = one_of(draw, &[100, 300]) * MILLI;
    plan.changes_at_once = draw.below(2) == 0;
    if plan.changes_at_once && plan.founders == 1 {
        // Of five, two may go at once, and leave a quorum of the rest beside one of all.
        plan.founders = 5;
    }
    plan.think_max = busy;
    // Between an entry and the verdict on it, there is to be time for something.
    plan.step_max = one_of(draw, &[1, 20, 50]) * MILLI;
    if draw.below(2) == 0 {
        plan.settings.snapshot_policy = snapshots_often(draw);
    }
}

/// Few entries between two, and hardly any behind them for those who are slow.
fn snapshots_often(draw: &mut SplitMix64) -> SnapshotPolicy {
    SnapshotPolicy {
        entry_count: one_of(draw, &[1, 5, 20]),
        catch_up_count: one_of(draw, &[0, 3]),
        catch_up_bytes: 1_000,
        transfer_bytes: 64 << 20,
    }
}

/// Watchers who are behind are served little at a time.
fn short_of_breath(draw: &mut SplitMix64) -> CatchUpLimits {
    CatchUpLimits {
        response_revisions_max: one_of(draw, &[1, 3]),
        response_bytes: one_of(draw, &[100, 1_000]),
        pass_changes: one_of(draw, &[1, 5]),
        locked_revisions_max: one_of(draw, &[1, 3]),
        locked_bytes_max: one_of(draw, &[100, 1_000]),
    }
}
