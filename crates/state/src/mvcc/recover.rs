//! Rebuilds the keyspace from the records of the file.
//!
//! Records are read in revision order, but the index needs them in key order, and the history needs
//! the order in which changes were superseded. Therefore the records are listed as they are read,
//! sorted once by key, eight bytes at a time, and then linked in revision order. The tree is built
//! from the sorted list without any searches.
//!
//! # Not here
//!
//! Reading the file (`Store::recover`).

use bytes::Bytes;
use quorate_api::record::Fields;

use super::compaction::TombstoneQueue;
use super::history::{History, Superseded};
use super::tree::{Entry, Tree};
use super::window::Window;
use crate::backend::{BackendView, Fault};
use crate::schema::{Bucket, RecordKey, Revision};

/// The fields of a record that are needed to build the index.
#[derive(Clone, Copy, Debug)]
struct Scanned {
    key_at: usize,
    key_len: usize,
    main: i64,
    sub: u32,
    tombstone: bool,
    create: i64,
    version: i64,
    lease: i64,
}

/// Collects records and builds the keyspace from them.
#[derive(Debug, Default)]
pub(super) struct Rebuild {
    keys: Vec<u8>,
    records: Vec<Scanned>,
}

/// The rebuilt parts of the keyspace.
#[derive(Debug)]
pub(super) struct Rebuilt {
    pub(super) tree: Tree,
    pub(super) history: History,
    pub(super) tombstones: TombstoneQueue,
    /// Keys attached to a lease, each with its lease.
    pub(super) leases: Vec<(Bytes, i64)>,
    /// Main revision of the last record.
    pub(super) last_main: Option<i64>,
}

impl Rebuild {
    /// Adds the next stored record. If the record is invalid, the error states why.
    pub(super) fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        let RecordKey { revision, tombstone } =
            RecordKey::decode(key).ok_or("the key is not a revision")?;
        let sub = u32::try_from(revision.sub).map_err(|_| "the sub revision is out of range")?;
        let fields = Fields::decode(value).ok_or("the value is not a record")?;
        if self.records.last().is_some_and(|last| last.revision() >= revision) {
            return Err("the revision is not above the previous one");
        }
        self.records.push(Scanned {
            key_at: self.keys.len(),
            key_len: fields.key.len(),
            main: revision.main,
            sub,
            tombstone,
            create: fields.create_revision,
            version: fields.version,
            lease: fields.lease,
        });
        self.keys.extend_from_slice(fields.key);
        Ok(())
    }

    pub(super) fn finish(self) -> Rebuilt {
        let order = self.sorted();
        let mut before = vec![None; self.records.len()];
        for pair in order.windows(2) {
            if pair[1].same_key {
                before[pair[1].record] = Some(pair[0].record);
            }
        }
        let mut history = History::new();
        let mut tombstones = TombstoneQueue::default();
        let mut links = vec![0; self.records.len()];
        for (at, record) in self.records.iter().enumerate() {
            if record.tombstone {
                tombstones.push(record.revision(), self.key(at));
            }
            if let Some(before) = before[at] {
                let replaced = self.records[before];
                links[at] = history.push(&Superseded {
                    main: replaced.main,
                    sub: replaced.sub,
                    tombstone: replaced.tombstone,
                    superseded_by: record.main,
                    previous: links[before],
                });
            }
        }
        let newest = |position: usize| {
            order
                .get(position + 1)
                .is_none_or(|next| !next.same_key)
                .then(|| order[position].record)
        };
        let newest = (0..order.len()).filter_map(newest);
        let leases = newest
            .clone()
            .filter(|at| !self.records[*at].tombstone && self.records[*at].lease != 0)
            .map(|at| (Bytes::copy_from_slice(self.key(at)), self.records[at].lease))
            .collect();
        let tree = Tree::build(newest.map(|at| (self.key(at), self.records[at].entry(links[at]))));
        let last_main = self.records.last().map(|last| last.main);
        Rebuilt { tree, history, tombstones, leases, last_main }
    }

    fn key(&self, at: usize) -> &[u8] {
        let record = &self.records[at];
        &self.keys[record.key_at..][..record.key_len]
    }

    /// Returns the records sorted by key and, for equal keys, by revision.
    fn sorted(&self) -> Vec<Sorted> {
        let count = self.records.len();
        let mut items: Vec<_> =
            (0..count).map(|record| Item { head: 0, rest: 0, record }).collect();
        let mut sorted = vec![Sorted { record: 0, same_key: false }; count];
        let first = if count == 0 { &[][..] } else { self.key(0) };
        let shared = (0..count).fold(first.len(), |len, at| {
            self.key(at).iter().zip(&first[..len]).take_while(|(a, b)| a == b).count()
        });
        let mut open = vec![(0..count, shared)];
        while let Some((range, depth)) = open.pop() {
            let group = &mut items[range.clone()];
            for item in &mut *group {
                item.load(&self.key(item.record)[depth..]);
            }
            group.sort_unstable();
            let mut at = range.start;
            for equal in group.chunk_by(|a, b| (a.head, a.rest) == (b.head, b.rest)) {
                let positions = at..at + equal.len();
                at = positions.end;
                let deeper = depth + usize::from(HEAD_LEN);
                if equal.len() == 1 || equal[0].rest <= HEAD_LEN {
                    for (place, item) in sorted[positions].iter_mut().zip(equal) {
                        let same_key = item.record != equal[0].record;
                        *place = Sorted { record: item.record, same_key };
                    }
                } else if equal.len() > SMALL_GROUP {
                    open.push((positions, deeper));
                } else {
                    let places = &mut sorted[positions];
                    for (place, item) in places.iter_mut().zip(equal) {
                        *place = Sorted { record: item.record, same_key: false };
                    }
                    self.sort_small(places, deeper);
                }
            }
        }
        sorted
    }

    /// Sorts records whose keys are equal up to `depth` by comparing the rest of the keys.
    fn sort_small(&self, places: &mut [Sorted], depth: usize) {
        let rest = |place: &Sorted| &self.key(place.record)[depth..];
        places.sort_unstable_by(|a, b| rest(a).cmp(rest(b)).then(a.record.cmp(&b.record)));
        for at in 1..places.len() {
            places[at].same_key = rest(&places[at - 1]) == rest(&places[at]);
        }
    }
}

/// Reads the newest records above main revision `after` into the window, because they are read most
/// often.
pub(super) fn newest_records(
    file: &BackendView,
    after: i64,
    bytes_max: usize,
    window: &mut Window,
) -> Result<(), Fault> {
    let read = file.transaction();
    let Some(bucket) = read.bucket(Bucket::Key.name())? else { return Ok(()) };
    let mut cursor = bucket.cursor();
    let decode = |key: &[u8]| {
        RecordKey::decode(key)
            .ok_or_else(|| file.corrupt(Bucket::Key, None, key, "the key is not a revision"))
    };
    let (mut entry, mut byte_count, mut first) = (cursor.last()?, 0, None);
    while let Some(found) = entry {
        byte_count += found.value.len();
        if byte_count > bytes_max || decode(found.key)?.revision.main <= after {
            break;
        }
        first = Some(found.key);
        entry = cursor.prev()?;
    }
    let Some(first) = first else { return Ok(()) };
    let mut entry = cursor.seek(first)?;
    while let Some(found) = entry {
        let RecordKey { revision, tombstone } = decode(found.key)?;
        if tombstone {
            let fields = Fields::decode(found.value).unwrap_or_default();
            let fields =
                Fields { mod_revision: revision.main, key: fields.key, ..Fields::default() };
            window.append(revision, &fields);
        } else {
            window.append_encoded(revision, found.value);
        }
        entry = cursor.next()?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
struct Sorted {
    record: usize,
    /// Whether the previous record in the sorted list has the same key.
    same_key: bool,
}

/// Eight bytes of a key, the number of bytes that the key has from there on (at most nine), and the
/// index of its record. Of two keys with equal heads, the shorter one sorts first, because the end
/// of its head is padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Item {
    head: u64,
    rest: u8,
    record: usize,
}

const HEAD_LEN: u8 = 8;
/// Groups of at most this many keys are sorted by comparing the rest of each key. Most of these groups contain the
/// versions of a single key.
const SMALL_GROUP: usize = 12;

impl Item {
    fn load(&mut self, rest: &[u8]) {
        self.rest = u8::try_from(rest.len()).map_or(HEAD_LEN + 1, |len| len.min(HEAD_LEN + 1));
        self.head = match rest.first_chunk() {
            Some(head) => u64::from_be_bytes(*head),
            None => {
                let mut head = [0; HEAD_LEN as usize];
                head[..rest.len()].copy_from_slice(rest);
                u64::from_be_bytes(head)
            }
        };
    }
}

impl Scanned {
    fn revision(&self) -> Revision {
        Revision::new(self.main, self.sub.into())
    }

    fn entry(&self, previous: u64) -> Entry {
        Entry {
            main: self.main,
            create: self.create,
            version: self.version,
            previous,
            sub: self.sub,
            tombstone: self.tombstone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_are_sorted_by_key_and_then_by_revision(
            keys in proptest::collection::vec(
                proptest::collection::vec(prop_oneof![3 => Just(0_u8), 1 => 0..3_u8], 0..30), 0..200),
            prefix in 0..20_usize,
        ) {
            let keys: Vec<_> = keys.into_iter().map(|key| [vec![7; prefix], key].concat()).collect();
            let mut rebuild = Rebuild::default();
            for (main, key) in (2_i64..).zip(&keys) {
                let fields = Fields { key, ..Fields::default() };
                let record = quorate_api::record::KeyValue::new(&fields);
                let at = RecordKey { revision: Revision::new(main, 0), tombstone: false };
                rebuild.push(at.encode().as_ref(), record.encoded()).unwrap();
            }
            let mut expected: Vec<_> = (0..keys.len()).collect();
            expected.sort_by_key(|at| &keys[*at]);
            let sorted = rebuild.sorted();
            prop_assert!(sorted.iter().map(|place| place.record).eq(expected.iter().copied()));
            for (position, place) in sorted.iter().enumerate() {
                let same = position > 0 && keys[expected[position - 1]] == keys[expected[position]];
                prop_assert_eq!(place.same_key, same);
            }
        }
    }

    #[test]
    fn invalid_records_are_refused() {
        let key =
            |main, sub| RecordKey { revision: Revision::new(main, sub), tombstone: false }.encode();
        let mut rebuild = Rebuild::default();
        rebuild.push(key(5, 0).as_ref(), b"\x0a\x01a").unwrap();
        for (key, value, problem) in [
            (&b"short"[..], &b""[..], "the key is not a revision"),
            (key(5, 0).as_ref(), b"", "the revision is not above the previous one"),
            (key(4, 9).as_ref(), b"", "the revision is not above the previous one"),
            (key(6, 1 << 40).as_ref(), b"", "the sub revision is out of range"),
            (key(6, 0).as_ref(), b"\x0a\x09a", "the value is not a record"),
        ] {
            assert_eq!(rebuild.push(key, value), Err(problem));
        }
        rebuild.push(key(6, 0).as_ref(), b"").unwrap();
    }
}
