//! A simple reference store, which keeps a full copy of every state and executes every request directly. It generates
//! correct histories, and the checker's own model is compared with it.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::*;

pub(super) type Keys = BTreeMap<Bytes, KeyValue>;

#[derive(Clone, Debug)]
pub(super) struct ReferenceStore {
    /// The state at each revision, starting with revision 1.
    pub(super) states: Vec<Keys>,
    pub(super) events: Vec<Vec<Event>>,
    pub(super) leases: BTreeMap<i64, i64>,
    pub(super) compacted: i64,
}

impl Default for ReferenceStore {
    fn default() -> Self {
        let states = vec![Keys::new()];
        Self { states, events: Vec::new(), leases: BTreeMap::new(), compacted: 0 }
    }
}

impl ReferenceStore {
    pub(super) fn revision(&self) -> i64 {
        self.states.len() as i64
    }

    pub(super) fn state(&self, revision: i64) -> &Keys {
        &self.states[usize::try_from(revision).unwrap() - 1]
    }

    pub(super) fn event_log(&self) -> EventLog {
        let mut event_log = EventLog::default();
        for (events, revision) in self.events.iter().zip(2..) {
            event_log.record(revision, events.clone()).unwrap();
        }
        event_log
    }

    /// Executes a request, and returns the revision of the store after it.
    pub(super) fn kv(&mut self, request: &KvRequest) -> Result<(i64, KvResponse), Refusal> {
        let mut keys = self.states.last().unwrap().clone();
        let mut events = Vec::new();
        let response = self.step(request, &keys.clone(), &mut keys, &mut events)?;
        self.push(keys, events);
        Ok((self.revision(), response))
    }

    fn push(&mut self, keys: Keys, events: Vec<Event>) {
        if !events.is_empty() {
            self.states.push(keys);
            self.events.push(events);
        }
    }

    /// Ends a lease and deletes its keys. Returns whether the lease existed.
    pub(super) fn end(&mut self, lease: i64) -> bool {
        let mut keys = self.states.last().unwrap().clone();
        let revision = self.revision() + 1;
        let gone: Vec<Bytes> =
            keys.values().filter(|kv| kv.lease == lease).map(|kv| kv.key.clone()).collect();
        keys.retain(|_, kv| kv.lease != lease);
        self.push(keys, gone.into_iter().map(|key| Event::delete(key, revision)).collect());
        self.leases.remove(&lease).is_some()
    }

    fn step(
        &self,
        request: &KvRequest,
        start: &Keys,
        keys: &mut Keys,
        events: &mut Vec<Event>,
    ) -> Result<KvResponse, Refusal> {
        let revision = self.revision() + 1;
        match request {
            KvRequest::Put(put) => {
                if put.lease != 0 && !self.leases.contains_key(&put.lease) {
                    return Err(Refusal::LeaseNotFound);
                }
                let previous = keys.get(&put.key).cloned();
                if (put.ignore_value || put.ignore_lease) && previous.is_none() {
                    return Err(Refusal::KeyNotFound);
                }
                let mut kv = KeyValue {
                    key: put.key.clone(),
                    value: put.value.clone(),
                    create_revision: revision,
                    mod_revision: revision,
                    version: 1,
                    lease: put.lease,
                };
                if let Some(previous) = &previous {
                    kv.create_revision = previous.create_revision;
                    kv.version = previous.version + 1;
                    if put.ignore_value {
                        kv.value = previous.value.clone();
                    }
                    if put.ignore_lease {
                        kv.lease = previous.lease;
                    }
                }
                keys.insert(put.key.clone(), kv.clone());
                events.push(Event::put(kv));
                Ok(KvResponse::Put { previous: previous.filter(|_| put.prev_kv) })
            }
            KvRequest::Delete(delete) => {
                let gone: Vec<KeyValue> =
                    keys.values().filter(|kv| delete.keys.contains(&kv.key)).cloned().collect();
                for kv in &gone {
                    keys.remove(&kv.key);
                    events.push(Event::delete(kv.key.clone(), revision));
                }
                let previous = if delete.prev_kv { gone.clone() } else { Vec::new() };
                Ok(KvResponse::Delete { deleted: gone.len() as i64, previous })
            }
            KvRequest::Range(range) => self.range(range, keys),
            KvRequest::Txn(txn) => {
                let succeeded = txn.compares.iter().all(|compare| holds(start, compare));
                let chosen = if succeeded { &txn.success } else { &txn.failure };
                let mut responses = Vec::new();
                for request in chosen {
                    responses.push(self.step(request, start, keys, events)?);
                }
                Ok(KvResponse::Txn { succeeded, responses })
            }
        }
    }

    fn range(&self, range: &Range, keys: &Keys) -> Result<KvResponse, Refusal> {
        if range.revision > self.revision() {
            return Err(Refusal::FutureRevision);
        }
        if range.revision > 0 && range.revision < self.compacted {
            return Err(Refusal::Compacted);
        }
        let keys = if range.revision > 0 { self.state(range.revision) } else { keys };
        let found = keys.values().filter(|kv| range.keys.contains(&kv.key)).cloned();
        let mut kvs: Vec<KeyValue> = found.collect();
        let count = kvs.len() as i64;
        let more = range.limit > 0 && count > range.limit;
        if more {
            kvs.truncate(usize::try_from(range.limit).unwrap());
        }
        Ok(KvResponse::Range { kvs, count, more })
    }
}

fn holds(keys: &Keys, compare: &Compare) -> bool {
    let compared: Vec<&KeyValue> =
        keys.values().filter(|kv| compare.keys.contains(&kv.key)).collect();
    let absent = KeyValue::default();
    let is_value = matches!(compare.operand, Operand::Value(_));
    let compared = match (&compared[..], is_value) {
        ([], true) => return false,
        ([], false) => vec![&absent],
        _ => compared,
    };
    compared.into_iter().all(|kv| {
        let ordering = match &compare.operand {
            Operand::Value(value) => kv.value.cmp(value),
            Operand::Version(number) => kv.version.cmp(number),
            Operand::CreateRevision(number) => kv.create_revision.cmp(number),
            Operand::ModRevision(number) => kv.mod_revision.cmp(number),
            Operand::Lease(number) => kv.lease.cmp(number),
        };
        match compare.relation {
            Relation::Equal => ordering.is_eq(),
            Relation::NotEqual => ordering.is_ne(),
            Relation::Greater => ordering.is_gt(),
            Relation::Less => ordering.is_lt(),
        }
    })
}
