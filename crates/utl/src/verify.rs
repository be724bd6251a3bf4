//! `verify`: whether a member can be started on a directory, and what it would lose.
//!
//! Each part is looked at by itself (log, snapshots, backend file), then against the others. The answer is a list of
//! findings, and a verdict with what to do. Nothing is changed, and a torn end of the log is not damage: no member
//! has acknowledged what was never written whole.
//!
//! # Not here
//!
//! Comparing members: the hash that is shown is the same on every sound member at the same revision.

mod backend;
mod log;
mod snapshot;

use std::path::Path;

use quorate_cli::flags::Flag;
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::Disk;
use quorate_storage::{lost_log, snap};

use crate::command::Command;
use crate::failure::Failure;
use crate::files;
use crate::report::{Cell, Column, Report};
use crate::session::Session;

use self::backend::BackendFacts;
use self::log::LogFacts;
pub(crate) use self::snapshot::SNAPSHOT_VERIFY;

pub(crate) const VERIFY: Command = Command {
    usage: "verify <data-dir>",
    short: "Judges whether a member can be started on a data directory, changing nothing",
    long: "Judges whether a member can be started on a data directory: reads the whole log, the snapshots and the\n\
           backend file, and holds them against each other. Exits with 0 if a member can be started.\n",
    flags: &[Flag::text("wal-dir", "", "Path to the WAL directory (use data-dir if none given)")],
    run: Some(run),
    ..Command::EMPTY
};

const COLUMNS: &[Column] = &[
    Column::new("grade", "grade", "Grade"),
    Column::new("part", "part", "Part"),
    Column::new("finding", "finding", "Finding"),
];

/// What to do about a directory that no member should be started on.
const ADVICE: &str = "do not start a member on it. In a cluster whose other members are well, remove this member and \
                      add it anew with an empty directory; otherwise restore a snapshot (`snapshot restore`)";

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grade {
    /// As it should be.
    Sound,
    /// Odd, and not in the way of a start.
    Notable,
    /// A member would not start, or would lack what it had acknowledged.
    Damaged,
}

/// What is found out, in order.
#[derive(Debug, Default)]
struct Findings {
    list: Vec<(Grade, &'static str, String)>,
}

impl Findings {
    fn sound(&mut self, part: &'static str, says: impl Into<String>) {
        self.list.push((Grade::Sound, part, says.into()));
    }

    fn notable(&mut self, part: &'static str, says: impl Into<String>) {
        self.list.push((Grade::Notable, part, says.into()));
    }

    fn damaged(&mut self, part: &'static str, says: impl Into<String>) {
        self.list.push((Grade::Damaged, part, says.into()));
    }

    fn damage_count(&self) -> usize {
        self.list.iter().filter(|(grade, ..)| *grade == Grade::Damaged).count()
    }

    fn report(&self) -> Report {
        let row = |(grade, part, says): &(Grade, &'static str, String)| {
            let grade = match grade {
                Grade::Sound => "ok",
                Grade::Notable => "note",
                Grade::Damaged => "DAMAGED",
            };
            [grade, *part, says.as_str()].map(|text| Cell::Text(text.to_owned())).to_vec()
        };
        Report::list(COLUMNS, self.list.iter().map(row).collect())
    }
}

fn run(session: &Session) -> Result<(), Failure> {
    let [path] = session.arguments("verify requires exactly one argument")?;
    let wal_dir = Some(session.matches.text("wal-dir")).filter(|given| !given.is_empty());
    let dirs = DataDir::new(Path::new(&path), wal_dir.map(Path::new));
    let disk = files::disk();
    // Held to the end, so that no member starts meanwhile.
    let backend = match files::open(session, &dirs.backend()) {
        Err(failure @ Failure::InUse { .. }) => return Err(failure),
        opened => opened,
    };
    let mut findings = Findings::default();
    if let Some(reason) =
        lost_log::reason(&*disk, &dirs).map_err(Failure::io("read it", dirs.root()))?
    {
        findings
            .damaged("mark", format!("the log was found to have lost entries before: {reason}"));
    }
    let log = log::examine(&*disk, dirs.wal(), &mut findings);
    snapshots(&*disk, &dirs, log.as_ref(), &mut findings);
    let facts = match backend {
        Ok(backend) => backend::examine(&backend, log.as_ref(), &mut findings),
        Err(failure) => {
            findings.damaged("backend", failure.to_string());
            None
        }
    };
    if let (Some(log), Some(facts)) = (&log, &facts) {
        compare(&*disk, &dirs, log, facts, &mut findings);
    }
    session.show(&findings.report())?;
    match findings.damage_count() {
        0 => Ok(()),
        count => Err(Failure::Damaged { path: dirs.root().to_path_buf(), count, advice: ADVICE }),
    }
}

/// Reads every `.snap` file. Members from 3.7 on do not need them; those before cannot start without the newest.
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
            Err(error) => findings.notable(PART, format!("{error}: the next start puts it aside")),
        }
    }
    findings.sound(PART, format!("{} readable", read.len()));
    let Some(mark) = log.and_then(LogFacts::newest_mark) else { return };
    if mark.index > 0 && !read.contains(&(mark.term, mark.index)) {
        let index = mark.index;
        findings
            .notable(PART, format!("none of index {index}, where etcd 3.5 and 3.6 would begin"));
    }
}

/// Holds what the backend file has applied against the log.
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
            format!("the backend has applied entry {applied}, the log ends with {last}: it has lost entries"),
        );
    }
    if applied < begin && snap::find_database(disk, &dirs.snap(), begin).is_err() {
        findings.damaged(
            PART,
            format!("the backend has applied entry {applied} only, the log begins behind {begin}"),
        );
    } else if let Some(first) = log.first_index.filter(|first| *first > applied.max(begin) + 1) {
        findings.damaged(
            PART,
            format!("the entries from {} to {} are missing", applied.max(begin) + 1, first - 1),
        );
    }
    if findings.damage_count() == before {
        let left = log.commit.saturating_sub(applied);
        findings.sound(
            PART,
            format!("applied up to entry {applied} of {last}; a start applies {left} committed ones more"),
        );
    }
}
