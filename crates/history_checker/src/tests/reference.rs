//! A store that is nothing but right: every state is kept whole, and every request is carried out the long
//! way. The histories that it gives are good; the checkers' own model is held against it.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::*;

pub(super) type Keys = BTreeMap<Bytes, KeyValue>;

#[derive(Clone, Debug)]
pub(super) struct Store {
    /// Of revision 1 and on.
    pub(super) states: Vec<Keys>,
    pub(super) events: Vec<Vec<Event>>,
    pub(super) leases: BTreeMap<i64, i64>,
    pub(super) compacted: i64,
}

impl Default for Store {
    fn default() -> Self {
        let states = vec![Keys::new()];
        Self { states, events: Vec::new(), leases: BTreeMap::new(), compacted: 0 }
    }
}

impl Store {
    pub(super) fn revision(&self) -> i64 {
        self.states.len() as i64
    }

    pub(super) fn state(&self, revision: i64) -> &Keys {
        &self.states[usize::try_from(revision).unwrap() - 1]
    }

    pub(super) fn chronicle(&self) -> Chronicle {
        let mut chronicle = Chronicle::default();
        for (events, revision) in self.events.iter().zip(2..) {
            chronicle.tell(revision, events.clone()).unwrap();
        }
        chronicle
    }

    /// Carries out, and says at which revision the store is then.
    pub(super) fn kv(&mut self, request: &KvRequest) -> Result<(i64, KvAnswer), Refusal> {
        let mut keys = self.states.last().unwrap().clone();
        let mut events = Vec::new();
        let answer = self.step(request, &keys.clone(), &mut keys, &mut events)?;
        self.push(keys, events);
        Ok((self.revision(), answer))
    }

    fn push(&mut self, keys: Keys, events: Vec<Event>) {
        if !events.is_empty() {
            self.states.push(keys);
            self.events.push(events);
        }
    }

    /// Ends a lease.
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
    ) -> Result<KvAnswer, Refusal> {
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
                Ok(KvAnswer::Put { previous: previous.filter(|_| put.prev_kv) })
            }
            KvRequest::Delete(delete) => {
                let gone: Vec<KeyValue> =
                    keys.values().filter(|kv| delete.keys.contains(&kv.key)).cloned().collect();
                for kv in &gone {
                    keys.remove(&kv.key);
                    events.push(Event::delete(kv.key.clone(), revision));
                }
                let previous = if delete.prev_kv { gone.clone() } else { Vec::new() };
                Ok(KvAnswer::Delete { deleted: gone.len() as i64, previous })
            }
            KvRequest::Range(range) => self.range(range, keys),
            KvRequest::Txn(txn) => {
                let succeeded = txn.compares.iter().all(|compare| holds(start, compare));
                let chosen = if succeeded { &txn.success } else { &txn.failure };
                let mut answers = Vec::new();
                for request in chosen {
                    answers.push(self.step(request, start, keys, events)?);
                }
                Ok(KvAnswer::Txn { succeeded, answers })
            }
        }
    }

    fn range(&self, range: &Range, keys: &Keys) -> Result<KvAnswer, Refusal> {
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
        Ok(KvAnswer::Range { kvs, count, more })
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
