//! A set of key ranges that finds all ranges containing a given key.
//!
//! The set is a treap ordered by (start, end), in which every node also stores the furthest end in its subtree. A
//! lookup skips subtrees whose ranges all end at or before the key, and stops at ranges that begin after the key, so a
//! lookup with m matches costs O((m + 1) log n) on average. Nodes are stored in a table and refer to each other by
//! position. The priorities come from a seeded sequence. They affect only the shape of the tree, never the result of a
//! lookup. If the seed were known, the ranges could be chosen so that the tree is a list.

use std::cmp::Ordering;

use bytes::Bytes;
use quorate_seeded_random::SplitMix64;

/// The exclusive end of a range of keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RangeEnd {
    /// Before this key.
    Before(Bytes),
    /// The range has no end.
    Unbounded,
}

impl RangeEnd {
    /// Returns whether a range with this end, which begins at or before `key`, contains `key`.
    pub(super) fn covers(&self, key: &[u8]) -> bool {
        match self {
            Self::Before(end) => key < &end[..],
            Self::Unbounded => true,
        }
    }
}

/// The position that means "no node".
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Node<T> {
    start: Bytes,
    end: RangeEnd,
    value: T,
    priority: u64,
    left: u32,
    right: u32,
    /// The node with the furthest end in this subtree.
    furthest: u32,
}

/// Distinct ranges, each with a value.
#[derive(Debug)]
pub(super) struct Intervals<T> {
    nodes: Vec<Node<T>>,
    free: Vec<u32>,
    root: u32,
    priorities: SplitMix64,
}

impl<T: Copy> Intervals<T> {
    /// Creates an empty set. A client that can add ranges must not know the seed.
    pub(super) const fn new(seed: u64) -> Self {
        let priorities = SplitMix64::new(seed);
        Self { nodes: Vec::new(), free: Vec::new(), root: NONE, priorities }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.root == NONE
    }

    /// Returns the value of exactly this range, if the set contains it.
    pub(super) fn get(&self, start: &[u8], end: &RangeEnd) -> Option<T> {
        let mut at = self.root;
        while let Some(node) = self.node(at) {
            at = match (start, end).cmp(&(&node.start[..], &node.end)) {
                Ordering::Less => node.left,
                Ordering::Greater => node.right,
                Ordering::Equal => return Some(node.value),
            };
        }
        None
    }

    /// Adds a range that is not yet in the set.
    pub(super) fn insert(&mut self, start: Bytes, end: RangeEnd, value: T) {
        let priority = self.priorities.next_u64();
        let (left, right) = self.split(self.root, &start, &end);
        let node = Node { start, end, value, priority, left: NONE, right: NONE, furthest: NONE };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).expect("the tree has fewer than 2^32 ranges")
            }
        };
        self.refresh(at);
        let left = self.merge(left, at);
        self.root = self.merge(left, right);
    }

    /// Removes a range, if the set contains it.
    pub(super) fn remove(&mut self, start: &[u8], end: &RangeEnd) {
        self.root = self.remove_below(self.root, start, end);
    }

    /// Calls `visit` with the value of every range that contains `key`.
    pub(super) fn stab(&self, key: &[u8], visit: &mut impl FnMut(T)) {
        self.stab_below(self.root, key, visit);
    }

    fn stab_below(&self, at: u32, key: &[u8], visit: &mut impl FnMut(T)) {
        let Some(node) = self.node(at) else { return };
        if !self.nodes[node.furthest as usize].end.covers(key) {
            return;
        }
        self.stab_below(node.left, key, visit);
        if node.start[..] <= *key {
            if node.end.covers(key) {
                visit(node.value);
            }
            self.stab_below(node.right, key, visit);
        }
    }

    fn node(&self, at: u32) -> Option<&Node<T>> {
        self.nodes.get(at as usize)
    }

    /// Splits a subtree into the nodes before (start, end) and the remaining nodes.
    fn split(&mut self, at: u32, start: &[u8], end: &RangeEnd) -> (u32, u32) {
        let Some(node) = self.node(at) else { return (NONE, NONE) };
        if (&node.start[..], &node.end) < (start, end) {
            let (middle, after) = self.split(node.right, start, end);
            self.nodes[at as usize].right = middle;
            self.refresh(at);
            (at, after)
        } else {
            let (before, middle) = self.split(node.left, start, end);
            self.nodes[at as usize].left = middle;
            self.refresh(at);
            (before, at)
        }
    }

    /// Merges two subtrees. Every node of the first subtree must be before every node of the second.
    fn merge(&mut self, first: u32, second: u32) -> u32 {
        let (Some(a), Some(b)) = (self.node(first), self.node(second)) else {
            return if first == NONE { second } else { first };
        };
        if a.priority >= b.priority {
            let right = self.merge(a.right, second);
            self.nodes[first as usize].right = right;
            self.refresh(first);
            first
        } else {
            let left = self.merge(first, b.left);
            self.nodes[second as usize].left = left;
            self.refresh(second);
            second
        }
    }

    fn remove_below(&mut self, at: u32, start: &[u8], end: &RangeEnd) -> u32 {
        let Some(node) = self.node(at) else { return NONE };
        let (left, right) = (node.left, node.right);
        match (start, end).cmp(&(&node.start[..], &node.end)) {
            Ordering::Less => {
                let left = self.remove_below(left, start, end);
                self.nodes[at as usize].left = left;
            }
            Ordering::Greater => {
                let right = self.remove_below(right, start, end);
                self.nodes[at as usize].right = right;
            }
            Ordering::Equal => {
                self.nodes[at as usize].start = Bytes::new();
                self.nodes[at as usize].end = RangeEnd::Unbounded;
                self.free.push(at);
                return self.merge(left, right);
            }
        }
        self.refresh(at);
        at
    }

    /// Recomputes the furthest end in the subtree of a node from its children.
    fn refresh(&mut self, at: u32) {
        let node = &self.nodes[at as usize];
        let below = [node.left, node.right].map(|child| self.node(child).map(|n| n.furthest));
        let furthest = below.into_iter().flatten().fold(at, |best, other| {
            if self.nodes[other as usize].end > self.nodes[best as usize].end {
                other
            } else {
                best
            }
        });
        self.nodes[at as usize].furthest = furthest;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn range() -> impl Strategy<Value = (Bytes, RangeEnd)> {
        let key = || prop::collection::vec(0..6u8, 0..3).prop_map(Bytes::from);
        let end = prop_oneof![
            5 => key().prop_map(RangeEnd::Before),
            1 => Just(RangeEnd::Unbounded),
        ];
        (key(), end)
    }

    /// Returns the height of the tree.
    fn height<T: Copy>(intervals: &Intervals<T>) -> usize {
        let mut level = vec![intervals.root];
        let mut height = 0;
        loop {
            let nodes = level.iter().filter_map(|at| intervals.node(*at));
            let below: Vec<u32> = nodes.flat_map(|node| [node.left, node.right]).collect();
            if below.is_empty() {
                return height;
            }
            (height, level) = (height + 1, below);
        }
    }

    #[test]
    fn the_tree_is_shallow_unless_the_seed_of_its_priorities_is_known() {
        const RANGES: usize = 2_000;
        let mut known = SplitMix64::new(0);
        let keys: Vec<_> = (0..RANGES).map(|_| known.next_u64().to_be_bytes()).collect();
        let height_with = |seed| {
            let mut intervals = Intervals::new(seed);
            for key in &keys {
                intervals.insert(Bytes::copy_from_slice(key), RangeEnd::Unbounded, ());
            }
            height(&intervals)
        };
        assert_eq!(height_with(0), RANGES);
        assert!(height_with(1) < 100);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn interval_lookups_have_the_same_result_as_a_scan_of_all_ranges(
            steps in prop::collection::vec((any::<bool>(), range()), 1..80),
            keys in prop::collection::vec(prop::collection::vec(0..6u8, 0..4), 1..20),
        ) {
            let mut model: BTreeMap<(Bytes, RangeEnd), usize> = BTreeMap::new();
            let mut intervals = Intervals::new(0);
            for (number, (add, (start, end))) in steps.into_iter().enumerate() {
                if add {
                    prop_assert_eq!(
                        intervals.get(&start, &end),
                        model.get(&(start.clone(), end.clone())).copied()
                    );
                    model.entry((start.clone(), end.clone())).or_insert_with(|| {
                        intervals.insert(start, end, number);
                        number
                    });
                } else {
                    intervals.remove(&start, &end);
                    model.remove(&(start, end));
                }
            }
            for key in keys {
                let mut found = Vec::new();
                intervals.stab(&key, &mut |value| found.push(value));
                let expected: Vec<usize> = model
                    .iter()
                    .filter(|((start, end), _)| start[..] <= key[..] && end.covers(&key))
                    .map(|(_, value)| *value)
                    .collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
