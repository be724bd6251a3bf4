//! Repair of the member list in a data directory from etcd 3.5, and the check that the directory contains no data of the
//! v2 API.
//!
//! Most 3.5 releases never overwrite a member's row in the backend file, so the file lacks names, client URLs, changed
//! peer URLs and promotions. The JSON tree in the `.snap` file and the later log entries contain them. For such a
//! directory, the tree and the entries are authoritative.
//!
//! # Not here
//!
//! The choice of the newest valid `.snap` file, and the handling of unreadable files (the caller).

use std::path::Path;

use prost::Message as _;
use quorate_api::raftpb;
use quorate_raft::EntryKind;
use quorate_state::apply::{ClusterCommand, Command, Request, State};
use quorate_state::backend::Batch;
use quorate_state::members::{Members, MembershipFault, V2Error, V2Membership, path_of_v2_data};
use quorate_state::units::MemberId;
pub use quorate_state::versions::are_members_complete as are_complete;
use quorate_storage::disk::Disk;
use quorate_storage::snap::Snapshot;
use quorate_storage::wal::{self, SnapshotMark, WalError};

/// The maximum number of learners in 3.5. A change that 3.5 refused must also be refused in the replay.
const LEARNER_COUNT_MAX: usize = 1;

/// What to do with data of the v2 API.
const V2_REMEDY: &str = "the v2 API does not exist any more; to keep such data, start etcd 3.5 on this directory and \
 export it; then delete it, and stop the member after it has saved a new snapshot (--snapshot-count)";

/// Why a member cannot start with an old data directory.
#[derive(Debug, thiserror::Error)]
pub enum OldMembersError {
    /// The JSON tree in the `.snap` file cannot be read.
    #[error("cannot read the member list in the snapshot file: {0}")]
    Tree(#[from] V2Error),
    /// The tree contains data of the v2 API. The error message begins with etcd's.
    #[error(
        "detected disallowed custom content in v2store for stage --v2-deprecation=write-only: {0} was written with the \
         v2 API; {remedy}",
        remedy = V2_REMEDY
    )]
    V2Data(String),
    /// An entry in the log changes data of the v2 API. The error message begins with etcd's.
    #[error(
        "detected disallowed v2 WAL for stage --v2-deprecation=write-only: entry {index} changes {path} with the v2 \
         API; {remedy}",
        remedy = V2_REMEDY
    )]
    V2Entry {
        /// The log index of the entry.
        index: u64,
        /// The path that the entry changes.
        path: String,
    },
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] WalError),
    /// A membership change in the log is invalid.
    #[error("cannot read a membership change in the log: {0}")]
    Change(#[from] MembershipFault),
}

/// Checks that an old directory contains no data of the v2 API, which would be lost: neither in the snapshot file nor in
/// the log entries after the snapshot. The arguments are those of [`repair`].
pub fn check_v2_data(
    files: (&dyn Disk, &Path),
    snapshot: Option<&Snapshot>,
    marks: &[SnapshotMark],
) -> Result<(), OldMembersError> {
    if let Some(path) = snapshot.map_or(Ok(None), |snapshot| path_of_v2_data(&snapshot.data))? {
        return Err(OldMembersError::V2Data(path));
    }
    for entry in entries_after(files, snapshot, marks)? {
        if let Some(path) = Request::path_changed_with_v2_api(&entry.data) {
            return Err(OldMembersError::V2Entry { index: entry.index, path });
        }
    }
    Ok(())
}

/// Repairs the members in an old backend file from the snapshot file and the log. Returns whether any member has
/// changed.
///
/// `snapshot` is the newest readable snapshot of `marks`. Without a snapshot, the log must be complete from its first
/// entry.
pub fn repair(
    state: &mut State,
    files: (&dyn Disk, &Path),
    snapshot: Option<&Snapshot>,
    marks: &[SnapshotMark],
) -> Result<bool, OldMembersError> {
    let mut members = match snapshot {
        None => Members::default(),
        Some(snapshot) => V2Membership::from_json(&snapshot.data)?.members,
    };
    let applied = state.applied().0;
    let entries = entries_after(files, snapshot, marks)?;
    for entry in entries.iter().take_while(|entry| entry.index <= applied) {
        replay(&mut members, entry)?;
    }
    let truth = state.members().reconciled(&members);
    let differs = truth != *state.members();
    if differs {
        state.repair_members(truth);
        state.publish();
    }
    Ok(differs)
}

/// Reads the entries after a snapshot from the log in a directory.
fn entries_after(
    (disk, wal_dir): (&dyn Disk, &Path),
    snapshot: Option<&Snapshot>,
    marks: &[SnapshotMark],
) -> Result<Vec<wal::Entry>, WalError> {
    let mark = snapshot.and_then(|it| marks.iter().find(|mark| mark.index == it.index));
    Ok(wal::read(disk, wal_dir, &mark.cloned().unwrap_or_default())?.entries)
}

fn replay(members: &mut Members, entry: &wal::Entry) -> Result<(), OldMembersError> {
    match EntryKind::from_wire(i32::from(entry.kind)) {
        Some(EntryKind::ConfChange) => {
            let change = raftpb::ConfChange::decode(entry.data.clone()).unwrap_or_default();
            members.replay(&change, LEARNER_COUNT_MAX)?;
        }
        Some(EntryKind::Normal) if !entry.data.is_empty() => {
            // An entry that cannot be decoded here is skipped, because it does not set member attributes: it is either
            // a deeply nested transaction, or a request that only the version that applied it can decode.
            let Ok(request) = Request::decode_shallow(&entry.data) else { return Ok(()) };
            if let Command::Cluster(ClusterCommand::MemberAttrSet(set)) = request.command {
                let attributes = set.member_attributes.unwrap_or_default();
                let id = MemberId(set.member_id);
                members.set_attributes(
                    id,
                    attributes.name,
                    attributes.client_urls,
                    None::<&mut Batch>,
                );
            }
        }
        Some(EntryKind::Normal | EntryKind::ConfChangeV2) | None => {}
    }
    Ok(())
}
