//! Benchmark of the keyspace: `cargo bench -p quorate-state [-- KEYS]`, by default with 100,000
//! keys.
//!
//! It prints the processor time of one thread per operation, in microseconds. Commits to the file run between the
//! operations, without waiting for the disk. A result excludes the time of the commits unless its label says otherwise.

#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]
#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use quorate_seeded_random::SplitMix64;
use quorate_state::backend::{Backend, Batch};
use quorate_state::mvcc::{KeyRange, RangeQuery, Store, StoreOptions, View};
use quorate_storage::bolt::Options;
use quorate_storage::disk::{Disk, RealDisk};

fn keys(count: usize) -> Vec<Vec<u8>> {
    let mut random = SplitMix64::new(7);
    (0..count)
        .map(|_| {
            let mut key = format!("/registry/{:016x}", random.next_u64()).into_bytes();
            let len = 16 + random.position(44);
            key.resize(len.max(26), b'k');
            key
        })
        .collect()
}

/// Measures processor time, which is independent of other load on the machine. Linux reports it
/// with nanosecond precision.
struct Clock(f64);

impl Clock {
    fn now() -> Self {
        let spent = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
        let nanoseconds = spent.split_whitespace().next().and_then(|spent| spent.parse().ok());
        Self(nanoseconds.unwrap_or(0.0) / 1e9)
    }

    /// Excludes `seconds` from the measurement and resets `seconds` to zero.
    fn without(self, seconds: &mut f64) -> Self {
        Self(self.0 + std::mem::take(seconds))
    }

    fn elapsed(&self) -> f64 {
        Self::now().0 - self.0
    }
}

fn report(what: &str, count: usize, started: &Clock) {
    let seconds = started.elapsed();
    println!("{what:50} {:9.3} us   ({seconds:.3} s in all)", seconds * 1e6 / count as f64);
}

struct Load {
    store: Store,
    batch: Batch,
    backend: Backend,
    commit_seconds: f64,
    entries: usize,
    publish_each: usize,
}

impl Load {
    fn put(&mut self, key: &[u8]) {
        let mut txn = self.store.write(&mut self.batch);
        txn.put(key, &[b'v'; 256], 0);
        black_box(txn.finish());
        self.entries += 1;
        if self.entries.is_multiple_of(self.publish_each) {
            self.store.publish();
        }
        if self.batch.op_count() == 10_000 {
            self.commit();
        }
    }

    fn commit(&mut self) {
        let started = Clock::now();
        let committed = self.backend.commit(&std::mem::take(&mut self.batch)).unwrap();
        self.commit_seconds += started.elapsed();
        self.store.committed(committed);
        self.store.publish();
    }
}

fn resident_mb() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("RssAnon")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<usize>().ok()).unwrap_or(0) / 1024
}

fn main() {
    let count = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(100_000);
    let keys = keys(count);
    let base = resident_mb();
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut options = Options::default();
    options.no_sync = true;
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let backend = Backend::open(&disk, &directory.path().join("db"), options).unwrap();
    let store = Store::new(StoreOptions::default());
    let mut load = Load {
        store,
        batch: Batch::new(),
        backend,
        commit_seconds: 0.0,
        entries: 0,
        publish_each: 100,
    };
    puts(&mut load, &keys, base);
    load.commit();
    let mut sorted = keys.clone();
    sorted.sort();
    reads(&load.store.reader().view(), &sorted);
    let started = Clock::now();
    black_box(load.store.reader().view().hash_kv(0).unwrap());
    report("hash of all records, per record", load.entries, &started);
    drop(std::mem::replace(&mut load.store, Store::new(StoreOptions::default())));
    println!("memory without the store: {} MB", resident_mb() - base);

    let started = Clock::now();
    load.store = Store::recover(&load.backend, StoreOptions::default()).unwrap().0;
    report("restart, per record", load.entries, &started);
    println!("memory: {} MB", resident_mb() - base);
    compaction(&mut load, &sorted[..count / 2]);
    println!("memory: {} MB", resident_mb() - base);
    drop(std::mem::replace(&mut load.store, Store::new(StoreOptions::default())));
    let started = Clock::now();
    load.store = Store::recover(&load.backend, StoreOptions::default()).unwrap().0;
    report("restart after compaction, per record", count, &started);
    println!("memory: {} MB", resident_mb() - base);
}

fn puts(load: &mut Load, keys: &[Vec<u8>], base: usize) {
    let count = keys.len();
    let mut random = SplitMix64::new(99);
    let started = Clock::now();
    for key in keys {
        load.put(key);
    }
    report(
        "put of a new key, 100 puts per publication",
        count,
        &started.without(&mut load.commit_seconds),
    );
    println!("memory: {} MB", resident_mb() - base);
    for publish_each in [1, 10, 100, 1000] {
        load.publish_each = publish_each;
        let started = Clock::now();
        for _ in 0..count / 4 {
            load.put(&keys[random.position(count)]);
        }
        let what = format!("put of an existing key, {publish_each} puts per publication");
        report(&what, count / 4, &started.without(&mut load.commit_seconds));
    }
    println!("memory: {} MB", resident_mb() - base);
}

fn reads(view: &View, sorted: &[Vec<u8>]) {
    let count = sorted.len();
    let mut random = SplitMix64::new(3);
    let started = Clock::now();
    for _ in 0..count {
        black_box(view.snapshot().get(&sorted[random.position(count)]));
    }
    report("get from the index", count, &started);
    let started = Clock::now();
    for _ in 0..count {
        let key = Bytes::copy_from_slice(&sorted[random.position(count)]);
        black_box(view.range(&RangeQuery { key, ..RangeQuery::default() }).unwrap());
    }
    report("range of one key, with record", count, &started);

    let rounds = 1000;
    let mut list = |what: &str, query: RangeQuery| {
        let started = Clock::now();
        for _ in 0..rounds {
            let first = random.position(count - 1001);
            let key = sorted[first].clone().into();
            let range_end = match query.limit {
                0 => sorted[first + 1000].clone().into(),
                _ => Bytes::from_static(b"\0"),
            };
            black_box(view.range(&RangeQuery { key, range_end, ..query.clone() }).unwrap());
        }
        report(what, rounds, &started);
    };
    list("list of 1,000, limited", RangeQuery { limit: 1000, ..RangeQuery::default() });
    list("list of exactly 1,000", RangeQuery::default());
    list("list of 1,000, keys only", RangeQuery { keys_only: true, ..RangeQuery::default() });
    let started = Clock::now();
    for _ in 0..rounds {
        let first = random.position(count / 2);
        let range = KeyRange::Between(&sorted[first], &sorted[first + count / 2 - 1]);
        black_box(view.snapshot().count(range));
    }
    report("count of half the keys", rounds, &started);
}

/// Deletes half of the keys and then compacts. The garbage consists of superseded versions and
/// tombstones.
fn compaction(load: &mut Load, doomed: &[Vec<u8>]) {
    for key in doomed {
        load.store.write(&mut load.batch).delete_range(KeyRange::One(key));
    }
    load.commit();
    let current = load.store.current_revision();
    load.store.schedule_compaction(current, &mut load.batch).unwrap();
    let started = Clock::now();
    let (mut deleted, mut longest) = (0, 0.0_f64);
    load.commit_seconds = 0.0;
    loop {
        let step_started = Clock::now();
        let step = load.store.next_garbage(1000, &mut load.batch);
        longest = longest.max(step_started.elapsed());
        deleted += step.deleted_count;
        if step.deleted_count > 0 {
            load.commit();
        }
        if !step.more {
            break;
        }
    }
    let committed = load.commit_seconds;
    report("compaction with commits, per record", deleted, &started);
    report(
        "compaction without commits, per record",
        deleted,
        &started.without(&mut load.commit_seconds),
    );
    println!("{deleted} records, commits {committed:.3} s, longest step {:.0} us", longest * 1e6);
}
