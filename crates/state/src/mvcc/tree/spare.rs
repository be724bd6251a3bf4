//! Copies of shared nodes, and the memory that they reuse.
//!
//! Every publication shares the whole tree, so the next change of a node copies the node, and the old version is freed
//! when the publication that uses it is dropped. Under load, this happens to several nodes for each put. Reusing the
//! memory of old versions is faster than freeing and allocating it, and the reused memory is still in the CPU cache.
//!
//! # Invariants
//!
//! * Only the applier's tree has spare nodes. A spare node has no other owner.
//! * Spare nodes own no other nodes, and their keys take up at most [`KEY_BYTES_MAX`].

use std::sync::Arc;

use super::node::{Inner, Leaf, Node};

/// The maximum number of spare leaves, and of spare inner nodes. This is more than a batch of a hundred puts replaces.
const SPARE_MAX: usize = 256;

/// Maximum size of a spare node's keys, in bytes. A spare node keeps its keys until it is reused.
const KEY_BYTES_MAX: usize = 16 << 10;

/// Nodes for reuse.
#[derive(Default)]
pub(super) struct Spare {
    leaves: Vec<Arc<Leaf>>,
    inners: Vec<Arc<Inner>>,
    /// The nodes that were copied since the last publication, each before the nodes below it.
    copied: Vec<Node>,
}

impl Spare {
    /// Returns a leaf for changes, after copying it if another version of the tree uses it.
    pub(super) fn leaf<'a>(&mut self, leaf: &'a mut Arc<Leaf>) -> &'a mut Leaf {
        if Arc::get_mut(leaf).is_none() {
            let copy = copy(leaf, &mut self.leaves, |copy, leaf| {
                copy.keys = leaf.keys.clone();
                copy.entries.clone_from(&leaf.entries);
            });
            self.copied.push(Node::Leaf(std::mem::replace(leaf, copy)));
        }
        Arc::get_mut(leaf).expect("a new copy has no other owner")
    }

    /// Returns an inner node for changes, after copying it if another version of the tree uses it.
    pub(super) fn inner<'a>(&mut self, inner: &'a mut Arc<Inner>) -> &'a mut Inner {
        if Arc::get_mut(inner).is_none() {
            let copy = copy(inner, &mut self.inners, |copy, inner| {
                copy.separators = inner.separators.clone();
                copy.children.clone_from(&inner.children);
            });
            self.copied.push(Node::Inner(std::mem::replace(inner, copy)));
        }
        Arc::get_mut(inner).expect("a new copy has no other owner")
    }

    /// Returns the number of nodes that can be reused.
    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.leaves.len() + self.inners.len()
    }

    /// Keeps those old versions for reuse that no published tree uses any more, and gives up the others.
    pub(super) fn reclaim(&mut self) {
        for node in self.copied.drain(..) {
            match node {
                Node::Leaf(mut leaf) => {
                    if let Some(free) = Arc::get_mut(&mut leaf)
                        && free.keys.byte_len() <= KEY_BYTES_MAX
                        && self.leaves.len() < SPARE_MAX
                    {
                        self.leaves.push(leaf);
                    }
                }
                Node::Inner(mut inner) => {
                    if let Some(free) = Arc::get_mut(&mut inner)
                        && free.separators.byte_len() <= KEY_BYTES_MAX
                        && self.inners.len() < SPARE_MAX
                    {
                        // If the children were copied as well, this node was the last one to own their old versions.
                        free.children.clear();
                        self.inners.push(inner);
                    }
                }
            }
        }
    }
}

/// Copies a node into the memory of a spare node, if there is one.
fn copy<T: Clone>(node: &Arc<T>, spare: &mut Vec<Arc<T>>, copy: impl FnOnce(&mut T, &T)) -> Arc<T> {
    let Some(mut reused) = spare.pop() else { return Arc::new(T::clone(node)) };
    copy(Arc::get_mut(&mut reused).expect("a spare node has no other owner"), node);
    reused
}
