//! Generates random histories of a correct store.

use bytes::Bytes;
use quorate_seeded_random::SplitMix64;

use super::reference::ReferenceStore;
use crate::*;

const SECOND: u64 = 1_000_000_000;

/// The parameters of a generated history.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) operations: u64,
    /// The maximum time from the call of an operation to its effect, and from its effect to its response, in hundredths
    /// of a second. Each operation is called less than a tenth of a second after the previous one.
    pub(super) spread: u64,
    pub(super) keys: u64,
    /// The percentage of operations with an unknown outcome.
    pub(super) unknown: u64,
    pub(super) leases: bool,
    pub(super) watchers: u64,
}

impl Shape {
    /// Small histories, for which every order can be tried.
    pub(super) const SMALL: Self =
        Self { operations: 6, spread: 40, keys: 2, unknown: 25, leases: false, watchers: 0 };
    /// Large histories with leases and watchers.
    pub(super) const LARGE: Self =
        Self { operations: 120, spread: 80, keys: 5, unknown: 12, leases: true, watchers: 4 };
}

struct Generator<'a> {
    random: &'a mut SplitMix64,
    shape: Shape,
    store: ReferenceStore,
    history: History,
    /// The moment at which the store reached each revision.
    reached: Vec<u64>,
}

/// Generates a history of a correct store.
pub(super) fn history(random: &mut SplitMix64, shape: Shape) -> History {
    let (store, history) = (ReferenceStore::default(), History::default());
    let mut generator = Generator { random, shape, store, history, reached: vec![0] };
    let mut calls: Vec<(u64, u64)> = Vec::new();
    let mut called = 1;
    for _ in 0..shape.operations {
        called += generator.random.below(10);
        calls.push((called + generator.random.below(shape.spread), called));
    }
    // Calls are sorted by the moments at which they take effect.
    calls.sort_unstable();
    for (number, (moment, called)) in calls.into_iter().enumerate() {
        generator.expire(moment);
        generator.operation(number, called, moment);
        while (generator.reached.len() as i64) < generator.store.revision() {
            generator.reached.push(moment);
        }
    }
    for _ in 0..shape.watchers {
        generator.watcher();
    }
    generator.history.event_log = generator.store.event_log();
    generator.history
}

impl Generator<'_> {
    fn key(&mut self) -> Bytes {
        format!("k{}", self.random.below(self.shape.keys)).into()
    }

    fn keys(&mut self) -> KeyRange {
        match self.random.below(4) {
            0 => KeyRange { key: self.key(), end: self.key() },
            1 => KeyRange::ALL,
            _ => KeyRange::one(self.key()),
        }
    }

    fn value(&mut self) -> Bytes {
        format!("v{}", self.random.below(3)).into()
    }

    fn lease(&mut self) -> i64 {
        if self.shape.leases && self.random.below(3) == 0 {
            self.random.below(6) as i64 + 1
        } else {
            0
        }
    }

    fn kv(&mut self, depth: u64) -> KvRequest {
        match self.random.below(if depth == 0 { 10 } else { 13 }) {
            0..4 => KvRequest::Put(Put {
                key: self.key(),
                value: self.value(),
                lease: if depth == 2 { self.lease() } else { 0 },
                prev_kv: self.random.below(2) == 0,
                ignore_value: self.random.below(12) == 0,
                ignore_lease: false,
            }),
            4..6 => {
                KvRequest::Delete(Delete { keys: self.keys(), prev_kv: self.random.below(2) == 0 })
            }
            6..10 => {
                let is_old = depth == 2 && self.random.below(4) == 0;
                let revisions = self.store.revision() as u64 + 2;
                KvRequest::Range(Range {
                    keys: self.keys(),
                    revision: if is_old { self.random.below(revisions) as i64 } else { 0 },
                    limit: self.random.below(3) as i64,
                    serializable: depth == 2 && self.random.below(4) == 0,
                    ..Range::default()
                })
            }
            _ => self.txn(depth),
        }
    }

    fn txn(&mut self, depth: u64) -> KvRequest {
        let operand = match self.random.below(5) {
            0 => Operand::Value(self.value()),
            1 => Operand::Version(self.random.below(3) as i64),
            2 => Operand::CreateRevision(self.random.below(4) as i64),
            3 => Operand::Lease(0),
            _ => Operand::ModRevision(self.random.below(6) as i64),
        };
        let relation = [Relation::Equal, Relation::NotEqual, Relation::Less, Relation::Greater]
            [self.random.position(4)];
        let compare = Compare { keys: self.keys(), relation, operand };
        // The API does not allow a transaction to write a key twice.
        let mut branch = |wrote: &mut Vec<Bytes>| -> Vec<KvRequest> {
            let mut requests = Vec::new();
            for _ in 0..self.random.below(3) {
                let request = self.kv(depth - 1);
                match &request {
                    KvRequest::Put(put) if wrote.contains(&put.key) || put.ignore_value => continue,
                    KvRequest::Put(put) => wrote.push(put.key.clone()),
                    KvRequest::Delete(_) | KvRequest::Txn(_) if !wrote.is_empty() => continue,
                    KvRequest::Delete(_) | KvRequest::Txn(_) => {
                        requests.push(request);
                        break;
                    }
                    KvRequest::Range(_) => {}
                }
                requests.push(request);
            }
            requests
        };
        let (success, failure) = (branch(&mut Vec::new()), branch(&mut Vec::new()));
        KvRequest::Txn(Txn { compares: vec![compare], success, failure })
    }

    fn request(&mut self, number: usize) -> Request {
        let choice = if self.shape.leases { self.random.below(10) } else { 9 };
        match choice {
            0 => {
                let revision = self.random.below(self.store.revision() as u64 + 2) as i64 + 1;
                Request::Compact { revision }
            }
            1 if number.is_multiple_of(3) => {
                let id = self.random.below(6) as i64 + 1;
                // Lease ids are seldom reused, because the checker skips ids that were granted several times.
                let is_known = self.history.operations.iter().any(|operation| {
                    matches!(operation.request, Request::LeaseGrant { id: known, .. } if known == id)
                });
                let id =
                    if is_known && self.random.below(4) > 0 { 100 + number as i64 } else { id };
                Request::LeaseGrant { id, ttl_secs: 1 }
            }
            2 => Request::LeaseRevoke { id: self.random.below(6) as i64 + 1 },
            3 => Request::LeaseKeepAlive { id: self.random.below(6) as i64 + 1 },
            4 => Request::LeaseTimeToLive { id: self.random.below(6) as i64 + 1, keys: true },
            _ => Request::Kv(self.kv(2)),
        }
    }

    /// Ends a lease whose TTL has passed. `moment` is in hundredths of a second.
    fn expire(&mut self, moment: u64) {
        let due = self.store.leases.iter().find(|(_, until)| **until < moment as i64);
        if let Some((&lease, _)) = due {
            self.store.end(lease);
            while (self.reached.len() as i64) < self.store.revision() {
                self.reached.push(moment);
            }
        }
    }

    fn operation(&mut self, number: usize, called: u64, moment: u64) {
        let request = self.request(number);
        let is_lost = self.random.below(100) < self.shape.unknown;
        let outcome = if is_lost && self.random.below(2) == 0 {
            Outcome::Unknown
        } else {
            let at = Moment(stretch(moment + self.random.below(self.shape.spread)));
            let outcome = self.carry_out(&request, moment, at);
            if is_lost { Outcome::Unknown } else { outcome }
        };
        let (client, called) = (number as u64, Moment(stretch(called)));
        self.history.operations.push(Operation { client, member: 1, called, request, outcome });
    }

    fn carry_out(&mut self, request: &Request, moment: u64, at: Moment) -> Outcome {
        let until = moment as i64 + 101;
        let refused = |refusal| Outcome::Refused { at, refusal };
        let answered = |response| Outcome::Succeeded { at, revision: None, response };
        let store = &mut self.store;
        match request {
            Request::Kv(KvRequest::Range(range)) if range.serializable && range.revision == 0 => {
                let old = self.random.below(store.revision() as u64) as i64 + 1;
                let mut past = store.clone();
                past.states.truncate(usize::try_from(old).unwrap());
                let (revision, response) = past.kv(&KvRequest::Range(range.clone())).unwrap();
                Outcome::Succeeded {
                    at,
                    revision: Some(revision),
                    response: Response::Kv(response),
                }
            }
            Request::Kv(request) => match store.kv(request) {
                Ok((revision, response)) => Outcome::Succeeded {
                    at,
                    revision: Some(revision),
                    response: Response::Kv(response),
                },
                Err(refusal) => refused(refusal),
            },
            Request::Compact { revision } if *revision > store.revision() => {
                refused(Refusal::FutureRevision)
            }
            Request::Compact { revision } if *revision <= store.compacted => {
                refused(Refusal::Compacted)
            }
            Request::Compact { revision } => {
                store.compacted = *revision;
                answered(Response::Compacted)
            }
            Request::LeaseGrant { id, ttl_secs } => {
                if store.leases.contains_key(id) {
                    return refused(Refusal::LeaseExists);
                }
                store.leases.insert(*id, until);
                answered(Response::LeaseGranted { id: *id, ttl_secs: *ttl_secs })
            }
            Request::LeaseRevoke { id } => {
                if store.end(*id) {
                    answered(Response::LeaseRevoked)
                } else {
                    refused(Refusal::LeaseNotFound)
                }
            }
            Request::LeaseKeepAlive { id } => match store.leases.get_mut(id) {
                Some(renewed) => {
                    *renewed = until;
                    answered(Response::LeaseKeptAlive { ttl_secs: 1 })
                }
                None => refused(Refusal::LeaseNotFound),
            },
            Request::LeaseTimeToLive { id, .. } => {
                if !store.leases.contains_key(id) {
                    return refused(Refusal::LeaseNotFound);
                }
                let keys = store.state(store.revision()).values().filter(|kv| kv.lease == *id);
                let keys = Some(keys.map(|kv| kv.key.clone()).collect());
                answered(Response::LeaseTimeToLive { ttl_secs: 1, granted_ttl_secs: 1, keys })
            }
        }
    }

    fn watcher(&mut self) {
        let last = self.store.revision();
        let created = self.random.below(last as u64) as i64 + 1;
        let start_revision = self.random.below(last as u64 + 2) as i64;
        let request = WatchRequest {
            keys: self.keys(),
            start_revision,
            prev_kv: self.random.below(2) == 0,
            no_put: self.random.below(5) == 0,
            no_delete: self.random.below(5) == 0,
        };
        let reached = |revision: i64| self.reached[usize::try_from(revision).unwrap() - 1];
        let mut now = reached(created);
        let mut messages =
            vec![(Moment(stretch(now)), WatchMessage::Created { revision: created })];
        let first = if start_revision == 0 { created + 1 } else { start_revision };
        for revision in first.max(2)..=last {
            now = now.max(reached(revision));
            let mut events = Vec::new();
            for event in &self.store.events[usize::try_from(revision).unwrap() - 2] {
                let is_wanted = if event.is_delete { !request.no_delete } else { !request.no_put };
                if is_wanted && request.keys.contains(&event.kv.key) {
                    let before = self.store.state(revision - 1).get(&event.kv.key);
                    let previous = before.filter(|_| request.prev_kv).cloned();
                    events.push(Event { previous, ..event.clone() });
                }
            }
            let at = Moment(stretch(now));
            if events.len() > 1 && self.random.below(3) == 0 {
                let rest = events.split_off(1);
                messages.push((at, WatchMessage::Events { events, is_fragment: true }));
                events = rest;
            }
            if !events.is_empty() {
                messages.push((at, WatchMessage::Events { events, is_fragment: false }));
            }
            if self.random.below(8) == 0 {
                messages.push((at, WatchMessage::Progress { revision }));
            }
        }
        let called = Moment(messages[0].0.0.saturating_sub(1));
        let complete_to = Some(last);
        let watcher = Watcher { client: 0, member: 1, called, request, messages, complete_to };
        self.history.watchers.push(watcher);
    }
}

/// Converts a generated moment, in hundredths of a second, to nanoseconds.
fn stretch(moment: u64) -> u64 {
    moment * (SECOND / 100)
}
