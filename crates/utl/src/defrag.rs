//! `defrag`: removes the free space from a backend file.
//!
//! The content is copied into a new file in the same directory. The new file is synced, checked and renamed to replace
//! the old file. Until then, the old file stays locked, so that no member can start on it.
//!
//! # Invariants
//!
//! * If the process is interrupted, the directory contains either the complete old file or the complete new file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use quorate_cli::flags::Flag;
use quorate_cli::gotext::{duration, size};
use quorate_storage::bolt::{Db, Options, Stats};
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::Disk;
use serde_json::Value;

use crate::command::Command;
use crate::failure::Failure;
use crate::files;
use crate::session::Session;
use crate::soundness::check_pages;

pub(crate) const DEFRAG: Command = Command {
    usage: "defrag",
    short: "Defragments the storage of the etcd",
    flags: &[Flag::bytes("data-dir", "Required. Defragments a data directory not in use by etcd.")],
    run: Some(run),
    ..Command::EMPTY
};

/// Approximate number of bytes copied in one transaction, which is held in memory.
const BATCH_BYTES: usize = 8 << 20;
/// Maximum number of pages written by one step of shrinking the new file.
const RECLAIM_PAGES: u64 = 1024;
/// Temporary name of the new file. A member removes such a file when it starts.
const UNFINISHED: &str = "db.tmp.defrag";

fn run(session: &Session) -> Result<(), Failure> {
    let root = session.required_path("data-dir")?;
    let [] = session.arguments("defrag takes no arguments")?;
    let dirs = DataDir::new(&root, None);
    let path = dirs.backend();
    let disk = files::disk();
    let start = Instant::now();
    let old = files::open_db_to_write(session, &path)?;
    let before = old.stats();
    let path_field = ("path", path.display().to_string().into());
    let fields = [&[path_field.clone()][..], &sizes(&before, None)].concat();
    session.log_values("info", "defragmenting", &fields);
    let unfinished = dirs.snap().join(UNFINISHED);
    let new = match rewrite(&disk, &old, &unfinished) {
        Ok(new) => new,
        Err(failure) => {
            drop(disk.remove_file(&unfinished));
            return Err(failure);
        }
    };
    // The lock on the new file stays valid after the rename.
    disk.rename(&unfinished, &path).map_err(Failure::io("rename it", &unfinished))?;
    disk.sync_dir(&dirs.snap()).map_err(Failure::io("sync it", &dirs.snap()))?;
    let after = new.stats();
    let took = ("took", duration(start.elapsed()).into());
    let fields = [&[path_field][..], &sizes(&after, Some(&before)), &[took]].concat();
    session.log_values("info", "finished defragmenting directory", &fields);
    Ok(())
}

/// Returns the size of the file, and its growth since `before`, under etcd's field names.
fn sizes(now: &Stats, before: Option<&Stats>) -> Vec<(&'static str, Value)> {
    let growth = |of: fn(&Stats) -> u64| {
        let before = before?;
        i64::try_from(i128::from(of(now)) - i128::from(of(before))).ok()
    };
    let all = |stats: &Stats| stats.size_bytes;
    let in_use = |stats: &Stats| stats.in_use_bytes;
    let mut fields = Vec::new();
    fields.extend(growth(all).map(|bytes| ("current-db-size-bytes-diff", bytes.into())));
    fields.push(("current-db-size-bytes", all(now).into()));
    fields.push(("current-db-size", size(all(now)).into()));
    fields.extend(growth(in_use).map(|bytes| ("current-db-size-in-use-bytes-diff", bytes.into())));
    fields.push(("current-db-size-in-use-bytes", in_use(now).into()));
    fields.push(("current-db-size-in-use", size(in_use(now)).into()));
    fields
}

/// Writes the content of `old` to a new file and syncs it.
fn rewrite(disk: &Arc<dyn Disk>, old: &Db, path: &Path) -> Result<Db, Failure> {
    if disk.metadata(path).map_err(Failure::io("check whether it exists", path))?.is_some() {
        disk.remove_file(path).map_err(Failure::io("remove it", path))?;
    }
    let read = old.read();
    let mut options = Options::default();
    options.flat = true;
    options.page_bytes_new = old.stats().page_bytes as usize;
    // The file is synced once, at the end.
    options.no_sync = true;
    options.growth_bytes = BATCH_BYTES as u64;
    let new = Db::open(disk, path, options)?;
    for name in read.bucket_names()? {
        let mut scanner = read.scan(name)?;
        let mut is_finished = false;
        while !is_finished {
            let mut tx = new.write()?;
            tx.create_bucket_if_missing(name)?;
            let mut byte_count = 0;
            while byte_count < BATCH_BYTES {
                let Some(entry) = scanner.next()? else {
                    is_finished = true;
                    break;
                };
                if entry.is_bucket {
                    return Err(Failure::Nested { path: PathBuf::from(old.path()) });
                }
                tx.put(name, entry.key, Bytes::copy_from_slice(entry.value))?;
                byte_count += entry.key.len() + entry.value.len();
            }
            tx.commit()?;
        }
    }
    while !new.reclaim(RECLAIM_PAGES)?.done {}
    new.sync()?;
    check_pages(&new.read().check())?;
    Ok(new)
}
