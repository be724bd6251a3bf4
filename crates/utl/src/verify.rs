//! `verify`: checks whether a member can start on a directory, and reports the changes that the member would lack.
//!
//! Each part (log, snapshots, backend file) is checked individually, and then against the other parts. The result is a
//! list of findings, and a verdict with advice. No file is changed. A torn log tail does not count as damage, because a
//! member never acknowledges a record before it is fully written.
//!
//! # Not here
//!
//! Comparison between members. Users can compare the printed hash, which is the same on every sound member at the same
//! revision.

mod backend;
mod findings;
mod log;
mod snapshot;

use std::path::Path;

use quorate_cli::flags::Flag;
use quorate_core::bootstrap::check_supported;
use quorate_core::old_members::{self, OldMembersError};
use quorate_core::start::storage_version;
use quorate_state::backend::Backend;
use quorate_state::units::MemberId;
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::Disk;
use quorate_storage::{lost_log, rebuild, snap};

use crate::command::Command;
use crate::failure::Failure;
use crate::files;
use crate::session::Session;

pub(crate) use self::backend::{BackendFacts, examine as examine_backend};
pub(crate) use self::findings::Findings;
use self::log::LogFacts;
pub(crate) use self::snapshot::SNAPSHOT_VERIFY;

pub(crate) const VERIFY: Command = Command {
    usage: "verify <data-dir>",
    short: "Checks whether a member can be started on a data directory, without changing it",
    long: "Checks whether a member can be started on a data directory: reads the whole log, the snapshots and \
     the\nbackend file, and compares them. Exits with 0 if a member can be started.\n",
    flags: &[Flag::bytes("wal-dir", "Path to the WAL directory (use data-dir if none given)")],
    run: Some(run),
    ..Command::EMPTY
};

/// Advice for a directory on which a member must not be started.
const ADVICE: &str = "do not start a member on it. In a cluster whose other members are healthy, remove this member \
 and add it again with an empty directory; otherwise restore a snapshot (`snapshot restore`)";

/// Returns the advice for a directory in which only the backend file is sound.
pub(crate) fn restore_backend(backend: &Path) -> String {
    format!(
        "If this was the only member and there is no snapshot, restore the content of its backend file with `snapshot \
         restore {} --skip-hash-check --data-dir NEW`; the newest writes may be missing",
        backend.display()
    )
}

fn run(session: &Session) -> Result<(), Failure> {
    let [path] = session.arguments("verify requires exactly one argument")?;
    let dirs = files::data_dir(Path::new(&path), session.matches.path("wal-dir"))?;
    // The file stays open until the check ends, so that no member can start on the directory until then.
    let backend = match files::open(session, &dirs.backend()) {
        Err(failure @ Failure::InUse { .. }) => return Err(failure),
        opened => opened,
    };
    let Assessment { mut findings, removed, bad_state, backend: facts } =
        assess(&*files::disk(), &dirs, backend.as_ref())?;
    if let Some(id) = removed {
        let says = format!("member {id}, to which this log belongs, was removed from its cluster");
        findings.damaged("members", says);
    }
    if let Some(reason) = bad_state {
        findings.notable(
            "mark",
            format!("the member fetches its state from the other members when it starts: {reason}"),
        );
    }
    session.show(&findings.report())?;
    let path = dirs.root().to_path_buf();
    match findings.damage_count() {
        0 => findings
            .refusal()
            .map_or(Ok(()), |reason| Err(Failure::Refused { path, reason: reason.to_owned() })),
        count => {
            let is_readable = facts.is_some_and(|facts| facts.is_readable());
            let last = match is_readable {
                true => format!(". {}", restore_backend(&dirs.backend())),
                false => String::new(),
            };
            Err(Failure::Damaged { paths: vec![path], count, advice: format!("{ADVICE}{last}") })
        }
    }
}

/// The assessment of a directory.
pub(crate) struct Assessment {
    /// All findings about the files, regardless of whether the cluster has removed the member.
    pub(crate) findings: Findings,
    /// Values read from the backend file, if the file can be read.
    pub(crate) backend: Option<BackendFacts>,
    /// Id of the member, if the cluster has removed this member. The member's data may be sound nevertheless.
    pub(crate) removed: Option<MemberId>,
    /// Reason why the member must fetch its state from another member; `None` if no fetch is needed. The member fetches
    /// the state when it starts. Its current state must not be given to another member.
    pub(crate) bad_state: Option<String>,
}

/// Assesses a directory. `backend` is the directory's backend file, or the reason why this file could not be opened.
pub(crate) fn assess(
    disk: &dyn Disk,
    dirs: &DataDir,
    backend: Result<&Backend, &Failure>,
) -> Result<Assessment, Failure> {
    let mut findings = Findings::default();
    if let Some(reason) =
        lost_log::reason(disk, dirs).map_err(Failure::io("read it", dirs.root()))?
    {
        findings.damaged("mark", format!("the log is known to have lost entries: {reason}"));
    }
    let log = log::examine(disk, dirs.wal(), &mut findings);
    snapshots(disk, dirs, log.as_ref(), &mut findings);
    let facts = match backend {
        Ok(backend) => backend::examine(backend, &mut findings),
        Err(failure) => {
            findings.damaged("backend", failure.to_string());
            None
        }
    };
    if let (Some(log), Some(facts)) = (&log, &facts) {
        compare(disk, dirs, log, facts, &mut findings);
    }
    if let Some(version) = facts.as_ref().and_then(|facts| facts.cluster_version)
        && let Err(refused) = check_supported(version, None)
    {
        findings.refused("backend", refused.to_string());
    }
    if let (Some(log), Ok(backend)) = (&log, backend)
        && !old_members::are_complete(storage_version(backend))
    {
        v2_data(disk, dirs, log, &mut findings);
    }
    let own = log.and_then(|log| log.member).map(MemberId);
    let members = facts.as_ref().and_then(|facts| facts.members.as_ref());
    let mut removed = None;
    if let (Some(own), Some(members)) = (own, members) {
        removed = Some(own).filter(|own| members.is_removed(*own));
        if removed.is_none() && members.get(own).is_none() {
            findings.notable(
                "members",
                format!("member {own}, to which this log belongs, is not in the backend file yet"),
            );
        }
    }
    let bad_state = rebuild::ordered(disk, dirs).map_err(Failure::io("read it", dirs.root()))?;
    Ok(Assessment { findings, backend: facts, removed, bad_state })
}

/// Reads every `.snap` file. Members of version 3.7 and later do not need these files, but older members cannot start
/// without the newest file.
fn snapshots(disk: &dyn Disk, dirs: &DataDir, log: Option<&LogFacts>, findings: &mut Findings) {
    const PART: &str = "snapshots";
    let listing = match snap::list(disk, &dirs.snap()) {
        Ok(listing) => listing,
        Err(error) => return findings.damaged(PART, error.to_string()),
    };
    let mut read = Vec::new();
    for name in &listing.snapshots {
        match snap::read(disk, &dirs.snap().join(name)) {
            Ok(snapshot) => read.push((snapshot.term, snapshot.index)),
            Err(error) => {
                findings.notable(PART, format!("{error}; a member renames this file at startup"));
            }
        }
    }
    findings.sound(PART, format!("{} readable", read.len()));
    let Some(mark) = log.and_then(LogFacts::newest_mark) else { return };
    if mark.index > 0 && !read.contains(&(mark.term, mark.index)) {
        let index = mark.index;
        findings.notable(
            PART,
            format!(
                "the snapshot file at index {index}, from which etcd 3.5 and 3.6 would start, is missing"
            ),
        );
    }
}

/// Searches a directory of etcd 3.5 for data of the v2 API, on which a member does not start.
fn v2_data(disk: &dyn Disk, dirs: &DataDir, log: &LogFacts, findings: &mut Findings) {
    let marks = log.committed_marks();
    let checked = files::newest_snapshot(disk, dirs, &marks)
        .map(|snapshot| old_members::check_v2_data((disk, dirs.wal()), snapshot.as_ref(), &marks));
    match checked {
        // Both errors are reported by the checks of the snapshots and the log.
        Ok(Ok(()) | Err(OldMembersError::Log(_))) | Err(_) => {}
        Ok(Err(refused)) => findings.refused("v2 data", refused.to_string()),
    }
}

/// Compares the applied index of the backend file with the log.
fn compare(
    disk: &dyn Disk,
    dirs: &DataDir,
    log: &LogFacts,
    backend: &BackendFacts,
    findings: &mut Findings,
) {
    const PART: &str = "backend and log";
    let (applied, last) = (backend.applied, log.last_index);
    let begin = log.newest_mark().map_or(0, |mark| mark.index);
    let before = findings.damage_count();
    if applied > last {
        findings.damaged(
            PART,
            format!(
                "the backend has applied entry {applied}, but the log ends with entry {last}: the log has lost \
                 entries"
            ),
        );
    }
    let waits = match snap::has_database(disk, &dirs.snap(), begin) {
        Ok(waits) => waits,
        Err(error) => return findings.damaged(PART, error.to_string()),
    };
    if applied < begin && !waits {
        findings.damaged(
            PART,
            format!(
                "the backend has applied entries only up to {applied}, but the log begins after entry {begin}"
            ),
        );
    } else if let Some(first) =
        log.first_index.filter(|first| *first > applied.max(begin).saturating_add(1))
    {
        findings.damaged(
            PART,
            format!(
                "the entries from {} to {} are missing",
                applied.max(begin).saturating_add(1),
                first - 1
            ),
        );
    }
    if findings.damage_count() == before {
        let left = log.commit.saturating_sub(applied);
        findings.sound(
            PART,
            format!(
                "applied up to entry {applied} of {last}; the member applies {left} more committed entries when it \
                 starts"
            ),
        );
    }
}
