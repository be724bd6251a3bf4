//! Answers range requests from a snapshot or backend file like a member that has this file. A request may read at any
//! revision that the file contains.
//!
//! The key index is held in memory, as in a member, and values are read on demand. The file is not changed.

use std::path::Path;
use std::time::Duration;

use quorate_api::etcdserverpb::{RangeRequest, RangeResponse, ResponseHeader};
use quorate_state::backend::Backend;
use quorate_state::mvcc::{RangeQuery, Store, StoreOptions};
use thiserror::Error;

use crate::failure::Failure;
use crate::files;

/// An open snapshot or backend file.
#[derive(Debug)]
pub struct KeyspaceFile {
    store: Store,
    /// Holds the file's lock, because a member that started on the file would change it.
    _backend: Backend,
}

/// Reason why a file cannot be read.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct KeyspaceFileError(#[from] Failure);

impl KeyspaceFile {
    /// Opens a file that is not in use by a member.
    ///
    /// # Errors
    ///
    /// Returns an error if the file does not exist, is in use by a member, or cannot be read.
    pub fn open(path: &Path) -> Result<Self, KeyspaceFileError> {
        let backend = files::open_within(Some(Duration::ZERO), path)?;
        let options = StoreOptions { window_bytes_max: 0, recovered_bytes_max: 0 };
        let (store, _) = Store::recover(&backend, options).map_err(Failure::from)?;
        Ok(Self { store, _backend: backend })
    }

    /// Executes a range request.
    ///
    /// # Errors
    ///
    /// Returns an error if the revision is compacted or in the future, or if the requested records are damaged.
    pub fn range(&self, request: &RangeRequest) -> Result<RangeResponse, KeyspaceFileError> {
        let query = RangeQuery::from_request(request);
        let found = self.store.reader().view().range(&query).map_err(Failure::from)?;
        let header = ResponseHeader { revision: found.revision, ..Default::default() };
        Ok(RangeResponse {
            header: Some(header),
            kvs: found.kvs,
            more: found.more,
            count: found.count,
        })
    }
}
