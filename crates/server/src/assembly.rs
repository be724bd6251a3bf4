//! Creates the threads, runtimes and background duties of a member from its files and flags.
//!
//! # Not here
//!
//! The order of starting and stopping (`server`), listeners (`serving`), and opening the files (`bootstrap`).

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use quorate_api::deep_txn;
use quorate_config::{Config, FeatureGate, Retention};
use quorate_core::{Pace, Purger, lease_rules};
use quorate_member::fatal::FaultReports;
use quorate_member::space::SpaceRules;
use quorate_member::{
    DiskTimes, Handles, Identity, MemberInputs, Running, Start, corruption, housekeeping, space,
    versions,
};
use quorate_net::descriptors;
use quorate_net::runtime::{Runtimes, Threads};
use quorate_peer::Dialer;
use quorate_requests::access::Provider;
use quorate_requests::{Limits, ServerHandles};
use quorate_state::members::{Member, Members};
use quorate_state::units::MemberId;
use quorate_state::versions::Version;
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::Disk;
use quorate_telemetry::log;
use quorate_telemetry::metrics::Metrics;

use crate::bootstrap::Booted;
use crate::restored::Proof;
use crate::{expiry, restored, transport};

/// Maximum time that a request waits for the applier to catch up.
const APPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// Duration above which applying an entry is logged as slow, unless a flag sets another limit.
const SLOW_APPLY: Duration = Duration::from_millis(100);

/// The core threads and the runtimes of a member.
pub(crate) struct Core {
    pub(crate) handles: Arc<Handles>,
    /// The handles for the services of the client ports.
    pub(crate) services: ServerHandles,
    pub(crate) running: Running,
    pub(crate) runtimes: Arc<Runtimes>,
    /// The transport's runtime, which also serves the peer listener.
    pub(crate) peer_runtimes: Arc<Runtimes>,
    pub(crate) faults: FaultReports,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dirs: DataDir,
    /// The members, including this one, as known before the log is applied.
    pub(crate) known_at_start: Arc<[Member]>,
    /// Whether the state was rebuilt recently.
    pub(crate) was_rebuilt: bool,
}

impl Core {
    pub(crate) fn start(
        config: &Config,
        booted: Booted,
        provider: Provider,
        (disk, disk_times): (&Arc<dyn Disk>, DiskTimes),
        (metrics, dialer): (&Arc<Metrics>, Dialer),
    ) -> std::io::Result<Self> {
        let Booted {
            identity,
            dirs,
            wal,
            backend,
            state,
            node,
            peers: others,
            was_rebuilt,
            memory_lock,
        } = booted;
        metrics.set_member_id(&format!("{:x}", identity.member_id));
        log_starting(&identity, state.versions().cluster());
        let faults = FaultReports::new();
        let entrance = MemberInputs::new(faults.clone());
        let snapshots = transport::SnapshotDir { disk: Arc::clone(disk), path: dirs.snap() };
        let (peer_runtimes, peers) =
            transport::start(config, &identity, entrance.reports(), snapshots, (metrics, dialer))?;
        restored::set_origin_of_state(&peers, (&state, &backend), (&**disk, &dirs));
        let known_at_start = with_own(others, &identity, config);
        peers.set_members(&Members::new(known_at_start.iter().cloned(), []));
        peers.set_members(state.members());
        let start = Start {
            identity,
            limits: limits(config),
            pace: pace(config),
            heartbeat: Duration::from_millis(config.heartbeat_interval_ms),
            disk: Arc::clone(disk),
            disk_times,
            snap_dir: dirs.snap(),
            wal,
            backend,
            state,
            node,
            peers,
            metrics: Arc::clone(metrics),
            provider,
            memory_lock,
        };
        let running = quorate_member::start(start, entrance)?;
        let stack_bytes = deep_txn::STACK_BYTES;
        let threads = Threads { name: "conn", count: core_count(), stack_bytes };
        let runtimes = Runtimes::start(threads, |_| quorate_member::deliver_outcomes())?;
        Ok(Self {
            handles: Arc::clone(&running.handles),
            services: running.handles.for_services(),
            running,
            runtimes: Arc::new(runtimes),
            peer_runtimes,
            faults,
            disk: Arc::clone(disk),
            dirs,
            known_at_start,
            was_rebuilt,
        })
    }
}

impl Core {
    /// Returns the check that a newly restored member has the same state as the other members.
    pub(crate) fn proof(&self) -> Proof {
        Proof {
            handles: Arc::clone(&self.handles),
            faults: self.faults.clone(),
            disk: Arc::clone(&self.disk),
            dirs: self.dirs.clone(),
        }
    }
}

/// Returns the number of client runtimes, which is the number of cores.
pub(crate) fn core_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the other members together with this member, or an empty list if bootstrap has not found any other members.
fn with_own(mut members: Vec<Member>, identity: &Identity, config: &Config) -> Arc<[Member]> {
    if !members.is_empty() {
        let urls = config.initial_advertise_peer_urls.iter().map(ToString::to_string).collect();
        let id = MemberId(identity.member_id);
        members.push(Member { name: identity.name.clone(), ..Member::new(id, urls) });
        members.sort_by_key(|member| member.id);
    }
    members.into()
}

pub(crate) fn limits(config: &Config) -> Limits {
    let to_usize = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    Limits {
        request_bytes_max: to_usize(config.max_request_bytes),
        txn_ops_max: to_usize(config.max_txn_ops),
        request_timeout: config.request_timeout(),
        apply_timeout: APPLY_TIMEOUT,
        progress_interval: config.watch_progress_notify_interval(),
        quota_configured: match config.quota_backend_bytes {
            0 => 2 << 30,
            given => given,
        },
        quota_headroom: config.quota_headroom_bytes,
        bcrypt_cost: u32::try_from(config.bcrypt_cost).unwrap_or(u32::MAX),
        election_timeout: Duration::from_millis(config.election_timeout_ms),
        checks_reconfigurations: config.strict_reconfig_check,
        held_version: config.hold_cluster_version,
        downgrade_check_interval: config.downgrade_check_time.positive(),
        slow_apply: config.warning_apply_duration.positive().unwrap_or(SLOW_APPLY),
        slow_unary: config.warning_unary_request_duration.positive().unwrap_or_default(),
        revocations_first: config.feature_gates.is_enabled(FeatureGate::PriorityRequest),
        renews_at_once: config.feature_gates.is_enabled(FeatureGate::FastLeaseKeepAlive),
        compares_compactions: config.feature_gates.is_enabled(FeatureGate::CompactHashCheck),
        rebuilds_itself: config.rebuilds_corrupt_member(),
        unhealthy_on_defragmentation: config
            .feature_gates
            .is_enabled(FeatureGate::StopGRPCServiceOnDefrag),
    }
}

fn pace(config: &Config) -> Pace {
    let to_usize = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    Pace {
        batch_interval: config.backend_batch_interval(),
        batch_ops_max: to_usize(config.backend_batch_limit()),
        compaction_step: to_usize(config.compaction_batch_limit()),
        compaction_pause: config.compaction_sleep_interval(),
        lease_extension_millis: lease_rules::extension_millis(config.election_timeout_ms),
    }
}

fn space_rules(config: &Config) -> SpaceRules {
    let given = |percent: u64| (percent > 0).then_some(percent);
    SpaceRules {
        warning_percent: given(config.quota_warning_percent),
        disarm_percent: given(config.quota_disarm_percent),
    }
}

/// Logs that the threads of a member are about to start. `cluster_version` is the version in the member's files.
fn log_starting(own: &Identity, cluster_version: Option<Version>) {
    let (own_id, version) = (format!("{:x}", own.member_id), quorate_version::ETCD_VERSION);
    match cluster_version {
        Some(cluster) => log::info!(
            "starting etcd server",
            "local-member-id" = own_id,
            "local-server-version" = version,
            "cluster-id" = format!("{:x}", own.cluster_id),
            "cluster-version" = format!("{}.{}", cluster.major, cluster.minor)
        ),
        None => log::info!(
            "starting etcd server",
            "local-member-id" = own_id,
            "local-server-version" = version,
            "cluster-version" = "to_be_decided"
        ),
    }
}

/// Starts the member's background duties as tasks.
pub(crate) fn duties(
    config: &Config,
    core: &Core,
    retention: Option<Retention>,
    (watch, metrics): (expiry::Watch, &Arc<Metrics>),
) -> Vec<Pin<Box<dyn Future<Output = ()> + Send>>> {
    let handles = || Arc::clone(&core.handles);
    let purger = Purger {
        disk: Arc::clone(&core.disk),
        snap_dir: core.dirs.snap(),
        wal_dir: core.dirs.wal().to_path_buf(),
        snapshots_max: usize::try_from(config.max_snapshots).unwrap_or(usize::MAX),
        segments_max: usize::try_from(config.max_wals).unwrap_or(usize::MAX),
    };
    let mut duties: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = vec![
        Box::pin(housekeeping::follow_leadership(handles())),
        Box::pin(housekeeping::watch_for_leader(handles())),
        Box::pin(versions::keep_cluster_version(handles())),
        Box::pin(versions::keep_storage_version(handles())),
        Box::pin(versions::end_downgrade(handles())),
        Box::pin(housekeeping::end_leases(handles())),
        Box::pin(housekeeping::reload_keys(Arc::clone(&core.handles.access_control))),
        Box::pin(housekeeping::catch_up_watchers(handles(), core.faults.clone())),
        Box::pin(descriptors::watch_usage()),
        Box::pin(housekeeping::purge_files(purger, core.faults.clone())),
        Box::pin(corruption::hash_compactions(handles(), core.faults.clone())),
    ];
    if let Some(period) = config.corrupt_check_time.positive() {
        let faults = core.faults.clone();
        duties.push(Box::pin(corruption::compare_periodically(handles(), period, faults)));
    }
    if core.handles.info.limits().compares_compactions
        && let Some(period) = config.compact_hash_check_time.positive()
    {
        duties.push(Box::pin(corruption::compare_compactions(handles(), period)));
    }
    if config.rebuilds_corrupt_member() {
        let period = config.corrupt_check_time.positive();
        let (rebuilt, faults) = (core.was_rebuilt, core.faults.clone());
        duties.push(Box::pin(corruption::watch_own_state(handles(), period, rebuilt, faults)));
    }
    duties.push(Box::pin(space::answer_for_full_disk(handles())));
    let rules = space_rules(config);
    if rules.warning_percent.or(rules.disarm_percent).is_some() {
        duties.push(Box::pin(space::watch_space(handles(), rules)));
    }
    if let Some(retention) = retention {
        duties.push(Box::pin(housekeeping::compact_automatically(handles(), retention)));
    }
    if !watch.is_empty() {
        duties.push(Box::pin(expiry::check_periodically(watch, Arc::clone(metrics))));
    }
    duties
}
