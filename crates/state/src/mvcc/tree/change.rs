//! Changes of the key index, which keep it balanced.
//!
//! A node with a single reference is changed in place. A node that a published tree still uses is copied first
//! (`spare`).

use std::sync::Arc;

use super::Entry;
use super::key_block::KeyBlock;
use super::node::{Child, INNER_MAX, Inner, LEAF_MAX, LEAF_STEP, Leaf, Node, separator};
use super::spare::{Spare, with_room};

/// A leaf with fewer keys than this is merged with a sibling, if possible.
const LEAF_MIN: usize = LEAF_MAX / 4;
const INNER_MIN: usize = INNER_MAX / 4;

/// The effect of a change below a node, which the parent node must take into account.
pub(super) struct Changed {
    pub(super) live: isize,
    pub(super) inserted: bool,
    /// A node that was split off to the right, with the separator that precedes it.
    pub(super) split: Option<(Box<[u8]>, Child)>,
}

impl Node {
    /// Replaces the entry of a key, or adds the key.
    pub(super) fn update(
        &mut self,
        key: &[u8],
        change: &mut dyn FnMut(Option<&Entry>) -> Entry,
        spare: &mut Spare,
    ) -> Changed {
        match self {
            Self::Leaf(leaf) => match leaf.keys.search(key) {
                Ok(position) => {
                    let entry = &mut spare.leaf(leaf).entries[position];
                    let before = *entry;
                    *entry = change(Some(&before));
                    let live = isize::from(!entry.tombstone) - isize::from(!before.tombstone);
                    Changed { live, inserted: false, split: None }
                }
                Err(position) => {
                    let entry = change(None);
                    let live = isize::from(!entry.tombstone);
                    let split = insert_entry(leaf, position, key, entry);
                    Changed { live, inserted: true, split }
                }
            },
            Self::Inner(inner) => {
                let inner = spare.inner(inner);
                let position = inner.child_of(key);
                let child = &mut inner.children[position];
                let mut changed = child.node.update(key, change, spare);
                child.counts.live = child.counts.live.strict_add_signed(changed.live);
                child.counts.all += usize::from(changed.inserted);
                if let Some((separator, right)) = changed.split.take() {
                    child.counts = child.counts.minus(right.counts);
                    changed.split = insert_child(inner, position, &separator, right);
                }
                changed
            }
        }
    }

    /// Removes a key if `doomed` returns true for its entry. If it was removed, returns the change
    /// in the number of live keys.
    pub(super) fn remove(
        &mut self,
        key: &[u8],
        doomed: &mut dyn FnMut(&Entry) -> bool,
    ) -> Option<isize> {
        match self {
            Self::Leaf(leaf) => {
                let position = leaf.keys.search(key).ok()?;
                let entry = leaf.entries[position];
                if !doomed(&entry) {
                    return None;
                }
                let keys = leaf.keys.remove(position);
                let mut entries = Vec::with_capacity(leaf.entries.len() - 1);
                entries.extend_from_slice(&leaf.entries[..position]);
                entries.extend_from_slice(&leaf.entries[position + 1..]);
                *leaf = Arc::new(Leaf { keys, entries });
                Some(-isize::from(!entry.tombstone))
            }
            Self::Inner(inner) => {
                let position = inner.child_of(key);
                // The entry is checked before the path is copied. In most cases, a later put has overwritten the
                // tombstone, and the key is not removed.
                inner.children[position].node.find(key).filter(|entry| doomed(entry))?;
                let inner = Arc::make_mut(inner);
                let child = &mut inner.children[position];
                let live = child.node.remove(key, doomed)?;
                child.counts.live = child.counts.live.strict_add_signed(live);
                child.counts.all -= 1;
                rebalance(inner, position);
                Some(live)
            }
        }
    }

    /// Returns the number of keys or children.
    fn len(&self) -> usize {
        match self {
            Self::Leaf(leaf) => leaf.entries.len(),
            Self::Inner(inner) => inner.children.len(),
        }
    }
}

fn insert_entry(
    leaf: &mut Arc<Leaf>,
    position: usize,
    key: &[u8],
    entry: Entry,
) -> Option<(Box<[u8]>, Child)> {
    if leaf.entries.len() < LEAF_MAX {
        let keys = leaf.keys.insert(position, key);
        if let Some(leaf) = Arc::get_mut(leaf) {
            leaf.keys = keys;
            if leaf.entries.len() == leaf.entries.capacity() {
                leaf.entries.reserve_exact(LEAF_STEP);
            }
            leaf.entries.insert(position, entry);
        } else {
            let (before, after) = leaf.entries.split_at(position);
            let entries = with_room(&[before, &[entry], after]);
            *leaf = Arc::new(Leaf { keys, entries });
        }
        return None;
    }
    // If keys are inserted in order, full leaves are left behind rather than half-full ones.
    let middle = if position == LEAF_MAX { LEAF_MAX } else { LEAF_MAX / 2 };
    let part = |positions: std::ops::Range<usize>| Leaf {
        keys: leaf.keys.slice(positions.clone()),
        entries: leaf.entries[positions].to_vec(),
    };
    let (mut left, mut right) = (part(0..middle), part(middle..LEAF_MAX));
    let (half, position) = if position <= middle && middle < LEAF_MAX {
        (&mut left, position)
    } else {
        (&mut right, position - middle)
    };
    half.keys = half.keys.insert(position, key);
    half.entries.reserve_exact(LEAF_STEP);
    half.entries.insert(position, entry);
    assert!(
        !left.entries.is_empty() && !right.entries.is_empty(),
        "no node is empty after a split: otherwise a search would end in a leaf without the key"
    );
    let separator = separator(left.keys.key(left.entries.len() - 1), right.keys.key(0)).into();
    let right = Child::new(Node::Leaf(Arc::new(right)));
    *leaf = Arc::new(left);
    Some((separator, right))
}

/// Adds a child after the child at `position`.
fn insert_child(
    inner: &mut Inner,
    position: usize,
    separator: &[u8],
    child: Child,
) -> Option<(Box<[u8]>, Child)> {
    assert!(
        position < inner.children.len(),
        "a child is added after the child that was split: otherwise its keys would not be found"
    );
    inner.separators = inner.separators.insert(position, separator);
    inner.children.insert(position + 1, child);
    let count = inner.children.len();
    if count <= INNER_MAX {
        return None;
    }
    let middle = if position + 2 == count { count - 2 } else { count / 2 };
    let children = inner.children.split_off(middle);
    let separator = inner.separators.key(middle - 1).into();
    let right = Inner { separators: inner.separators.slice(middle..count - 1), children };
    inner.separators = inner.separators.slice(0..middle - 1);
    assert!(
        !inner.children.is_empty() && !right.children.is_empty(),
        "no node is empty after a split: otherwise a search would find no child to continue with"
    );
    let right = Child::new(Node::Inner(Arc::new(right)));
    Some((separator, right))
}

/// Restores the balance after a removal below the child at `position`.
fn rebalance(inner: &mut Inner, position: usize) {
    let child_len = inner.children[position].node.len();
    if child_len == 0 {
        inner.children.remove(position);
        if !inner.children.is_empty() {
            inner.separators = inner.separators.remove(position.saturating_sub(1));
        }
        return;
    }
    let (min, max) = match inner.children[position].node {
        Node::Leaf(_) => (LEAF_MIN, LEAF_MAX),
        Node::Inner(_) => (INNER_MIN, INNER_MAX),
    };
    if child_len >= min {
        return;
    }
    let fits = |left: usize| {
        let pair = inner.children.get(left..left + 2)?;
        (pair[0].node.len() + pair[1].node.len() <= max / 4 * 3).then_some(left)
    };
    let Some(left) = fits(position).or_else(|| fits(position.checked_sub(1)?)) else { return };
    let merged = match (&inner.children[left].node, &inner.children[left + 1].node) {
        (Node::Leaf(a), Node::Leaf(b)) => Node::Leaf(Arc::new(Leaf {
            keys: KeyBlock::build(a.keys.iter().chain(b.keys.iter())),
            entries: [&a.entries[..], &b.entries[..]].concat(),
        })),
        (Node::Inner(a), Node::Inner(b)) => {
            let between = std::iter::once(inner.separators.key(left));
            Node::Inner(Arc::new(Inner {
                separators: KeyBlock::build(
                    a.separators.iter().chain(between).chain(b.separators.iter()),
                ),
                children: [&a.children[..], &b.children[..]].concat(),
            }))
        }
        (Node::Leaf(_), Node::Inner(_)) | (Node::Inner(_), Node::Leaf(_)) => {
            unreachable!("all leaves are at the same depth")
        }
    };
    let counts = inner.children[left].counts.plus(inner.children[left + 1].counts);
    inner.separators = inner.separators.remove(left);
    inner.children.remove(left + 1);
    inner.children[left] = Child { counts, node: merged };
}
