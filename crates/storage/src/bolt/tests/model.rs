//! Compares the engine with a `BTreeMap`. The test runs random transactions, reopens the file and
//! reclaims space in between, checks the whole file after every commit, and holds snapshots that
//! must not change.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

type Model = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>>;

const BUCKETS: [&[u8]; 3] = [b"key", b"lease", b"meta"];

#[derive(Clone, Debug)]
enum Step {
    /// Puts `count` keys with random values that are shorter than `value_max` bytes.
    Puts {
        bucket: usize,
        from: u32,
        count: u32,
        stride: u32,
        value_max: usize,
    },
    Deletes {
        bucket: usize,
        from: u32,
        count: u32,
        stride: u32,
    },
    DeleteSorted {
        bucket: usize,
        from: u32,
        count: u32,
        stride: u32,
    },
    Clear {
        bucket: usize,
    },
    Commit,
    Rollback,
    Reopen,
    Reclaim {
        budget: u64,
    },
    HoldSnapshot,
    DropSnapshots,
}

fn step() -> impl Strategy<Value = Step> {
    let bucket = 0..BUCKETS.len();
    let range = (bucket.clone(), 0..4000_u32, 1..400_u32, 1..9_u32);
    let value =
        prop_oneof![4 => Just(40_usize), 2 => Just(400), 1 => Just(3000), 1 => Just(20_000)];
    prop_oneof![
        6 => (range.clone(), value).prop_map(|((bucket, from, count, stride), value_max)| {
            let count = if value_max > 1000 { count.min(20) } else { count };
            Step::Puts { bucket, from, count, stride, value_max }
        }),
        2 => range.clone().prop_map(|(bucket, from, count, stride)| {
            Step::Deletes { bucket, from, count, stride }
        }),
        4 => range.prop_map(|(bucket, from, count, stride)| {
            Step::DeleteSorted { bucket, from, count: count * 4, stride }
        }),
        1 => bucket.prop_map(|bucket| Step::Clear { bucket }),
        8 => Just(Step::Commit),
        1 => Just(Step::Rollback),
        1 => Just(Step::Reopen),
        3 => (1..200_u64).prop_map(|budget| Step::Reclaim { budget }),
        2 => Just(Step::HoldSnapshot),
        1 => Just(Step::DropSnapshots),
    ]
}

/// Returns the key for a number. Keys differ in length, so that they do not sort by their numbers.
/// Two of the longest keys fill a branch. This makes trees deep, so that every deletion below such
/// a branch is a special case.
fn key(number: u32) -> Vec<u8> {
    let suffix = match number % 4000 {
        0..1000 if number.is_multiple_of(3) => "-longer-by-a-suffix".len(),
        0..1000 => 0,
        1000..2000 => 400,
        _ => 30,
    };
    format!("{number:05}{}", "x".repeat(suffix)).into_bytes()
}

fn keys(from: u32, count: u32, stride: u32) -> impl Iterator<Item = Vec<u8>> {
    (0..count).map(move |i| key(from + i * stride))
}

struct Run {
    place: TestDir,
    db: Option<Db>,
    committed: Model,
    held: Vec<(ReadTx, Model)>,
    draw: SplitMix64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let place = TestDir::new();
        let page_bytes_new = if seed.is_multiple_of(3) { 4096 } else { 1024 };
        let db = Some(place.open_with(Options { page_bytes_new, ..small() }));
        Self { place, db, committed: Model::new(), held: Vec::new(), draw: SplitMix64::new(seed) }
    }

    fn play(&mut self, steps: &[Step]) {
        let mut rest = steps;
        while !rest.is_empty() {
            rest = self.transaction(rest);
            self.verify();
        }
    }

    /// Runs steps up to and including the next one that ends the transaction.
    fn transaction<'s>(&mut self, steps: &'s [Step]) -> &'s [Step] {
        let db = self.db.clone().expect("the file is open between steps");
        let mut tx = db.write().expect("a write transaction can be started");
        let mut model = self.committed.clone();
        for (index, step) in steps.iter().enumerate() {
            if edit(&mut tx, &mut model, step, &mut self.draw) {
                continue;
            }
            if let Step::Rollback = step {
                drop(tx);
            } else {
                tx.commit().expect("the commit succeeds");
                self.committed = model;
            }
            drop(db);
            self.between(step);
            return &steps[index + 1..];
        }
        tx.commit().expect("the commit succeeds");
        self.committed = model;
        &[]
    }

    fn between(&mut self, step: &Step) {
        let db = self.db.clone().expect("the file is open between steps");
        match step {
            Step::Reclaim { budget } => {
                db.reclaim(*budget).expect("the reclamation step succeeds");
            }
            Step::HoldSnapshot => self.held.push((db.read(), self.committed.clone())),
            Step::DropSnapshots => self.held.clear(),
            Step::Reopen => {
                self.held.clear();
                drop(db);
                self.db = None;
                self.db = Some(self.place.open());
            }
            _ => {}
        }
    }

    fn verify(&self) {
        let db = self.db.as_ref().expect("the file is open between steps");
        assert_sound(db, "after a commit");
        assert_shows(&db.read(), &self.committed);
        for (snapshot, model) in &self.held {
            assert_shows(snapshot, model);
        }
    }
}

/// Applies a step to the transaction and to the model. Returns `false` for a step that ends the
/// transaction.
fn edit(tx: &mut WriteTx<'_>, model: &mut Model, step: &Step, draw: &mut SplitMix64) -> bool {
    match *step {
        Step::Puts { bucket, from, count, stride, value_max } => {
            let name = BUCKETS[bucket];
            tx.create_bucket_if_missing(name).expect("the bucket is created");
            let entries = model.entry(name.to_vec()).or_default();
            for key in keys(from, count, stride) {
                let len = draw.below(value_max as u64) as usize;
                let value = vec![draw.below(256) as u8; len];
                tx.put(name, &key, Bytes::from(value.clone())).expect("the put succeeds");
                entries.insert(key, value);
            }
        }
        Step::Deletes { bucket, from, count, stride } => {
            let Some(entries) = model.get_mut(BUCKETS[bucket]) else { return true };
            for key in keys(from, count, stride) {
                let was_there = tx.delete(BUCKETS[bucket], &key).expect("the delete succeeds");
                assert_eq!(was_there, entries.remove(&key).is_some());
                assert_eq!(tx.get(BUCKETS[bucket], &key).expect("the get succeeds"), None);
            }
        }
        Step::DeleteSorted { bucket, from, count, stride } => {
            let Some(entries) = model.get_mut(BUCKETS[bucket]) else { return true };
            let mut doomed: Vec<_> = keys(from, count, stride).collect();
            doomed.sort();
            let deleted = tx.delete_sorted(BUCKETS[bucket], &doomed).expect("the delete succeeds");
            let expected = doomed.iter().filter(|key| entries.remove(*key).is_some()).count();
            assert_eq!(deleted, expected as u64);
        }
        Step::Clear { bucket } => {
            let Some(entries) = model.get_mut(BUCKETS[bucket]) else { return true };
            entries.clear();
            tx.clear_bucket(BUCKETS[bucket]).expect("the bucket is cleared");
        }
        _ => return false,
    }
    true
}

fn assert_shows(view: &ReadTx, model: &Model) {
    let names: Vec<_> = model.keys().map(Vec::as_slice).collect();
    assert_eq!(view.bucket_names().expect("the bucket names can be read"), names);
    for (name, entries) in model {
        let bucket = view.bucket(name).expect("the bucket can be read").expect("the bucket exists");
        let mut cursor = bucket.cursor();
        for (key, value) in entries {
            let entry =
                cursor.next().expect("the next entry can be read").expect("a next entry exists");
            assert_eq!((entry.key, entry.value), (key.as_slice(), value.as_slice()));
        }
        assert_eq!(cursor.next().expect("the end can be read"), None);
        for (key, value) in entries.iter().rev() {
            let entry = cursor
                .prev()
                .expect("the previous entry can be read")
                .expect("a previous entry exists");
            assert_eq!((entry.key, entry.value), (key.as_slice(), value.as_slice()));
        }
        assert_eq!(cursor.prev().expect("the start can be read"), None);
        let mut scan = view.scan(name).expect("the scan can be started");
        for (key, value) in entries {
            let entry = scan.next().expect("the scan can be read").expect("a next entry exists");
            assert_eq!((entry.key, entry.value), (key.as_slice(), value.as_slice()));
        }
        assert_eq!(scan.next().expect("the end of the scan can be read"), None);
        for number in (0..5000).step_by(61) {
            let key = key(number);
            let expected = entries.get(&key).map(Vec::as_slice);
            let found = bucket.get(&key).expect("the get succeeds");
            assert_eq!(found, expected);
            assert_eq!(found.map(|value| view.bytes(value)).as_deref(), expected);
            let at = cursor.seek(&key).expect("the seek succeeds");
            let expected = entries.range(key..).next();
            assert_eq!(at.map(|e| e.key), expected.map(|(key, _)| key.as_slice()));
        }
        assert_finds_many(&bucket, entries);
    }
}

/// Reads many keys at once, both existing and missing ones, sorted and in other orders.
fn assert_finds_many(bucket: &BucketReader<'_>, entries: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let mut asked: Vec<_> = (0..5000).step_by(23).map(key).collect();
    asked.extend(entries.keys().step_by(11).cloned());
    asked.extend(entries.keys().next_back().cloned());
    for turn in 0..3 {
        match turn {
            0 => asked.sort(),
            1 => asked.reverse(),
            _ => {
                // In this order, consecutive keys are far apart.
                let skipping = |from| asked.iter().skip(from).step_by(7).cloned();
                asked = (0..7).flat_map(skipping).collect();
            }
        }
        let mut expected = asked.iter().map(|key| entries.get(key).map(Vec::as_slice));
        let compare = |value| {
            assert_eq!(Some(value), expected.next());
            Ok::<_, BoltError>(())
        };
        bucket.get_each(asked.iter(), compare).expect("the keys are read");
        assert_eq!(expected.next(), None, "every key has a result");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn random_transactions_have_the_same_result_as_in_a_btree_map(
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        Run::new(seed).play(&steps);
    }
}
