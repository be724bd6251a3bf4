//! Tests of defragmentations while the file is read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_state::backend::{Backend, Batch};
use quorate_state::schema::Bucket;
use quorate_storage::bolt::Options;
use quorate_storage::disk::{Disk, RealDisk};

use crate::{BackendWriter, Order, Report};

type Writer = BackendWriter<(), ()>;

fn commit(writer: &mut Writer, change: impl FnOnce(&mut Batch)) {
    let mut batch = Batch::default();
    change(&mut batch);
    writer.take(Order::Commit { batch, then: Vec::new() }, Instant::now());
    while writer.step().unwrap().is_some() {}
}

#[test]
fn a_defragmentation_waits_for_readers_of_freed_pages() {
    let folder = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let backend = Backend::open(&disk, &folder.path().join("db"), Options::default()).unwrap();
    let mut writer = Writer::new(backend, disk, folder.path().to_owned());
    let bucket = Bucket::AuthUsers;
    commit(&mut writer, |batch| batch.put(bucket, "large", vec![7; 3_000_000]));
    let start = Instant::now();
    let mut reader = Some(writer.backend().read());
    commit(&mut writer, |batch| batch.delete(bucket, "large"));
    writer.take(Order::Defragment(()), start);
    let outcome = loop {
        if let Some(report) = writer.step().unwrap() {
            if let Report::Defragmented { outcome, .. } = report {
                break outcome;
            }
            continue;
        }
        let now = writer.reclaim_at().unwrap();
        reader.take_if(|_| now >= start + Duration::from_millis(100));
        writer.reclaim(now).unwrap();
    };
    assert!(outcome.bytes_after * 10 < outcome.bytes_before, "{outcome:?}");
    assert_eq!(writer.backend().stats().file_bytes, outcome.bytes_after);
}
