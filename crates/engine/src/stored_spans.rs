//! Stores the spans of a large keyspace in the database, so that a server does not divide the keyspace again after each
//! start.
//!
//! Table `spans` contains the spans of one server with their counts at one position of the log. A server that reads them
//! adds the changes of all later batches. A keyspace that one statement can divide has no stored spans.
//!
//! # Invariants
//!
//! * Stored spans are used only if the log contains the batch at their position, from the same term, and all later
//!   batches. Otherwise the counts could include changes that the database has lost, or miss changes that a compaction
//!   has removed from the log.
//!
//! # Not here
//!
//! When spans are stored and read (`counting`, `reader`).

use bytes::Bytes;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::database::{Database, DatabaseFault, Statement};
use crate::follower::read_log;
use crate::spans::{DIVIDED_KEYS_MAX, Part, Spans};
use crate::tail::{Position, Tail};
use crate::term_id::TermId;

/// Maximum number of bytes of batches that are read to update stored spans. If more bytes have been committed since,
/// dividing the keyspace takes less time.
const LOG_BYTES_MAX: usize = 512 << 20;

/// The size of a batch without content, in bytes. It limits the number of empty batches that are read.
const BATCH_BYTES: usize = 256;

/// The right to divide a large part of the keyspace, which only one request or task of a server has at a time.
#[derive(Debug, Default)]
pub(crate) struct Dividing {
    /// The position of the stored spans that this server has read or written last.
    known_seq: Option<u64>,
    /// The number of restarts of the replica at that time. A restart drops the spans.
    restarts: u64,
}

impl Dividing {
    const fn known_seq(&self, restarts: u64) -> Option<u64> {
        if self.restarts == restarts { self.known_seq } else { None }
    }

    const fn note(&mut self, seq: u64, restarts: u64) {
        (self.known_seq, self.restarts) = (Some(seq), restarts);
    }
}

/// The stored spans.
struct Stored {
    seq: u64,
    term: TermId,
    spans: Spans,
}

impl Stored {
    fn of_row(row: &Row) -> Self {
        let starts = row.get::<_, Vec<&[u8]>>(3).into_iter();
        let ends = row.get::<_, Vec<Option<&[u8]>>>(4).into_iter();
        let parts = starts.zip(ends).map(|(start, end)| Part {
            start: Bytes::copy_from_slice(start),
            end: end.map(Bytes::copy_from_slice),
        });
        let spans = Spans::from_parts(parts.zip(row.get::<_, Vec<i64>>(5)));
        let seq = row.get::<_, i64>(0).cast_unsigned();
        Self { seq, term: TermId::of_columns(row, 1), spans }
    }
}

/// Stores the spans of a tail, unless the stored spans are recent or cover many more keys. Does nothing if the keyspace is
/// small and has no stored spans.
pub(crate) async fn store(
    database: &Database,
    tail: &Tail,
    turn: &mut Dividing,
) -> Result<(), DatabaseFault> {
    let (spans, position) = tail.spans();
    let keys: i64 = spans.iter().map(|(_, count)| count).sum();
    let known = turn.known_seq(position.restarts);
    let is_small = keys <= DIVIDED_KEYS_MAX && known.is_none();
    if is_small || known >= Some(position.seq) {
        return Ok(());
    }
    let starts: Vec<&[u8]> = spans.iter().map(|(part, _)| &part.start[..]).collect();
    let ends: Vec<Option<&[u8]>> = spans.iter().map(|(part, _)| part.end.as_deref()).collect();
    let counts: Vec<i64> = spans.iter().map(|(_, count)| *count).collect();
    let TermId { epoch, nonce } = position.term;
    let parameters: [&(dyn ToSql + Sync); 7] =
        [&position.seq.cast_signed(), &epoch.cast_signed(), &nonce, &keys, &starts, &ends, &counts];
    if database.connect().await?.execute(Statement::StoreSpans, &parameters).await? == 1 {
        turn.note(position.seq, position.restarts);
    }
    Ok(())
}

/// Adds the stored spans to a tail, unless this server knows them already.
pub(crate) async fn restore(
    database: &Database,
    tail: &Tail,
    turn: &mut Dividing,
) -> Result<(), DatabaseFault> {
    let position = tail.position();
    let known = turn.known_seq(position.restarts).map_or(-1, u64::cast_signed);
    let Some(row) = database.query_opt(Statement::ReadSpans, &[&known]).await? else {
        return Ok(());
    };
    let stored = Stored::of_row(&row);
    // The spans of a server that is ahead of this one are read again later.
    if stored.seq > position.seq {
        return Ok(());
    }
    let seq = stored.seq;
    if let Some(spans) = updated(database, stored, position).await? {
        tail.restore_spans(spans, position);
    }
    turn.note(seq, position.restarts);
    Ok(())
}

/// Returns the stored spans with their counts at a position of the tail, or `None` if they cannot be used.
async fn updated(
    database: &Database,
    stored: Stored,
    to: Position,
) -> Result<Option<Spans>, DatabaseFault> {
    let Stored { seq, term, mut spans } = stored;
    let session = database.connect().await?;
    let (mut reached, mut bytes) = ((seq, term), 0);
    // The log is also read if nothing has been committed since, to see whether it contains the batch.
    loop {
        let read = read_log(&session, reached.0).await?;
        if read.first != Some(reached) {
            return Ok(None);
        }
        for batch in read.batches.iter().filter(|batch| batch.seq <= to.seq) {
            spans.apply(batch, i64::MIN);
            reached = (batch.seq, batch.term);
            bytes += BATCH_BYTES + batch.byte_count;
        }
        if reached.0 >= to.seq || read.is_end || bytes > LOG_BYTES_MAX {
            return Ok((reached == (to.seq, to.term)).then_some(spans));
        }
    }
}
