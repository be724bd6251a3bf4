//! Where consensus starts from, and the node that starts there.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorate_node::{Node, SnapshotPolicy, StartError};
use quorate_raft::{ConfState, ConfigError, Entry, EntryKind, HardState};
use quorate_storage::data_dir::DataDir;
use quorate_storage::wal::{self, SnapshotMark};

use super::error::BootError;
use crate::config::Config;
use crate::member::Identity;

/// What the log and the backend file have to say to consensus. The default is a member that knows of nobody,
/// and waits for a leader.
#[derive(Debug, Default)]
pub(super) struct Start {
    pub(super) hard_state: HardState,
    pub(super) conf_state: ConfState,
    pub(super) entries: Vec<Entry>,
    pub(super) mark: SnapshotMark,
    pub(super) applied: u64,
}

impl Start {
    pub(super) fn into_node(
        self,
        config: &Config,
        identity: &Identity,
        dirs: &DataDir,
    ) -> Result<Node, BootError> {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = u64::from(since_epoch.subsec_nanos()) ^ identity.member_id;
        let ids = crate::request_id::RequestIds::new(identity.member_id, SystemTime::now());
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
            snapshot_policy: SnapshotPolicy {
                entry_count: config.snapshot_count,
                catch_up_count: config.snapshot_catchup_entries,
                ..SnapshotPolicy::default()
            },
            hard_state: self.hard_state,
            conf_state: self.conf_state,
            snapshot_index: self.mark.index,
            snapshot_term: self.mark.term,
            entries: self.entries,
            applied: self.applied,
        });
        node.map_err(|error| match error {
            StartError::Refused(ConfigError::Term(term)) => {
                BootError::Term { term, backend: dirs.backend() }
            }
            StartError::Refused(_) | StartError::LogLost { .. } => error.into(),
        })
    }
}

pub(super) fn conf_state_to_raft(conf_state: &quorate_api::raftpb::ConfState) -> ConfState {
    ConfState {
        voters: conf_state.voters.clone(),
        learners: conf_state.learners.clone(),
        ..ConfState::default()
    }
}

pub(super) const fn hard_state_to_raft(state: wal::HardState) -> HardState {
    HardState { term: state.term, vote: state.vote, commit: state.commit }
}

pub(super) fn entry_to_raft(entry: wal::Entry) -> Result<Entry, BootError> {
    let kind = EntryKind::from_wire(i32::from(entry.kind))
        .filter(|kind| *kind != EntryKind::ConfChangeV2)
        .ok_or(BootError::EntryKind { index: entry.index, kind: entry.kind })?;
    Ok(Entry { term: entry.term, index: entry.index, kind, data: entry.data })
}
