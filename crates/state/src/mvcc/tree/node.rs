//! Nodes of the key index, and lookups in them.
//!
//! A leaf stores its keys separately from their entries, so that overwriting a key copies only a
//! small array and shares the keys.
//!
//! # Invariants
//!
//! * Separator `i` of an inner node is above every key of child `i` and not above any key of child
//!   `i + 1`.
//! * All leaves are at the same depth, and only the root can be empty.
//! * The field `counts` of a child contains the number of live keys and of all keys below it.
//!
//! # Not here
//!
//! Changes, which keep these invariants (`change`).

use std::ops::ControlFlow;
use std::sync::Arc;

use super::key_block::{KeyBlock, common_prefix_len};
use super::{Bound, Counts, Entry, Wanted};
use crate::steps;

pub(super) const LEAF_MAX: usize = 64;
/// Leaves grow by this number of entries.
pub(super) const LEAF_STEP: usize = LEAF_MAX / 8;
pub(super) const INNER_MAX: usize = 16;

#[derive(Clone)]
pub(super) enum Node {
    Leaf(Arc<Leaf>),
    Inner(Arc<Inner>),
}

#[derive(Clone)]
pub(super) struct Leaf {
    pub(super) keys: KeyBlock,
    pub(super) entries: Vec<Entry>,
}

#[derive(Clone)]
pub(super) struct Inner {
    pub(super) separators: KeyBlock,
    pub(super) children: Vec<Child>,
}

#[derive(Clone)]
pub(super) struct Child {
    pub(super) counts: Counts,
    pub(super) node: Node,
}

impl Child {
    pub(super) fn new(node: Node) -> Self {
        Self { counts: node.counts(), node }
    }
}

impl Leaf {
    fn position(&self, bound: Bound<'_>) -> usize {
        match bound {
            Bound::First => 0,
            Bound::Key(key) => self.keys.search(key).unwrap_or_else(|position| position),
            Bound::End => self.entries.len(),
        }
    }
}

impl Inner {
    /// Returns the index of the only child that may contain a key.
    pub(super) fn child_of(&self, key: &[u8]) -> usize {
        self.separators.search(key).map_or_else(|position| position, |position| position + 1)
    }

    fn position(&self, bound: Bound<'_>) -> usize {
        match bound {
            Bound::First => 0,
            Bound::Key(key) => self.child_of(key),
            Bound::End => self.children.len() - 1,
        }
    }
}

fn counts_of_entries(entries: &[Entry]) -> Counts {
    let live = entries.iter().filter(|entry| !entry.tombstone).count();
    Counts { live, all: entries.len() }
}

fn counts_of_children(children: &[Child]) -> Counts {
    children.iter().fold(Counts::default(), |sum, child| sum.plus(child.counts))
}

impl Node {
    pub(super) fn counts(&self) -> Counts {
        match self {
            Self::Leaf(leaf) => counts_of_entries(&leaf.entries),
            Self::Inner(inner) => counts_of_children(&inner.children),
        }
    }

    /// Returns the number of keys before `bound`.
    pub(super) fn rank(&self, bound: Bound<'_>) -> Counts {
        let mut node = self;
        let mut before = Counts::default();
        loop {
            match node {
                Self::Leaf(leaf) => {
                    let entries = &leaf.entries[..leaf.position(bound)];
                    return before.plus(counts_of_entries(entries));
                }
                Self::Inner(inner) => {
                    let position = inner.position(bound);
                    before = before.plus(counts_of_children(&inner.children[..position]));
                    node = &inner.children[position].node;
                }
            }
        }
    }

    /// Visits the keys between two bounds, after skipping the first `skip` live keys. If only live keys are wanted,
    /// nodes without live keys are skipped.
    pub(super) fn walk<'a>(
        &'a self,
        from: Bound<'_>,
        to: Bound<'_>,
        wanted: Wanted,
        skip: &mut usize,
        visit: &mut impl FnMut(&'a [u8], &'a Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        match self {
            Self::Leaf(leaf) => {
                let positions = leaf.position(from)..leaf.position(to);
                let entries = &leaf.entries[positions.clone()];
                for (key, entry) in leaf.keys.range(positions).zip(entries) {
                    steps::count();
                    if *skip > 0 {
                        *skip -= usize::from(!entry.tombstone);
                    } else {
                        visit(key, entry)?;
                    }
                }
            }
            Self::Inner(inner) => {
                let (first, last) = (inner.position(from), inner.position(to));
                for position in first..=last {
                    let child = &inner.children[position];
                    let below_from = if position == first { from } else { Bound::First };
                    let below_to = if position == last { to } else { Bound::End };
                    let whole = matches!((below_from, below_to), (Bound::First, Bound::End));
                    let live = child.counts.live;
                    if live == 0 && wanted == Wanted::Live {
                        continue;
                    }
                    if whole && *skip >= live && *skip > 0 {
                        *skip -= live;
                    } else {
                        child.node.walk(below_from, below_to, wanted, skip, visit)?;
                    }
                }
            }
        }
        ControlFlow::Continue(())
    }

    pub(super) fn find(&self, key: &[u8]) -> Option<&Entry> {
        self.find_position(key).map(|(leaf, position)| &leaf.entries[position])
    }

    pub(super) fn find_key_value(&self, key: &[u8]) -> Option<(&[u8], &Entry)> {
        let (leaf, position) = self.find_position(key)?;
        Some((leaf.keys.key(position), &leaf.entries[position]))
    }

    fn find_position(&self, key: &[u8]) -> Option<(&Leaf, usize)> {
        let mut node = self;
        loop {
            match node {
                Self::Leaf(leaf) => {
                    return leaf.keys.search(key).ok().map(|position| (&**leaf, position));
                }
                Self::Inner(inner) => node = &inner.children[inner.child_of(key)].node,
            }
        }
    }
}

/// Returns the shortest key that is above `left` and not above `right`.
pub(super) fn separator<'a>(left: &[u8], right: &'a [u8]) -> &'a [u8] {
    &right[..common_prefix_len(left, right) + 1]
}
