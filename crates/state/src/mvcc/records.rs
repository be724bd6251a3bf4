//! Where a record is found: in the window, or in the file.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::error::Fault;
use super::window::WindowView;
use crate::schema::Revision;

/// The records that an index refers to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Records<'a> {
    pub(super) window: &'a WindowView,
    pub(super) path: &'a Arc<Path>,
}

impl Records<'_> {
    /// Fetches the record of a put that the index knows of.
    pub(super) fn get(&self, revision: Revision) -> Result<Bytes, Fault> {
        match self.window.record(revision) {
            Some(record) => Ok(record.clone()),
            None => Err(Fault::MissingRecord { path: self.path.to_path_buf(), revision }),
        }
    }

    /// Fetches several records, in the order named.
    pub(super) fn get_all(
        &self,
        revisions: impl Iterator<Item = Revision>,
    ) -> Result<Vec<Bytes>, Fault> {
        // First all places, then all references: counting a reference up is a barrier that the searches
        // would otherwise have to wait for one by one.
        let places: Vec<_> =
            revisions.map(|revision| (revision, self.window.record(revision))).collect();
        places
            .into_iter()
            .map(|(revision, place)| match place {
                Some(record) => Ok(record.clone()),
                None => self.get(revision),
            })
            .collect()
    }
}
