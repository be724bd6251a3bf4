//! How many records lists may hold at one time, all together.
//!
//! A list is gathered before it is sent, as slices that copy no record, and encoded a piece at a time as
//! the client takes it. What it costs meanwhile is its slices, so they are what is counted. A list of
//! fewer than [`COUNTED_RECORDS_MIN`] records costs nothing; a larger one waits until there is room, and
//! one larger than everything waits until it is alone.

use std::sync::Arc;
use std::time::Duration;

use quorate_api::record::KeyValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::RequestError;

/// Memory that the slices of all lists may take.
const BYTES_MAX: usize = 256 << 20;

/// Lists up to here are not counted: so many requests are in progress at most that they do no harm.
const COUNTED_RECORDS_MIN: usize = 16 * 1024;

/// The unit of counting.
const BLOCK_RECORDS: usize = 1024;

/// All of it, in units.
const BLOCKS_MAX: usize = BYTES_MAX / (BLOCK_RECORDS * size_of::<KeyValue>());

/// See the module.
#[derive(Debug)]
pub(crate) struct ListBudget {
    blocks: Arc<Semaphore>,
}

/// Room for a list, given back when dropped.
#[derive(Debug)]
pub(crate) struct ListRoom {
    _blocks: OwnedSemaphorePermit,
}

impl Default for ListBudget {
    fn default() -> Self {
        Self { blocks: Arc::new(Semaphore::new(BLOCKS_MAX)) }
    }
}

impl ListBudget {
    /// Waits for room for so many records; `None` when they are too few to be counted.
    ///
    /// # Errors
    ///
    /// Other lists have not been taken by their clients for as long as the patience lasts.
    pub(crate) async fn reserve(
        &self,
        record_count: usize,
        patience: Duration,
    ) -> Result<Option<ListRoom>, RequestError> {
        if record_count < COUNTED_RECORDS_MIN {
            return Ok(None);
        }
        let wanted = record_count.div_ceil(BLOCK_RECORDS).min(BLOCKS_MAX);
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let waiting = Arc::clone(&self.blocks).acquire_many_owned(wanted);
        match tokio::time::timeout(patience, waiting).await {
            Ok(Ok(blocks)) => Ok(Some(ListRoom { _blocks: blocks })),
            Ok(Err(_)) => Err(RequestError::Stopped),
            Err(_) => Err(RequestError::TooManyRequests),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::ZERO;

    #[tokio::test]
    async fn small_lists_are_not_counted() {
        let budget = ListBudget::default();
        let _all = budget.reserve(usize::MAX, PATIENCE).await.unwrap().unwrap();
        assert!(budget.reserve(COUNTED_RECORDS_MIN - 1, PATIENCE).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_list_larger_than_everything_gets_everything_when_it_is_alone() {
        let budget = ListBudget::default();
        let small = budget.reserve(COUNTED_RECORDS_MIN, PATIENCE).await.unwrap();
        let refused = budget.reserve(usize::MAX, PATIENCE).await;
        assert!(matches!(refused, Err(RequestError::TooManyRequests)));
        drop(small);
        let all = budget.reserve(usize::MAX, PATIENCE).await.unwrap();
        assert_eq!(budget.blocks.available_permits(), 0);
        drop(all);
        assert_eq!(budget.blocks.available_permits(), BLOCKS_MAX);
    }
}
