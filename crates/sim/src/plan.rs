//! The plan that a seed determines: the kinds of faults in a run, their frequency, the cluster and its clients.
//!
//! Every run has its own mix of faults ("swarm testing"). Most kinds are absent from a run, so that the others interact
//! undisturbed, and every pair of kinds occurs together in some run. Half of all runs have a theme ([`Theme`]): much of
//! one thing, and little else. A run can be repeated without some of the kinds that its seed drew, or shorter. Nothing
//! else changes, so that a failing run can be reduced.

mod theme;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use quorate_core::lease_rules;
use quorate_node::SnapshotPolicy;
use quorate_seeded_random::SplitMix64;
use quorate_state::watch::{CatchUpLimits, QueueLimits};

use crate::clock::{MILLI, Micros, SECOND};
use crate::member::Settings;

pub use self::theme::Theme;

/// Something that a run may have or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Kind {
    Kill,
    PowerCut,
    PowerCutInAStep,
    DiskFailure,
    DiskFull,
    BackendFull,
    DiskStall,
    Cut,
    OneWayCut,
    Flap,
    Loss,
    Duplicates,
    Reordering,
    SlowNetwork,
    Pause,
    Drift,
    ClockJump,
    Transfer,
    Membership,
    Mistakes,
    BrokenSnapshots,
    Compaction,
    Defragmentation,
    Leases,
    Watches,
    Versions,
    Quota,
    LargeValues,
    Accounts,
    /// Disk and network of a host stand still at once.
    HostHang,
    /// A host's connections break and its port refuses new ones, while its process lives.
    Refusal,
    /// A process is suspended for longer than most leases last.
    Suspension,
    /// A host's connections are reset, and new ones are accepted at once.
    Reset,
    /// A follower's disk is full when a snapshot has arrived.
    FullAtSnapshot,
    /// A host's wall clock steps back before a process starts.
    WallClock,
    /// Leaders name another index for a snapshot than its image has, as leaders of etcd may.
    OtherIndex,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 36] = [
        Self::Kill,
        Self::PowerCut,
        Self::PowerCutInAStep,
        Self::DiskFailure,
        Self::DiskFull,
        Self::DiskStall,
        Self::Cut,
        Self::OneWayCut,
        Self::Flap,
        Self::Loss,
        Self::Duplicates,
        Self::Reordering,
        Self::SlowNetwork,
        Self::Pause,
        Self::Drift,
        Self::ClockJump,
        Self::Transfer,
        Self::Membership,
        Self::Mistakes,
        Self::BrokenSnapshots,
        Self::Compaction,
        Self::Defragmentation,
        Self::Leases,
        Self::Watches,
        Self::Versions,
        Self::Quota,
        Self::LargeValues,
        Self::Accounts,
        Self::HostHang,
        Self::Refusal,
        Self::BackendFull,
        Self::Suspension,
        Self::Reset,
        Self::FullAtSnapshot,
        Self::WallClock,
        Self::OtherIndex,
    ];

    /// Those that were added when there were seeds already. They are drawn apart, so that what older seeds draw stays.
    const LATER: [Self; 8] = [
        Self::HostHang,
        Self::Refusal,
        Self::BackendFull,
        Self::Suspension,
        Self::Reset,
        Self::FullAtSnapshot,
        Self::WallClock,
        Self::OtherIndex,
    ];

    /// The kind of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.to_string() == name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// What is left out of a run that its seed has drawn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Less {
    /// These kinds.
    pub without: BTreeSet<Kind>,
    /// Everything after this.
    pub seconds_max: Option<u64>,
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What everything is drawn from.
    pub seed: u64,
    /// What this run is about.
    pub theme: Theme,
    /// What it has.
    pub kinds: BTreeSet<Kind>,
    /// For how long things go wrong.
    pub duration: Micros,
    /// Founders.
    pub founders: usize,
    /// Places for members, the founders' included.
    pub hosts: usize,
    /// Between two faults, in the mean.
    pub fault_every: Micros,
    /// Between two acts of the operator, in the mean.
    pub operate_every: Micros,
    /// Whether a change of the members is asked for while another is under way.
    pub changes_at_once: bool,
    /// Clients that read and write.
    pub clients: usize,
    /// Watchers.
    pub watchers: usize,
    /// Between two operations of a client, at most.
    pub think_max: Micros,
    /// How long a client waits for an answer.
    pub patience: Micros,
    /// Keys that clients share.
    pub keys: u64,
    /// How long a message takes, at least and at most.
    pub delay: (Micros, Micros),
    /// One message in so many is lost; 0 for none.
    pub loss: u64,
    /// How long a sync takes, at most.
    pub sync_max: Micros,
    /// How long a step of a machine takes, at most.
    pub step_max: Micros,
    /// Between two looks for files that are not needed any more, in the mean.
    pub purge_every: Micros,
    /// The version that the cluster begins with.
    pub version: &'static str,
    /// What all members are told.
    pub settings: Settings,
    /// Whether members have other sizes than their neighbours.
    pub flags_differ: bool,
}

/// Draws one of these.
fn one_of<T: Copy>(draw: &mut SplitMix64, of: &[T]) -> T {
    of[draw.position(of.len())]
}

impl Plan {
    /// What this seed draws, less what is left out.
    #[must_use]
    pub fn draw(seed: u64, less: &Less) -> Self {
        let mut draw = SplitMix64::new(seed);
        let draw = &mut draw;
        let theme = Theme::draw(draw);
        // Some runs have few kinds, some have many.
        let one_in = one_of(draw, &[2, 3, 4, 8]).max(theme.others_one_in());
        let first = Kind::ALL.into_iter().filter(|kind| !Kind::LATER.contains(kind));
        let mut kinds: BTreeSet<Kind> = first.filter(|_| draw.below(one_in) == 0).collect();
        kinds.extend(theme.kinds().iter().filter(|_| draw.below(5) != 0));
        let mut apart = SplitMix64::new(!seed);
        let odds = |apart: &mut SplitMix64, kind| match theme.later_kinds().contains(&kind) {
            true => apart.below(5) != 0,
            false => apart.below(one_in) == 0,
        };
        kinds.extend(Kind::LATER.into_iter().filter(|kind| odds(&mut apart, *kind)));
        let founders = one_of(draw, &[1, 2, 3, 3, 3, 3, 4, 5]);
        let mut duration = one_of(draw, &[10, 20, 30, 30, 45, 60, 90]) * SECOND;
        if let Some(seconds) = less.seconds_max {
            duration = duration.min(seconds * SECOND);
        }
        let think_max = one_of(draw, &[5, 50, 200, 1_000]) * MILLI;
        let mut plan = Self {
            seed,
            theme,
            duration: 0,
            founders,
            hosts: 0,
            fault_every: one_of(draw, &[300, 1_000, 2_000, 5_000]) * MILLI,
            operate_every: one_of(draw, &[500, 2_000, 5_000]) * MILLI,
            changes_at_once: draw.below(4) == 0,
            clients: 1 + draw.position(6),
            watchers: 1 + draw.position(5),
            think_max,
            patience: one_of(draw, &[1, 3, 7]) * SECOND,
            keys: one_of(draw, &[1, 3, 10, 50]),
            delay: (50, one_of(draw, &[300, 2 * MILLI, 10 * MILLI, 50 * MILLI])),
            loss: one_of(draw, &[10, 30, 100, 1_000]),
            sync_max: one_of(draw, &[200, 2 * MILLI, 10 * MILLI, 40 * MILLI]),
            step_max: one_of(draw, &[50, 500, 2 * MILLI]),
            purge_every: one_of(draw, &[500 * MILLI, 5 * SECOND]),
            version: one_of(draw, &["3.6.0", "3.7.0"]),
            settings: draw_settings(draw, &kinds),
            flags_differ: draw.below(4) == 0,
            kinds,
        };
        theme.sharpen(&mut plan, draw);
        plan.hosts = plan.founders + 2;
        if plan.think_max < 10 * MILLI {
            // As many events as in a longer run.
            duration = duration.min(15 * SECOND);
        }
        plan.duration = duration;
        // What is left out was drawn, so that everything else stays as it is.
        plan.kinds.retain(|kind| !less.without.contains(kind));
        plan
    }

    /// Whether the run has this.
    #[must_use]
    pub fn has(&self, kind: Kind) -> bool {
        self.kinds.contains(&kind)
    }

    /// What one member is told: what may differ does, in some runs.
    #[must_use]
    pub fn settings_of(&self, draw: &mut SplitMix64) -> Settings {
        let mut settings = self.settings.clone();
        if self.flags_differ {
            let other = draw_settings(draw, &self.kinds);
            settings.snapshot_policy = other.snapshot_policy;
            settings.pace = other.pace;
            settings.wal = other.wal;
            settings.window_bytes = other.window_bytes;
            settings.growth_bytes = other.growth_bytes;
            // How long an election is waited for has to be the same everywhere.
            settings.pace.lease_extension_millis = self.settings.pace.lease_extension_millis;
            settings.pre_vote = other.pre_vote;
            settings.fences_stalled_disk = other.fences_stalled_disk;
            if self.has(Kind::Quota) {
                settings.quota_bytes = other.quota_bytes;
                settings.quota_headroom_bytes = other.quota_headroom_bytes;
            }
        }
        settings
    }
}

fn draw_settings(draw: &mut SplitMix64, kinds: &BTreeSet<Kind>) -> Settings {
    let mut settings = Settings {
        snapshot_policy: SnapshotPolicy {
            entry_count: one_of(draw, &[1, 10, 50, 200, 1_000]),
            catch_up_count: one_of(draw, &[0, 5, 50, 500]),
            catch_up_bytes: one_of(draw, &[1_000, 30_000, 1 << 20]),
            // With less, whoever is sent a snapshot may never catch up.
            transfer_bytes: 64 << 20,
        },
        election_ticks: one_of(draw, &[5, 10, 10]),
        pre_vote: draw.below(4) != 0,
        initial_tick_advance: draw.below(2) == 0,
        fences_stalled_disk: draw.below(4) != 0,
        growth_bytes: one_of(draw, &[4 << 10, 32 << 10, 256 << 10]),
        page_bytes: one_of(draw, &[1024, 4096]),
        window_bytes: one_of(draw, &[0, 0, 2_000, 1 << 20]),
        checkpoints: draw.below(3) == 0,
        learner_max: one_of(draw, &[1, 1, 2]),
        snapshots_max: one_of(draw, &[1, 2, 5]),
        segments_max: one_of(draw, &[1, 2, 5]),
        fragment_bytes_max: one_of(draw, &[200, 2_000, 1 << 20]),
        ..Settings::default()
    };
    settings.catch_up = CatchUpLimits {
        response_revisions_max: one_of(draw, &[1, 10, 1_000]),
        response_bytes: one_of(draw, &[100, 2_000, 1 << 20]),
        pass_changes: one_of(draw, &[1, 10, 50_000]),
        locked_revisions_max: one_of(draw, &[1, 10, 64]),
        locked_bytes_max: one_of(draw, &[100, 2_000, 1 << 20]),
    };
    settings.wal.segment_bytes = one_of(draw, &[1_000, 4_000, 32 << 10, 256 << 10]);
    settings.wal.zero_lead_bytes = one_of(draw, &[0, 4 << 10]);
    settings.wal.zero_step_bytes = one_of(draw, &[0, 1 << 10]);
    settings.pace.batch_interval = Duration::from_millis(one_of(draw, &[5, 100, 100, 1_000]));
    settings.pace.batch_ops_max = one_of(draw, &[1, 10, 1_000]);
    settings.pace.compaction_step = one_of(draw, &[1, 5, 100]);
    settings.pace.compaction_pause = Duration::from_millis(one_of(draw, &[1, 10, 300]));
    settings.pace.lease_extension_millis =
        lease_rules::extension_millis(settings.election_timeout_millis());
    settings.queue = one_of(
        draw,
        &[
            QueueLimits { bytes_max: 200, count_max: 2 },
            QueueLimits { bytes_max: 5_000, count_max: 20 },
            QueueLimits { bytes_max: 2 << 20, count_max: 512 },
        ],
    );
    if kinds.contains(&Kind::LargeValues) {
        settings.request_bytes_max = one_of(draw, &[3_000, 20_000]);
    }
    if kinds.contains(&Kind::Quota) {
        settings.quota_bytes = one_of(draw, &[100_000, 300_000, 1_000_000]);
        settings.quota_headroom_bytes = one_of(draw, &[0, 0, 20_000]);
    }
    settings
}
