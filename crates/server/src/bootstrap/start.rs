//! Creates the node from the state in the files.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorate_core::configuration_of;
use quorate_core::start::Start;
use quorate_node::{FlowLimits, Node, SnapshotPolicy, StartError};
use quorate_raft::{ConfigError, LogIndex, Term};
use quorate_state::members::Members;
use quorate_storage::data_dir::DataDir;

use super::error::BootError;
use quorate_config::Config;
use quorate_member::Identity;

/// Creates the node of this member. The node continues at `start` with the members in the state.
pub(super) fn node_at(
    start: Start,
    members: &Members,
    config: &Config,
    identity: &Identity,
    dirs: &DataDir,
) -> Result<Node, BootError> {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = u64::from(since_epoch.subsec_nanos()) ^ identity.member_id;
    let ids = quorate_member::RequestIds::start(identity.member_id).map_err(BootError::Random)?;
    let tick = Duration::from_millis(config.heartbeat_interval_ms);
    let ticks = config.request_timeout().as_millis() / tick.as_millis().max(1);
    let node = Node::new(quorate_node::Config {
        id: identity.member_id,
        election_ticks: u32::try_from(config.election_ticks()).unwrap_or(u32::MAX),
        pre_vote: config.pre_vote,
        initial_tick_advance: config.initial_election_tick_advance,
        seed,
        first_read_request_id: ids.next(),
        proposal_ticks_max: u64::try_from(ticks).unwrap_or(u64::MAX).max(1),
        fences_stalled_disk: config.fence_stalled_disk,
        checks_reconfigurations: config.strict_reconfig_check,
        snapshot_policy: SnapshotPolicy {
            entry_count: config.snapshot_count,
            catch_up_count: config.snapshot_catchup_entries,
            ..SnapshotPolicy::default()
        },
        flow_limits: FlowLimits::default(),
        hard_state: start.hard_state,
        conf_state: configuration_of(members),
        snapshot_index: LogIndex(start.mark.index),
        snapshot_term: Term(start.mark.term),
        entries: start.entries,
        applied: start.applied,
    });
    node.map_err(|error| match error {
        StartError::Refused(ConfigError::Term(term)) => {
            BootError::Term { term, backend: dirs.backend() }
        }
        StartError::Refused(_) | StartError::LogLost { .. } => error.into(),
    })
}
