//! Hashes over the records. Members exchange these hashes to compare their data.
//!
//! The hash is the CRC-32C of the bucket's name, followed by the key and value of every record in
//! revision order. Records that a compaction may already have deleted are left out, so the result
//! depends only on the history and the compacted revision, not on the progress of the deletion.
//!
//! There is one exception, which follows etcd because members must agree. If no key is live at the hashed revision,
//! only tombstones at the compacted revision are left out, so the hash does depend on the progress of the deletion. A
//! key deleted at the hashed revision is not live there, even if the same entry wrote it again. Only for the hash of a
//! compaction does such a key count as live.
//!
//! # Invariants
//!
//! * Records are read once, in order, and are not kept in memory. The memory needed for hashing depends on the number
//!   of visible changes at or below the compacted revision, not on the size of records.
//!
//! # Not here
//!
//! Comparing hashes between members and reacting to a difference (the server), and hashing the
//! whole file (`backend`).

use std::ops::ControlFlow;

use super::error::{MvccError, MvccRefusal};
use super::key_range::KeyRange;
use super::remembered_hashes::HashKv;
use super::snapshot::Snapshot;
use super::tree::Wanted;
use super::view::View;
use crate::backend::Fault;
use crate::schema::{Bucket, RecordKey, Revision};

/// An accepted compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compaction {
    /// The compacted revision. Earlier revisions can no longer be read.
    pub revision: i64,
    /// The revision of the previous compaction; -1 if there was none.
    pub previous_revision: i64,
    /// Whether the deletions of the previous compaction were complete. If not, no hash is
    /// remembered.
    pub previous_finished: bool,
}

impl View {
    /// Returns the hash of everything up to a revision. Revision 0 means the newest. At a negative revision, the hash
    /// covers no records. If the hash of a compaction at that revision is remembered, that hash is returned, together
    /// with the revision of the previous compaction.
    pub fn hash_kv(&self, revision: i64) -> Result<HashKv, MvccError> {
        self.hash_kv_to_compare(revision, None)
    }

    /// Returns a hash to compare with another member's hash, which takes the compaction at `compact_revision` into
    /// account. The hash is chosen as in [`View::hash_kv`], with one exception: if this member's newest compaction is
    /// at `compact_revision` but the remembered hash does not take it into account, the hash is computed.
    pub fn hash_kv_to_compare(
        &self,
        revision: i64,
        compact_revision: Option<i64>,
    ) -> Result<HashKv, MvccError> {
        // Revision 0 means the newest revision here. A hash remembered for revision 0 belongs to a first compaction
        // at revision 0, and covers no records.
        if revision != 0
            && let Some(remembered) = self.shared.hashes.get(revision)
            && (compact_revision != Some(self.compacted)
                || remembered.compact_revision == self.compacted)
        {
            return Ok(remembered);
        }
        if revision > self.current {
            return Err(MvccRefusal::FutureRevision.into());
        }
        if 0 < revision && revision < self.compacted {
            return Err(MvccRefusal::Compacted.into());
        }
        let hash_revision = if revision == 0 { self.current } else { revision };
        let keep = Keep::new(&self.snapshot(), self.compacted, hash_revision, false);
        let hash = self.hash_records(self.compacted, hash_revision, &keep)?;
        Ok(HashKv { hash, compact_revision: self.compacted, hash_revision })
    }

    /// Computes the hash of a compaction and remembers it. The view must have been published before
    /// the compaction's first deletion was committed.
    ///
    /// Returns `None` without hashing if the previous compaction was not finished.
    pub fn hash_compaction(&self, compaction: &Compaction) -> Result<Option<HashKv>, Fault> {
        if !compaction.previous_finished {
            return Ok(None);
        }
        let (compact_revision, hash_revision) = (compaction.previous_revision, compaction.revision);
        let keep = Keep::new(&self.snapshot(), compact_revision, hash_revision, true);
        let hash = self.hash_records(compact_revision, hash_revision, &keep)?;
        let hash = HashKv { hash, compact_revision, hash_revision };
        self.shared.hashes.push(hash);
        Ok(Some(hash))
    }

    /// Returns the hashes of the newest compactions, oldest first.
    #[must_use]
    pub fn remembered_hashes(&self) -> Vec<HashKv> {
        self.shared.hashes.all()
    }

    fn hash_records(&self, compacted: i64, revision: i64, keep: &Keep) -> Result<u32, Fault> {
        let mut hash = RecordsHash::new(compacted, keep.any);
        let mut kept = keep.visible.iter().peekable();
        self.snapshot().records.for_each(revision, |key, value| {
            let at = key.revision;
            while kept.next_if(|kept| **kept < at).is_some() {}
            hash.push(key, value, kept.peek() == Some(&&at));
        })?;
        Ok(hash.finish())
    }
}

/// The computation of a hash. The caller adds the records in revision order, up to the hashed revision.
#[derive(Clone, Copy, Debug)]
pub struct RecordsHash {
    hash: u32,
    compacted: i64,
    is_any_visible: bool,
}

impl RecordsHash {
    /// Starts a hash for a compacted revision (-1 before the first compaction). `is_any_visible` states whether any key
    /// is visible at the hashed revision.
    #[must_use]
    pub fn new(compacted: i64, is_any_visible: bool) -> Self {
        Self { hash: crc32c::crc32c(Bucket::Key.name()), compacted, is_any_visible }
    }

    /// Adds a record in its stored form. `is_visible` states whether the record is the visible change of its key at the
    /// hashed revision. This matters only for records at or below the compacted revision.
    pub fn push(&mut self, key: RecordKey, stored: &[u8], is_visible: bool) {
        let RecordKey { revision: at, tombstone } = key;
        let may_be_gone = at.main <= self.compacted && self.is_any_visible && !is_visible;
        if !(may_be_gone || tombstone && at.main == self.compacted) {
            self.hash = crc32c::crc32c_append(self.hash, key.encode().as_ref());
            self.hash = crc32c::crc32c_append(self.hash, stored);
        }
    }

    /// Returns the hash.
    #[must_use]
    pub const fn finish(self) -> u32 {
        self.hash
    }
}

/// The records at or below the compacted revision that every member keeps.
struct Keep {
    /// Visible changes at or below the compacted revision, in order.
    visible: Vec<Revision>,
    /// Whether any key is visible at the hashed revision.
    any: bool,
}

impl Keep {
    /// Collects the visible changes. If `with_tombstones` is set, keys deleted at exactly the
    /// hashed revision count as visible, too.
    fn new(snapshot: &Snapshot<'_>, compacted: i64, revision: i64, with_tombstones: bool) -> Self {
        let mut keep = Self { visible: Vec::new(), any: false };
        snapshot.walk(KeyRange::From(b""), Wanted::All, 0, |key, entry| {
            let visible = snapshot.visible(key, entry, revision).map(|found| found.modified);
            let visible = if with_tombstones {
                let deleted = snapshot.deletion(entry, revision);
                visible.or_else(|| deleted.filter(|at| at.main == revision))
            } else {
                visible.filter(|_| !snapshot.is_deleted_at(entry, revision))
            };
            if let Some(at) = visible {
                keep.any = true;
                if at.main <= compacted {
                    keep.visible.push(at);
                }
            }
            ControlFlow::Continue(())
        });
        keep.visible.sort_unstable();
        keep
    }
}
