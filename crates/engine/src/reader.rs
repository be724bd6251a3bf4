//! Reads: ranges and read-only transactions at a revision, from the tables and the tail.
//!
//! A read uses the newest revision that this server has reached. It reads the tables as of that revision, and merges
//! the changes of the tail into the result. The database handles key order, limits and counts. Filters, sorting and the
//! form of the response are the same as on a member, because the versions that were found are loaded into a working
//! set, on which the request is executed. If Citus distributes the tables, each statement is followed by another one,
//! which reads the compacted revision.
//!
//! | request | statements | rows read by the database |
//! |---|---|---|
//! | one key | none if the key is in the tail, otherwise 1 | 1 |
//! | one key without its value | none if the key is in the tail, otherwise 1, and another one if the tables do not contain the key | 1 |
//! | page of a range, in key order | 1 | the limit |
//! | range with filters or another sort order | 1 | the range |
//! | count of a range, also for a page | none if the count is known ([`Counts`]), otherwise up to 4 | see `spans` |
//!
//! # Invariants
//!
//! * A read returns exactly the changes up to one revision, although later changes may be written to
//!   the tables during the read.
//! * If a compaction overtakes a read, the read is repeated, or refused if the request names a
//!   revision.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use quorate_api::etcdserverpb::{
    Compare, RangeRequest, RangeResponse, ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
    compare::CompareTarget, response_op::Response as OpResponse,
};
use quorate_state::apply::{Refusal, selected_reads};
use quorate_state::mvcc::{
    Candidates, KeyRange, LoadedVersion, MvccError, RangeQuery, RangeResult, Store, StoreOptions,
};
use quorate_state::schema::Revision;
use quorate_telemetry::log;
use tokio::sync::{Mutex, OnceCell};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::counts::Counts;
use crate::database::{Database, DatabaseFault, End, Statement, Tables, VersionsRead, no_progress};
use crate::error::EngineError;
use crate::read_memory::ReadMemory;
use crate::spans::{DIVIDED_KEYS_MAX, Part, SPAN_KEYS, Spans};
use crate::stored_spans::{self, Dividing};
use crate::tail::{Overlaid, Position, Tail};

/// Value of a statement's limit parameter if the number of rows is not limited.
const UNLIMITED: i64 = i64::MAX;

/// Executes the reads of one server.
#[derive(Clone, Debug)]
pub(crate) struct TableReader {
    pub(crate) database: Arc<Database>,
    pub(crate) tail: Arc<Tail>,
    pub(crate) counts: Arc<Counts>,
    /// Held by a request or task that divides a large part of the keyspace into spans. Others wait for the spans instead
    /// of reading the same keys.
    pub(crate) dividing: Arc<Mutex<Dividing>>,
    /// Initialised by the first request or task that needs spans, after it has read the stored spans.
    pub(crate) restored: Arc<OnceCell<()>>,
}

/// The reason why a read has no result.
#[derive(Debug)]
pub(crate) enum ReadFault {
    /// A compaction has removed versions at the revision of the read.
    Overtaken,
    /// The tables have lost changes that this server does not have in its tail. The next round restores them.
    Behind,
    /// The read failed.
    Failed(EngineError),
}

impl<E: Into<EngineError>> From<E> for ReadFault {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// The result of a read, or a refusal, or the reason why the read has no result.
pub(crate) type Answer<T> = Result<Result<T, Refusal>, ReadFault>;

/// A version of a key, as a statement or the tail returns it.
enum Found {
    Whole { key: Bytes, modified: Revision, record: Bytes },
    Facts { key: Bytes, modified: Revision, create_revision: i64, version: i64 },
}

impl Found {
    fn load_into(&self, store: &mut Store) {
        store.load(match self {
            Self::Whole { modified, record, .. } => {
                LoadedVersion::Whole { modified: *modified, record }
            }
            Self::Facts { key, modified, create_revision, version } => LoadedVersion::Facts {
                key,
                modified: *modified,
                create_revision: *create_revision,
                version: *version,
            },
        });
    }

    fn key(&self) -> &[u8] {
        match self {
            Self::Whole { key, .. } | Self::Facts { key, .. } => key,
        }
    }
}

impl Overlaid {
    /// Returns the version of the key, or `None` if the key was deleted.
    fn found(self) -> Option<Found> {
        let Self { key, live } = self;
        live.map(|(modified, record)| Found::Whole { key, modified, record })
    }
}

impl TableReader {
    /// Executes a range request at the revision that the request names, or else at the revision of
    /// `position`.
    pub(crate) async fn range(
        &self,
        query: &RangeQuery,
        position: Position,
        memory: &mut ReadMemory<'_, '_>,
    ) -> Answer<RangeResult> {
        let bytes_before = memory.bytes();
        let mut store = working_set(position);
        let revision = match store.snapshot().readable(query.revision) {
            Ok(revision) => revision,
            Err(refusal) => return Ok(Err(refusal.into())),
        };
        if query.count_only {
            let count = self.count(query, revision, position, memory).await?;
            memory.shrink_to(bytes_before);
            let (revision, kvs, more) = (position.revision, Vec::new(), false);
            return Ok(Ok(RangeResult { revision, kvs, more, count }));
        }
        let (found, is_cut) = self.find(query, revision, memory).await?;
        found.iter().for_each(|found| found.load_into(&mut store));
        drop(found);
        // The store contains each key as it was at the revision of the read, so the query reads the
        // newest revision of the store.
        let query_now = RangeQuery { revision: 0, ..query.clone() };
        let mut result = match store.snapshot().range(&query_now) {
            Ok(result) => result,
            Err(MvccError::Refusal(refusal)) => return Ok(Err(refusal.into())),
            Err(MvccError::Fault(fault)) => return Err(fault.into()),
        };
        drop(store);
        memory.keep(bytes_before, result.kvs.iter().map(|kv| kv.encoded().len()))?;
        if is_cut {
            result.count = self.count(query, revision, position, memory).await?;
            self.counts.note_page(query, revision, position.restarts, &result);
        }
        Ok(Ok(result))
    }

    /// Executes a read-only transaction at the revision of `position`. A range that names a revision is
    /// read at that revision.
    pub(crate) async fn txn(
        &self,
        request: &TxnRequest,
        position: Position,
        memory: &mut ReadMemory<'_, '_>,
    ) -> Answer<TxnResponse> {
        let mut store = working_set(position);
        for compare in &request.compare {
            let query = RangeQuery {
                key: compare.key.clone(),
                range_end: compare.range_end.clone(),
                keys_only: !reads_record(compare),
                ..RangeQuery::default()
            };
            let (found, _) = self.find(&query, position.revision, memory).await?;
            found.iter().for_each(|found| found.load_into(&mut store));
        }
        store.publish();
        let selected = match selected_reads(&store.reader().view(), request)? {
            Ok(selected) => selected,
            Err(refusal) => return Ok(Err(refusal)),
        };
        drop(store);
        memory.shrink_to(0);
        let mut responses = Vec::with_capacity(selected.ranges.len());
        for range in selected.ranges {
            match self.range_of_txn(range, position, memory).await? {
                Ok(response) => responses.push(response),
                Err(refusal) => return Ok(Err(refusal)),
            }
        }
        let header = Some(header_at(position.revision));
        Ok(Ok(TxnResponse { header, succeeded: selected.succeeded, responses }))
    }

    async fn range_of_txn(
        &self,
        range: &RangeRequest,
        position: Position,
        memory: &mut ReadMemory<'_, '_>,
    ) -> Answer<ResponseOp> {
        let query = RangeQuery::from_request(range);
        let result = match self.range(&query, position, memory).await? {
            Ok(result) => result,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let response = Some(OpResponse::ResponseRange(response_of(result)));
        Ok(Ok(ResponseOp { response }))
    }

    /// Returns the keys that a range request needs, as they were at a revision, and whether the range may contain more
    /// keys.
    async fn find(
        &self,
        query: &RangeQuery,
        revision: i64,
        memory: &mut ReadMemory<'_, '_>,
    ) -> Result<(Vec<Found>, bool), ReadFault> {
        let KeyRange::One(key) = query.range() else {
            return self.candidates(query, query.range(), revision, memory).await;
        };
        let (overlaid, _) = self.tail.overlay(KeyRange::One(key), Some(revision));
        if let Some(overlaid) = overlaid.into_iter().next() {
            return Ok((overlaid.found().into_iter().collect(), false));
        }
        // Only the statement for ranges can omit the value. If Citus distributes the tables, that statement would query
        // all shards.
        if query.needs_values() || self.database.tables() == Tables::Distributed {
            let found = self.version_at(key, revision, memory).await?;
            return Ok((found.into_iter().collect(), false));
        }
        let next = [key, b"\0"].concat();
        let range = KeyRange::Between(key, &next);
        let (found, _) = self.candidates(query, range, revision, memory).await?;
        Ok((found, false))
    }

    /// Returns the version of a key at a revision from the tables, or `None` if the key did not exist at that revision.
    async fn version_at(
        &self,
        key: &[u8],
        revision: i64,
        memory: &mut ReadMemory<'_, '_>,
    ) -> Result<Option<Found>, ReadFault> {
        let found_in = |row: &Row| {
            let is_live = row.get::<_, Option<bool>>(3) == Some(false);
            is_live.then(|| Found::Whole {
                key: Bytes::copy_from_slice(key),
                modified: Revision::new(row.get(1), row.get(2)),
                record: Bytes::copy_from_slice(row.get(4)),
            })
        };
        let parameters: [&(dyn ToSql + Sync); 2] = [&key, &revision];
        let read =
            self.database.stream_versions(Statement::VersionAt, &parameters, memory, found_in);
        let VersionsRead { rows, compacted } = read.await?;
        check_compaction(compacted, revision)?;
        Ok(rows.into_iter().next().flatten())
    }

    /// Like [`Self::find`], for a range of keys.
    async fn candidates(
        &self,
        query: &RangeQuery,
        range: KeyRange<'_>,
        revision: i64,
        memory: &mut ReadMemory<'_, '_>,
    ) -> Result<(Vec<Found>, bool), ReadFault> {
        let (overlaid, _) = self.tail.overlay(range, Some(revision));
        let (wanted, descending) = match query.candidates() {
            Candidates::First(wanted) => (wanted, false),
            Candidates::Last(wanted) => (wanted, true),
        };
        // Each key that is deleted in the tail may hide one row of the tables, so the statement reads one
        // additional row for each such key.
        let hidden = overlaid.iter().filter(|key| key.live.is_none()).count();
        let limit = i64::try_from(wanted.saturating_add(hidden)).unwrap_or(UNLIMITED);
        let (from, to, end) = bounds(range);
        let statement = Statement::RangeAt { end, whole: query.needs_values(), descending };
        let parameters: [&(dyn ToSql + Sync); 4] = [&from, &to, &revision, &limit];
        let read = self.database.stream_versions(statement, &parameters, memory, found_in);
        let VersionsRead { rows, compacted } = read.await?;
        check_compaction(compacted, revision)?;
        let is_cut = i64::try_from(rows.len()).is_ok_and(|count| count == limit);
        let known: BTreeSet<Bytes> = overlaid.iter().map(|overlaid| overlaid.key.clone()).collect();
        let rows = rows.into_iter().filter(|found| !known.contains(found.key()));
        let live = overlaid.into_iter().filter_map(Overlaid::found);
        Ok((live.chain(rows).collect(), is_cut))
    }

    /// Returns the number of keys of a range that were live at a revision.
    async fn count(
        &self,
        query: &RangeQuery,
        revision: i64,
        position: Position,
        memory: &mut ReadMemory<'_, '_>,
    ) -> Result<i64, ReadFault> {
        let range = query.range();
        if let KeyRange::One(_) = range {
            let query = RangeQuery { keys_only: true, ..query.clone() };
            return Ok(i64::from(!self.find(&query, revision, memory).await?.0.is_empty()));
        }
        if let Some(count) = self.counts.get(query, revision, position.restarts, &self.tail) {
            return Ok(count);
        }
        let count = match self.database.tables() {
            Tables::Local => match Part::of(range) {
                // The future is boxed, because it is large.
                Some(part) => Box::pin(self.count_by_spans(&part, revision, position)).await?,
                None => 0,
            },
            // The coordinator of a Citus database would have to fetch all keys to divide the range.
            Tables::Distributed => self.count_rows(range, revision).await?,
        };
        self.counts.note(query, revision, position.restarts, count);
        Ok(count)
    }

    /// Counts the keys of a range with the database.
    async fn count_rows(&self, range: KeyRange<'_>, revision: i64) -> Result<i64, ReadFault> {
        let (overlaid, _) = self.tail.overlay(range, Some(revision));
        let keys: Vec<&[u8]> = overlaid.iter().map(|overlaid| &overlaid.key[..]).collect();
        let (from, to, end) = bounds(range);
        let read = self
            .database
            .read_versions(Statement::CountAt(end), &[&from, &to, &revision, &keys])
            .await?;
        check_compaction(read.compacted, revision)?;
        let row = read.rows.first().ok_or_else(no_progress)?;
        let live = overlaid.iter().filter(|overlaid| overlaid.live.is_some()).count();
        Ok(row.get::<_, i64>(0) + i64::try_from(live).unwrap_or(i64::MAX))
    }

    /// Returns the position of the last batch in the tables.
    async fn written_seq(&self) -> Result<i64, DatabaseFault> {
        let progress = self.database.query_opt(Statement::ReadProgress, &[]).await?;
        Ok(progress.ok_or_else(no_progress)?.get(0))
    }

    /// Adds the stored spans to the tail, if no request or task has done so since the start of the server. Without them,
    /// counting takes longer, so a fault is only logged.
    pub(crate) async fn restore_spans(&self) {
        let restore = async || {
            let mut turn = self.dividing.lock().await;
            self.restore_newer_spans(&mut turn).await;
        };
        self.restored.get_or_init(restore).await;
    }

    /// Adds the stored spans to the tail, if they are newer than the ones that this server has read or stored.
    pub(crate) async fn restore_newer_spans(&self, turn: &mut Dividing) {
        if let Err(fault) = stored_spans::restore(&self.database, &self.tail, turn).await {
            log::warn!("failed to read the stored counts of keys", "error" = fault.to_string());
        }
    }

    /// Stores the spans of the tail, if they cover many keys.
    pub(crate) async fn store_spans(&self) -> Result<(), DatabaseFault> {
        let mut turn = self.dividing.lock().await;
        stored_spans::store(&self.database, &self.tail, &mut turn).await
    }

    /// Counts the keys of a part of the keyspace: adds the counts of the spans within it and, for each gap between
    /// these spans, the count from the database. The gaps are then divided into spans, too.
    async fn count_by_spans(
        &self,
        part: &Part,
        revision: i64,
        position: Position,
    ) -> Result<i64, ReadFault> {
        self.restore_spans().await;
        let (mut count, mut parts, mut turn) = (0, vec![part.clone()], None);
        while let Some(part) = parts.pop() {
            let (known, gaps) = self.tail.spanned(&part, revision, position.restarts);
            count += known;
            for gap in gaps {
                let (divided, rest) = self.divide(gap, revision, position).await?;
                count += divided;
                if let Some(rest) = rest {
                    let turn = match &mut turn {
                        Some(turn) => turn,
                        None => turn.insert(self.dividing.lock().await),
                    };
                    // Another request or another server may have divided the rest in the meantime.
                    self.restore_newer_spans(turn).await;
                    parts.push(rest);
                }
            }
        }
        Ok(count)
    }

    /// Counts the first keys of a gap with the database, and divides their part of the keyspace into spans. Returns the
    /// rest of the gap if it may contain more keys.
    pub(crate) async fn divide(
        &self,
        gap: Part,
        revision: i64,
        position: Position,
    ) -> Result<(i64, Option<Part>), ReadFault> {
        let (overlaid, at) = self.tail.overlay(gap.range(), Some(revision));
        let keys: Vec<&[u8]> = overlaid.iter().map(|overlaid| &overlaid.key[..]).collect();
        let (from, to, end) = bounds(gap.range());
        let parameters: [&(dyn ToSql + Sync); 6] =
            [&from, &to, &revision, &keys, &SPAN_KEYS, &DIVIDED_KEYS_MAX];
        let read = self.database.read_versions(Statement::DivideAt(end), &parameters).await?;
        check_compaction(read.compacted, revision)?;
        let written = match read.rows.first() {
            Some(row) => row.get(3),
            None => self.written_seq().await?,
        };
        // The overlay does not contain the changes that the tables have lost.
        if written < at.written_seq.cast_signed() {
            return Err(ReadFault::Behind);
        }
        let last = read.rows.last().map(|row| (row.get::<_, i64>(0), row.get(1)));
        let (in_tables, last_key) = last.unwrap_or((0, &[][..]));
        let (part, rest) = match in_tables == DIVIDED_KEYS_MAX {
            true => gap.split_after(last_key),
            false => (gap, None),
        };
        let starts = read.rows.iter().filter(|row| row.get::<_, i64>(0) % SPAN_KEYS == 1);
        let starts = starts.map(|row| Bytes::copy_from_slice(row.get(1)));
        let mut spans = Spans::divide(&part, starts, in_tables);
        let mut count = in_tables;
        let live = overlaid.iter().filter(|overlaid| overlaid.live.is_some());
        for overlaid in live.filter(|overlaid| part.range().contains(&overlaid.key)) {
            spans.change(&overlaid.key, 1);
            count += 1;
        }
        self.tail.add_spans(&part, spans, revision, position.restarts);
        Ok((count, rest))
    }
}

/// Converts the result of a range request to the response message.
pub(crate) fn response_of(result: RangeResult) -> RangeResponse {
    let RangeResult { revision, kvs, more, count } = result;
    RangeResponse { header: Some(header_at(revision)), kvs, more, count }
}

fn header_at(revision: i64) -> ResponseHeader {
    ResponseHeader { revision, ..ResponseHeader::default() }
}

fn working_set(position: Position) -> Store {
    Store::working_set(position.revision, position.compacted, StoreOptions::default())
}

/// Returns the bounds of a range as parameters 1 and 2 of a statement, and how the range ends.
pub(crate) fn bounds(range: KeyRange<'_>) -> (&[u8], Option<&[u8]>, End) {
    match range {
        KeyRange::One(key) | KeyRange::From(key) => (key, None, End::Open),
        KeyRange::Between(from, to) => (from, Some(to), End::Before),
    }
}

/// Returns whether a condition of a transaction needs a key's record, which contains the value and the lease.
fn reads_record(compare: &Compare) -> bool {
    matches!(compare.target(), CompareTarget::Value | CompareTarget::Lease)
}

fn found_in(row: &Row) -> Found {
    let key = Bytes::copy_from_slice(row.get(0));
    let modified = Revision::new(row.get(1), row.get(2));
    match row.get::<_, Option<&[u8]>>(5) {
        Some(record) => Found::Whole { key, modified, record: Bytes::copy_from_slice(record) },
        None => Found::Facts { key, modified, create_revision: row.get(3), version: row.get(4) },
    }
}

/// Refuses a read below the compacted revision, because versions may be missing there.
fn check_compaction(compacted: i64, revision: i64) -> Result<(), ReadFault> {
    if revision < compacted { Err(ReadFault::Overtaken) } else { Ok(()) }
}
