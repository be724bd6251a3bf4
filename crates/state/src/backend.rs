//! The backend file of the state machine. This module collects the changes of applied entries and
//! commits them to the file.
//!
//! The applier collects the changes of whole entries in a [`Batch`]. The commit thread writes each
//! batch in one transaction of the file, together with the index of the last entry in it. After a
//! restart, the file therefore contains exactly the effects of the entries up to that index.
//!
//! # Invariants
//!
//! * A batch is written completely or not at all, and batches are written in the order in which
//!   they were filled.
//! * The raft index is written together with the changes that it covers. A batch without an index
//!   (the deletions of a compaction) leaves the stored index unchanged.
//!
//! # Not here
//!
//! Pages, transactions and syncs (`quorate_storage::bolt`). The server decides when to commit.

mod batch;
mod fault;
mod image;
mod rows;
mod view;

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
#[cfg(doc)]
use quorate_storage::bolt::BoltError;
use quorate_storage::bolt::{Db, Options, Stats, WriteTx};
use quorate_storage::disk::Disk;

use self::batch::Operation;
pub use self::batch::{Batch, BatchChange};
pub use self::fault::Fault;
pub use self::image::{ImageFault, check_image, open_image};
pub use self::rows::Rows;
pub use self::view::BackendView;
use crate::schema::{Bucket, RecordKey};

/// The open backend file. Clones are handles to the same file, even after it is replaced.
#[derive(Clone, Debug)]
pub struct Backend {
    db: Arc<ArcSwap<Db>>,
    path: Arc<Path>,
    options: Options,
}

/// The result of a commit.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The file's content after the commit.
    pub view: BackendView,
    /// Main revision of the newest record that the commit wrote; `None` if it wrote no record.
    pub last_revision: Option<i64>,
    /// The raft index and term that the commit wrote, if any.
    pub consistent_index: Option<(u64, u64)>,
}

impl Backend {
    /// Opens the file, and creates the file and its buckets if they are missing.
    pub fn open(disk: &Arc<dyn Disk>, path: &Path, mut options: Options) -> Result<Self, Fault> {
        // No bucket of the backend file contains another bucket.
        options.flat = true;
        let db = open_db(disk, path, &options)?;
        Ok(Self { db: Arc::new(ArcSwap::from_pointee(db)), path: Arc::from(path), options })
    }

    /// Opens the file that has replaced the current one. Views of the old file stay valid and
    /// unchanged.
    pub fn reopen(&self, disk: &Arc<dyn Disk>) -> Result<(), Fault> {
        let db = open_db(disk, &self.path, &self.options)?;
        self.db.store(Arc::new(db));
        Ok(())
    }

    /// Returns the file's content as of the last commit.
    #[must_use]
    pub fn read(&self) -> BackendView {
        BackendView::new(self.db.load().read(), Arc::clone(&self.path))
    }

    /// Writes a batch in one transaction and makes it durable. The caller may retry if the only
    /// problem is missing disk space ([`BoltError::is_no_room`]).
    pub fn commit(&self, batch: &Batch) -> Result<Committed, Fault> {
        let (last_revision, consistent_index) = (batch.last_revision(), batch.consistent_index());
        if !batch.is_empty() {
            let db = self.db();
            let mut tx = db.write()?;
            write_batch(&mut tx, batch)?;
            tx.commit()?;
        }
        Ok(Committed { view: self.read(), last_revision, consistent_index })
    }

    /// Returns the sizes of the file and the number of open read transactions, as of the last
    /// commit.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.db.load().stats()
    }

    /// Returns the size of all pages up to the last page in use, including the free pages among
    /// them, in bytes. This size counts against the quota.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.stats().size_bytes
    }

    /// Returns [`Backend::size_bytes`] without the free pages.
    #[must_use]
    pub fn size_in_use_bytes(&self) -> u64 {
        self.stats().in_use_bytes
    }

    /// Returns the storage engine of the current file, for reclaiming space, checks and images.
    #[must_use]
    pub fn db(&self) -> Arc<Db> {
        self.db.load_full()
    }
}

fn open_db(disk: &Arc<dyn Disk>, path: &Path, options: &Options) -> Result<Db, Fault> {
    let db = Db::open(disk, path, options.clone())?;
    if !options.read_only {
        create_buckets(&db)?;
    }
    Ok(db)
}

fn create_buckets(db: &Db) -> Result<(), Fault> {
    let read = db.read();
    let names = read.bucket_names()?;
    if Bucket::ALL.iter().all(|bucket| names.contains(&bucket.name())) {
        return Ok(());
    }
    let mut tx = db.write()?;
    for bucket in Bucket::ALL {
        tx.create_bucket_if_missing(bucket.name())?;
    }
    tx.commit()?;
    Ok(())
}

fn write_batch(tx: &mut WriteTx<'_>, batch: &Batch) -> Result<(), Fault> {
    let mut deletions = Vec::new();
    for operation in &batch.operations {
        if let Operation::DeleteRecord(key) = operation {
            deletions.push(*key);
            continue;
        }
        flush_deletions(tx, &mut deletions)?;
        match operation {
            Operation::PutRecord(key, value) => {
                tx.put(Bucket::Key.name(), key.encode().as_ref(), value.clone())?;
            }
            Operation::Put(bucket, key, value) => tx.put(bucket.name(), key, value.clone())?,
            Operation::Delete(bucket, key) => {
                tx.delete(bucket.name(), key)?;
            }
            Operation::DeleteRecord(_) => unreachable!("deletions of records are handled above"),
        }
    }
    flush_deletions(tx, &mut deletions)?;
    for (key, value) in batch.meta_operations() {
        tx.put(Bucket::Meta.name(), key, value)?;
    }
    Ok(())
}

/// Deletes the collected records, whose deletions are consecutive in the batch.
fn flush_deletions(tx: &mut WriteTx<'_>, keys: &mut Vec<RecordKey>) -> Result<(), Fault> {
    if !keys.is_empty() {
        // A batch may contain deletions from two compactions, so the keys may be out of order.
        keys.sort_unstable();
        keys.dedup();
        let encoded: Vec<_> = keys.drain(..).map(RecordKey::encode).collect();
        tx.delete_sorted(Bucket::Key.name(), &encoded)?;
    }
    Ok(())
}
