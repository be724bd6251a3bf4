//! A key-value store that does one thing at a time: what a request comes to at a revision.
//!
//! The store's past is the chronicle, so there is nothing to build up: any request can be carried out at any
//! revision, on what the chronicle says was there, and what it would have changed is told, not done.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use bytes::Bytes;

use crate::Chronicle;
use crate::operation::{
    Compare, Delete, KeyRange, KeyValue, KvAnswer, KvRequest, Operand, Put, Range, Refusal,
    Relation, Txn,
};
use crate::watcher::Event;

/// What a request comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    pub(crate) answer: KvAnswer,
    /// What it changes, in order; nothing for what only reads, or finds nothing to change.
    pub(crate) events: Vec<Event>,
}

/// Carries a request out on what there is at a revision. What it changes is of the next one.
///
/// Leases are taken to exist: whether they do is another matter (`leases`).
pub(crate) fn execute(
    chronicle: &Chronicle,
    base: i64,
    request: &KvRequest,
) -> Result<Effect, Refusal> {
    let mut model = Model { chronicle, base, changed: BTreeMap::new(), events: Vec::new() };
    let answer = model.kv(&Plan::new(chronicle, base, request))?;
    Ok(Effect { answer, events: model.events })
}

/// A request with the branches that were chosen: all conditions, of nested transactions too, are decided
/// before anything is done.
enum Plan<'a> {
    Put(&'a Put),
    Delete(&'a Delete),
    Range(&'a Range),
    Txn { succeeded: bool, operations: Vec<Self> },
}

impl<'a> Plan<'a> {
    fn new(chronicle: &Chronicle, base: i64, request: &'a KvRequest) -> Self {
        match request {
            KvRequest::Put(put) => Plan::Put(put),
            KvRequest::Delete(delete) => Plan::Delete(delete),
            KvRequest::Range(range) => Plan::Range(range),
            KvRequest::Txn(Txn { compares, success, failure }) => {
                let succeeded = compares.iter().all(|compare| holds(chronicle, base, compare));
                let chosen = if succeeded { success } else { failure };
                let operations =
                    chosen.iter().map(|request| Plan::new(chronicle, base, request)).collect();
                Plan::Txn { succeeded, operations }
            }
        }
    }
}

fn holds(chronicle: &Chronicle, base: i64, compare: &Compare) -> bool {
    let mut found = chronicle.range(&compare.keys, base).peekable();
    if found.peek().is_none() {
        let is_value = matches!(compare.operand, Operand::Value(_));
        return !is_value && fulfils(compare, &KeyValue::default());
    }
    found.all(|kv| fulfils(compare, kv))
}

fn fulfils(compare: &Compare, kv: &KeyValue) -> bool {
    let ordering = match &compare.operand {
        Operand::Value(value) => kv.value.cmp(value),
        Operand::Version(version) => kv.version.cmp(version),
        Operand::CreateRevision(revision) => kv.create_revision.cmp(revision),
        Operand::ModRevision(revision) => kv.mod_revision.cmp(revision),
        Operand::Lease(lease) => kv.lease.cmp(lease),
    };
    match compare.relation {
        Relation::Equal => ordering == Ordering::Equal,
        Relation::NotEqual => ordering != Ordering::Equal,
        Relation::Greater => ordering == Ordering::Greater,
        Relation::Less => ordering == Ordering::Less,
    }
}

struct Model<'a> {
    chronicle: &'a Chronicle,
    base: i64,
    /// What this request has stored or deleted so far.
    changed: BTreeMap<Bytes, Option<KeyValue>>,
    events: Vec<Event>,
}

impl Model<'_> {
    fn kv(&mut self, plan: &Plan<'_>) -> Result<KvAnswer, Refusal> {
        match plan {
            Plan::Put(put) => self.put(put),
            Plan::Delete(delete) => Ok(self.delete(delete)),
            Plan::Range(range) => self.range(range),
            Plan::Txn { succeeded, operations } => {
                let answers: Result<_, _> = operations.iter().map(|plan| self.kv(plan)).collect();
                Ok(KvAnswer::Txn { succeeded: *succeeded, answers: answers? })
            }
        }
    }

    fn get(&self, key: &Bytes) -> Option<&KeyValue> {
        match self.changed.get(key) {
            Some(changed) => changed.as_ref(),
            None => self.chronicle.at(key, self.base),
        }
    }

    fn put(&mut self, put: &Put) -> Result<KvAnswer, Refusal> {
        let revision = self.base + 1;
        let previous = self.get(&put.key).cloned();
        if previous.is_none() && (put.ignore_value || put.ignore_lease) {
            return Err(Refusal::KeyNotFound);
        }
        let before = previous.clone().unwrap_or_default();
        let kv = KeyValue {
            key: put.key.clone(),
            value: if put.ignore_value { before.value } else { put.value.clone() },
            create_revision: if previous.is_some() { before.create_revision } else { revision },
            mod_revision: revision,
            version: before.version + 1,
            lease: if put.ignore_lease { before.lease } else { put.lease },
        };
        self.changed.insert(put.key.clone(), Some(kv.clone()));
        self.events.push(Event::put(kv));
        Ok(KvAnswer::Put { previous: previous.filter(|_| put.prev_kv) })
    }

    fn delete(&mut self, delete: &Delete) -> KvAnswer {
        let found = self.find(&delete.keys);
        for kv in &found {
            self.changed.insert(kv.key.clone(), None);
            self.events.push(Event::delete(kv.key.clone(), self.base + 1));
        }
        let deleted = i64::try_from(found.len()).expect("keys fit in memory");
        KvAnswer::Delete { deleted, previous: if delete.prev_kv { found } else { Vec::new() } }
    }

    fn range(&self, range: &Range) -> Result<KvAnswer, Refusal> {
        let mut kvs = match range.revision {
            ..=0 => self.find(&range.keys),
            revision if revision > self.base => return Err(Refusal::FutureRevision),
            revision => self.chronicle.range(&range.keys, revision).cloned().collect(),
        };
        let count = i64::try_from(kvs.len()).expect("keys fit in memory");
        let more = range.limit > 0 && count > range.limit && !range.count_only;
        if range.count_only {
            kvs.clear();
        } else if more {
            kvs.truncate(usize::try_from(range.limit).expect("fewer than there are"));
        }
        if range.keys_only {
            // As from 3.7 on, which answers from the index: that knows no leases.
            kvs.iter_mut().for_each(|kv| {
                kv.value.clear();
                kv.lease = 0;
            });
        }
        Ok(KvAnswer::Range { kvs, count, more })
    }

    /// What keys hold, with what was done so far.
    fn find(&self, keys: &KeyRange) -> Vec<KeyValue> {
        let stored = self.chronicle.range(keys, self.base);
        if self.changed.is_empty() {
            return stored.cloned().collect();
        }
        let mut found: BTreeMap<&Bytes, &KeyValue> = stored.map(|kv| (&kv.key, kv)).collect();
        for (key, changed) in self.changed.iter().filter(|(key, _)| keys.contains(key)) {
            match changed {
                Some(kv) => found.insert(key, kv),
                None => found.remove(key),
            };
        }
        found.into_values().cloned().collect()
    }
}
