//! Compares the index with a sorted map while nodes are split, merged and shared.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use proptest::prelude::*;
use quorate_seeded_random::SplitMix64;

use super::node::{INNER_MAX, LEAF_MAX, LEAF_STEP, Node};
use super::*;

type Model = BTreeMap<Vec<u8>, Entry>;

fn entry(main: i64, tombstone: bool) -> Entry {
    Entry { main, create: main, version: 1, previous: 0, sub: 0, tombstone }
}

fn put(tree: &mut Tree, model: &mut Model, key: &[u8], entry: Entry) {
    tree.update(key, |before| {
        assert_eq!(before, model.get(key));
        entry
    });
    model.insert(key.to_vec(), entry);
}

fn listed(
    tree: &Tree,
    from: Bound<'_>,
    to: Bound<'_>,
    wanted: Wanted,
    skip: usize,
) -> Vec<(Vec<u8>, Entry)> {
    let mut found = Vec::new();
    tree.walk(from, to, wanted, skip, |key, entry| {
        found.push((key.to_vec(), *entry));
        ControlFlow::Continue(())
    });
    found
}

/// Asserts the invariants in the header of `node`. Returns the depth, the number of keys and the
/// number of live keys.
fn check_node(node: &Node, from: &[u8], to: Option<&[u8]>, root: bool) -> (usize, usize, usize) {
    let inside = |key: &[u8]| from <= key && to.is_none_or(|to| key < to);
    match node {
        Node::Leaf(leaf) => {
            assert!(root || !leaf.entries.is_empty());
            assert!(leaf.entries.len() <= LEAF_MAX);
            assert_eq!(leaf.keys.len(), leaf.entries.len());
            assert!(leaf.keys.iter().all(inside));
            assert!(leaf.keys.iter().is_sorted());
            (0, leaf.entries.len(), node.counts().live)
        }
        Node::Inner(inner) => {
            let count = inner.children.len();
            assert!(count <= INNER_MAX && inner.separators.len() + 1 == count);
            assert!(inner.separators.iter().all(inside) && inner.separators.iter().is_sorted());
            let (mut keys, mut live, mut depths) = (0, 0, Vec::new());
            for (position, child) in inner.children.iter().enumerate() {
                let from = if position == 0 { from } else { inner.separators.key(position - 1) };
                let to =
                    if position + 1 == count { to } else { Some(inner.separators.key(position)) };
                let (depth, child_keys, child_live) = check_node(&child.node, from, to, false);
                assert_eq!(child.counts, Counts { live: child_live, all: child_keys });
                depths.push(depth);
                keys += child_keys;
                live += child_live;
            }
            assert!(
                depths.windows(2).all(|pair| pair[0] == pair[1]),
                "all leaves are at the same depth"
            );
            (depths[0] + 1, keys, live)
        }
    }
}

fn check(tree: &Tree, model: &Model) {
    let (_, keys, live) = check_node(&tree.root, b"", None, true);
    assert_eq!((keys, live), (tree.len(), tree.live()));
    let all: Vec<_> = model.iter().map(|(key, entry)| (key.clone(), *entry)).collect();
    assert_eq!(listed(tree, Bound::First, Bound::End, Wanted::All, 0), all);
}

fn check_ranges(tree: &Tree, model: &Model, ends: &[Vec<u8>]) {
    for from in ends {
        assert_eq!(tree.get(from), model.get(from));
        for to in ends {
            let expected: Vec<_> = if from < to {
                model
                    .range(from.clone()..to.clone())
                    .map(|(key, entry)| (key.clone(), *entry))
                    .collect()
            } else {
                Vec::new()
            };
            let live: Vec<_> = expected.iter().filter(|(_, entry)| !entry.tombstone).collect();
            let bounds = (Bound::Key(from), Bound::Key(to));
            let counts = Counts { live: live.len(), all: expected.len() };
            assert_eq!(tree.count(bounds.0, bounds.1), counts);
            assert_eq!(listed(tree, bounds.0, bounds.1, Wanted::All, 0), expected);
            for (wanted, skip) in
                [(Wanted::All, live.len() / 2), (Wanted::Live, live.len() / 2), (Wanted::Live, 0)]
            {
                let walked = listed(tree, bounds.0, bounds.1, wanted, skip);
                let found = walked.iter().filter(|(_, entry)| !entry.tombstone);
                assert!(found.eq(live.iter().copied().skip(skip)));
            }
            for found in [1, 1 + live.len() / 3, 1 + live.len()] {
                let (mut visited, mut missing) = (0, found);
                tree.walk(bounds.0, bounds.1, Wanted::Live, 0, |_, entry| {
                    visited += 1;
                    missing -= usize::from(!entry.tombstone && missing > 0);
                    if missing == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                assert!(visited <= counts.visited_by_live_walk(found));
            }
        }
    }
}

fn key_strategy() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        // The generated keys include many keys with a long shared prefix, keys that are prefixes of each other, zero
        // bytes and the empty key.
        (0..2000_u16).prop_map(|n| format!("/registry/pods/{n:05}").into_bytes()),
        (0..300_u16).prop_map(|n| n.to_be_bytes().to_vec()),
        proptest::collection::vec(prop_oneof![Just(0_u8), Just(b'a'), Just(0xff)], 0..12),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn the_tree_behaves_like_a_sorted_map(
        changes in proptest::collection::vec((key_strategy(), 0..10_u8), 1..3000),
        ends in proptest::collection::vec(key_strategy(), 6),
    ) {
        let (mut tree, mut model) = (Tree::new(), Model::new());
        let (mut published, mut held) = (tree.clone(), Vec::new());
        for (at, (key, action)) in changes.iter().enumerate() {
            let main = i64::try_from(at).unwrap();
            match action {
                0..2 => {
                    let removed = tree.remove(key, |_| true);
                    prop_assert_eq!(removed, model.remove(key).is_some());
                }
                2 => prop_assert!(!tree.remove(key, |_| false)),
                3 => put(&mut tree, &mut model, key, entry(main, true)),
                _ => put(&mut tree, &mut model, key, entry(main, false)),
            }
            if at % 50 == 7 {
                published = tree.clone();
                tree.reclaim();
            }
            if at % 500 == 7 {
                held.push((published.clone(), model.clone()));
            }
        }
        check(&tree, &model);
        check_ranges(&tree, &model, &ends);
        for (tree, model) in &held {
            check(tree, model);
        }
        let built = Tree::build(model.iter().map(|(key, entry)| (&**key, *entry)));
        check(&built, &model);
        check_ranges(&built, &model, &ends);
        for key in model.keys() {
            prop_assert!(tree.remove(key, |_| true));
        }
        check(&tree, &Model::new());
    }
}

#[test]
fn the_memory_of_replaced_nodes_is_reused_when_no_clone_uses_them() {
    let keys: Vec<_> = (0..20_000_u32).map(u32::to_be_bytes).collect();
    let mut model: Model = keys.iter().map(|key| (key.to_vec(), entry(1, false))).collect();
    let mut tree = Tree::build(keys.iter().map(|key| (&key[..], entry(1, false))));
    let overwrite = |tree: &mut Tree, model: &mut Model, main| {
        for key in keys.iter().step_by(100) {
            put(tree, model, key, entry(main, false));
        }
    };
    let held = (tree.clone(), model.clone());
    overwrite(&mut tree, &mut model, 2);
    let mut published = tree.clone();
    tree.reclaim();
    assert_eq!(tree.spare.len(), 0, "a clone uses every replaced node");
    for main in 3..6 {
        let before = model.clone();
        overwrite(&mut tree, &mut model, main);
        check(&published, &before);
        published = tree.clone();
        tree.reclaim();
        assert!(tree.spare.len() > 200, "{} spare nodes", tree.spare.len());
    }
    check(&tree, &model);
    check(&held.0, &held.1);
}

#[test]
fn leaves_do_not_grow_when_their_keys_are_overwritten() {
    fn check_room(node: &Node) {
        match node {
            Node::Leaf(leaf) => {
                let (len, capacity) = (leaf.entries.len(), leaf.entries.capacity());
                assert!(capacity < len + LEAF_STEP, "{len} entries in a leaf for {capacity}");
            }
            Node::Inner(inner) => inner.children.iter().for_each(|child| check_room(&child.node)),
        }
    }
    let mut random = SplitMix64::new(3);
    let mut keys: Vec<_> = (0..5_000).map(|_| random.next_u64().to_be_bytes()).collect();
    let (mut tree, mut model) = (Tree::new(), Model::new());
    let mut published = tree.clone();
    for main in 1..4 {
        for (at, key) in keys.iter().enumerate() {
            put(&mut tree, &mut model, key, entry(main, false));
            if at % 50 == 0 {
                published = tree.clone();
                tree.reclaim();
            }
        }
        keys.sort_unstable_by_key(|key| key[7]);
    }
    drop(published);
    check(&tree, &model);
    check_room(&tree.root);
}

#[test]
fn keys_inserted_in_order_fill_the_leaves() {
    let (mut tree, mut model) = (Tree::new(), Model::new());
    for n in 0..20_000_u32 {
        put(&mut tree, &mut model, &n.to_be_bytes(), entry(n.into(), false));
    }
    check(&tree, &model);
    fn leaves(node: &Node) -> usize {
        match node {
            Node::Leaf(_) => 1,
            Node::Inner(inner) => inner.children.iter().map(|child| leaves(&child.node)).sum(),
        }
    }
    assert_eq!(leaves(&tree.root), 20_000_usize.div_ceil(LEAF_MAX));
}

#[test]
fn a_walk_over_live_keys_visits_only_leaves_that_contain_live_keys() {
    let tombstone = |n: u32| !n.is_multiple_of(10_000);
    let keys: Vec<_> = (0..100_000_u32).map(|n| (n.to_be_bytes(), tombstone(n))).collect();
    let tree = Tree::build(keys.iter().map(|(key, tombstone)| (&key[..], entry(1, *tombstone))));
    for (from, to) in [(Bound::First, Bound::End), (Bound::Key(&[0, 0]), Bound::Key(&[1]))] {
        let walked = listed(&tree, from, to, Wanted::Live, 0);
        assert!(walked.len() <= 10 * LEAF_MAX, "{} visited keys", walked.len());
        let live: Vec<_> = walked.into_iter().filter(|(_, entry)| !entry.tombstone).collect();
        assert_eq!(live.len(), 10);
        let walked = listed(&tree, from, to, Wanted::Live, 9);
        assert!(walked.len() <= LEAF_MAX, "{} visited keys", walked.len());
        assert!(walked.contains(&live[9]));
    }
    let between = (Bound::Key(&[0, 0, 0, 1]), Bound::Key(&[0, 0, 39, 15]));
    let walked = listed(&tree, between.0, between.1, Wanted::Live, 0);
    assert!(
        walked.len() <= 2 * LEAF_MAX,
        "{} visited keys of a range without live keys",
        walked.len()
    );
}

#[test]
fn a_tree_built_from_any_number_of_keys_is_balanced() {
    for count in (0..300).chain([1000, 10_000, 33_333]) {
        let keys: Vec<_> = (0..count).map(|n: u32| n.to_be_bytes()).collect();
        let model: Model = keys.iter().map(|key| (key.to_vec(), entry(1, false))).collect();
        let tree = Tree::build(keys.iter().map(|key| (&key[..], entry(1, false))));
        check(&tree, &model);
    }
}
