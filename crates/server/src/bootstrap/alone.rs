//! `--force-new-cluster`: one member continues with the data of its cluster, and all other members are removed.
//!
//! This option is for a permanent loss of the majority. The membership changes are written to the log as if the cluster
//! had committed them, and are then applied like any other entry. The cluster id, member id and data do not change.

use std::collections::BTreeSet;

use prost::Message;
use quorate_api::raftpb;
use quorate_core::bootstrap::append_entries;
use quorate_core::start::Start;
use quorate_raft::confchange::wire;
use quorate_raft::{ConfChange, ConfChangeKind, Entry, EntryKind};
use quorate_state::members::{Member, Members};
use quorate_state::units::MemberId;
use quorate_storage::wal::Wal;

use super::error::BootError;
use quorate_member::Identity;
use quorate_telemetry::log;

/// The peer URL with which this member is added if its own cluster does not list it.
const PEER_URL: &str = "http://localhost:2380";

/// Drops the uncommitted entries, and appends and commits the removal of all other members.
///
/// `start` is read from the log, and `members` from the backend file.
pub(super) fn remove_other_members(
    start: &mut Start,
    members: &Members,
    identity: &Identity,
    wal: &mut Wal,
) -> Result<(), BootError> {
    let old_commit = start.hard_state.commit;
    let commit = old_commit.max(start.applied);
    let dropped = start.entries.iter().filter(|entry| entry.index > commit).count();
    if dropped > 0 {
        log::info!(
            "discarding uncommitted WAL entries",
            "commit-index-from-wal" = commit.get(),
            "number-of-discarded-entries" = dropped
        );
    }
    start.entries.retain(|entry| entry.index <= commit);
    let listed = listed_ids(start, members)?;
    let changes = changes(&listed, identity.member_id);
    let entries: Vec<Entry> = (1..)
        .zip(&changes)
        .map(|(count, change)| Entry {
            term: start.hard_state.term,
            index: commit + count,
            kind: EntryKind::ConfChange,
            data: wire::encode_v1(change),
        })
        .collect();
    if !entries.is_empty() {
        append_entries(wal, None, &entries)?;
    }
    start.hard_state.commit = entries.last().map_or(commit, |last| last.index);
    start.entries.extend(entries);
    log::info!(
        "forcing restart member",
        "cluster-id" = format!("{:x}", identity.cluster_id),
        "local-member-id" = format!("{:x}", identity.member_id),
        "wal-commit-index" = old_commit.get(),
        "commit-index" = start.hard_state.commit.get()
    );
    Ok(())
}

/// Returns the ids of all members according to the snapshot and the log. Changes that were refused when they were
/// applied are included, because removing an unknown member has no effect.
fn listed_ids(start: &Start, members: &Members) -> Result<BTreeSet<u64>, BootError> {
    let mut ids = BTreeSet::new();
    match &start.mark.conf_state {
        Some(encoded) => {
            let snapshot = raftpb::ConfState::decode(encoded.clone())?;
            ids.extend(snapshot.voters.iter().chain(&snapshot.learners));
        }
        None if start.mark.index > 0 => {
            // A snapshot mark written by an older version contains no members, but the backend file does.
            ids.extend(members.iter().map(|member| member.id.0));
        }
        None => {}
    }
    for entry in start.entries.iter().filter(|entry| entry.kind == EntryKind::ConfChange) {
        let change = wire::decode_v1(&entry.data)
            .map_err(|source| BootError::ConfChange { index: entry.index, source })?;
        match change.kind {
            ConfChangeKind::AddNode | ConfChangeKind::AddLearnerNode => {
                ids.insert(change.node_id);
            }
            ConfChangeKind::RemoveNode => {
                ids.remove(&change.node_id);
            }
            ConfChangeKind::UpdateNode => {}
        }
    }
    Ok(ids)
}

/// Returns the changes that remove the other members. If this member is not listed, it is added first, because there
/// must always be a voter.
fn changes(listed: &BTreeSet<u64>, own: u64) -> Vec<ConfChange> {
    let mut changes = Vec::new();
    if !listed.contains(&own) {
        let member = Member::new(MemberId(own), vec![PEER_URL.to_owned()]);
        changes.push(ConfChange {
            kind: ConfChangeKind::AddNode,
            node_id: own,
            context: member.to_json().into(),
            ..ConfChange::default()
        });
    }
    changes.extend(listed.iter().filter(|id| **id != own).map(|id| ConfChange {
        kind: ConfChangeKind::RemoveNode,
        node_id: *id,
        ..ConfChange::default()
    }));
    changes
}
