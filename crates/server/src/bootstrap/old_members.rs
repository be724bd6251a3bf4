//! Members as a file of 3.5 should have them.
//!
//! Most releases of 3.5 never overwrote a member's row: names, client URLs, changed peer URLs and promotions
//! are not in the backend. They are in the JSON tree of the `.snap` file and in the log behind it, which
//! together are the truth about such a directory.

use std::path::Path;

use prost::Message;
use quorate_api::raftpb;
use quorate_core::start::FIRST_COMPLETE;
use quorate_raft::EntryKind;
use quorate_state::apply::{ClusterCommand, Command, Request, State};
use quorate_state::backend::Batch;
use quorate_state::members::{Members, V2Membership};
use quorate_state::units::MemberId;
use quorate_state::versions::Version;
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::Disk;
use quorate_storage::snap;
use quorate_storage::wal::{self, SnapshotMark};

use super::error::BootError;
use quorate_telemetry::log;

/// Learners that 3.5 allows; changes that it refused have to be refused again.
const LEARNER_COUNT_MAX: usize = 1;

/// Brings the members of an old file up to what the snapshot file and the log say of them.
///
/// `marks` are the snapshots that the log knows.
pub(super) fn repair(
    state: &mut State,
    version: Option<Version>,
    disk: &dyn Disk,
    dirs: &DataDir,
    marks: &[SnapshotMark],
) -> Result<(), BootError> {
    if version.is_some_and(|version| version >= FIRST_COMPLETE) {
        return Ok(());
    }
    let Some(members) = members_of_log(disk, dirs, marks, state.applied().0)? else {
        return Ok(());
    };
    let truth = state.members().reconciled(&members);
    if truth != *state.members() {
        log::info!("repaired the members that an older version did not store");
        state.repair_members(truth);
        state.publish();
    }
    Ok(())
}

/// The members as the newest snapshot file and the log behind it have them at `applied`; `None` if there is
/// no such file and the log does not reach back to its beginning.
fn members_of_log(
    disk: &dyn Disk,
    dirs: &DataDir,
    marks: &[SnapshotMark],
    applied: u64,
) -> Result<Option<Members>, BootError> {
    let (snapshot, broken) = snap::load_newest(disk, &dirs.snap(), Some(marks))?;
    for file in broken {
        log::warn!(
            "failed to read a snap file",
            "path" = file.path.display().to_string(),
            "error" = log::error_chain(&file.error)
        );
    }
    let (mark, mut members) = match snapshot {
        None => (SnapshotMark::default(), Members::default()),
        Some(snapshot) => {
            let tree = V2Membership::from_json(&snapshot.data)?;
            let mark = marks.iter().find(|mark| mark.index == snapshot.index).cloned();
            (mark.unwrap_or_default(), tree.members)
        }
    };
    let entries = match read_entries(disk, dirs.wal(), &mark) {
        Ok(entries) => entries,
        Err(error) if mark.index == 0 => {
            log::warn!(
                "the members of an older version cannot be checked",
                "error" = log::error_chain(&error)
            );
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    for entry in entries.iter().take_while(|entry| entry.index <= applied) {
        replay(&mut members, entry)?;
    }
    Ok(Some(members))
}

fn read_entries(
    disk: &dyn Disk,
    dir: &Path,
    mark: &SnapshotMark,
) -> Result<Vec<wal::Entry>, wal::WalError> {
    Ok(wal::read(disk, dir, mark)?.entries)
}

fn replay(members: &mut Members, entry: &wal::Entry) -> Result<(), BootError> {
    match EntryKind::from_wire(i32::from(entry.kind)) {
        Some(EntryKind::ConfChange) => {
            let change = raftpb::ConfChange::decode(entry.data.clone()).unwrap_or_default();
            members.replay(&change, LEARNER_COUNT_MAX)?;
        }
        Some(EntryKind::Normal) if !entry.data.is_empty() => {
            // What cannot be read was applied by somebody who could, or is a deep transaction.
            let Ok(request) = Request::decode_shallow(entry.data.clone()) else { return Ok(()) };
            if let Command::Cluster(ClusterCommand::MemberAttrSet(set)) = request.command {
                let told = set.member_attributes.unwrap_or_default();
                let id = MemberId(set.member_id);
                members.set_attributes(id, told.name, told.client_urls, None::<&mut Batch>);
            }
        }
        _ => {}
    }
    Ok(())
}
