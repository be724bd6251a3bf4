//! Reads records from the window, or otherwise from the file. A working set has loaded records
//! instead of a file.
//!
//! # Invariants
//!
//! * Every record up to `persisted` that is not garbage is in the file, and every newer record is
//!   in the window.
//! * In a working set, every record to which the index refers is loaded or in the window.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use quorate_api::record::Fields;

use super::changes::{ChangeKind, PastChange};
use super::window::WindowView;
use super::working_set::Loaded;
use crate::backend::{BackendView, Fault};
use crate::schema::{Bucket, EncodedRecordKey, RecordKey, Revision};

/// The records that an index refers to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Records<'a> {
    pub(super) window: &'a WindowView,
    pub(super) file: Option<&'a BackendView>,
    pub(super) loaded: Option<&'a Loaded>,
    pub(super) persisted: i64,
}

impl Records<'_> {
    /// Reads a record that the index refers to. The record must be a put.
    pub(super) fn get(&self, revision: Revision) -> Result<Bytes, Fault> {
        match self.in_memory(revision) {
            Some(record) => Ok(record.clone()),
            None => self.stored(revision),
        }
    }

    /// Reads a record that the caller may keep for a long time. A record from the file is copied,
    /// because a slice would prevent the file from reusing any page of its current state.
    pub(super) fn get_detached(&self, revision: Revision) -> Result<Bytes, Fault> {
        match self.in_memory(revision) {
            Some(record) => Ok(record.clone()),
            None => self.stored(revision).map(|record| Bytes::copy_from_slice(&record)),
        }
    }

    /// Reads several records, in the given order.
    pub(super) fn get_all(
        &self,
        revisions: impl Iterator<Item = Revision>,
    ) -> Result<Vec<Bytes>, Fault> {
        // All searches run before any reference count is incremented, because an atomic increment is a memory barrier
        // that would delay the next search.
        let places: Vec<_> =
            revisions.map(|revision| (revision, self.in_memory(revision))).collect();
        let mut absent = Vec::new();
        let mut records = Vec::with_capacity(places.len());
        for (position, (revision, place)) in places.into_iter().enumerate() {
            if place.is_none() {
                absent.push((revision, position));
            }
            records.push(place.cloned().unwrap_or_default());
        }
        // Records are read in file order, so that neighbouring records share the pages of the
        // search path.
        absent.sort_unstable();
        let mut unanswered = absent.iter();
        if let Some(file) = self.file {
            let keys = absent.iter().map(|(revision, _)| put_key(*revision));
            file.get_each(Bucket::Key, keys, |found| {
                let (revision, position) =
                    *unanswered.next().expect("the file returns one result for each key");
                records[position] = found.ok_or_else(|| self.missing(revision))?;
                Ok(())
            })?;
        }
        match unanswered.next() {
            Some((revision, _)) => Err(self.missing(*revision)),
            None => Ok(records),
        }
    }

    fn in_memory(&self, revision: Revision) -> Option<&Bytes> {
        self.window.record(revision).or_else(|| self.loaded?.record(revision))
    }

    fn stored(&self, revision: Revision) -> Result<Bytes, Fault> {
        let found = match self.file {
            Some(file) => file.get(Bucket::Key, put_key(revision).as_ref())?,
            None => None,
        };
        found.ok_or_else(|| self.missing(revision))
    }

    fn missing(&self, revision: Revision) -> Fault {
        let path =
            self.file.map_or_else(|| Arc::from(Path::new("")), |file| Arc::clone(file.path()));
        Fault::MissingRecord { path, revision }
    }

    /// Visits every record up to a main revision in order, with its stored key and value. Undeleted
    /// garbage is included.
    pub(super) fn for_each(
        &self,
        last_main: i64,
        mut visit: impl FnMut(RecordKey, &[u8]),
    ) -> Result<(), Fault> {
        if let Some(file) = self.file {
            let last_main = last_main.min(self.persisted);
            file.scan(Bucket::Key, |key, value| {
                let key = RecordKey::decode(key).ok_or("the key is not a revision")?;
                if key.revision.main > last_main {
                    return Ok(ControlFlow::Break(()));
                }
                visit(key, value);
                Ok(ControlFlow::Continue(()))
            })?;
        }
        for (revision, record) in self.window.since(self.persisted + 1) {
            if revision.main > last_main {
                break;
            }
            let (tombstone, value) = as_stored(record);
            visit(RecordKey { revision, tombstone }, value);
        }
        Ok(())
    }

    /// Visits the changes from main revision `from` on, in order, until `visit` breaks.
    pub(super) fn visit_changes(
        &self,
        from: i64,
        visit: &mut dyn FnMut(&PastChange<'_>) -> ControlFlow<()>,
    ) -> Result<(), Fault> {
        let in_window = self.window.first_main().unwrap_or(self.persisted + 1);
        if let Some(file) = self.file
            && from < in_window
            && visit_changes_in_file(file, from, in_window, visit)?.is_break()
        {
            return Ok(());
        }
        for (revision, record) in self.window.since(from.max(in_window)) {
            let (tombstone, _) = as_stored(record);
            let key = Fields::decode(record).unwrap_or_default().key;
            let kind = if tombstone { ChangeKind::Delete } else { ChangeKind::Put };
            let change = PastChange { revision: revision.main, kind, key, record };
            if visit(&change).is_break() {
                break;
            }
        }
        Ok(())
    }
}

fn put_key(revision: Revision) -> EncodedRecordKey {
    RecordKey { revision, tombstone: false }.encode()
}

/// Returns whether a record of the window is a deletion, and the part of the record that the file
/// stores. In the window, a deletion has its revision after the key, as watchers receive it. Only
/// deletions have no version.
fn as_stored(record: &[u8]) -> (bool, &[u8]) {
    let fields = Fields::decode(record).unwrap_or_default();
    if fields.version != 0 || record.is_empty() {
        return (false, record);
    }
    let stored_len = Fields { key: fields.key, ..Fields::default() }.encoded_len();
    (true, &record[..stored_len])
}

fn visit_changes_in_file(
    file: &BackendView,
    from: i64,
    to: i64,
    visit: &mut dyn FnMut(&PastChange<'_>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, Fault> {
    let read = file.transaction();
    let Some(bucket) = read.bucket(Bucket::Key.name())? else {
        return Ok(ControlFlow::Continue(()));
    };
    let mut cursor = bucket.cursor();
    let mut deletion = Vec::new();
    let mut entry = cursor.seek(&Revision::new(from.max(0), 0).encode())?;
    while let Some(found) = entry {
        let corrupt = |problem| file.corrupt(Bucket::Key, None, found.key, problem);
        let key =
            RecordKey::decode(found.key).ok_or_else(|| corrupt("the key is not a revision"))?;
        let main = key.revision.main;
        if main >= to {
            break;
        }
        let fields =
            Fields::decode(found.value).ok_or_else(|| corrupt("the value is not a record"))?;
        let (kind, record) = if key.tombstone {
            deletion.clear();
            Fields { key: fields.key, mod_revision: main, ..Fields::default() }
                .encode(&mut deletion);
            (ChangeKind::Delete, &deletion[..])
        } else {
            (ChangeKind::Put, found.value)
        };
        let change = PastChange { revision: main, kind, key: fields.key, record };
        // A restore that compacts everything leaves a marker record with an empty value, which is
        // not a change of a key.
        if !found.value.is_empty() && visit(&change).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        entry = cursor.next()?;
    }
    Ok(ControlFlow::Continue(()))
}
