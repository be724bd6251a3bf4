//! Counts the keys of a large keyspace in the background, before clients ask for counts.
//!
//! If no spans are stored that cover the whole keyspace, the sequencer divides the rest of the keyspace. Every server
//! that has spans stores them regularly.
//!
//! # Invariants
//!
//! * The task of a server executes one statement at a time that divides a part of the keyspace, and pauses between two
//!   statements for as long as the previous one took. If statements fail, it pauses for longer and longer.

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

/// The maximum pause after failures.
const PAUSE_MAX: Duration = Duration::from_secs(960);

/// Counts keys and stores spans until the engine stops.
pub(crate) async fn run(reader: TableReader, role: Arc<Role>) {
    let mut term = role.term.subscribe();
    let mut pause = STORE_INTERVAL;
    loop {
        term.mark_unchanged();
        match count_once(&reader, &role).await {
            Ok(()) | Err(ReadFault::Overtaken | ReadFault::Behind) => pause = STORE_INTERVAL,
            Err(ReadFault::Failed(error)) => {
                log::warn!("failed to store the counts of keys", "error" = error.to_string());
                pause = (2 * pause).min(PAUSE_MAX);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // The role lives as long as the engine.
            _ = term.changed() => {}
        }
    }
}

async fn count_once(reader: &TableReader, role: &Role) -> Result<(), ReadFault> {
    // The coordinator of a Citus database would have to fetch all keys to divide the keyspace.
    if reader.database.tables() == Tables::Distributed {
        return Ok(());
    }
    reader.restore_spans().await;
    if role.term().is_some() && is_large(reader).await? {
        divide_all(reader, role).await?;
    }
    Ok(reader.store_spans().await?)
}

/// Returns whether the keyspace may have more keys than one statement can divide.
async fn is_large(reader: &TableReader) -> Result<bool, DatabaseFault> {
    let progress = reader.database.query_opt(Statement::ReadProgress, &[]).await?;
    Ok(progress.ok_or_else(no_progress)?.get::<_, i64>(2) > DIVIDED_KEYS_MAX)
}

/// Divides all parts of the keyspace that have no spans, while this server is the sequencer.
async fn divide_all(reader: &TableReader, role: &Role) -> Result<(), ReadFault> {
    let (mut from, mut stored) = (Bytes::new(), Instant::now());
    while role.term().is_some() {
        let mut turn = reader.dividing.lock().await;
        if reader.tail.first_gap(&from).is_some() {
            reader.restore_newer_spans(&mut turn).await;
        }
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
        let took = started.elapsed();
        if stored.elapsed() >= STORE_INTERVAL {
            reader.store_spans().await?;
            stored = Instant::now();
        }
        tokio::time::sleep(took).await;
    }
    Ok(())
}
