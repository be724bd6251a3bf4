//! etcd's search tree of permissions, which decides whether a user may request a range that ends before its first key.
//!
//! Such a range contains no keys. etcd permits the request if the search for the range finds a permission that contains
//! the first key, but the search compares the end of the range to skip parts of the tree. The decision therefore depends
//! on the shape of the tree. A transaction with such a range may also write, so members that decide differently would
//! store different data.
//!
//! # Invariants
//!
//! * The tree has the shape of etcd's tree: a red-black tree as in Cormen et al., "Introduction to Algorithms", chapter
//!   13, in the order of first keys and then ends, built by inserting the permissions in the same order as etcd 3.7. If a
//!   user has two permissions that begin at the same key, the trees of etcd 3.5 and 3.6 may differ from this tree.
//!
//! # Not here
//!
//! All other ranges (`key_set`).

use bytes::Bytes;

/// Positions in the list of a node's children.
const LEFT: usize = 0;
const RIGHT: usize = 1;

/// The end of a range. Ends sort in key order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    Before(Bytes),
    Unbounded,
}

impl End {
    /// Builds the end from the two fields of a request. Returns `None` if the range contains no
    /// keys.
    pub(super) fn of(key: &[u8], range_end: &[u8]) -> Option<Self> {
        match range_end {
            _ if key.is_empty() => None,
            [] => Some(Self::Before([key, &[0]].concat().into())),
            [0] => Some(Self::Unbounded),
            end if key < end => Some(Self::Before(Bytes::copy_from_slice(end))),
            _ => None,
        }
    }

    /// Returns whether a range with this end contains `key` or ends after it.
    pub(super) fn is_after(&self, key: &[u8]) -> bool {
        match self {
            Self::Before(end) => key < &end[..],
            Self::Unbounded => true,
        }
    }

    /// Returns whether no key lies between this end and the start of a range that begins at `key`.
    pub(super) fn meets(&self, key: &[u8]) -> bool {
        match self {
            Self::Before(end) => key <= &end[..],
            Self::Unbounded => true,
        }
    }
}

/// The permitted ranges, each given by its first key and its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PermissionTree {
    root: Child,
}

type Child = Option<Box<Node>>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    range: (Bytes, End),
    is_red: bool,
    children: [Child; 2],
}

impl PermissionTree {
    /// Inserts a range. Equal ranges are kept, as in etcd.
    pub(super) fn insert(&mut self, range: (Bytes, End)) {
        let mut root = inserted(self.root.take(), range);
        root.is_red = false;
        self.root = Some(root);
    }

    /// Returns whether etcd permits a request for a range whose end is before its first key.
    pub(super) fn permits_inverted(&self, key: &[u8], range_end: &[u8]) -> bool {
        assert!(range_end < key, "a range that contains keys may need several permissions");
        finds(&self.root, key, range_end)
    }
}

/// Searches a subtree for a range that contains `key`. If a range ends at or before `key`, the search continues below it
/// only if the range begins before `range_end`.
fn finds(subtree: &Child, key: &[u8], range_end: &[u8]) -> bool {
    let Some(node) = subtree else { return false };
    let (first, end) = &node.range;
    if key < &first[..] {
        return finds(&node.children[LEFT], key, range_end);
    }
    let continues =
        || &first[..] < range_end && node.children.iter().any(|child| finds(child, key, range_end));
    end.is_after(key) || continues()
}

/// Inserts a range below a node and returns the node that takes its place.
fn inserted(subtree: Child, range: (Bytes, End)) -> Box<Node> {
    let Some(mut node) = subtree else {
        return Box::new(Node { range, is_red: true, children: [None, None] });
    };
    let side = if range < node.range { LEFT } else { RIGHT };
    node.children[side] = Some(inserted(node.children[side].take(), range));
    balanced(node, side)
}

/// Restores the rule that a red node has no red child, after an insertion below a child of this node.
fn balanced(mut node: Box<Node>, side: usize) -> Box<Node> {
    let [inner, outer] = [1 - side, side];
    let child = node.children[side].as_deref();
    let has_red = |at: usize| child.is_some_and(|child| is_red(&child.children[at]));
    let (inner_is_red, outer_is_red) = (has_red(inner), has_red(outer));
    if !is_red(&node.children[side]) || !(inner_is_red || outer_is_red) {
        return node;
    }
    if is_red(&node.children[1 - side]) {
        node.is_red = true;
        for child in node.children.iter_mut().flatten() {
            child.is_red = false;
        }
        return node;
    }
    if inner_is_red {
        node.children[side] = node.children[side].take().map(|child| rotated(child, inner));
    }
    node.is_red = true;
    let mut top = rotated(node, side);
    top.is_red = false;
    top
}

/// Rotates a node: its child on this side becomes its parent.
fn rotated(mut node: Box<Node>, side: usize) -> Box<Node> {
    let mut child = node.children[side].take().expect("only a node with a red child is rotated");
    node.children[side] = child.children[1 - side].take();
    child.children[1 - side] = Some(node);
    child
}

fn is_red(child: &Child) -> bool {
    child.as_ref().is_some_and(|node| node.is_red)
}
