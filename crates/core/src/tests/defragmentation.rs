//! Tests of defragmentations while the file is read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_state::backend::{Backend, Batch};
use quorate_state::schema::Bucket;
use quorate_storage::bolt::Options;
use quorate_storage::disk::{Disk, RealDisk};

use crate::{BackendWriter, Defragmented, Order, Report};

type Writer = BackendWriter<(), ()>;

fn commit(writer: &mut Writer, change: impl FnOnce(&mut Batch)) {
    let mut batch = Batch::default();
    change(&mut batch);
    writer.take(Order::Commit { batch, then: Vec::new() }, Instant::now());
    while writer.step().unwrap().is_some() {}
}

/// Defragments the file. A view of the state before `change` is read for the first 100 ms.
fn defragment(writer: &mut Writer, change: impl FnOnce(&mut Batch)) -> Defragmented {
    let start = Instant::now();
    let mut reader = Some(writer.backend().read());
    commit(writer, change);
    writer.take(Order::Defragment(()), start);
    loop {
        if let Some(report) = writer.step().unwrap() {
            if let Report::Defragmented { outcome, .. } = report {
                return outcome;
            }
            continue;
        }
        let now = writer.reclaim_at().unwrap();
        reader.take_if(|_| now >= start + Duration::from_millis(100));
        writer.reclaim(now).unwrap();
    }
}

fn open(folder: &tempfile::TempDir) -> Writer {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let backend = Backend::open(&disk, &folder.path().join("db"), Options::default()).unwrap();
    Writer::new(backend, disk, folder.path().to_owned())
}

#[test]
fn a_defragmentation_waits_for_readers_of_freed_pages() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = open(&folder);
    let bucket = Bucket::AuthUsers;
    commit(&mut writer, |batch| batch.put(bucket, "large", vec![7; 3_000_000]));
    let outcome = defragment(&mut writer, |batch| batch.delete(bucket, "large"));
    assert!(outcome.bytes_after * 10 < outcome.bytes_before, "{outcome:?}");
    assert_eq!(writer.backend().stats().file_bytes, outcome.bytes_after);
}

#[test]
fn a_defragmentation_waits_for_readers_before_it_moves_large_values() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = open(&folder);
    let bucket = Bucket::AuthUsers;
    for number in 0..40_u8 {
        let value = vec![number; 200_000 + usize::from(number) * 20_000];
        commit(&mut writer, |batch| batch.put(bucket, vec![number], value));
    }
    let outcome = defragment(&mut writer, |batch| {
        for number in (0..40).step_by(3) {
            batch.delete(bucket, vec![number]);
        }
    });
    let stats = writer.backend().stats();
    assert!(stats.file_bytes - stats.in_use_bytes <= stats.file_bytes / 100, "{stats:?}");
    assert_eq!(stats.file_bytes, outcome.bytes_after);
    assert!(writer.backend().db().read().check().is_empty());
}
