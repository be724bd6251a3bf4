//! Copies of shared nodes, and the memory that they reuse.
//!
//! Every publication shares the whole tree, so the next change of a node copies the node, and the old version is freed
//! when the publication that uses it is dropped. Under load, this happens to several nodes for each put. Reusing the
//! memory of old versions is faster than freeing and allocating it, and the reused memory is still in the CPU cache.
//!
//! # Invariants
//!
//! * A spare node has no other owner, and owns neither keys nor nodes. Clones of a tree have no spare nodes.
//! * A copy has room for fewer than [`LEAF_STEP`] additional entries, even if it reuses memory.

use std::sync::Arc;

use super::Entry;
use super::key_block::KeyBlock;
use super::node::{Child, INNER_MAX, Inner, LEAF_MAX, LEAF_STEP, Leaf, Node};

/// The maximum number of spare leaves, and of spare inner nodes. A batch of a hundred puts usually copies fewer. Together
/// they take up at most a megabyte.
const SPARE_MAX: usize = 256;

/// The capacity of inner nodes: a node has one child too many until it is split.
const INNER_CAPACITY: usize = INNER_MAX + 1;

/// Nodes for reuse.
pub(super) struct Spare {
    /// The leaves with a capacity of [`LEAF_STEP`] entries, those with twice that capacity, and so on.
    leaves: [Vec<Arc<Leaf>>; LEAF_MAX / LEAF_STEP],
    leaf_count: usize,
    inners: Vec<Arc<Inner>>,
    /// The nodes of the last published tree that have been replaced by copies, each before the nodes below it.
    replaced: Vec<Node>,
    no_keys: KeyBlock,
}

impl Spare {
    pub(super) fn new() -> Self {
        Self {
            leaves: Default::default(),
            leaf_count: 0,
            inners: Vec::new(),
            replaced: Vec::new(),
            no_keys: KeyBlock::empty(),
        }
    }

    /// Returns a leaf for changes, after copying it if another version of the tree uses it.
    pub(super) fn leaf<'a>(&mut self, leaf: &'a mut Arc<Leaf>) -> &'a mut Leaf {
        if Arc::get_mut(leaf).is_none() {
            let copy = self.copy_of_leaf(leaf);
            self.replaced.push(Node::Leaf(std::mem::replace(leaf, copy)));
        }
        Arc::get_mut(leaf).expect("a new copy has no other owner")
    }

    /// Returns an inner node for changes, after copying it if another version of the tree uses it.
    pub(super) fn inner<'a>(&mut self, inner: &'a mut Arc<Inner>) -> &'a mut Inner {
        if Arc::get_mut(inner).is_none() {
            let copy = self.copy_of_inner(inner);
            self.replaced.push(Node::Inner(std::mem::replace(inner, copy)));
        }
        Arc::get_mut(inner).expect("a new copy has no other owner")
    }

    /// Keeps replaced nodes for reuse if no clone of the tree uses them any more, and gives up the others.
    pub(super) fn reclaim(&mut self) {
        for node in self.replaced.drain(..) {
            match node {
                Node::Leaf(mut leaf) => {
                    let Some(free) = Arc::get_mut(&mut leaf) else { continue };
                    let capacity = free.entries.capacity();
                    let (steps, rest) = (capacity / LEAF_STEP, capacity % LEAF_STEP);
                    let leaves = steps
                        .checked_sub(1)
                        .filter(|_| rest == 0)
                        .and_then(|at| self.leaves.get_mut(at));
                    if let Some(leaves) = leaves
                        && self.leaf_count < SPARE_MAX
                    {
                        free.keys = self.no_keys.clone();
                        leaves.push(leaf);
                        self.leaf_count += 1;
                    }
                }
                Node::Inner(mut inner) => {
                    let Some(free) = Arc::get_mut(&mut inner) else { continue };
                    if free.children.capacity() == INNER_CAPACITY && self.inners.len() < SPARE_MAX {
                        free.separators = self.no_keys.clone();
                        // If the children were replaced as well, only this node still owned their old versions.
                        free.children.clear();
                        self.inners.push(inner);
                    }
                }
            }
        }
    }

    fn copy_of_leaf(&mut self, leaf: &Leaf) -> Arc<Leaf> {
        let steps = leaf.entries.len().div_ceil(LEAF_STEP);
        let spare = steps.checked_sub(1).and_then(|at| self.leaves.get_mut(at)?.pop());
        let Some(mut reused) = spare else {
            let entries = with_room(&[&leaf.entries]);
            return Arc::new(Leaf { keys: leaf.keys.clone(), entries });
        };
        self.leaf_count -= 1;
        let copy = Arc::get_mut(&mut reused).expect("a spare leaf has no other owner");
        copy.keys = leaf.keys.clone();
        copy.entries.clear();
        copy.entries.extend_from_slice(&leaf.entries);
        reused
    }

    fn copy_of_inner(&mut self, inner: &Inner) -> Arc<Inner> {
        let Some(mut reused) = self.inners.pop() else {
            let mut children: Vec<Child> = Vec::with_capacity(INNER_CAPACITY);
            children.extend_from_slice(&inner.children);
            return Arc::new(Inner { separators: inner.separators.clone(), children });
        };
        let copy = Arc::get_mut(&mut reused).expect("a spare inner node has no other owner");
        copy.separators = inner.separators.clone();
        copy.children.extend_from_slice(&inner.children);
        reused
    }
}

/// Concatenates entries in a vector whose capacity is the next multiple of [`LEAF_STEP`], so that its memory fits many
/// other leaves.
pub(super) fn with_room(parts: &[&[Entry]]) -> Vec<Entry> {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let mut entries = Vec::with_capacity(len.next_multiple_of(LEAF_STEP));
    for part in parts {
        entries.extend_from_slice(part);
    }
    entries
}

#[cfg(test)]
impl Spare {
    /// Returns the number of nodes that can be reused.
    pub(super) const fn len(&self) -> usize {
        self.leaf_count + self.inners.len()
    }
}
