//! A snapshot or backend file that answers ranges as a member does that holds it, at any revision that it has.
//!
//! The index of its keys is in memory, as in a member; values are read when they are asked for. The file stays as it is.

use std::path::Path;
use std::time::Duration;

use quorate_api::etcdserverpb::{RangeRequest, RangeResponse, ResponseHeader};
use quorate_state::backend::Backend;
use quorate_state::mvcc::{RangeQuery, Store, StoreOptions};
use thiserror::Error;

use crate::failure::Failure;
use crate::files;

/// A file that is open.
#[derive(Debug)]
pub struct KeyspaceFile {
    store: Store,
    /// Holds the file's lock: a member that ran on it would change it.
    _backend: Backend,
}

/// Why a file cannot be read: what is said of it.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct KeyspaceFileError(#[from] Failure);

impl KeyspaceFile {
    /// Opens a file that no member holds.
    ///
    /// # Errors
    ///
    /// There is no such file, a member has it open, or it cannot be read.
    pub fn open(path: &Path) -> Result<Self, KeyspaceFileError> {
        let backend = files::open_within(Some(Duration::ZERO), path)?;
        let options = StoreOptions { window_bytes_max: 0, recovered_bytes_max: 0 };
        let (store, _) = Store::recover(&backend, options).map_err(Failure::from)?;
        Ok(Self { store, _backend: backend })
    }

    /// Answers a range.
    ///
    /// # Errors
    ///
    /// The revision is not there any more, or not yet, or the file is damaged where the records are.
    pub fn range(&self, request: &RangeRequest) -> Result<RangeResponse, KeyspaceFileError> {
        let query = RangeQuery::from_request(request)
            .ok_or_else(|| Failure::Arguments("there is no such order".to_owned()))?;
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
