//! The plan of a run, drawn from the seed: the kinds of faults, their frequency, the cluster and its clients.
//!
//! Every run has its own mix of faults ("swarm testing"). Most kinds are absent from any single run, so that the other
//! kinds interact undisturbed, and every pair of kinds occurs together in some run. Half of all runs have a theme
//! ([`Theme`]): events that belong to the theme are frequent, and others are rare. A failing run is reduced by
//! repeating it without some of the kinds that its seed drew, or with a shorter duration. Nothing else in the plan
//! changes.

mod theme;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use quorate_core::lease_rules;
use quorate_node::{FlowLimits, SnapshotPolicy};
use quorate_seeded_random::SplitMix64;
use quorate_state::watch::{CatchUpLimits, QueueLimits};

use crate::clock::{MILLI, Micros, SECOND};
use crate::member::Settings;

pub use self::theme::Theme;

/// A kind of fault or activity that may occur in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are self-explanatory")]
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
    /// The disk and the network of a host hang at the same time.
    HostHang,
    /// The connections of a host break and its port refuses new ones while its process continues to run.
    Refusal,
    /// A process is suspended for longer than the TTL of most leases.
    Suspension,
    /// The connections of a host are reset, and new ones are accepted at once.
    Reset,
    /// The disk of a follower is full after a snapshot arrives.
    FullAtSnapshot,
    /// The wall clock of a host steps back before a process starts.
    WallClock,
    /// The leader's snapshot message names a different index than its image has, as can happen with etcd leaders.
    OtherIndex,
    /// A process is killed between two disk operations.
    KillInAStep,
    /// Links have a limited bandwidth, and members have few appends in flight.
    NarrowLinks,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 38] = [
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
        Self::KillInAStep,
        Self::NarrowLinks,
    ];

    /// Kinds that were added after the other kinds. They are drawn from a separate generator, so that adding them did
    /// not change the rest of a seed's plan.
    const ADDED_LATER: [Self; 10] = [
        Self::HostHang,
        Self::Refusal,
        Self::BackendFull,
        Self::Suspension,
        Self::Reset,
        Self::FullAtSnapshot,
        Self::WallClock,
        Self::OtherIndex,
        Self::KillInAStep,
        Self::NarrowLinks,
    ];

    /// Returns the kind with this name.
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

/// The parts of a plan that a repeated run omits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reduction {
    /// Kinds to omit.
    pub without: BTreeSet<Kind>,
    /// The maximum duration in seconds, if it is limited.
    pub seconds_max: Option<u64>,
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed of all random numbers in the run.
    pub seed: u64,
    /// The theme of this run.
    pub theme: Theme,
    /// The kinds of faults and activities in the run.
    pub kinds: BTreeSet<Kind>,
    /// The length of the phase in which faults occur.
    pub duration: Micros,
    /// The number of founding members.
    pub founders: usize,
    /// The number of hosts, including the hosts of the founding members.
    pub hosts: usize,
    /// The mean time between two faults.
    pub fault_every: Micros,
    /// The mean time between two actions of the operator.
    pub operate_every: Micros,
    /// Whether the operator requests a membership change while another is in progress.
    pub changes_at_once: bool,
    /// The number of clients that read and write.
    pub clients: usize,
    /// The number of watch clients.
    pub watchers: usize,
    /// The maximum time that a client waits between two operations.
    pub think_max: Micros,
    /// The time after which a client gives up on a request.
    pub client_timeout: Micros,
    /// The number of keys, which all clients share.
    pub keys: u64,
    /// The minimum and maximum latency of a message.
    pub delay: (Micros, Micros),
    /// On average, one in this many messages is lost.
    pub loss: u64,
    /// The number of bytes that a link transports in a second, if the run has narrow links.
    pub bandwidth: u64,
    /// The maximum duration of a log sync and of a turn of the backend.
    pub sync_max: Micros,
    /// The maximum duration of any other turn.
    pub step_max: Micros,
    /// The mean time between two purges of old files.
    pub purge_every: Micros,
    /// The cluster version at the start of the run.
    pub version: &'static str,
    /// The settings shared by all members.
    pub settings: Settings,
    /// Whether members have different settings.
    pub flags_differ: bool,
}

/// Draws one of the given values.
fn one_of<T: Copy>(rng: &mut SplitMix64, of: &[T]) -> T {
    of[rng.position(of.len())]
}

impl Plan {
    /// Draws the plan of a seed, without the parts that the reduction omits.
    #[must_use]
    pub fn draw(seed: u64, reduction: &Reduction) -> Self {
        let mut rng = SplitMix64::new(seed);
        let rng = &mut rng;
        let theme = Theme::draw(rng);
        // Some runs have few kinds of faults, others have many.
        let one_in = one_of(rng, &[2, 3, 4, 8]).max(theme.others_one_in());
        let first = Kind::ALL.into_iter().filter(|kind| !Kind::ADDED_LATER.contains(kind));
        let mut kinds: BTreeSet<Kind> = first.filter(|_| rng.below(one_in) == 0).collect();
        kinds.extend(theme.kinds().iter().filter(|_| rng.below(5) != 0));
        let mut later_rng = SplitMix64::new(!seed);
        let is_drawn = |later_rng: &mut SplitMix64, kind| match theme.later_kinds().contains(&kind)
        {
            true => later_rng.below(5) != 0,
            false => later_rng.below(one_in) == 0,
        };
        kinds.extend(Kind::ADDED_LATER.into_iter().filter(|kind| is_drawn(&mut later_rng, *kind)));
        let founders = one_of(rng, &[1, 2, 3, 3, 3, 3, 4, 5]);
        let mut duration = one_of(rng, &[10, 20, 30, 30, 45, 60, 90]) * SECOND;
        if let Some(seconds) = reduction.seconds_max {
            duration = duration.min(seconds * SECOND);
        }
        let think_max = one_of(rng, &[5, 50, 200, 1_000]) * MILLI;
        let mut plan = Self {
            seed,
            theme,
            duration: 0,
            founders,
            hosts: 0,
            fault_every: one_of(rng, &[300, 1_000, 2_000, 5_000]) * MILLI,
            operate_every: one_of(rng, &[500, 2_000, 5_000]) * MILLI,
            changes_at_once: rng.below(4) == 0,
            clients: 1 + rng.position(6),
            watchers: 1 + rng.position(5),
            think_max,
            client_timeout: one_of(rng, &[1, 3, 7]) * SECOND,
            keys: one_of(rng, &[1, 3, 10, 50]),
            delay: (50, one_of(rng, &[300, 2 * MILLI, 10 * MILLI, 50 * MILLI])),
            loss: one_of(rng, &[10, 30, 100, 1_000]),
            bandwidth: one_of(&mut later_rng, &[50_000, 200_000, 1_000_000]),
            sync_max: one_of(rng, &[200, 2 * MILLI, 10 * MILLI, 40 * MILLI]),
            step_max: one_of(rng, &[50, 500, 2 * MILLI]),
            purge_every: one_of(rng, &[500 * MILLI, 5 * SECOND]),
            version: one_of(rng, &["3.6.0", "3.7.0"]),
            settings: draw_settings(rng, &kinds),
            flags_differ: rng.below(4) == 0,
            kinds,
        };
        theme.adjust(&mut plan, rng);
        if plan.has(Kind::NarrowLinks) {
            plan.settings.flow_limits = draw_flow_limits(&mut later_rng);
        }
        plan.hosts = plan.founders + 2;
        if plan.think_max < 10 * MILLI {
            // With such short pauses between requests, a short run has as many events as a longer run with longer
            // pauses.
            duration = duration.min(15 * SECOND);
        }
        plan.duration = duration;
        // The omitted kinds were drawn as well, so that the rest of the plan stays the same.
        plan.kinds.retain(|kind| !reduction.without.contains(kind));
        plan
    }

    /// Returns whether this kind of fault or activity may occur in the run.
    #[must_use]
    pub fn has(&self, kind: Kind) -> bool {
        self.kinds.contains(&kind)
    }

    /// Draws the settings of one member. In some runs, members differ in the settings that need not be the same in the
    /// whole cluster.
    #[must_use]
    pub fn settings_of(&self, rng: &mut SplitMix64) -> Settings {
        let mut settings = self.settings.clone();
        if self.flags_differ {
            let other = draw_settings(rng, &self.kinds);
            settings.snapshot_policy = other.snapshot_policy;
            settings.pace = other.pace;
            settings.wal = other.wal;
            settings.window_bytes = other.window_bytes;
            settings.growth_bytes = other.growth_bytes;
            // All members must have the same lease extension.
            settings.pace.lease_extension_millis = self.settings.pace.lease_extension_millis;
            settings.pre_vote = other.pre_vote;
            settings.fences_stalled_disk = other.fences_stalled_disk;
            settings.renews_at_once = other.renews_at_once;
            if self.has(Kind::Quota) {
                settings.quota_bytes = other.quota_bytes;
                settings.quota_headroom_bytes = other.quota_headroom_bytes;
            }
        }
        settings
    }
}

/// Draws limits of appends that simulated members reach.
fn draw_flow_limits(rng: &mut SplitMix64) -> FlowLimits {
    let append_bytes = one_of(rng, &[200, 2_000]);
    FlowLimits {
        append_bytes,
        inflight_appends: one_of(rng, &[1, 4, 512]),
        inflight_bytes: append_bytes.max(one_of(rng, &[500, 5_000, 20_000])),
        unapplied_bytes: one_of(rng, &[1_000, 20_000, 1 << 20]),
    }
}

fn draw_settings(rng: &mut SplitMix64, kinds: &BTreeSet<Kind>) -> Settings {
    let mut settings = Settings {
        snapshot_policy: SnapshotPolicy {
            entry_count: one_of(rng, &[1, 10, 50, 200, 1_000]),
            catch_up_count: one_of(rng, &[0, 5, 50, 500]),
            catch_up_bytes: one_of(rng, &[1_000, 30_000, 1 << 20]),
            // With a lower limit, a follower that needs a snapshot might never catch up.
            transfer_bytes: 64 << 20,
        },
        // With a longer interval than in production, more entries are committed without a notice.
        commit_interval: one_of(rng, &[2, 10, 25, 50]) * MILLI,
        election_ticks: one_of(rng, &[5, 10, 10]),
        pre_vote: rng.below(4) != 0,
        initial_tick_advance: rng.below(2) == 0,
        fences_stalled_disk: rng.below(4) != 0,
        growth_bytes: one_of(rng, &[4 << 10, 32 << 10, 256 << 10]),
        page_bytes: one_of(rng, &[1024, 4096]),
        window_bytes: one_of(rng, &[0, 0, 2_000, 1 << 20]),
        checkpoints: rng.below(3) == 0,
        learner_max: one_of(rng, &[1, 1, 2]),
        snapshots_max: one_of(rng, &[1, 2, 5]),
        segments_max: one_of(rng, &[1, 2, 5]),
        fragment_bytes_max: one_of(rng, &[200, 2_000, 1 << 20]),
        ..Settings::default()
    };
    settings.catch_up = CatchUpLimits {
        response_revisions_max: one_of(rng, &[1, 10, 1_000]),
        response_bytes: one_of(rng, &[100, 2_000, 1 << 20]),
        pass_changes: one_of(rng, &[1, 10, 50_000]),
        locked_revisions_max: one_of(rng, &[1, 10, 64]),
        locked_bytes_max: one_of(rng, &[100, 2_000, 1 << 20]),
    };
    settings.wal.segment_bytes = one_of(rng, &[1_000, 4_000, 32 << 10, 256 << 10]);
    settings.wal.zero_lead_bytes = one_of(rng, &[0, 4 << 10]);
    settings.wal.zero_step_bytes = one_of(rng, &[0, 1 << 10]);
    settings.pace.batch_interval = Duration::from_millis(one_of(rng, &[5, 100, 100, 1_000]));
    settings.renews_at_once = rng.below(3) > 0;
    settings.pace.batch_ops_max = one_of(rng, &[1, 10, 1_000]);
    settings.pace.compaction_step = one_of(rng, &[1, 5, 100]);
    settings.pace.compaction_pause = Duration::from_millis(one_of(rng, &[1, 10, 300]));
    settings.pace.lease_extension_millis =
        lease_rules::extension_millis(settings.election_timeout_millis());
    settings.queue = one_of(
        rng,
        &[
            QueueLimits { bytes_max: 200, count_max: 2 },
            QueueLimits { bytes_max: 5_000, count_max: 20 },
            QueueLimits { bytes_max: 2 << 20, count_max: 512 },
        ],
    );
    if kinds.contains(&Kind::LargeValues) {
        settings.request_bytes_max = one_of(rng, &[3_000, 20_000]);
    }
    if kinds.contains(&Kind::Quota) {
        settings.quota_bytes = one_of(rng, &[100_000, 300_000, 1_000_000]);
        settings.quota_headroom_bytes = one_of(rng, &[0, 0, 20_000]);
    }
    settings
}
