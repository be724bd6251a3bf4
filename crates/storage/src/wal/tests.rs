//! Tests that compare the log with logs written by etcd and with a list of entries, and tests with damage and power
//! cuts.

mod crash;
mod damage;
mod format;
mod format_file;
mod golden;
mod model;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::disk::{FaultyDisk, RealDisk};

/// Returns options for segments that fill quickly.
fn small_options() -> Options {
    Options {
        segment_bytes: 16 * 1024,
        zero_step_bytes: 4096,
        zero_lead_bytes: 8192,
        ..Options::default()
    }
}

fn real() -> Arc<dyn Disk> {
    Arc::new(RealDisk)
}

fn metadata() -> Bytes {
    Bytes::from_static(b"\x08\x2a\x10\x2b")
}

fn entry(index: u64, term: u64, data: &[u8]) -> Entry {
    Entry { index, term, kind: 0, data: Bytes::copy_from_slice(data) }
}

fn state(term: u64, vote: u64, commit: u64) -> HardState {
    HardState { term, vote, commit }
}

fn mark(index: u64, term: u64) -> SnapshotMark {
    SnapshotMark { index, term, conf_state: Some(Bytes::from_static(b"\x08\x2a\x28\x00")) }
}

/// Opens a log and reads it from its beginning. The log is never synced, because syncs are slow and
/// these tests do not need them.
fn open(dir: &Path) -> Result<(Wal, Contents), WalError> {
    let options = Options { sync: false, ..small_options() };
    Wal::open(real(), dir, &SnapshotMark::default(), options)
}

fn create(dir: &Path) -> Wal {
    Wal::create(real(), dir, metadata(), small_options()).unwrap()
}

/// Returns the path of the log's last segment.
fn last_segment(dir: &Path) -> PathBuf {
    let listing = list(&RealDisk, dir).unwrap();
    dir.join(listing.segments.last().unwrap().file_name())
}
