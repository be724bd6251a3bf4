//! `wal dump` and `snapshot dump`: print the write-ahead log and its snapshots in readable form.

use std::path::{Path, PathBuf};

use prost::Message;
use quorate_api::etcdserverpb::Metadata;
use quorate_cli::flags::Flag;
use quorate_state::members::V2Membership;
use quorate_storage::data_dir::DataDir;
use quorate_storage::snap;
use quorate_storage::wal;
use quorate_storage::wal::inspect::{Content, Ending, visit};

use crate::command::Command;
use crate::failure::Failure;
use crate::files;
use crate::lines::Lines;
use crate::report::{Cell, Column, Report};
use crate::session::Session;
use crate::words;

pub(crate) const WAL: Command = Command {
    usage: "wal <subcommand>",
    short: "Inspects a write-ahead log without changing it",
    children: &[&WAL_DUMP],
    ..Command::EMPTY
};

const WAL_DUMP: Command = Command {
    usage: "dump <data-dir or wal-dir>",
    short: "Prints every record of a log as text",
    long: "Prints every record of a log as text: segment and offset, kind, term, index, and content.\nThe log of a \
     running member can be printed, too.\n",
    flags: &[Flag::uint("from", "0", "index of the first entry to print")],
    run: Some(dump_wal),
    ..Command::EMPTY
};

/// The command is nested below `snapshot`, which users of etcdutl abbreviate to `snap`.
pub(crate) const SNAP_DUMP: Command = Command {
    usage: "dump <data-dir or .snap file>",
    short: "Prints the content of .snap files",
    run: Some(dump_snap),
    ..Command::EMPTY
};

const RECORD_COLUMNS: &[Column] = &[
    Column::new("segment", "segment", "Segment"),
    Column::new("offset", "offset", "Offset"),
    Column::new("kind", "kind", "Kind"),
    Column::new("term", "term", "Term"),
    Column::new("index", "index", "Index"),
    Column::new("says", "says", "Says"),
];

const SNAP_COLUMNS: &[Column] = &[
    Column::new("file", "file", "File"),
    Column::new("term", "term", "Term"),
    Column::new("index", "index", "Index"),
    Column::new("members", "confState", "ConfState"),
    Column::new("says", "says", "Says"),
];

/// Returns the WAL directory for a path, which may be the WAL directory itself or a data directory. The caller reports
/// the error if the path cannot be read.
pub(crate) fn wal_dir(path: &Path) -> PathBuf {
    match wal::exists(&*files::disk(), path) {
        Ok(true) | Err(_) => path.to_path_buf(),
        Ok(false) => DataDir::new(path, None).wal().to_path_buf(),
    }
}

fn dump_wal(session: &Session) -> Result<(), Failure> {
    let [path] = session.arguments("wal dump requires exactly one argument")?;
    let dir = wal_dir(Path::new(&path));
    let from = session.matches.uint("from");
    let lines = Lines::new(session, RECORD_COLUMNS)?;
    let ending = visit(&*files::disk(), &dir, |place, content| -> Result<(), Failure> {
        let (kind, term, index, says) = match content {
            Content::Entry(entry) if entry.index < from => return Ok(()),
            Content::Checksum(crc) => ("checksum", 0, 0, format!("{crc:08x}")),
            Content::Metadata(metadata) => ("metadata", 0, 0, identity(metadata)),
            Content::Entry(entry) => ("entry", entry.term, entry.index, words::entry(entry)),
            Content::State(state) => {
                let vote = match state.vote {
                    0 => "no vote".to_owned(),
                    vote => format!("voted for {vote:x}"),
                };
                ("state", state.term, state.commit, format!("committed, {vote}"))
            }
            Content::Mark(mark) => {
                let says = mark.conf_state.as_deref().map(words::conf_state).unwrap_or_default();
                ("snapshot", mark.term, mark.index, says)
            }
        };
        let segment = place.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        lines.add(vec![
            Cell::Text(segment),
            Cell::Unsigned(place.offset),
            Cell::Text(kind.to_owned()),
            Cell::Unsigned(term),
            Cell::Unsigned(index),
            Cell::Text(says),
        ])
    })?;
    lines.finish()?;
    let Ending { path, offset, is_torn } = ending;
    if is_torn {
        let path = path.display().to_string();
        let fields = [("path", path), ("offset", offset.to_string())];
        session.log("warn", "the last record is incomplete", &fields);
    }
    Ok(())
}

/// Describes the member id and cluster id in a log's metadata.
pub(crate) fn identity(metadata: &[u8]) -> String {
    match Metadata::decode(metadata) {
        Ok(metadata) => format!(
            "member {:x} of cluster {:x}",
            metadata.node_id.unwrap_or_default(),
            metadata.cluster_id.unwrap_or_default()
        ),
        Err(error) => format!("cannot be decoded: {error}"),
    }
}

fn dump_snap(session: &Session) -> Result<(), Failure> {
    let [path] = session.arguments("snapshot dump requires exactly one argument")?;
    let (disk, path) = (files::disk(), PathBuf::from(path));
    let facts = disk.metadata(&path).map_err(Failure::io("check whether it exists", &path))?;
    let paths = if facts.is_some_and(|facts| facts.is_dir) {
        let dir = DataDir::new(&path, None).snap();
        let listed = snap::list(&*disk, &dir)?.snapshots;
        listed.into_iter().rev().map(|name| dir.join(name)).collect()
    } else {
        files::check_there(&path)?;
        if files::is_backend(&path) {
            let path = path.display();
            return Err(Failure::arguments(format!(
                "{path} is a backend file or a snapshot of one: use `snapshot status` or `db`"
            )));
        }
        vec![path]
    };
    let mut rows = Vec::new();
    for path in paths {
        let snapshot = snap::read(&*disk, &path)?;
        rows.push(vec![
            Cell::Text(path.file_name().unwrap_or_default().to_string_lossy().into_owned()),
            Cell::Unsigned(snapshot.term),
            Cell::Unsigned(snapshot.index),
            Cell::Text(words::conf_state(&snapshot.conf_state)),
            Cell::Text(membership(&snapshot.data)),
        ]);
    }
    session.show(&Report::list(SNAP_COLUMNS, rows))
}

/// Lists the members in the v2 store of a snapshot.
fn membership(tree: &[u8]) -> String {
    let membership = match V2Membership::from_json(tree) {
        Ok(membership) => membership,
        Err(error) => return format!("cannot be decoded: {error}"),
    };
    let member = |member: &quorate_state::members::Member| {
        let name = if member.is_started() { &*member.name } else { "not started" };
        format!("{} ({name}) {}", member.id, member.peer_urls.join(" "))
    };
    let mut says: Vec<String> = membership.members.iter().map(member).collect();
    if let Some(version) = membership.cluster_version {
        says.push(format!("cluster version {version}"));
    }
    says.join("; ")
}
