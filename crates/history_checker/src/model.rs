//! The sequential model: a key-value store that executes one request at a time.
//!
//! The event log contains every past state of the store, so the model has no state of its own. It executes a request on
//! the state at any revision, and returns the changes without applying them.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use bytes::Bytes;

use crate::EventLog;
use crate::operation::{
    Compare, Delete, KeyRange, KeyValue, KvRequest, KvResponse, Operand, Put, Range, Refusal,
    Relation, Txn,
};
use crate::watcher::Event;

/// The effect of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    pub(crate) response: KvResponse,
    /// The changes, in order; empty for a read, and for a request that changes nothing.
    pub(crate) events: Vec<Event>,
}

/// Executes a request on the state at revision `base`. The revision of its changes is `base + 1`.
///
/// Every lease is assumed to exist. The module `leases` checks whether it does.
pub(crate) fn execute(
    event_log: &EventLog,
    base: i64,
    request: &KvRequest,
) -> Result<Effect, Refusal> {
    let mut model = Model { event_log, base, changed: BTreeMap::new(), events: Vec::new() };
    let response = model.kv(&Plan::new(event_log, base, request))?;
    Ok(Effect { response, events: model.events })
}

/// A request with its branches chosen. All conditions, including the conditions of nested transactions, are evaluated
/// before any operation is executed.
enum Plan<'a> {
    Put(&'a Put),
    Delete(&'a Delete),
    Range(&'a Range),
    Txn { succeeded: bool, operations: Vec<Self> },
}

impl<'a> Plan<'a> {
    fn new(event_log: &EventLog, base: i64, request: &'a KvRequest) -> Self {
        match request {
            KvRequest::Put(put) => Plan::Put(put),
            KvRequest::Delete(delete) => Plan::Delete(delete),
            KvRequest::Range(range) => Plan::Range(range),
            KvRequest::Txn(Txn { compares, success, failure }) => {
                let succeeded = compares.iter().all(|compare| holds(event_log, base, compare));
                let chosen = if succeeded { success } else { failure };
                let operations =
                    chosen.iter().map(|request| Plan::new(event_log, base, request)).collect();
                Plan::Txn { succeeded, operations }
            }
        }
    }
}

fn holds(event_log: &EventLog, base: i64, compare: &Compare) -> bool {
    let mut found = event_log.range(&compare.keys, base).peekable();
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
    event_log: &'a EventLog,
    base: i64,
    /// The keys that this request has stored or deleted so far.
    changed: BTreeMap<Bytes, Option<KeyValue>>,
    events: Vec<Event>,
}

impl Model<'_> {
    fn kv(&mut self, plan: &Plan<'_>) -> Result<KvResponse, Refusal> {
        match plan {
            Plan::Put(put) => self.put(put),
            Plan::Delete(delete) => Ok(self.delete(delete)),
            Plan::Range(range) => self.range(range),
            Plan::Txn { succeeded, operations } => {
                let responses: Result<_, _> = operations.iter().map(|plan| self.kv(plan)).collect();
                Ok(KvResponse::Txn { succeeded: *succeeded, responses: responses? })
            }
        }
    }

    fn get(&self, key: &Bytes) -> Option<&KeyValue> {
        match self.changed.get(key) {
            Some(changed) => changed.as_ref(),
            None => self.event_log.at(key, self.base),
        }
    }

    fn put(&mut self, put: &Put) -> Result<KvResponse, Refusal> {
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
        Ok(KvResponse::Put { previous: previous.filter(|_| put.prev_kv) })
    }

    fn delete(&mut self, delete: &Delete) -> KvResponse {
        let found = self.find(&delete.keys);
        for kv in &found {
            self.changed.insert(kv.key.clone(), None);
            self.events.push(Event::delete(kv.key.clone(), self.base + 1));
        }
        let deleted = i64::try_from(found.len()).expect("keys fit in memory");
        KvResponse::Delete { deleted, previous: if delete.prev_kv { found } else { Vec::new() } }
    }

    fn range(&self, range: &Range) -> Result<KvResponse, Refusal> {
        let mut kvs = match range.revision {
            ..=0 => self.find(&range.keys),
            revision if revision > self.base => return Err(Refusal::FutureRevision),
            revision => self.event_log.range(&range.keys, revision).cloned().collect(),
        };
        let count = i64::try_from(kvs.len()).expect("keys fit in memory");
        let more = range.limit > 0 && count > range.limit && !range.count_only;
        if range.count_only {
            kvs.clear();
        } else if more {
            kvs.truncate(
                usize::try_from(range.limit).expect("the limit is less than the number of records"),
            );
        }
        if range.keys_only {
            // Since 3.7, etcd answers keys-only requests from its index, which does not store leases.
            kvs.iter_mut().for_each(|kv| {
                kv.value.clear();
                kv.lease = 0;
            });
        }
        Ok(KvResponse::Range { kvs, count, more })
    }

    /// Returns the records of a key range, with the changes of this request so far.
    fn find(&self, keys: &KeyRange) -> Vec<KeyValue> {
        let stored = self.event_log.range(keys, self.base);
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
