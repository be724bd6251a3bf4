//! Draws the clients' key-value requests. Most are small requests on few keys, so that they conflict. Some are large or
//! unusual, or exceed a limit.

use bytes::Bytes;
use quorate_history_checker::{
    Compare, Delete, KeyRange, KvRequest, Operand, Put, Range, Relation, Request, Txn,
};

use super::super::World;
use crate::plan::{Kind, Theme};

impl World {
    pub(super) fn draw_request(&mut self, client: usize) -> Request {
        let is_about = |theme| self.plan.theme == theme;
        let (leases, compactions) = (is_about(Theme::Leases), is_about(Theme::Compactions));
        if self.plan.has(Kind::Leases) && self.one_in(if leases { 2 } else { 5 }) {
            return self.draw_lease_request();
        }
        if self.plan.has(Kind::Compaction) && self.one_in(if compactions { 8 } else { 25 }) {
            if self.one_in(3) {
                // Compacts the whole history.
                return Request::Compact { revision: self.judge.revision() };
            }
            let known = self.clients[client].revision;
            let back = i64::try_from(self.rng.below(20)).unwrap_or(0);
            // The revision may already be compacted, or may not exist yet.
            return Request::Compact { revision: (known + 2 - back).max(1) };
        }
        let request = match self.rng.below(20) {
            0..8 => KvRequest::Put(self.draw_put()),
            8..10 => KvRequest::Delete(self.draw_delete()),
            10..16 => KvRequest::Range(self.draw_range(client)),
            _ => KvRequest::Txn(self.draw_txn(client, 0)),
        };
        Request::Kv(request)
    }

    pub(super) fn draw_key(&mut self) -> Bytes {
        format!("k{:02}", self.rng.below(self.plan.keys)).into()
    }

    /// Draws a range with one key, several keys, or all keys.
    pub(in crate::world) fn draw_keys(&mut self) -> KeyRange {
        let key = self.draw_key();
        match self.rng.below(6) {
            0 => KeyRange::ALL,
            1 => KeyRange { key, end: Bytes::from_static(b"\0") },
            // The range may be empty.
            2 => KeyRange { key, end: self.draw_key() },
            _ => KeyRange::one(key),
        }
    }

    fn draw_value(&mut self) -> Bytes {
        let number = self.new_number();
        let is_large = self.plan.has(Kind::LargeValues) && self.one_in(8);
        let length = match self.rng.below(20) {
            0 => return Bytes::new(),
            // Large values may slightly exceed the maximum request size.
            _ if is_large => {
                let length_max = self.plan.settings.request_bytes_max as u64 + 10;
                self.rng.below(length_max)
            }
            1 => self.rng.below(2_000),
            _ => self.rng.below(40),
        };
        let length = usize::try_from(length).unwrap_or(0);
        format!("{number:0length$}").into()
    }

    fn draw_put(&mut self) -> Put {
        let (key, value) = (self.draw_key(), self.draw_value());
        let lease = if self.one_in(3) { self.draw_lease().unwrap_or(0) } else { 0 };
        let put = Put { key, value, lease, prev_kv: self.one_in(3), ..Put::default() };
        match self.rng.below(20) {
            0 => Put { value: Bytes::new(), ignore_value: true, ..put },
            1 => Put { lease: 0, ignore_lease: true, ..put },
            _ => put,
        }
    }

    fn draw_delete(&mut self) -> Delete {
        Delete { keys: self.draw_keys(), prev_kv: self.one_in(2) }
    }

    fn draw_range(&mut self, client: usize) -> Range {
        let known = self.clients[client].revision;
        let revision = match self.rng.below(6) {
            0 => (known - i64::try_from(self.rng.below(20)).unwrap_or(0)).max(0),
            1 if self.one_in(5) => known + 3,
            _ => 0,
        };
        Range {
            keys: self.draw_keys(),
            revision,
            limit: if self.one_in(4) { 1 + i64::from(self.one_in(2)) } else { 0 },
            serializable: self.one_in(4),
            keys_only: self.one_in(8),
            count_only: self.one_in(8),
        }
    }

    fn draw_txn(&mut self, client: usize, depth: u32) -> Txn {
        let compares = (0..self.rng.below(3)).map(|_| self.draw_compare(client)).collect();
        if depth == 0 && self.one_in(5) {
            // A read-only transaction is not written to the log. Its reads may name a compacted revision.
            let mut reads = || KvRequest::Range(self.draw_range(client));
            let (success, failure) = (vec![reads(), reads()], vec![reads()]);
            return Txn { compares, success, failure };
        }
        let success = self.draw_operations(client, depth);
        let failure = self.draw_operations(client, depth);
        Txn { compares, success, failure }
    }

    /// Draws the operations of a transaction. The same key is rarely drawn for two writes, because members refuse such
    /// a transaction.
    fn draw_operations(&mut self, client: usize, depth: u32) -> Vec<KvRequest> {
        let mut written = std::collections::BTreeSet::new();
        let mut operations = Vec::new();
        for _ in 0..self.rng.below(4) {
            let operation = match self.rng.below(10) {
                0..5 => {
                    let put = self.draw_put();
                    if !written.insert(put.key.clone()) && !self.one_in(20) {
                        continue;
                    }
                    KvRequest::Put(put)
                }
                5 => {
                    let key = self.draw_key();
                    if !written.insert(key.clone()) {
                        continue;
                    }
                    KvRequest::Delete(Delete { keys: KeyRange::one(key), prev_kv: self.one_in(2) })
                }
                6 if depth == 0 => KvRequest::Txn(self.draw_txn(client, 1)),
                _ => {
                    let range = self.draw_range(client);
                    let is_old = self.one_in(2);
                    let revision = if is_old { range.revision } else { 0 };
                    KvRequest::Range(Range { revision, ..range })
                }
            };
            operations.push(operation);
        }
        operations
    }

    fn draw_compare(&mut self, client: usize) -> Compare {
        let relation = match self.rng.below(4) {
            0 => Relation::Equal,
            1 => Relation::NotEqual,
            2 => Relation::Greater,
            _ => Relation::Less,
        };
        let known = self.clients[client].revision;
        let recent = (known - i64::try_from(self.rng.below(5)).unwrap_or(0)).max(0);
        let operand = match self.rng.below(6) {
            0 => Operand::Value(self.draw_value()),
            1 => Operand::Version(i64::try_from(self.rng.below(4)).unwrap_or(0)),
            2 => Operand::CreateRevision(if self.one_in(2) { 0 } else { recent }),
            3 => Operand::Lease(self.draw_lease().unwrap_or(0)),
            _ => Operand::ModRevision(recent),
        };
        Compare { keys: self.draw_keys(), relation, operand }
    }
}
