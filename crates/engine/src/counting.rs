//! Counts the keys of a large keyspace in the background, before clients ask for counts.
//!
//! If no spans are stored that cover the whole keyspace, the sequencer divides the rest of the keyspace. Every server
//! stores its spans regularly.
//!
//! # Invariants
//!
//! * At most one statement at a time divides a part of the keyspace, and the task pauses between two statements for as
//!   long as the previous one took.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_telemetry::log;

use crate::database::{DatabaseFault, Statement, Tables, no_progress};
use crate::reader::{ReadFault, TableReader};
use crate::role::Role;
use crate::spans::DIVIDED_KEYS_MAX;

/// The interval at which a server stores its spans.
const STORE_INTERVAL: Duration = Duration::from_secs(30);

/// Counts keys and stores spans until the engine stops.
pub(crate) async fn run(reader: TableReader, role: Arc<Role>) {
    let mut term = role.term.subscribe();
    loop {
        let is_sequencer = term.borrow_and_update().is_some();
        match count_once(&reader, is_sequencer).await {
            Ok(()) | Err(ReadFault::Overtaken) => {}
            Err(ReadFault::Failed(error)) => {
                log::warn!("failed to store the counts of keys", "error" = error.to_string());
            }
        }
        tokio::select! {
            () = tokio::time::sleep(STORE_INTERVAL) => {}
            // The role lives as long as the engine.
            _ = term.changed() => {}
        }
    }
}

async fn count_once(reader: &TableReader, is_sequencer: bool) -> Result<(), ReadFault> {
    // The coordinator of a Citus database would have to fetch all keys to divide the keyspace.
    if reader.database.tables() == Tables::Distributed {
        return Ok(());
    }
    reader.restore_spans().await?;
    if is_sequencer && is_large(reader).await? {
        divide_all(reader).await?;
    }
    Ok(reader.store_spans().await?)
}

/// Returns whether the keyspace may have more keys than one statement can divide.
async fn is_large(reader: &TableReader) -> Result<bool, DatabaseFault> {
    let progress = reader.database.query_opt(Statement::ReadProgress, &[]).await?;
    Ok(progress.ok_or_else(no_progress)?.get::<_, i64>(2) > DIVIDED_KEYS_MAX)
}

/// Divides all parts of the keyspace that have no spans.
async fn divide_all(reader: &TableReader) -> Result<(), ReadFault> {
    let mut from = Bytes::new();
    loop {
        let turn = reader.dividing.lock().await;
        let started = Instant::now();
        let Some(gap) = reader.tail.first_gap(&from) else { return Ok(()) };
        let (position, end) = (reader.tail.position(), gap.end.clone());
        let (_, rest) = reader.divide(gap, position.revision, position).await?;
        drop(turn);
        // The next gap begins after this part even if the part could not be kept, so that the loop ends.
        match rest.map(|rest| rest.start).or(end) {
            Some(next) => from = next,
            None => return Ok(()),
        }
        tokio::time::sleep(started.elapsed()).await;
    }
}
