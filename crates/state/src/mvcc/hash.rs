//! Hashes over the records, by which members compare what they hold.
//!
//! CRC-32C over the bucket's name and then over key and value of every record, in revision order, except
//! what a compaction may already have deleted: the result depends on history and compaction alone, not on
//! how far the deletion of garbage has come. (With no key alive at the revision hashed nothing is left
//! out, so then it does. A key that was deleted at the revision hashed is not alive there, even if the same entry wrote
//! it again. That is how etcd hashes, and members must agree.)
//!
//! # Invariants
//!
//! * Records are read once, in order, and none is kept: hashing needs memory for the revisions that are
//!   visible below the compaction, not for records.
//!
//! # Not here
//!
//! When to compare and what to do about a difference (the server). The hash of the whole file
//! (`backend`).

use std::ops::ControlFlow;

use super::error::{MvccError, MvccRefusal};
use super::key_range::KeyRange;
use super::remembered_hashes::HashKv;
use super::snapshot::Snapshot;
use super::view::View;
use crate::backend::Fault;
use crate::schema::{Bucket, RecordKey, Revision};

/// A compaction that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compaction {
    /// The revision below which nothing can be read any more.
    pub revision: i64,
    /// The one before, -1 for none.
    pub previous_revision: i64,
    /// Whether the deletions of the one before were complete. If not, nobody remembers a hash.
    pub previous_finished: bool,
}

impl View {
    /// The hash of everything up to a revision: 0 stands for the newest, and a negative one hashes nothing.
    /// If a compaction at that revision left its hash, this is returned, with the compaction before.
    pub fn hash_kv(&self, revision: i64) -> Result<HashKv, MvccError> {
        self.hash_kv_to_compare(revision, None)
    }

    /// As [`View::hash_kv`], to be compared with the hash of a member that takes a compaction into account: if this is the
    /// newest one, the hash is computed rather than the one returned that a compaction left.
    pub fn hash_kv_to_compare(
        &self,
        revision: i64,
        compact_revision: Option<i64>,
    ) -> Result<HashKv, MvccError> {
        // A compaction at 0, which is possible only before any other, leaves the hash of nothing.
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

    /// The hash that a compaction leaves behind, and remembers it. The view must have been published before
    /// the compaction's first deletion was committed.
    ///
    /// Nothing is hashed if the compaction before was not finished.
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

    /// The hashes that the newest compactions left, oldest first.
    #[must_use]
    pub fn remembered_hashes(&self) -> Vec<HashKv> {
        self.shared.hashes.all()
    }

    fn hash_records(&self, compacted: i64, revision: i64, keep: &Keep) -> Result<u32, Fault> {
        let mut hash = crc32c::crc32c(Bucket::Key.name());
        let mut kept = keep.visible.iter().peekable();
        self.snapshot().records.for_each(revision, |key, value| {
            let RecordKey { revision: at, tombstone } = key;
            while kept.next_if(|kept| **kept < at).is_some() {}
            let may_be_gone = at.main <= compacted && keep.any && kept.peek() != Some(&&at);
            if !(may_be_gone || tombstone && at.main == compacted) {
                hash = crc32c::crc32c_append(hash, key.encode().as_ref());
                hash = crc32c::crc32c_append(hash, value);
            }
        })?;
        Ok(hash)
    }
}

/// What every member still has below a compaction.
struct Keep {
    /// Visible changes at or below the compaction, in order.
    visible: Vec<Revision>,
    /// Whether any key is visible at the revision hashed.
    any: bool,
}

impl Keep {
    /// `with_tombstones`: keys that were deleted at the very revision hashed are visible, too.
    fn new(snapshot: &Snapshot<'_>, compacted: i64, revision: i64, with_tombstones: bool) -> Self {
        let mut keep = Self { visible: Vec::new(), any: false };
        snapshot.walk(KeyRange::From(b""), 0, |key, entry| {
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
