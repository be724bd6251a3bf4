//! The key index: every key that has a history, in order, with the facts about its newest change.
//!
//! The index is a counting B-tree with shared nodes. Cloning a [`Tree`] only increments a reference count, and the
//! clone never changes: a change to the original copies the nodes on the search path that a clone still uses. Each
//! inner node stores the number of live keys and of all keys below each child, so the cost of counting a range or
//! finding its n-th live key is proportional to the depth of the tree, and a walk over the live keys skips nodes that
//! contain only deleted keys.
//!
//! The applier owns and changes one tree, and readers hold clones of it.
//!
//! # Not here
//!
//! Older versions of a key (`history`), and records (`records`).

mod change;
mod key_block;
mod node;
mod spare;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::sync::Arc;

use self::key_block::KeyBlock;
use self::node::{Child, INNER_MAX, Inner, LEAF_MAX, Leaf, Node, separator};
use self::spare::Spare;

/// The facts about a key's newest change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Main revision of the change.
    pub(super) main: i64,
    /// Main revision of the change that created the key.
    pub(super) create: i64,
    /// The number of changes since the key was created, including its creation.
    pub(super) version: i64,
    /// The previous change, as its position in the history plus one; 0 if there is none.
    pub(super) previous: u64,
    /// Sub revision of the change.
    pub(super) sub: u32,
    /// Whether the change deleted the key.
    pub(super) tombstone: bool,
}

/// One end of a range of keys.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bound<'a> {
    /// Before the first key.
    First,
    /// Before this key.
    Key(&'a [u8]),
    /// After the last key.
    End,
}

/// The number of keys in a part of the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// The number of keys that are not deleted.
    pub(super) live: usize,
    /// The number of all keys, including deleted ones.
    pub(super) all: usize,
}

impl Counts {
    const fn plus(self, other: Self) -> Self {
        Self { live: self.live + other.live, all: self.all + other.all }
    }

    /// Returns an upper bound of the number of keys that a walk over the live keys visits if it ends at the live key
    /// number `found`.
    pub(super) fn visited_by_live_walk(self, found: usize) -> usize {
        let found = found.min(self.live);
        // A visited leaf contains a live key of the range, or one of the two ends of the range.
        let deleted_max = found.saturating_mul(LEAF_MAX - 1).saturating_add(2 * LEAF_MAX);
        found + deleted_max.min(self.all - self.live)
    }

    const fn minus(self, other: Self) -> Self {
        Self { live: self.live - other.live, all: self.all - other.all }
    }
}

/// The keys for which a walk is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All keys, including deleted ones.
    All,
    /// The live keys. The walk also visits the deleted keys that are in the same leaf as a live key.
    Live,
}

/// A version of the index.
pub(super) struct Tree {
    root: Node,
    counts: Counts,
    spare: Spare,
}

/// A clone has no spare nodes, because it never changes.
impl Clone for Tree {
    fn clone(&self) -> Self {
        Self { root: self.root.clone(), counts: self.counts, spare: Spare::new() }
    }
}

impl Tree {
    pub(super) fn new() -> Self {
        let leaf = Leaf { keys: KeyBlock::empty(), entries: Vec::new() };
        Self { root: Node::Leaf(Arc::new(leaf)), counts: Counts::default(), spare: Spare::new() }
    }

    /// Returns the number of keys with history.
    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.counts.all
    }

    /// Returns the number of keys that are not deleted.
    pub(super) const fn live(&self) -> usize {
        self.counts.live
    }

    /// Returns the entry of a key, deleted or not.
    pub(super) fn get(&self, key: &[u8]) -> Option<&Entry> {
        self.root.find(key)
    }

    /// Returns a key as stored in the index, and the key's entry.
    pub(super) fn get_key_value(&self, key: &[u8]) -> Option<(&[u8], &Entry)> {
        self.root.find_key_value(key)
    }

    /// Returns the number of keys in a range.
    pub(super) fn count(&self, from: Bound<'_>, to: Bound<'_>) -> Counts {
        let below = match to {
            Bound::End => self.counts,
            Bound::First | Bound::Key(_) => self.root.rank(to),
        };
        let above = match from {
            Bound::First => Counts::default(),
            Bound::Key(_) | Bound::End => self.root.rank(from),
        };
        // The bounds of an empty range may be in the wrong order.
        Counts {
            live: below.live.saturating_sub(above.live),
            all: below.all.saturating_sub(above.all),
        }
    }

    /// Visits keys in order until `visit` breaks. The first `skip` live keys of the range are skipped, with the deleted
    /// keys before them.
    pub(super) fn walk<'a>(
        &'a self,
        from: Bound<'_>,
        to: Bound<'_>,
        wanted: Wanted,
        mut skip: usize,
        mut visit: impl FnMut(&'a [u8], &'a Entry) -> ControlFlow<()>,
    ) {
        if let (Bound::Key(from), Bound::Key(to)) = (from, to)
            && from >= to
        {
            return;
        }
        // The caller's visitor knows whether it stopped the walk, so the result is dropped.
        let (ControlFlow::Continue(()) | ControlFlow::Break(())) =
            self.root.walk(from, to, wanted, &mut skip, &mut visit);
    }

    /// Replaces the entry of a key, or adds the key.
    pub(super) fn update(&mut self, key: &[u8], mut change: impl FnMut(Option<&Entry>) -> Entry) {
        let changed = self.root.update(key, &mut change, &mut self.spare);
        self.counts.live = self.counts.live.strict_add_signed(changed.live);
        self.counts.all += usize::from(changed.inserted);
        if let Some((separator, right)) = changed.split {
            let left = Child { counts: self.counts.minus(right.counts), node: self.root.clone() };
            let separators = KeyBlock::build(std::iter::once(&*separator));
            self.root = Node::Inner(Arc::new(Inner { separators, children: vec![left, right] }));
        }
    }

    /// Removes a key if `doomed` returns true for its entry. Returns whether it was removed.
    pub(super) fn remove(&mut self, key: &[u8], mut doomed: impl FnMut(&Entry) -> bool) -> bool {
        let Some(live) = self.root.remove(key, &mut doomed) else { return false };
        self.counts.live = self.counts.live.strict_add_signed(live);
        self.counts.all -= 1;
        loop {
            self.root = match &self.root {
                Node::Inner(inner) if inner.children.len() == 1 => inner.children[0].node.clone(),
                Node::Inner(inner) if inner.children.is_empty() => return self.clear(),
                Node::Leaf(_) | Node::Inner(_) => return true,
            };
        }
    }

    /// Keeps or frees the memory of the nodes that were copied before the last publication. To be called after each
    /// publication.
    pub(super) fn reclaim(&mut self) {
        self.spare.reclaim();
    }

    fn clear(&mut self) -> bool {
        *self = Self::new();
        true
    }

    /// Builds a tree from sorted keys.
    pub(super) fn build<'a>(keys: impl Iterator<Item = (&'a [u8], Entry)>) -> Self {
        let mut builder = Builder::default();
        for (key, entry) in keys {
            builder.push(key, entry);
        }
        builder.finish()
    }
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").field("counts", &self.counts).finish_non_exhaustive()
    }
}

/// The number of keys in a new leaf, which leaves room for a few more keys before it splits.
const LEAF_FILL: usize = LEAF_MAX - LEAF_MAX / 8;
const INNER_FILL: usize = INNER_MAX - INNER_MAX / 8;

#[derive(Default)]
struct Builder<'a> {
    keys: Vec<&'a [u8]>,
    entries: Vec<Entry>,
    /// The finished leaves, each with the separator that precedes it.
    leaves: Vec<(Box<[u8]>, Child)>,
    last_key: &'a [u8],
    counts: Counts,
}

impl<'a> Builder<'a> {
    fn push(&mut self, key: &'a [u8], entry: Entry) {
        if self.entries.len() == LEAF_FILL {
            self.finish_leaf();
        }
        self.keys.push(key);
        self.entries.push(entry);
    }

    fn finish_leaf(&mut self) {
        let Some((&first, &last)) = self.keys.first().zip(self.keys.last()) else { return };
        let before: Box<[u8]> = if self.leaves.is_empty() {
            Box::default()
        } else {
            separator(self.last_key, first).into()
        };
        self.last_key = last;
        let leaf = Leaf {
            keys: KeyBlock::build(self.keys.iter().copied()),
            entries: self.entries.as_slice().to_vec(),
        };
        let leaf = Child::new(Node::Leaf(Arc::new(leaf)));
        self.counts = self.counts.plus(leaf.counts);
        self.leaves.push((before, leaf));
        self.keys.clear();
        self.entries.clear();
    }

    fn finish(mut self) -> Tree {
        self.finish_leaf();
        let mut level = self.leaves;
        while level.len() > 1 {
            // Children are distributed evenly, so that no node has only one child.
            let parents = level.len().div_ceil(INNER_FILL);
            let (each, more) = (level.len() / parents, level.len() % parents);
            let mut nodes = level.into_iter();
            level = (0..parents)
                .map(|parent| {
                    let group: Vec<_> =
                        nodes.by_ref().take(each + usize::from(parent < more)).collect();
                    let separators =
                        KeyBlock::build(group.iter().skip(1).map(|(before, _)| &**before));
                    let mut before = Box::default();
                    let mut children = Vec::with_capacity(group.len());
                    for (position, (separator, child)) in group.into_iter().enumerate() {
                        if position == 0 {
                            before = separator;
                        }
                        children.push(child);
                    }
                    let inner = Inner { separators, children };
                    (before, Child::new(Node::Inner(Arc::new(inner))))
                })
                .collect();
        }
        match level.pop() {
            Some((_, root)) => Tree { root: root.node, counts: self.counts, spare: Spare::new() },
            None => Tree::new(),
        }
    }
}
