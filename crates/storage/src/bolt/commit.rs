//! Commits. Once a file is open, this is the only module that writes pages to it, and it determines the order of writes
//! and syncs. (`db` creates a file and repairs its meta page, and `truncate` truncates the file.)
//!
//! ```text
//! 1  shape every edited tree into pages, allocate a free place for each    nothing is written yet
//! 2  reserve space for the pages; if the file grows, sync                  the stored state is unchanged
//! 3  write the pages in file order; sync
//! 4  write the meta page txid % 2; sync                                    the commit takes effect
//! 5  publish the new state; replaced pages are freed once no reader needs them
//! ```
//!
//! # Invariants
//!
//! * Steps 1-3 do not modify pages that the durable state or a live snapshot reaches.
//! * An error before step 3 does not change the stored state, but a failed sync in step 2 poisons the writer. After the
//!   first write has begun, any error poisons the writer: the file then contains either the new state or the previous
//!   one, and only reopening the file shows which.
//!
//! # Tests
//!
//! `tests/crash.rs` cuts the power after every operation of a commit.

use std::sync::Arc;

use bytes::Bytes;

use super::db::failure_mark;
use super::error::{BoltError, Result};
use super::free::FreePages;
use super::meta::{Meta, NO_FREELIST};
use super::page::{HEADER_BYTES, put_branch, put_leaf};
use super::shape::shape;
use super::shared::{Shared, Writer, io_fault, map_capacity};
use super::snapshot::{Pin, Snapshot};
use super::source::Source;
use super::tree::{Body, Link, Tree};
use super::write::WriteTx;
use super::{PageId, Run, TxId};
use crate::disk::{Mapping, is_no_room, try_allocate};
use crate::size::in_memory;
use crate::sync_failure;

/// The approximate size in bytes of a single write, into which consecutive pages are combined.
pub(super) const WRITE_BYTES: usize = 1 << 20;
/// The unit in which space is reserved on the disk, in bytes.
pub(super) const RESERVED_BYTES: u64 = 256 << 10;
/// The capacity in bytes above which the encoding buffer is freed after a large value has made it grow.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

/// The result of a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitStats {
    /// The number of the state that new readers see.
    pub txid: u64,
    /// The number of pages written, excluding the meta page, or 0 if there was nothing to commit.
    pub pages_written: u64,
    /// The number of pages that this commit replaced or removed.
    pub pages_freed: u64,
}

/// A node and its allocated pages.
struct Placed {
    tree: usize,
    node: usize,
    run: Run,
}

/// The pages of a commit before they are written.
#[derive(Default)]
struct Layout {
    trees: Vec<Tree>,
    /// The page numbers of the nodes, for each tree.
    ids: Vec<Vec<PageId>>,
    placed: Vec<Placed>,
    freed: Vec<Run>,
}

impl WriteTx<'_> {
    /// Writes all edits to the file, makes them durable and publishes them to readers.
    ///
    /// Nothing is written if there are no edits. After a failed write or sync ([`BoltError::Io`])
    /// the outcome is unknown, and the writer refuses all further work. If the file could not grow
    /// ([`BoltError::NoRoom`]), it is unchanged.
    pub fn commit(mut self) -> Result<CommitStats> {
        commit(&mut self, false)
    }
}

/// Commits a transaction. With `force`, a meta page is written even if there are no edits.
pub(super) fn commit(tx: &mut WriteTx<'_>, force: bool) -> Result<CommitStats> {
    let mut layout = Layout::default();
    let root = match lay_out(tx, &mut layout) {
        Ok(Some(root)) => root,
        Ok(None) if force => tx.source.snapshot.meta.root,
        Ok(None) => {
            let txid = tx.source.snapshot.meta.txid.0;
            return Ok(CommitStats { txid, ..CommitStats::default() });
        }
        Err(e) => {
            give_back(&mut tx.writer.free, &layout);
            return Err(e);
        }
    };
    layout.freed.append(&mut tx.writer.superseded.clone());
    let prepared = check_freed(&tx.source.snapshot, &tx.writer.free, &mut layout.freed)
        .and_then(|()| prepare(tx, root));
    let (snapshot, pin) = match prepared {
        Ok(prepared) => prepared,
        Err(e) => {
            give_back(&mut tx.writer.free, &layout);
            return Err(e);
        }
    };
    let meta = snapshot.meta;
    if let Err(e) = write(tx, &mut layout, &meta) {
        tx.writer.poisoned = Some(e.to_string().into());
        return Err(e);
    }
    Ok(publish(tx, layout, snapshot, &pin))
}

/// Shapes all edited trees and allocates pages for their nodes. Returns `None` if there are no
/// edits.
fn lay_out(tx: &mut WriteTx<'_>, layout: &mut Layout) -> Result<Option<PageId>> {
    let page_bytes = tx.source.snapshot.page_bytes();
    for mut edit in std::mem::take(&mut tx.edits) {
        if !edit.tree.is_changed() {
            continue;
        }
        shape(&mut edit.tree, &tx.source, page_bytes)?;
        let inline = inline_page(&edit.tree, &tx.source, page_bytes);
        layout.freed.append(&mut edit.tree.freed);
        let root = match inline {
            Some(_) => PageId(0),
            None => place(&mut tx.writer.free, layout, edit.tree, page_bytes),
        };
        let mut value = [root.0.to_le_bytes(), edit.sequence.to_le_bytes()].concat();
        value.extend_from_slice(&inline.unwrap_or_default());
        tx.root.put(&mut tx.source, &edit.name, Bytes::from(value), true)?;
    }
    if !tx.root.is_changed() {
        return Ok(None);
    }
    let mut root = std::mem::replace(&mut tx.root, Tree::empty());
    shape(&mut root, &tx.source, page_bytes)?;
    layout.freed.append(&mut root.freed);
    Ok(Some(place(&mut tx.writer.free, layout, root, page_bytes)))
}

/// Returns the page image of the bucket if the bucket is small enough to be stored in its parent's leaf.
fn inline_page(tree: &Tree, source: &Source, page_bytes: usize) -> Option<Vec<u8>> {
    let Link::Node(root) = tree.root else { return None };
    let node = &tree.nodes[root];
    let Body::Leaf(items) = &node.body else { return None };
    let bytes = node.page_bytes();
    if bytes > page_bytes / 4 || items.iter().any(|item| item.is_bucket) {
        return None;
    }
    let mut page = Vec::with_capacity(bytes);
    let entries =
        items.iter().map(|item| (source.bytes(item.key), source.bytes(item.value), false));
    put_leaf(&mut page, PageId(0), 0, entries);
    Some(page)
}

/// Allocates pages for every loaded node of a tree, children first and in key order. Returns the
/// root page.
fn place(free: &mut FreePages, layout: &mut Layout, tree: Tree, page_bytes: usize) -> PageId {
    let index = layout.trees.len();
    let mut ids = vec![PageId(0); tree.nodes.len()];
    let mut pending = vec![(tree.root, false)];
    while let Some((link, children_placed)) = pending.pop() {
        let Link::Node(node) = link else { continue };
        if let Body::Branch(children) = &tree.nodes[node].body
            && !children_placed
        {
            pending.push((link, true));
            pending.extend(children.iter().rev().map(|child| (child.link, false)));
            continue;
        }
        let count = tree.nodes[node].page_bytes().div_ceil(page_bytes);
        assert!(
            page_bytes * count >= tree.nodes[node].page_bytes(),
            "a node fits into its pages: otherwise it would overwrite the next page"
        );
        let count = count as u64;
        let start = free.allocate(count);
        ids[node] = start;
        layout.placed.push(Placed { tree: index, node, run: Run { start, count } });
    }
    let root = match tree.root {
        Link::Page(id) => id,
        Link::Node(node) => ids[node],
    };
    layout.trees.push(tree);
    layout.ids.push(ids);
    root
}

fn give_back(free: &mut FreePages, layout: &Layout) {
    for placed in &layout.placed {
        free.release(placed.run);
    }
}

/// Checks that no page is freed twice or is already free, because such a page would later be
/// allocated to two owners.
fn check_freed(snapshot: &Snapshot, free: &FreePages, freed: &mut [Run]) -> Result<()> {
    freed.sort_unstable();
    let overlap = freed.windows(2).find(|pair| pair[0].end() > pair[1].start).map(|pair| pair[1]);
    if let Some(run) = overlap.or_else(|| freed.iter().copied().find(|run| free.overlaps(*run))) {
        return Err(snapshot.corrupt(run.start, 0, "page has two owners"));
    }
    Ok(())
}

/// Extends the file and its mapping to the size of the new state, and builds the state's snapshot.
fn prepare(tx: &mut WriteTx<'_>, root: PageId) -> Result<(Snapshot, Arc<Pin>)> {
    let (shared, writer) = (tx.shared, &mut *tx.writer);
    let base = &tx.source.snapshot.meta;
    let meta = Meta {
        root,
        freelist: NO_FREELIST,
        high_water: writer.free.high_water(),
        txid: TxId(base.txid.0 + 1),
        ..*base
    };
    let needed = meta.image_bytes();
    if needed > writer.reserved_bytes {
        reserve(shared, writer, needed)?;
    }
    let fault = |operation| io_fault(&shared.path, operation, needed);
    if (writer.mapping.capacity() as u64) < needed {
        let capacity = map_capacity(writer.file_bytes, &shared.options);
        let mapping: Mapping = shared.file.map(capacity).map_err(fault("map the file"))?;
        writer.mapping = Arc::new(mapping);
    } else {
        writer.mapping.refresh().map_err(fault("read the length of the file"))?;
    }
    let (path, file) = (Arc::clone(&shared.path), Arc::clone(&shared.file));
    Snapshot::new(meta, path, file, Arc::clone(&writer.mapping))
}

/// Extends the file to at least `needed` bytes and reserves disk space for them, so that the
/// subsequent writes do not run out of space. The file may become longer than `needed`. Its end is
/// then a hole, which occupies no space until it is reserved.
fn reserve(shared: &Shared, writer: &mut Writer, needed: u64) -> Result<()> {
    let file = &*shared.file;
    let fault = |source| io_fault(&shared.path, "grow the file", needed)(source);
    let missing = needed.saturating_sub(writer.file_bytes);
    let ample = needed.saturating_add(spare_bytes(shared, missing));
    let most = if missing > 0 { ample } else { writer.file_bytes };
    let mut reserved = needed.next_multiple_of(RESERVED_BYTES).min(most);
    if !try_allocate(file, reserved).map_err(fault)? {
        reserved = needed;
        // The disk has no room for more than `needed` bytes. If it has no room for these either, the file is shortened,
        // to release the space that the failed call may have taken.
        if let Err(source) = file.allocate(needed) {
            drop(file.set_len(writer.file_bytes));
            return Err(match is_no_room(&source) {
                true => {
                    let path = Arc::clone(&shared.path);
                    BoltError::NoRoom { path, wanted_bytes: needed, source }
                }
                false => fault(source),
            });
        }
    }
    if missing > 0 {
        lengthen(shared, writer, (reserved, ample))?;
    }
    writer.reserved_bytes = reserved;
    Ok(())
}

/// Appends a hole to a file that has grown to `reserved` bytes, so that the file ends at `ample`,
/// and makes the length durable.
fn lengthen(shared: &Shared, writer: &mut Writer, (reserved, ample): (u64, u64)) -> Result<()> {
    let mut len = reserved;
    match shared.file.set_len(ample) {
        Ok(()) => len = ample,
        // The hole is optional, so it is not an error if the file cannot become this long.
        Err(error) if is_no_room(&error) => {}
        Err(source) => return Err(io_fault(&shared.path, "lengthen the file", ample)(source)),
    }
    if !shared.options.no_sync
        && let Err(source) = shared.file.sync_all()
    {
        // A failed sync may have lost any write, including earlier ones, so the file can no longer
        // be trusted.
        let e = io_fault(&shared.path, "sync the grown file", len)(source);
        writer.poisoned = Some(e.to_string().into());
        return Err(e);
    }
    writer.file_bytes = len;
    writer.awaits_truncation = false;
    Ok(())
}

/// Returns the length of the hole in bytes. The length is limited, because the log and other files
/// are on the same disk.
fn spare_bytes(shared: &Shared, missing: u64) -> u64 {
    const SHARE: u64 = 8;
    let growth = shared.options.growth_bytes;
    match shared.file.free_bytes() {
        Ok(Some(free)) => (free.saturating_sub(missing) / SHARE / 4096 * 4096).min(growth),
        Ok(None) | Err(_) => growth,
    }
}

/// Writes and syncs the pages, then the meta page (steps 3 and 4).
fn write(tx: &mut WriteTx<'_>, layout: &mut Layout, meta: &Meta) -> Result<()> {
    let shared = tx.shared;
    let page_bytes = u64::from(meta.page_bytes);
    let mut buffer = std::mem::take(&mut tx.writer.buffer);
    let flush = |buffer: &mut Vec<u8>, end: PageId| {
        if buffer.is_empty() {
            return Ok(());
        }
        let offset = end.0 * page_bytes - buffer.len() as u64;
        let written = shared.file.write_all_at(buffer, offset);
        buffer.clear();
        written.map_err(io_fault(&shared.path, "write pages", offset))
    };
    layout.placed.sort_unstable_by_key(|placed| placed.run.start);
    let mut end = PageId(0);
    assert!(
        meta.image_bytes() <= tx.writer.reserved_bytes,
        "pages are written into reserved space: otherwise a full disk would poison the writer"
    );
    for placed in &layout.placed {
        assert!(
            placed.run.start >= end,
            "two nodes never share a page: otherwise one of them would be lost"
        );
        assert!(
            placed.run.end() <= meta.high_water,
            "pages are below the high-water mark: otherwise opening the file would report damage"
        );
        if placed.run.start != end || buffer.len() >= WRITE_BYTES {
            flush(&mut buffer, end)?;
        }
        encode(&mut buffer, &tx.source, layout, placed, in_memory(page_bytes));
        end = placed.run.end();
    }
    flush(&mut buffer, end)?;
    let sync = |offset| match shared.options.no_sync {
        true => Ok(()),
        false => shared.file.sync_data().map_err(io_fault(&shared.path, "sync pages", offset)),
    };
    if !layout.placed.is_empty() {
        sync(0)?;
    }
    assert!(
        tx.writer.meta_in_flight.is_none(),
        "at most one meta page is in flight: otherwise a power cut could damage both and lose the file"
    );
    assert!(
        meta.txid > tx.source.snapshot.meta.txid,
        "a meta page is newer than the durable one: otherwise it would not be chosen when the file is opened"
    );
    tx.writer.meta_in_flight = Some(meta.txid);
    let slot = PageId(meta.txid.0 % 2);
    meta.put(&mut buffer, slot);
    flush(&mut buffer, PageId(slot.0 + 1))?;
    sync(slot.0 * page_bytes).inspect_err(|_| {
        // Without the mark, the next process would rely on this meta page even if it exists only in
        // the system's memory.
        sync_failure::note(&*shared.disk, &failure_mark(&shared.path));
    })?;
    tx.writer.meta_in_flight = None;
    if buffer.capacity() <= BUFFER_BYTES_KEPT {
        tx.writer.buffer = buffer;
    }
    Ok(())
}

/// Appends one page, padded to its full size.
fn encode(out: &mut Vec<u8>, source: &Source, layout: &Layout, placed: &Placed, page_bytes: usize) {
    let Placed { tree, node, run } = *placed;
    let (ids, end) = (&layout.ids[tree], out.len() + in_memory(run.count) * page_bytes);
    out.reserve(end - out.len());
    let overflow =
        u32::try_from(run.count - 1).expect("the keys and values of a page take less than 4 GiB");
    match &layout.trees[tree].nodes[node].body {
        Body::Leaf(items) => {
            let entries = items
                .iter()
                .map(|item| (source.bytes(item.key), source.bytes(item.value), item.is_bucket));
            put_leaf(out, run.start, overflow, entries);
        }
        Body::Branch(children) => {
            let entries = children.iter().map(|child| {
                let id = match child.link {
                    Link::Page(id) => id,
                    Link::Node(node) => ids[node],
                };
                (source.bytes(child.key), id)
            });
            put_branch(out, run.start, overflow, entries);
        }
    }
    assert!(
        out.len() <= end && out.len() > end - page_bytes.max(HEADER_BYTES),
        "a node occupies its allocated pages: otherwise it would overwrite the next page"
    );
    out.resize(end, 0);
}

/// Publishes the new state to readers (step 5).
fn publish(
    tx: &mut WriteTx<'_>,
    layout: Layout,
    snapshot: Snapshot,
    pin: &Arc<Pin>,
) -> CommitStats {
    let writer = &mut *tx.writer;
    let txid = snapshot.meta.txid;
    assert!(
        writer.meta_in_flight.is_none(),
        "a state is published after its meta page is durable: otherwise a client could read data that a power cut \
         then loses"
    );
    writer.superseded.clear();
    let allocated: Vec<Run> = layout.placed.iter().map(|placed| placed.run).collect();
    let stats = CommitStats {
        txid: txid.0,
        pages_written: allocated.iter().map(|run| run.count).sum(),
        pages_freed: layout.freed.iter().map(|run| run.count).sum(),
    };
    writer.pending.committed(txid, &allocated, layout.freed);
    let mut published = tx.shared.published.lock();
    published.publish(snapshot, pin);
    published.free_pages = writer.free.count();
    published.pending_pages = writer.pending.count();
    published.file_bytes = writer.file_bytes;
    stats
}
