//! `db buckets`, `db keys` and `db get`: print the content of a file.
//!
//! The keys of the bucket `key` are revisions, written `main/sub`, followed by `deleted` for a deletion. Keys of other
//! buckets are quoted as in Go.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use quorate_api::record::Fields;
use quorate_cli::flags::Flag;
use quorate_cli::gotext::{quote, unquote};
use quorate_state::schema::{Bucket, RecordKey, Revision};
use quorate_storage::bolt::Entry;

use crate::command::Command;
use crate::failure::Failure;
use crate::files;
use crate::lines::Lines;
use crate::report::{Cell, Column, Report};
use crate::session::Session;

pub(super) const BUCKETS: Command = Command {
    usage: "buckets <filename>",
    short: "Lists the buckets of a file with their sizes",
    run: Some(buckets),
    ..Command::EMPTY
};

pub(super) const KEYS: Command = Command {
    usage: "keys <filename> <bucket>",
    short: "Lists the keys of a bucket",
    flags: &[Flag::uint("limit", "0", "maximum number of keys to list (0 for all)")],
    run: Some(keys),
    ..Command::EMPTY
};

pub(super) const GET: Command = Command {
    usage: "get <filename> <bucket> <key>",
    short: "Prints a value as it is stored",
    long: "Prints a value as it is stored. Write the key as `db keys` prints it: a revision as\nmain/sub, and \
     any other key as plain text or as text in double quotes with Go's escapes.\n",
    run: Some(get),
    ..Command::EMPTY
};

const BUCKET_COLUMNS: &[Column] = &[
    Column::new("bucket", "bucket", "Bucket"),
    Column::new("keys", "keys", "Keys"),
    Column::new("key bytes", "keyBytes", "KeyBytes"),
    Column::new("value bytes", "valueBytes", "ValueBytes"),
];

const RECORD_COLUMNS: &[Column] = &[
    Column::new("revision", "revision", "Revision"),
    Column::new("key", "key", "Key"),
    Column::new("create revision", "createRevision", "CreateRevision"),
    Column::new("version", "version", "Version"),
    Column::new("lease", "lease", "Lease"),
    Column::new("value bytes", "valueBytes", "ValueBytes"),
];

const KEY_COLUMNS: &[Column] =
    &[Column::new("key", "key", "Key"), Column::new("value bytes", "valueBytes", "ValueBytes")];

fn buckets(session: &Session) -> Result<(), Failure> {
    let [path] = session.arguments("db buckets requires exactly one argument")?;
    let view = files::open(session, Path::new(&path))?.read();
    let mut rows = Vec::new();
    for name in view.transaction().bucket_names()? {
        let mut scanner = view.transaction().scan(name)?;
        let (mut count, mut key_bytes, mut value_bytes) = (0, 0, 0);
        while let Some(entry) = scanner.next()? {
            count += 1;
            key_bytes += entry.key.len() as u64;
            value_bytes += entry.value.len() as u64;
        }
        let name = String::from_utf8_lossy(name).into_owned();
        let sizes = [Cell::Bytes(key_bytes), Cell::Bytes(value_bytes)];
        rows.push([&[Cell::Text(name), Cell::Unsigned(count)], &sizes[..]].concat());
    }
    session.show(&Report::list(BUCKET_COLUMNS, rows))
}

fn keys(session: &Session) -> Result<(), Failure> {
    let [path, bucket] = session.arguments("db keys requires exactly two arguments")?;
    let view = files::open(session, Path::new(&path))?.read();
    check_bucket(&view.transaction().bucket_names()?, &path, &bucket)?;
    let is_records = bucket.as_bytes() == Bucket::Key.name();
    let columns = if is_records { RECORD_COLUMNS } else { KEY_COLUMNS };
    let lines = Lines::new(session, columns)?;
    let mut scanner = view.transaction().scan(bucket.as_bytes())?;
    let limit = session.matches.uint("limit");
    let mut position = 0;
    while let Some(entry) = scanner.next()? {
        let row = if is_records {
            let row = record_row(&entry);
            row.map_err(|problem| view.corrupt(Bucket::Key, position, entry.key, problem))?
        } else {
            vec![Cell::Text(quote(entry.key)), Cell::Unsigned(entry.value.len() as u64)]
        };
        lines.add(row)?;
        position += 1;
        if position == limit {
            break;
        }
    }
    lines.finish()
}

fn record_row(entry: &Entry<'_>) -> Result<Vec<Cell>, &'static str> {
    let RecordKey { revision, tombstone } =
        RecordKey::decode(entry.key).ok_or("the key is not a revision")?;
    let fields = Fields::decode(entry.value).ok_or("the value is not a record")?;
    let deleted = if tombstone { " deleted" } else { "" };
    Ok(vec![
        Cell::Text(format!("{revision}{deleted}")),
        Cell::Text(quote(fields.key)),
        Cell::Number(fields.create_revision),
        Cell::Number(fields.version),
        Cell::Text(format!("{:x}", fields.lease)),
        Cell::Unsigned(fields.value.len() as u64),
    ])
}

fn get(session: &Session) -> Result<(), Failure> {
    let [path, bucket, key] = session.arguments("db get requires exactly three arguments")?;
    let view = files::open(session, Path::new(&path))?.read();
    let transaction = view.transaction();
    let Some(reader) = transaction.bucket(bucket.as_bytes())? else {
        return Err(no_bucket(&path, &bucket));
    };
    let candidates = if bucket.as_bytes() == Bucket::Key.name() {
        record_keys(&key.to_string_lossy()).ok_or_else(|| {
            Failure::arguments(format!(
                "{} is not a revision: write main/sub or main",
                quote(key.as_bytes())
            ))
        })?
    } else {
        let quoted = unquote(key.as_bytes()).filter(|(_, rest)| rest.is_empty());
        vec![quoted.map_or_else(|| key.as_bytes().to_vec(), |(bytes, _)| bytes)]
    };
    for candidate in candidates {
        if let Some(value) = reader.get(&candidate)? {
            return session.print_bytes(value);
        }
    }
    let (bucket, key) = (bucket.display().to_string(), key.display().to_string());
    Err(Failure::NoKey { path: path.into(), bucket, key })
}

/// Returns the keys under which a change at a revision may be stored, as a record or as a deletion.
fn record_keys(text: &str) -> Option<Vec<Vec<u8>>> {
    let text = text.strip_suffix(" deleted").unwrap_or(text);
    let (main, sub) = text.split_once('/').unwrap_or((text, "0"));
    let revision = Revision::new(main.parse().ok()?, sub.parse().ok()?);
    let encoded = |tombstone| RecordKey { revision, tombstone }.encode().as_ref().to_vec();
    Some(vec![encoded(false), encoded(true)])
}

fn check_bucket(names: &[&[u8]], path: &OsStr, bucket: &OsStr) -> Result<(), Failure> {
    if names.contains(&bucket.as_bytes()) { Ok(()) } else { Err(no_bucket(path, bucket)) }
}

fn no_bucket(path: &OsStr, bucket: &OsStr) -> Failure {
    Failure::NoBucket { path: path.into(), bucket: bucket.display().to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_are_accepted_in_the_form_printed_by_db_keys() {
        let stored = RecordKey { revision: Revision::new(7, 2), tombstone: true };
        for text in ["7/2", "7/2 deleted"] {
            let keys = record_keys(text).unwrap();
            assert_eq!(keys[1], stored.encode().as_ref(), "{text}");
        }
        assert_eq!(record_keys("7"), record_keys("7/0"));
        assert_eq!(record_keys("seven"), None);
    }
}
