//! `hashkv`: computes the hash of a file's keyspace, for comparison between members.
//!
//! Unlike etcdutl's command, this command does not change the file, so a snapshot still matches its digest afterwards
//! and can be restored.

use std::path::Path;

use quorate_cli::flags::Flag;
use quorate_state::mvcc::{HashKv, Store, StoreOptions};

use crate::command::Command;
use crate::failure::Failure;
use crate::files;
use crate::report::{Cell, Column, Report};
use crate::session::Session;

pub(crate) const HASHKV: Command = Command {
    usage: "hashkv <filename>",
    short: "Prints the KV history hash of a given file",
    flags: &[Flag::int("rev", "maximum revision to hash (default: latest revision)")],
    run: Some(run),
    ..Command::EMPTY
};

const COLUMNS: &[Column] = &[
    Column::new("hash", "hash", "Hash"),
    Column::new("hash revision", "hashRevision", "Hash revision"),
    Column::new("compact revision", "compactRevision", "Compact revision"),
];

fn run(session: &Session) -> Result<(), Failure> {
    let path = session.only_path()?;
    let HashKv { hash, compact_revision, hash_revision } =
        hash(session, &path, session.matches.int("rev"))?;
    let row = [i64::from(hash), hash_revision, compact_revision];
    session.show(&Report::one(COLUMNS, row.into_iter().map(Cell::Number).collect()))
}

/// Computes the hash at a revision; 0 selects the newest revision.
pub(crate) fn hash(session: &Session, path: &Path, revision: i64) -> Result<HashKv, Failure> {
    let backend = files::open(session, path)?;
    // Each record is read only once, so caching records would not help.
    let options = StoreOptions { window_bytes_max: 0, recovered_bytes_max: 0 };
    let (store, _) = Store::recover(&backend, options)?;
    Ok(store.reader().view().hash_kv(revision)?)
}
