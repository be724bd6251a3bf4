//! How fast the keyspace is: `cargo bench -p quorate-state [-- KEYS]`, 100,000 keys unless told.
//!
//! Prints microseconds of one thread per operation. Batches are dropped instead of written, except where
//! the file is what is measured.

#![expect(clippy::disallowed_methods, reason = "a benchmark looks at the clock")]
#![expect(clippy::unwrap_used, reason = "a benchmark may fail")]
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::hint::black_box;
use std::time::Instant;

use quorate_state::backend::Batch;
use quorate_state::mvcc::{KeyRange, RangeQuery, Store, StoreOptions};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound).unwrap()).unwrap()
    }
}

fn keys(count: usize) -> Vec<Vec<u8>> {
    let mut random = Random(7);
    (0..count)
        .map(|_| {
            let mut key = format!("/registry/{:016x}", random.next()).into_bytes();
            let len = 16 + random.below(44);
            key.resize(len.max(26), b'k');
            key
        })
        .collect()
}

/// Time spent on a processor, which a busy machine does not stretch; Linux counts it in nanoseconds.
struct Clock(f64);

impl Clock {
    fn now() -> Self {
        let spent = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
        let nanoseconds = spent.split_whitespace().next().and_then(|spent| spent.parse().ok());
        Self(nanoseconds.unwrap_or(0.0) / 1e9)
    }

    fn elapsed(&self) -> f64 {
        Self::now().0 - self.0
    }
}

fn report(what: &str, count: usize, started: &Clock) {
    let seconds = started.elapsed();
    println!("{what:40} {:9.3} us   ({seconds:.3} s in all)", seconds * 1e6 / count as f64);
}

struct Load {
    store: Store,
    batch: Batch,
    entries: usize,
    publish_each: usize,
}

impl Load {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        let mut txn = self.store.write(&mut self.batch);
        txn.put(key, value, 0);
        black_box(txn.finish());
        self.entries += 1;
        if self.entries.is_multiple_of(self.publish_each) {
            self.store.publish();
        }
        if self.batch.op_count() == 10_000 {
            self.batch = Batch::new();
        }
    }
}

fn resident_mb() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<usize>().ok()).unwrap_or(0) / 1024
}

fn main() {
    let count = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(100_000);
    let keys = keys(count);
    let value = [b'v'; 256];
    let mut random = Random(99);
    let base = resident_mb();
    let store = Store::new(StoreOptions::default());
    let mut load = Load { store, batch: Batch::new(), entries: 0, publish_each: 100 };

    let started = Clock::now();
    for key in &keys {
        load.put(key, &value);
    }
    report("put new, published each 100", count, &started);
    println!("resident: {} MB", resident_mb() - base);

    for publish_each in [1, 10, 100, 1000] {
        load.publish_each = publish_each;
        let started = Clock::now();
        for _ in 0..count {
            load.put(&keys[random.below(count)], &value);
        }
        report(&format!("put existing, published each {publish_each}"), count, &started);
    }
    println!("resident: {} MB", resident_mb() - base);
    load.store.publish();

    let view = load.store.reader().view();
    let started = Clock::now();
    for _ in 0..count {
        black_box(view.snapshot().get(&keys[random.below(count)]));
    }
    report("get from the index", count, &started);
    let started = Clock::now();
    for _ in 0..count {
        let key = bytes::Bytes::copy_from_slice(&keys[random.below(count)]);
        black_box(view.range(&RangeQuery { key, ..RangeQuery::default() }).unwrap());
    }
    report("range of one key, with record", count, &started);

    let rounds = 1000;
    let mut sorted = keys.clone();
    sorted.sort();
    let started = Clock::now();
    for _ in 0..rounds {
        let key = sorted[random.below(count - 1000)].clone().into();
        let query =
            RangeQuery { key, range_end: b"\0"[..].into(), limit: 1000, ..RangeQuery::default() };
        black_box(view.range(&query).unwrap());
    }
    report("list of 1,000, limited", rounds, &started);
    let started = Clock::now();
    for _ in 0..rounds {
        let first = random.below(count - 1001);
        let (key, range_end) = (sorted[first].clone().into(), sorted[first + 1000].clone().into());
        black_box(view.range(&RangeQuery { key, range_end, ..RangeQuery::default() }).unwrap());
    }
    report("list of exactly 1,000", rounds, &started);
    let started = Clock::now();
    for _ in 0..rounds {
        let first = random.below(count - 1001);
        let (key, range_end) = (sorted[first].clone().into(), sorted[first + 1000].clone().into());
        let query = RangeQuery { key, range_end, keys_only: true, ..RangeQuery::default() };
        black_box(view.range(&query).unwrap());
    }
    report("list of 1,000, keys only", rounds, &started);
    let started = Clock::now();
    for _ in 0..100_000 {
        let first = random.below(count / 2);
        let range = KeyRange::Between(&sorted[first], &sorted[first + count / 2 - 1]);
        black_box(view.snapshot().count(range));
    }
    report("count of half the keys", 100_000, &started);
    drop(view);

    let current = load.store.current_revision();
    load.store.schedule_compaction(current, &mut load.batch).unwrap();
    let started = Clock::now();
    let (mut deleted, mut longest) = (0, 0.0_f64);
    loop {
        let step_started = Instant::now();
        let step = load.store.next_garbage(1000, &mut load.batch);
        longest = longest.max(step_started.elapsed().as_secs_f64());
        deleted += step.deleted_count;
        load.batch = Batch::new();
        if !step.more {
            break;
        }
    }
    report("compaction, each record", deleted, &started);
    println!("longest step: {:.0} us of {deleted} records", longest * 1e6);
    println!("resident: {} MB", resident_mb() - base);
}
