//! Chooses the revision of a compaction in a cluster with members that run etcd.
//!
//! One log entry may delete a key and write it again, because etcd's check for duplicate keys accepts a transaction
//! that deletes all keys from a given key onwards and also puts one of them. If the compaction is at exactly the
//! entry's revision, etcd keeps the record of the deletion and loses the record of the write after it, and an etcd
//! member that reads the key crashes. Members that run Quorate keep both records, so the hashes of the two kinds of
//! members would differ, and a comparison would report corruption. Therefore a Quorate member moves such a compaction
//! back by one revision, which is safe for all members. In clusters without etcd members the revision is unchanged.
//!
//! # Not here
//!
//! Compactions that a client requests from an etcd member. Those still lose the record of the write on etcd members.

use std::collections::HashSet;
use std::ops::ControlFlow;

use quorate_state::mvcc::{ChangeKind, MvccError, View};

/// Returns the revision at which to compact if a client requests `revision`.
pub(crate) fn harmless(view: &View, revision: i64) -> Result<i64, MvccError> {
    if revision > view.compacted_revision() && recreates_a_key(view, revision)? {
        return Ok(revision - 1);
    }
    Ok(revision)
}

/// Returns whether a key was deleted and written again at this revision.
fn recreates_a_key(view: &View, revision: i64) -> Result<bool, MvccError> {
    let mut deleted = HashSet::new();
    let mut is_found = false;
    view.visit_changes(revision, &mut |change| {
        if change.revision > revision {
            return ControlFlow::Break(());
        }
        match change.kind {
            ChangeKind::Delete => _ = deleted.insert(change.key.to_vec()),
            ChangeKind::Put => is_found |= deleted.contains(change.key),
        }
        if is_found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(is_found)
}

#[cfg(test)]
mod tests {
    use quorate_state::backend::Batch;
    use quorate_state::mvcc::{KeyRange, Store, StoreOptions};

    use super::*;

    #[test]
    fn a_compaction_is_moved_back_by_one_revision_only_if_its_revision_recreates_a_key() {
        let (mut store, mut batch) = (Store::new(StoreOptions::default()), Batch::new());
        let mut apply = |changes: &[(&[u8], bool)]| {
            let mut txn = store.write(&mut batch);
            for (key, is_put) in changes {
                if *is_put {
                    txn.put(key, b"v", 0);
                } else {
                    txn.delete_range(KeyRange::One(key));
                }
            }
            drop(txn.finish());
        };
        apply(&[(b"a", true), (b"b", true)]);
        apply(&[(b"a", false), (b"c", true)]);
        apply(&[(b"a", true)]);
        apply(&[(b"a", false), (b"b", true), (b"a", true)]);
        apply(&[(b"c", true)]);
        store.publish();
        let view = store.reader().view();
        let points: Vec<i64> = (2..=6).map(|revision| harmless(&view, revision).unwrap()).collect();
        assert_eq!(points, [2, 3, 4, 4, 6]);
        // Invalid revisions are returned unchanged. They are refused when the entry is applied.
        assert_eq!((harmless(&view, 99).unwrap(), harmless(&view, -1).unwrap()), (99, -1));
    }
}
