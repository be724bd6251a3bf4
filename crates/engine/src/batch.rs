//! A batch: the content of one row of the log.
//!
//! A batch contains the changes of all requests that were committed together. A commit writes only
//! the batch. Everything else is derived from the batch: key versions, rows for leases and users,
//! and watch events.
//!
//! # Invariants
//!
//! * Decoding an encoded batch returns an equal batch. Bytes that are not a valid batch are refused and
//!   do not cause a panic.

use bytes::Bytes;
use prost::Message;
use quorate_api::record::{Fields, KeyValue};
use quorate_state::backend::{Batch, BatchChange};
use quorate_state::mvcc::{Change, ChangeKind, Changes, KeyRange, Previous};
use quorate_state::schema::{Bucket, RecordKey, Revision};

use crate::database::DatabaseFault;
use crate::term_id::TermId;

/// Estimated memory of a record or row in addition to its content, in bytes.
const RECORD_BYTES: usize = 128;

/// The encoded form of a batch. Field numbers are never reused.
#[derive(Clone, PartialEq, Message)]
struct Encoded {
    /// Number of the last request of the batch.
    #[prost(uint64, tag = "1")]
    index: u64,
    #[prost(message, repeated, tag = "2")]
    records: Vec<EncodedRecord>,
    #[prost(message, repeated, tag = "3")]
    rows: Vec<EncodedRow>,
    #[prost(message, repeated, tag = "4")]
    tokens: Vec<EncodedToken>,
    /// Position of the last batch that was in the tables when this batch was prepared.
    #[prost(uint64, tag = "5")]
    written_seq: u64,
}

#[derive(Clone, PartialEq, Message)]
struct EncodedRecord {
    #[prost(int64, tag = "1")]
    main: i64,
    #[prost(int64, tag = "2")]
    sub: i64,
    #[prost(bool, tag = "3")]
    tombstone: bool,
    #[prost(bytes = "bytes", tag = "4")]
    record: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct EncodedRow {
    #[prost(uint32, tag = "1")]
    bucket: u32,
    #[prost(bytes = "bytes", tag = "2")]
    key: Bytes,
    #[prost(bytes = "bytes", optional, tag = "3")]
    value: Option<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct EncodedToken {
    #[prost(string, tag = "1")]
    token: String,
    #[prost(string, tag = "2")]
    user: String,
}

/// A committed batch of the log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Committed {
    /// The batch's position in the log.
    pub(crate) seq: u64,
    /// The term of the sequencer that committed the batch.
    pub(crate) term: TermId,
    /// The newest revision after the batch.
    pub(crate) last_revision: i64,
    /// The number of the last request in the batch.
    pub(crate) index: u64,
    /// The changes to keys, in revision order.
    pub(crate) records: Vec<Record>,
    /// The changes to rows, in order.
    pub(crate) rows: Vec<Row>,
    /// The tokens that the batch creates, each with the name of its user.
    pub(crate) tokens: Vec<(String, String)>,
    /// A position up to which all batches were already in the tables when this batch was prepared.
    pub(crate) written_seq: u64,
    /// Estimated memory of the batch, in bytes.
    pub(crate) byte_count: usize,
}

/// One version of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The revision of the version, and whether the version is a deletion.
    pub(crate) at: RecordKey,
    /// The key.
    pub(crate) key: Bytes,
    /// The record as the backend file of a member stores it.
    pub(crate) record: Bytes,
}

/// One change to a row of table `facts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) bucket: Bucket,
    pub(crate) key: Bytes,
    /// The new value, or `None` if the row is removed.
    pub(crate) value: Option<Bytes>,
}

/// A batch that is not committed yet.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    encoded: Encoded,
}

impl Draft {
    /// Creates a draft from the changes that a state has collected, and from the tokens that the
    /// batch's requests created.
    pub(crate) fn new(
        batch: &Batch,
        tokens: Vec<(String, String)>,
        index: u64,
        written_seq: u64,
    ) -> Self {
        let mut encoded = Encoded { index, written_seq, ..Encoded::default() };
        for change in batch.changes() {
            match change {
                BatchChange::PutRecord(RecordKey { revision, tombstone }, record) => {
                    let Revision { main, sub } = revision;
                    let record = record.clone();
                    encoded.records.push(EncodedRecord { main, sub, tombstone, record });
                }
                BatchChange::Put(bucket, key, value) => encoded.rows.push(EncodedRow {
                    bucket: number_of(bucket),
                    key: key.clone(),
                    value: Some(value.clone()),
                }),
                BatchChange::Delete(bucket, key) => encoded.rows.push(EncodedRow {
                    bucket: number_of(bucket),
                    key: key.clone(),
                    value: None,
                }),
                BatchChange::DeleteRecord(_) => {
                    unreachable!("a working set deletes no records: the engine compacts the tables")
                }
            }
        }
        encoded.tokens =
            tokens.into_iter().map(|(token, user)| EncodedToken { token, user }).collect();
        Self { encoded }
    }

    /// Returns the empty batch with which a term of the sequencer begins.
    pub(crate) fn fence(index: u64, written_seq: u64) -> Self {
        Self { encoded: Encoded { index, written_seq, ..Encoded::default() } }
    }

    /// Returns whether the draft contains no changes and no tokens.
    pub(crate) fn is_empty(&self) -> bool {
        self.encoded.records.is_empty()
            && self.encoded.rows.is_empty()
            && self.encoded.tokens.is_empty()
    }

    /// Encodes the batch for its row in the log.
    pub(crate) fn encode(&self) -> Vec<u8> {
        self.encoded.encode_to_vec()
    }

    /// Converts the draft to the batch that was committed at position `seq`.
    pub(crate) fn committed(
        self,
        seq: u64,
        term: TermId,
        last_revision: i64,
    ) -> Result<Committed, DatabaseFault> {
        Committed::of(self.encoded, seq, term, last_revision)
    }
}

impl Committed {
    /// Returns how many more live keys the range has because of this batch's changes after revision
    /// `after`, up to revision `up_to`.
    pub(crate) fn count_change(&self, range: KeyRange<'_>, after: i64, up_to: i64) -> i64 {
        let is_between = |record: &&Record| {
            let revision = record.at.revision.main;
            after < revision && revision <= up_to && range.contains(&record.key)
        };
        self.records.iter().filter(is_between).map(Record::count_change).sum()
    }

    /// Decodes a row of the log.
    pub(crate) fn decode(row: &tokio_postgres::Row) -> Result<Self, DatabaseFault> {
        let seq = row.get::<_, i64>(0).cast_unsigned();
        let bytes = Bytes::copy_from_slice(row.get(4));
        let encoded = Encoded::decode(bytes)
            .map_err(|error| invalid(seq, &format!("the batch cannot be decoded: {error}")))?;
        Self::of(encoded, seq, TermId::of_columns(row, 1), row.get(3))
    }

    fn of(
        encoded: Encoded,
        seq: u64,
        term: TermId,
        last_revision: i64,
    ) -> Result<Self, DatabaseFault> {
        let mut byte_count = 0;
        let mut records = Vec::with_capacity(encoded.records.len());
        for EncodedRecord { main, sub, tombstone, record } in encoded.records {
            let fields =
                Fields::decode(&record).ok_or_else(|| invalid(seq, "a record is invalid"))?;
            let key = record.slice_ref(fields.key);
            byte_count += RECORD_BYTES + record.len();
            let at = RecordKey { revision: Revision::new(main, sub), tombstone };
            records.push(Record { at, key, record });
        }
        let mut rows = Vec::with_capacity(encoded.rows.len());
        for EncodedRow { bucket, key, value } in encoded.rows {
            let bucket =
                bucket_of(bucket).ok_or_else(|| invalid(seq, "the bucket of a row is unknown"))?;
            byte_count += RECORD_BYTES + key.len() + value.as_ref().map_or(0, Bytes::len);
            rows.push(Row { bucket, key, value });
        }
        let tokens = encoded.tokens.into_iter().map(|token| (token.token, token.user)).collect();
        let Encoded { index, written_seq, .. } = encoded;
        Ok(Self { seq, term, last_revision, index, records, rows, tokens, written_seq, byte_count })
    }

    /// Returns the changes to keys, grouped by revision, as watchers receive them.
    pub(crate) fn changes(&self) -> Vec<Changes> {
        let same_revision = |a: &Record, b: &Record| a.at.revision.main == b.at.revision.main;
        self.records
            .chunk_by(same_revision)
            .map(|of_revision| {
                let revision = of_revision[0].at.revision.main;
                let events = of_revision.iter().map(|record| record.change(revision)).collect();
                Changes { revision, events }
            })
            .collect()
    }
}

impl Record {
    /// Returns the record as watchers receive it. Unlike the stored record, the record of a deletion contains the
    /// deletion's revision.
    pub(crate) fn as_event(&self) -> KeyValue {
        if self.at.tombstone {
            let mod_revision = self.at.revision.main;
            KeyValue::new(&Fields { key: &self.key, mod_revision, ..Fields::default() })
        } else {
            KeyValue::from_encoded(self.record.clone())
        }
    }

    /// Returns how many more live keys there are because of this version. A version with number 1 creates
    /// a key, and every deletion in a batch deletes a live key.
    pub(crate) fn count_change(&self) -> i64 {
        if self.at.tombstone {
            return -1;
        }
        let fields =
            Fields::decode(&self.record).expect("a record was decoded when its batch was decoded");
        i64::from(fields.version == 1)
    }

    fn change(&self, revision: i64) -> Change {
        let kind = if self.at.tombstone { ChangeKind::Delete } else { ChangeKind::Put };
        debug_assert_eq!(self.at.revision.main, revision);
        Change { kind, record: self.as_event(), previous: Previous::Unknown }
    }
}

impl Row {
    /// Converts the change to the form that `Rows::apply` accepts.
    pub(crate) fn change(&self) -> BatchChange<'_> {
        match &self.value {
            Some(value) => BatchChange::Put(self.bucket, &self.key, value),
            None => BatchChange::Delete(self.bucket, &self.key),
        }
    }
}

/// Returns the number that stands for a bucket in the log and in table `facts`. The numbers are
/// stored, so they must never change.
pub(crate) const fn number_of(bucket: Bucket) -> u32 {
    match bucket {
        Bucket::Alarm => 1,
        Bucket::Auth => 2,
        Bucket::AuthRoles => 3,
        Bucket::AuthUsers => 4,
        Bucket::Cluster => 5,
        Bucket::Key => 6,
        Bucket::Lease => 7,
        Bucket::Members => 8,
        Bucket::MembersRemoved => 9,
        Bucket::Meta => 10,
    }
}

/// Returns the bucket with this number. Returns `None` if the number is unknown, or if it stands for
/// the bucket of records, which has no rows.
pub(crate) fn bucket_of(number: u32) -> Option<Bucket> {
    Bucket::ALL.into_iter().find(|bucket| *bucket != Bucket::Key && number_of(*bucket) == number)
}

fn invalid(seq: u64, problem: &str) -> DatabaseFault {
    DatabaseFault::Content { table: "log", problem: format!("position {seq}: {problem}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: TermId = TermId { epoch: 2, nonce: 77 };

    fn sample() -> Draft {
        let mut batch = Batch::new();
        let record = |key: &[u8], value: &[u8], main| {
            let fields = Fields {
                key,
                value,
                create_revision: main,
                mod_revision: main,
                version: 1,
                lease: 0,
            };
            KeyValue::new(&fields).encoded().clone()
        };
        let at = |main, sub, tombstone| RecordKey { revision: Revision::new(main, sub), tombstone };
        batch.put_record(at(2, 0, false), record(b"a", b"1", 2));
        let deletion = KeyValue::new(&Fields { key: b"a", ..Fields::default() });
        batch.put_record(at(3, 0, true), deletion.encoded().clone());
        batch.put_record(at(3, 1, false), record(b"b", b"", 3));
        batch.put(Bucket::Lease, Bytes::from_static(b"12345678"), Bytes::from_static(b"x"));
        batch.delete(Bucket::Alarm, Bytes::from_static(b"k"));
        Draft::new(&batch, vec![("token".to_owned(), "user".to_owned())], 7, 4)
    }

    #[test]
    fn a_decoded_batch_equals_the_encoded_one() {
        let draft = sample();
        assert!(!draft.is_empty());
        let decoded = Encoded::decode(&*draft.encode()).unwrap();
        let decoded = Committed::of(decoded, 5, TERM, 3).unwrap();
        assert_eq!(decoded, draft.committed(5, TERM, 3).unwrap());
        assert_eq!((decoded.index, decoded.written_seq), (7, 4));
        let keys: Vec<_> = decoded.records.iter().map(|record| &record.key[..]).collect();
        assert_eq!(keys, [b"a", b"a", b"b"]);
        assert_eq!(decoded.rows[1].value, None);
    }

    #[test]
    fn changes_are_grouped_by_revision_and_deletions_have_a_mod_revision() {
        let changes = sample().committed(5, TERM, 3).unwrap().changes();
        assert_eq!(changes.iter().map(|changes| changes.revision).collect::<Vec<_>>(), [2, 3]);
        let deletion = &changes[1].events[0];
        assert_eq!(deletion.kind, ChangeKind::Delete);
        let fields = deletion.record.fields();
        assert_eq!((fields.key, fields.mod_revision), (&b"a"[..], 3));
    }

    #[test]
    fn bytes_that_are_not_a_batch_are_refused() {
        assert!(Encoded::decode(&b"\xff\xff"[..]).is_err());
        let record = EncodedRecord {
            main: 2,
            record: Bytes::from_static(b"\x0a\x09a"),
            ..Default::default()
        };
        let encoded = Encoded { records: vec![record], ..Encoded::default() };
        assert!(matches!(Committed::of(encoded, 1, TERM, 2), Err(DatabaseFault::Content { .. })));
        let row = EncodedRow { bucket: 6, ..EncodedRow::default() };
        let encoded = Encoded { rows: vec![row], ..Encoded::default() };
        assert!(matches!(Committed::of(encoded, 1, TERM, 2), Err(DatabaseFault::Content { .. })));
    }

    #[test]
    fn every_bucket_except_the_record_bucket_has_its_own_number() {
        for bucket in Bucket::ALL {
            let found = bucket_of(number_of(bucket));
            assert_eq!(found, (bucket != Bucket::Key).then_some(bucket));
        }
    }
}
