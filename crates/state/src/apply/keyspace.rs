//! Commands about keys. All writes to the keyspace go through [`Writer`], which keeps leases and keys consistent,
//! except the deletions of the keys of a revoked lease (`leases`).

use quorate_api::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, ResponseHeader,
};
use quorate_api::record::KeyValue;

use super::{EntryMeta, Fault, Notice, Refusal, Response, State};
use crate::lease::{LeaseRefusal, Leases, Lessor};
use crate::mvcc::{KeyRange, MvccError, RangeQuery, RangeResult, Snapshot, WriteTxn};
use crate::quota::put_cost;
use crate::units::LeaseId;

/// The result of a read or a write. The inner error is a refusal by the state, and the outer error is a fault of this
/// machine.
pub(super) type Answer<T> = Result<Result<T, Refusal>, Fault>;

impl State {
    pub(super) fn range(&self, request: &RangeRequest) -> Answer<Response> {
        let result = answer(self.store.snapshot().range(&RangeQuery::from_request(request)))?;
        Ok(result.map(range_response).map(Response::Range))
    }

    pub(super) fn put(&mut self, entry: &EntryMeta, request: &PutRequest) -> Answer<Response> {
        let fits = self.quota.allows(entry.file_bytes, put_cost(request));
        let checked = check_lease(&self.published.leases, request).and_then(|()| {
            check_kept(request, || self.store.snapshot().get(&request.key).is_some())
        });
        if let Err(refusal) = checked {
            return Ok(Err(refusal));
        }
        let mut writer = self.writer(entry);
        let response = writer.put(request)?;
        let changes = writer.txn.finish();
        self.unpublished.extend(changes);
        Ok(if fits { Ok(Response::Put(response)) } else { Err(Refusal::NoSpace) })
    }

    pub(super) fn delete_range(
        &mut self,
        entry: &EntryMeta,
        request: &DeleteRangeRequest,
    ) -> Answer<Response> {
        let mut writer = self.writer(entry);
        let response = writer.delete_range(request)?;
        let changes = writer.txn.finish();
        self.unpublished.extend(changes);
        Ok(Ok(Response::DeleteRange(response)))
    }

    pub(super) fn compact(
        &mut self,
        request: &CompactionRequest,
        notice: &mut Option<Notice>,
    ) -> Result<Response, Refusal> {
        let revision = request.revision;
        let compaction = self.store.schedule_compaction(revision, &mut self.batch)?;
        *notice = Some(Notice::Compaction(compaction));
        Ok(Response::Compaction(CompactionResponse { header: self.header() }))
    }

    pub(super) fn writer(&mut self, entry: &EntryMeta) -> Writer<'_> {
        Writer {
            txn: self.store.write(&mut self.batch),
            lessor: &mut self.lessor,
            reply_wanted: entry.reply_wanted,
        }
    }
}

/// Writes the keys of one entry and updates their leases. The entry has already been validated.
pub(super) struct Writer<'a> {
    pub(super) txn: WriteTxn<'a>,
    lessor: &'a mut Lessor,
    /// Whether a client waits for the responses.
    pub(super) reply_wanted: bool,
}

impl Writer<'_> {
    pub(super) fn put(&mut self, request: &PutRequest) -> Result<PutResponse, Fault> {
        let keeps = request.ignore_value || request.ignore_lease;
        let shows = request.prev_kv && self.reply_wanted;
        let previous = if keeps || shows { self.record(&request.key)? } else { None };
        let kept = previous.as_ref().map(KeyValue::fields).unwrap_or_default();
        let value = if request.ignore_value { kept.value } else { &request.value };
        let lease = if request.ignore_lease { kept.lease } else { request.lease };
        self.txn.put(&request.key, value, lease);
        self.lessor.attach(&request.key, LeaseId(lease));
        Ok(PutResponse { header: self.header(), prev_kv: previous.filter(|_| request.prev_kv) })
    }

    pub(super) fn delete_range(
        &mut self,
        request: &DeleteRangeRequest,
    ) -> Result<DeleteRangeResponse, Fault> {
        let deleted = self.txn.delete_range(KeyRange::new(&request.key, &request.range_end));
        let shows = request.prev_kv && self.reply_wanted;
        if shows {
            self.txn.count_read();
        }
        let mut prev_kvs = Vec::new();
        for deletion in &deleted {
            self.lessor.detach(&deletion.key);
            if shows {
                prev_kvs.push(self.txn.record(deletion.previous.modified)?);
            }
        }
        let deleted = i64::try_from(deleted.len()).expect("keys fit in memory");
        Ok(DeleteRangeResponse { header: self.header(), deleted, prev_kvs })
    }

    /// Executes a range request. If the request does not name a revision, the response includes the writes of this
    /// entry so far.
    pub(super) fn range(&mut self, query: &RangeQuery) -> Answer<RangeResponse> {
        if !self.reply_wanted {
            return Ok(Ok(RangeResponse { header: self.header(), ..RangeResponse::default() }));
        }
        Ok(answer(self.txn.range(query))?.map(range_response))
    }

    pub(super) fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader { revision: self.txn.revision(), ..ResponseHeader::default() })
    }

    fn record(&mut self, key: &[u8]) -> Result<Option<KeyValue>, Fault> {
        self.txn.count_read();
        let version = self.txn.get(key);
        Ok(version.map(|version| self.txn.record(version.modified)).transpose()?)
    }
}

/// Refuses a put whose lease does not exist.
pub(super) fn check_lease(leases: &Leases, request: &PutRequest) -> Result<(), Refusal> {
    let lease = LeaseId(request.lease);
    if lease.is_none() || leases.contains(lease) {
        Ok(())
    } else {
        Err(LeaseRefusal::NotFound.into())
    }
}

/// Refuses a put that keeps the value or lease of a key that does not exist. `is_live` looks the key up, which most puts
/// do not need.
pub(super) fn check_kept(
    request: &PutRequest,
    is_live: impl FnOnce() -> bool,
) -> Result<(), Refusal> {
    if (request.ignore_value || request.ignore_lease) && !is_live() {
        Err(Refusal::KeyNotFound)
    } else {
        Ok(())
    }
}

/// Refuses a range inside a transaction if its revision does not exist. This check is stricter than
/// for a range outside a transaction, where every negative revision means the newest.
pub(super) fn check_revision(snapshot: &Snapshot<'_>, revision: i64) -> Result<(), Refusal> {
    if revision == 0 {
        Ok(())
    } else if revision > snapshot.current_revision() {
        Err(Refusal::FutureRevision)
    } else if revision < snapshot.compacted_revision() {
        Err(Refusal::Compacted)
    } else {
        Ok(())
    }
}

/// Separates refusals from faults.
pub(super) fn answer<T>(result: Result<T, MvccError>) -> Answer<T> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(MvccError::Refusal(refusal)) => Ok(Err(refusal.into())),
        Err(MvccError::Fault(fault)) => Err(fault.into()),
    }
}

pub(super) fn range_response(result: RangeResult) -> RangeResponse {
    let header = ResponseHeader { revision: result.revision, ..ResponseHeader::default() };
    RangeResponse { header: Some(header), kvs: result.kvs, more: result.more, count: result.count }
}
