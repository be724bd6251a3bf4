//! Tests of the whole engine. The header of each file describes what the file tests.

mod crash;
mod damage;
mod format;
mod golden;
mod model;
mod reclaim;
mod reclaim_large;
mod snapshots;

use std::path::PathBuf;
use std::sync::Arc;

use quorate_seeded_random::SplitMix64;

use super::*;
use crate::disk::{Disk, RealDisk};

/// A directory for the files of one test.
struct TestDir {
    directory: tempfile::TempDir,
    disk: Arc<dyn Disk>,
}

impl TestDir {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("the test needs a directory");
        Self { directory, disk: Arc::new(RealDisk) }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("db")
    }

    fn open(&self) -> Db {
        self.open_with(small())
    }

    fn open_with(&self, options: Options) -> Db {
        Db::open(&self.disk, &self.path(), options).expect("the file can be opened")
    }
}

/// Returns options for a file that grows often and is never synced.
fn small() -> Options {
    Options {
        no_sync: true,
        growth_bytes: 64 << 10,
        map_bytes_min: 1 << 20,
        page_bytes_new: 1024,
        ..Options::default()
    }
}

fn assert_sound(db: &Db, context: &str) {
    let problems = db.read().check();
    assert!(problems.is_empty(), "{context}: {problems:?}");
    let leaked = db.unaccounted_pages();
    assert!(leaked.is_empty(), "{context}: pages not in exactly one group: {leaked:?}");
}
