//! Point reads of many keys at once. The searches descend the tree together, one level at a time.
//!
//! Reading a page that is not in a CPU cache takes half a microsecond, and reading a cold key
//! requires two or three such pages. Separate reads would wait for each of these pages in turn.
//! Here, the next page of every key is prefetched before any of these pages is read, so that the
//! waits overlap. Neighbouring keys with the same child page also share the search for that child.
//!
//! The keys of the largest bucket are revisions, which are evenly distributed. If the bounds of the
//! keys in a page are known, they are used to guess a key's position in the page, because a binary
//! search would wait for memory at each step.
//!
//! # Invariants
//!
//! * The result is the same as if each key were read separately. The keys may have any order.
//!
//! # Not here
//!
//! Reads of a single key (`bucket`), and iteration over entries (`cursor`).

use super::error::Result;
use super::page::{LeafElement, Page, PageFault, PageKind};
use super::snapshot::Snapshot;
use super::{DEPTH_MAX, PageId};

/// The maximum number of keys that are looked up together. The memory system cannot serve more
/// prefetches than this concurrently.
pub(super) const KEYS_MAX: usize = 32;

/// A page on the path of a search, and the bounds of the keys below it.
#[derive(Clone, Copy, Debug)]
struct PageKeys<'tx> {
    page: Page<'tx>,
    bounds: Bounds<'tx>,
}

/// The next page of a search.
#[derive(Clone, Copy, Debug)]
struct Child<'tx> {
    id: PageId,
    bounds: Bounds<'tx>,
}

/// A range of keys: `from` is inclusive, `to` is exclusive, and `None` means that there is no
/// bound.
#[derive(Clone, Copy, Debug, Default)]
struct Bounds<'tx> {
    from: Option<&'tx [u8]>,
    to: Option<&'tx [u8]>,
}

impl Bounds<'_> {
    fn hold(&self, key: &[u8]) -> bool {
        self.to.is_none_or(|to| key < to) && self.from.is_none_or(|from| key >= from)
    }
}

/// Finds the entries of up to [`KEYS_MAX`] keys in the tree below `root`, and appends them to
/// `found` in the order of `keys`.
pub(super) fn find_each<'tx, K: AsRef<[u8]>>(
    snapshot: &'tx Snapshot,
    root: Page<'tx>,
    keys: &[K],
    found: &mut Vec<Option<LeafElement<'tx>>>,
) -> Result<()> {
    let mut places = vec![PageKeys { page: root, bounds: Bounds::default() }; keys.len()];
    for _ in 0..DEPTH_MAX {
        touch_guessed(&places, keys);
        if places.iter().all(|place| place.page.kind == PageKind::Leaf) {
            for (place, key) in places.iter().zip(keys) {
                found.push(place.element(snapshot, key.as_ref())?);
            }
            return Ok(());
        }
        descend(snapshot, &mut places, keys)?;
    }
    let id = places.first().map_or(PageId(0), |place| place.page.id);
    Err(snapshot.corrupt(id, 0, "tree is too deep or has a cycle"))
}

/// Prefetches the likely position of each key in its page.
fn touch_guessed<K: AsRef<[u8]>>(places: &[PageKeys<'_>], keys: &[K]) {
    for (place, key) in places.iter().zip(keys) {
        if let Some(guess) = place.guess(key.as_ref()) {
            place.page.touch(guess);
        }
    }
}

/// Descends one level for all keys whose search has not reached a leaf yet.
fn descend<'tx, K: AsRef<[u8]>>(
    snapshot: &'tx Snapshot,
    places: &mut [PageKeys<'tx>],
    keys: &[K],
) -> Result<()> {
    let mut children = [Child { id: PageId(0), bounds: Bounds::default() }; KEYS_MAX];
    let mut last: Option<(PageId, Child<'tx>)> = None;
    for ((place, key), child) in places.iter().zip(keys).zip(&mut children) {
        if place.page.kind == PageKind::Leaf {
            continue;
        }
        let (parent, key) = (place.page.id, key.as_ref());
        *child = match last {
            Some((of, shared)) if of == parent && shared.bounds.hold(key) => shared,
            _ => place.child(snapshot, key)?,
        };
        snapshot.touch(child.id);
        last = Some((parent, *child));
    }
    for (place, Child { id, bounds }) in places.iter_mut().zip(children) {
        if place.page.kind == PageKind::Branch {
            *place = PageKeys { page: snapshot.page(id)?, bounds };
        }
    }
    Ok(())
}

impl<'tx> PageKeys<'tx> {
    /// Returns the likely position of `key`.
    fn guess(&self, key: &[u8]) -> Option<usize> {
        self.page.guess(self.bounds.from?, self.bounds.to?, key)
    }

    fn seek(&self, snapshot: &Snapshot, key: &[u8]) -> Result<(usize, bool)> {
        let found = match self.guess(key) {
            Some(guess) => self.page.seek_near(guess, key),
            None => self.page.seek(key),
        };
        found.map_err(|fault| snapshot.fault(self.page.id, fault))
    }

    /// Returns the child of this branch that covers `key`.
    fn child(&self, snapshot: &Snapshot, key: &[u8]) -> Result<Child<'tx>> {
        let at_page = |fault: PageFault| snapshot.fault(self.page.id, fault);
        let (index, exact) = self.seek(snapshot, key)?;
        let index = if exact { index } else { index.saturating_sub(1) };
        // The first child also covers keys below its own key. The last child covers all keys up to
        // the branch's bound.
        let mut bounds = self.bounds;
        if index > 0 {
            bounds.from = Some(self.page.branch_key(index).map_err(at_page)?);
        }
        if index + 1 < self.page.count() {
            bounds.to = Some(self.page.branch_key(index + 1).map_err(at_page)?);
        }
        Ok(Child { id: self.page.child(index).map_err(at_page)?, bounds })
    }

    /// Returns the entry of `key` on this leaf.
    fn element(&self, snapshot: &Snapshot, key: &[u8]) -> Result<Option<LeafElement<'tx>>> {
        let (index, exact) = self.seek(snapshot, key)?;
        let element = exact.then(|| self.page.leaf_element(index)).transpose();
        element.map_err(|fault| snapshot.fault(self.page.id, fault))
    }
}
