//! `snapshot status`: checks whether a snapshot is sound, and prints what it contains.
//!
//! The file is first checked page by page and then read entry by entry. The digest at the end of a snapshot is not
//! checked here; `snapshot restore` does that.

use std::collections::HashSet;
use std::path::Path;

use quorate_api::record::Fields;
use quorate_state::backend::BackendView;
use quorate_state::schema::{Bucket, RecordKey, meta};

use crate::command::Command;
use crate::failure::{Failure, StatusError};
use crate::files;
use crate::report::{Cell, Column, Report};
use crate::session::Session;
use crate::soundness::check_pages;

pub(super) const STATUS: Command = Command {
    usage: "status <filename>",
    short: "Gets backend snapshot status of a given file",
    long: "When --write-out is set to simple, this command prints out comma-separated status lists for each endpoint.\n\
           The items in the lists are hash, revision, total keys, total size, storage version.\n",
    run: Some(run),
    ..Command::EMPTY
};

const COLUMNS: &[Column] = &[
    Column::new("hash", "hash", "Hash"),
    Column::new("revision", "revision", "Revision"),
    Column::new("total keys", "totalKey", "Keys"),
    Column::new("total size", "totalSize", "Size"),
    Column::new("version", "version", "Version"),
];

/// Status of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Status {
    hash: u32,
    revision: i64,
    total_keys: u64,
    total_bytes: u64,
    version: String,
}

fn run(session: &Session) -> Result<(), Failure> {
    let [path] = session.arguments("snapshot status requires exactly one argument")?;
    let backend = files::open(session, Path::new(&path))?;
    let status = status(&backend.read())?;
    session.show(&Report::one(
        COLUMNS,
        vec![
            Cell::Hash(status.hash),
            Cell::Number(status.revision),
            Cell::Unsigned(status.total_keys),
            Cell::Bytes(status.total_bytes),
            Cell::Version(status.version),
        ],
    ))
}

fn status(view: &BackendView) -> Result<Status, Failure> {
    let transaction = view.transaction();
    check_pages(&transaction.check())?;
    let names = transaction.bucket_names()?;
    for bucket in ["key", "meta"] {
        if !names.contains(&bucket.as_bytes()) {
            let path = view.path().display().to_string();
            return Err(StatusError::Foreign { path, bucket }.into());
        }
    }
    let mut status = Status { total_bytes: transaction.image_len(), ..Status::default() };
    if let Some(version) = view.get(Bucket::Meta, meta::STORAGE_VERSION)? {
        status.version = String::from_utf8_lossy(&version).into_owned();
    }
    let mut live: HashSet<Box<[u8]>> = HashSet::new();
    for name in names {
        status.hash = crc32c::crc32c_append(status.hash, name);
        let mut scanner = transaction.scan(name)?;
        let mut position = 0;
        while let Some(entry) = scanner.next()? {
            status.hash = crc32c::crc32c_append(status.hash, entry.key);
            status.hash = crc32c::crc32c_append(status.hash, entry.value);
            if name == Bucket::Key.name() {
                let record = record(entry.key, entry.value);
                let (key, name) = record
                    .map_err(|problem| view.corrupt(Bucket::Key, position, entry.key, problem))?;
                status.revision = key.revision.main;
                if key.tombstone {
                    live.remove(name);
                } else if !live.contains(name) {
                    live.insert(name.into());
                }
            }
            position += 1;
        }
    }
    status.total_keys = live.len() as u64;
    Ok(status)
}

/// Returns the revision and the user's key of a record.
fn record<'a>(key: &[u8], value: &'a [u8]) -> Result<(RecordKey, &'a [u8]), &'static str> {
    let revision = RecordKey::decode(key).ok_or("the key is not a revision")?;
    let fields = Fields::decode(value).ok_or("the value is not a record")?;
    Ok((revision, fields.key))
}
