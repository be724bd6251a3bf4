//! Lists the pages of a state with their use, for tools that display a file.

use super::DEPTH_MAX;
use super::error::Result;
use super::meta::NO_FREELIST;
use super::page::{FLAG_FREELIST, PageKind, header};
use super::reach::{Below, each_below};
use super::read::ReadTx;
use super::snapshot::Snapshot;

/// The use of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageUse {
    /// One of the first two pages, which refer to the root page of the state.
    Meta,
    /// The stored list of free pages.
    FreeList,
    /// A tree page that refers to other pages.
    Branch,
    /// A tree page that contains entries.
    Leaf,
    /// A page that no tree reaches and that can therefore be reused.
    Free,
}

/// A page, including its overflow pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFacts {
    /// The number of the page, starting at 0.
    pub id: u64,
    /// The use of the page.
    pub usage: PageUse,
    /// The number of entries or children in the page.
    pub items: usize,
    /// The number of overflow pages, which follow this page in the file.
    pub overflow: u64,
    /// The distance from the root of the bucket's tree.
    pub depth: usize,
}

impl ReadTx {
    /// Lists the pages of this state in order. Adjacent free pages are combined into one item.
    pub fn pages(&self) -> Result<Vec<PageFacts>> {
        pages(&self.snapshot)
    }
}

fn pages(snapshot: &Snapshot) -> Result<Vec<PageFacts>> {
    let mut found = reached(snapshot)?;
    let meta = |id| PageFacts { id, usage: PageUse::Meta, items: 0, overflow: 0, depth: 0 };
    found.extend([meta(0), meta(1)]);
    found.extend(stored_list(snapshot));
    found.sort_unstable_by_key(|page| page.id);
    let mut all = Vec::with_capacity(found.len());
    let mut next = 0;
    let fill = |from: u64, to: u64, all: &mut Vec<PageFacts>| {
        if from < to {
            let overflow = to - from - 1;
            all.push(PageFacts { id: from, usage: PageUse::Free, items: 0, overflow, depth: 0 });
        }
    };
    for page in found {
        fill(next, page.id, &mut all);
        next = next.max(page.id + 1 + page.overflow);
        all.push(page);
    }
    fill(next, snapshot.meta.high_water.0, &mut all);
    Ok(all)
}

/// Returns the page of the stored free list, if there is one and it can be decoded.
fn stored_list(snapshot: &Snapshot) -> Option<PageFacts> {
    let id = snapshot.meta.freelist;
    let start = usize::try_from(id.0).ok()?.checked_mul(snapshot.page_bytes())?;
    let header = header(snapshot.data.get(start..)?).ok()?;
    let (usage, overflow) = (PageUse::FreeList, u64::from(header.overflow));
    let items = usize::from(header.count);
    (id != NO_FREELIST && header.flags == FLAG_FREELIST).then_some(PageFacts {
        id: id.0,
        usage,
        items,
        overflow,
        depth: 0,
    })
}

/// Returns the pages that the trees reach.
fn reached(snapshot: &Snapshot) -> Result<Vec<PageFacts>> {
    let mut found = Vec::new();
    let mut pending = vec![(snapshot.meta.root, 0)];
    while let Some((id, depth)) = pending.pop() {
        let page = snapshot.page(id)?;
        if depth == DEPTH_MAX || found.len() as u64 > snapshot.meta.high_water.0 {
            return Err(snapshot.corrupt(id, 0, "tree is too deep or has a cycle"));
        }
        let usage = match page.kind {
            PageKind::Branch => PageUse::Branch,
            PageKind::Leaf => PageUse::Leaf,
        };
        let overflow = (page.len() / snapshot.page_bytes()) as u64 - 1;
        found.push(PageFacts { id: id.0, usage, items: page.count(), overflow, depth });
        each_below(snapshot, id, &page, |below| {
            pending.push(match below {
                Below::Page(child) => (child, depth + 1),
                Below::Bucket(root) => (root, 0),
            });
        })?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::bolt::{Db, Options};
    use crate::disk::{Disk, RealDisk};

    #[test]
    fn every_page_of_a_file_is_listed_with_its_use() {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let db = Db::open(&disk, &dir.path().join("db"), Options::default()).unwrap();
        let mut tx = db.write().unwrap();
        tx.create_bucket_if_missing(b"b").unwrap();
        for number in 0..1000_u32 {
            tx.put(b"b", &number.to_be_bytes(), Bytes::from(vec![b'x'; 100])).unwrap();
        }
        tx.put(b"b", b"long", Bytes::from(vec![b'y'; 20_000])).unwrap();
        tx.commit().unwrap();
        let pages = db.read().pages().unwrap();
        let mut next = 0;
        for page in &pages {
            assert_eq!(page.id, next, "{pages:?}");
            next = page.id + 1 + page.overflow;
        }
        assert_eq!(next, db.stats().size_bytes / 4096);
        let of = |usage| pages.iter().filter(move |page| page.usage == usage);
        assert_eq!(of(PageUse::Meta).count(), 2);
        // The root bucket's page is also a leaf. It has one entry.
        assert_eq!(of(PageUse::Leaf).map(|page| page.items).sum::<usize>(), 1001 + 1);
        assert!(of(PageUse::Leaf).any(|page| page.overflow == 4));
        assert_eq!(of(PageUse::Branch).map(|page| page.depth).collect::<Vec<_>>(), [0]);
        let free: u64 = of(PageUse::Free).map(|page| page.overflow + 1).sum();
        assert_eq!(free, db.stats().free_pages + db.stats().pending_pages);
    }
}
