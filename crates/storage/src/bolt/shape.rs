//! Splits and joins a tree's loaded nodes so that each node becomes one page.
//!
//! A tree is shaped bottom-up when a transaction commits. Neighbouring loaded nodes are rewritten
//! in any case, so they are packed together whenever that saves a page. A small node from which an
//! entry was removed is also joined with a neighbour that is not loaded. So a transaction that
//! deletes every other entry halves the number of pages, and a transaction that appends entries
//! produces full pages.
//!
//! # Invariants, after [`shape`]
//!
//! * Every loaded node occupies only the pages that it needs. Only a leaf that is the root may be
//!   empty.
//! * Every branch has at least two children.
//! * The key that a branch stores for a loaded child is the first key in the child's node.
//!
//! # Tests
//!
//! The tests in this file cover splitting. The model test covers everything else, and checks the
//! file after each commit.

use super::error::Result;
use super::page::HEADER_BYTES;
use super::source::Source;
use super::tree::{Body, Child, Item, Link, Node, Tree};
use super::{DEPTH_MAX, PageId};

/// The maximum number of pages in a leaf that combines several large entries to waste less space.
pub(super) const GROUP_PAGES_MAX: usize = 4;

/// Shapes the loaded part of a tree into nodes for pages of this size.
pub(super) fn shape(tree: &mut Tree, source: &Source, page_bytes: usize) -> Result<()> {
    let mut shaper = Shaper { tree, source, page_bytes };
    if let Link::Node(root) = shaper.tree.root {
        shaper.children(root, true, 0)?;
    }
    // A root branch with a single child is replaced by that child.
    while let Link::Node(root) = shaper.tree.root
        && let Body::Branch(children) = &shaper.tree.nodes[root].body
    {
        shaper.tree.root = match children.as_slice() {
            [] => shaper.tree.add(Node::new(Body::Leaf(Vec::new()))),
            [only] => only.link,
            _ => break,
        };
    }
    // A level is added above a root that needs several pages.
    while let Link::Node(root) = shaper.tree.root {
        let key = shaper.tree.nodes[root].first_key();
        let Some(key) = key else { break };
        let mut pieces = Vec::new();
        shaper.pack_run(&[Child { key, link: Link::Node(root) }], true, &mut pieces);
        if pieces.len() == 1 {
            break;
        }
        shaper.tree.root = shaper.tree.add(Node::new(Body::Branch(pieces)));
    }
    Ok(())
}

/// Returns the number of pages that are needed when entries of these sizes are packed into leaves.
pub(super) fn leaf_pages(sizes: &[usize], page_bytes: usize) -> usize {
    let cutter = Cutter { page_bytes, edge: true };
    let (mut start, mut total) = (0, 0);
    while start < sizes.len() {
        let (count, pages) = cutter.leaf_group(&sizes[start..]);
        start += count;
        total += pages;
    }
    total
}

struct Shaper<'a> {
    tree: &'a mut Tree,
    source: &'a Source,
    page_bytes: usize,
}

impl Shaper<'_> {
    /// Shapes all nodes below a branch. `edge` states whether the branch is the last branch on its level.
    fn children(&mut self, branch: usize, edge: bool, depth: usize) -> Result<()> {
        let Body::Branch(children) = &mut self.tree.nodes[branch].body else { return Ok(()) };
        let mut children = std::mem::take(children);
        if depth == DEPTH_MAX {
            return Err(self.source.snapshot.corrupt(PageId(0), 0, "tree is too deep"));
        }
        let count_before = children.len();
        loop {
            let last = children.len().saturating_sub(1);
            for (at, child) in children.iter_mut().enumerate() {
                let Link::Node(node) = child.link else { continue };
                if !self.tree.nodes[node].shaped {
                    self.children(node, edge && at == last, depth + 1)?;
                    self.tree.nodes[node].shaped = true;
                }
                child.key = self.tree.nodes[node].first_key().unwrap_or(child.key);
            }
            let nodes = &self.tree.nodes;
            children.retain(|child| match child.link {
                Link::Node(node) => !nodes[node].is_empty(),
                Link::Page(_) => true,
            });
            if !self.join_small(&mut children)? {
                break;
            }
        }
        let packed = self.pack(&children, edge);
        assert!(
            packed.is_empty() == children.is_empty(),
            "packing keeps at least one child: otherwise all keys below the branch would be lost"
        );
        let node = &mut self.tree.nodes[branch];
        node.shrunk |= packed.len() < count_before;
        node.body = Body::Branch(packed);
        Ok(())
    }

    /// Joins small nodes with a neighbour. Returns whether branches were joined. In that case, it may be possible to
    /// join the children of these branches too.
    fn join_small(&mut self, children: &mut Vec<Child>) -> Result<bool> {
        let mut branches_joined = false;
        let mut at = 0;
        while at < children.len() && children.len() > 1 {
            let small = matches!(children[at].link, Link::Node(node) if self.is_small(node));
            if !small {
                at += 1;
                continue;
            }
            at = at.saturating_sub(1);
            let left = self.tree.loaded(self.source, &mut children[at])?;
            let right = self.tree.loaded(self.source, &mut children[at + 1])?;
            children.remove(at + 1);
            let taken = std::mem::replace(&mut self.tree.nodes[right].body, Body::Leaf(Vec::new()));
            let joined = &mut self.tree.nodes[left];
            joined.shrunk = true;
            match (&mut joined.body, taken) {
                (Body::Leaf(items), Body::Leaf(more)) => items.extend(more),
                (Body::Branch(children), Body::Branch(more)) => {
                    children.extend(more);
                    joined.shaped = false;
                    branches_joined = true;
                }
                _ => {
                    let reason = "leaves of one tree have different depths";
                    return Err(self.source.snapshot.corrupt(PageId(0), 0, reason));
                }
            }
        }
        Ok(branches_joined)
    }

    fn is_small(&self, node: usize) -> bool {
        let node = &self.tree.nodes[node];
        let lonely = matches!(&node.body, Body::Branch(children) if children.len() < 2);
        lonely || node.shrunk && node.page_bytes() < self.page_bytes / 4
    }

    /// Packs each run of loaded neighbours into page-sized nodes.
    fn pack(&mut self, children: &[Child], edge: bool) -> Vec<Child> {
        let mut packed = Vec::with_capacity(children.len());
        let mut rest = children;
        while let Some(first) = rest.first() {
            if let Link::Page(_) = first.link {
                packed.push(*first);
                rest = &rest[1..];
                continue;
            }
            let loaded = rest.iter().take_while(|child| matches!(child.link, Link::Node(_)));
            let (run, behind) = rest.split_at(loaded.count());
            self.pack_run(run, edge && behind.is_empty(), &mut packed);
            rest = behind;
        }
        packed
    }

    fn pack_run(&mut self, run: &[Child], edge: bool, packed: &mut Vec<Child>) {
        let nodes: Vec<usize> = run
            .iter()
            .filter_map(|child| match child.link {
                Link::Node(node) => Some(node),
                Link::Page(_) => None,
            })
            .collect();
        let is_leaf =
            matches!(nodes.first(), Some(&n) if matches!(self.tree.nodes[n].body, Body::Leaf(_)));
        let one_page_each =
            nodes.iter().all(|&node| self.tree.nodes[node].page_bytes() <= self.page_bytes);
        if nodes.len() == 1 && one_page_each {
            packed.extend_from_slice(run);
            return;
        }
        let cutter = Cutter { page_bytes: self.page_bytes, edge };
        if is_leaf {
            let items = self.gather(&nodes, |body| match body {
                Body::Leaf(items) => items.as_slice(),
                Body::Branch(_) => &[],
            });
            let sizes: Vec<usize> = items.iter().map(Item::page_bytes).collect();
            let ends = cutter.leaf(&sizes);
            if one_page_each && ends.len() >= nodes.len() {
                packed.extend_from_slice(run);
                return;
            }
            self.replace(&items, &ends, packed, |item| item.key, Body::Leaf);
        } else {
            let children = self.gather(&nodes, |body| match body {
                Body::Branch(children) => children.as_slice(),
                Body::Leaf(_) => &[],
            });
            let sizes: Vec<usize> = children.iter().map(Child::page_bytes).collect();
            let ends = cutter.branch(&sizes);
            if one_page_each && ends.len() >= nodes.len() {
                packed.extend_from_slice(run);
                return;
            }
            self.replace(&children, &ends, packed, |child| child.key, Body::Branch);
        }
    }

    fn gather<T: Copy>(&self, nodes: &[usize], part: impl Fn(&Body) -> &[T]) -> Vec<T> {
        let mut all = Vec::new();
        for &node in nodes {
            all.extend_from_slice(part(&self.tree.nodes[node].body));
        }
        all
    }

    /// Creates new nodes from the pieces of `all` that end at `ends`.
    fn replace<T: Copy>(
        &mut self,
        all: &[T],
        ends: &[usize],
        packed: &mut Vec<Child>,
        key: impl Fn(&T) -> super::source::Span,
        body: impl Fn(Vec<T>) -> Body,
    ) {
        let mut start = 0;
        for &end in ends {
            assert!(
                start < end,
                "only a root may be empty: otherwise a search would end in a page without keys"
            );
            let piece = &all[start..end];
            let mut node = Node::new(body(piece.to_vec()));
            node.shaped = true;
            packed.push(Child { key: key(&piece[0]), link: self.tree.add(node) });
            start = end;
        }
    }
}

/// Decides where a sequence of entries is split into pages.
#[derive(Clone, Copy, Debug)]
struct Cutter {
    page_bytes: usize,
    /// Whether the sequence is at the end of its level, where more entries are appended. In that
    /// case pages are filled, and the last page takes the remaining entries. Otherwise entries are
    /// distributed evenly, so that each page has room for more.
    edge: bool,
}

impl Cutter {
    /// Splits a leaf's entries. Returns the position after the last entry of each page.
    fn leaf(self, sizes: &[usize]) -> Vec<usize> {
        let mut ends = Vec::new();
        let mut start = 0;
        let mut single_pages = true;
        while start < sizes.len() {
            let (count, pages) = self.leaf_group(&sizes[start..]);
            single_pages &= pages == 1;
            start += count;
            ends.push(start);
        }
        if self.edge || !single_pages || ends.len() < 2 {
            return ends;
        }
        self.spread(sizes, ends.len(), 1).unwrap_or(ends)
    }

    /// Returns the number of entries in the next leaf, and its number of pages.
    ///
    /// A leaf has a single page if its entries fill that page well. Entries larger than a third of a page leave gaps. A
    /// leaf of several pages, up to [`GROUP_PAGES_MAX`], holds several such entries with less waste.
    fn leaf_group(self, sizes: &[usize]) -> (usize, usize) {
        let first = HEADER_BYTES + sizes.first().copied().unwrap_or(0);
        let pages_min = first.div_ceil(self.page_bytes).max(1);
        let mut best = (0, pages_min, 0.0);
        for pages in pages_min..=pages_min.max(GROUP_PAGES_MAX) {
            let room = pages * self.page_bytes;
            let mut used = HEADER_BYTES;
            let fitting = sizes.iter().take_while(|size| {
                used += **size;
                used <= room
            });
            let count = fitting.count();
            let used = HEADER_BYTES + sizes[..count].iter().sum::<usize>();
            let fill = used as f64 / room as f64;
            if fill > best.2 {
                best = (count, pages, fill);
            }
            if fill > 0.85 || count == sizes.len() {
                break;
            }
        }
        (best.0, best.1)
    }

    /// Splits a branch's entries, with at least two entries on each page, regardless of their size.
    fn branch(self, sizes: &[usize]) -> Vec<usize> {
        let mut ends = Vec::new();
        let mut used = HEADER_BYTES;
        let mut start = 0;
        for (at, size) in sizes.iter().enumerate() {
            if used + size > self.page_bytes && at - start >= 2 {
                ends.push(at);
                start = at;
                used = HEADER_BYTES;
            }
            used += size;
        }
        ends.push(sizes.len());
        if !self.edge
            && ends.len() > 1
            && let Some(even) = self.spread(sizes, ends.len(), 2)
        {
            ends = even;
        }
        // If a page has only a single entry, an entry of the previous page is moved to it, or the two pages are merged.
        let mut at = 1;
        while at < ends.len() {
            let before = if at >= 2 { ends[at - 2] } else { 0 };
            if ends[at] - ends[at - 1] >= 2 {
                at += 1;
            } else if ends[at - 1] - before >= 3 {
                ends[at - 1] -= 1;
                at += 1;
            } else {
                ends.remove(at - 1);
            }
        }
        ends
    }

    /// Distributes the entries evenly over `count` single pages, each with at least `entries_min`
    /// entries. Returns `None` if that is impossible.
    fn spread(self, sizes: &[usize], count: usize, entries_min: usize) -> Option<Vec<usize>> {
        let mut left: usize = sizes.iter().sum();
        let mut ends = Vec::with_capacity(count);
        let mut start = 0;
        for pages_left in (1..=count).rev() {
            let target = left.div_ceil(pages_left);
            let mut used = 0;
            let mut end = start;
            while let Some(size) = sizes.get(end) {
                // Split as close to the target as possible: up to half of the last entry may exceed
                // the target.
                if used > 0
                    && (used + size / 2 > target || HEADER_BYTES + used + size > self.page_bytes)
                {
                    break;
                }
                used += size;
                end += 1;
            }
            if end - start < entries_min || HEADER_BYTES + used > self.page_bytes {
                return None;
            }
            left -= used;
            start = end;
            ends.push(end);
        }
        (start == sizes.len()).then_some(ends)
    }
}

#[cfg(test)]
mod tests {
    use quorate_seeded_random::SplitMix64;

    use super::*;

    fn leaf(sizes: &[usize], edge: bool) -> Vec<usize> {
        Cutter { page_bytes: 4096, edge }.leaf(sizes)
    }

    fn branch(sizes: &[usize], edge: bool) -> Vec<usize> {
        Cutter { page_bytes: 4096, edge }.branch(sizes)
    }

    #[test]
    fn appended_entries_fill_pages() {
        assert_eq!(leaf(&[333; 30], true), [12, 24, 30]);
    }

    #[test]
    fn pages_are_filled_evenly_if_entries_are_inserted_in_the_middle() {
        assert_eq!(leaf(&[333; 30], false), [10, 20, 30]);
        assert_eq!(leaf(&[333; 12], false), [12]);
    }

    #[test]
    fn large_entries_share_a_leaf_of_several_pages() {
        // A single entry fills only 52 % of a page, but five entries fill 86 % of three pages.
        assert_eq!(leaf(&[2100; 14], true), [5, 10, 13, 14]);
        // Each very large entry has a leaf of its own, with room for a small neighbour.
        assert_eq!(leaf(&[1 << 20, 100, 1 << 20], true), [2, 3]);
        assert_eq!(leaf(&[5000], false), [1]);
    }

    #[test]
    fn no_branch_page_has_a_single_child() {
        assert_eq!(branch(&[40; 103], true), [101, 103]);
        assert_eq!(branch(&[2100; 5], true), [2, 5]);
        assert_eq!(branch(&[30_000; 4], true), [2, 4]);
        assert_eq!(branch(&[30_000; 3], false), [3]);
        assert_eq!(branch(&[40; 150], false), [75, 150]);
        assert_eq!(branch(&[1900, 1800, 1800, 40], false), [2, 4]);
    }

    #[test]
    fn every_split_covers_all_entries_and_leaves_no_single_child() {
        for seed in 0..300_u64 {
            let mut random = SplitMix64::new(seed);
            let mut draw = |below: usize| random.position(below);
            let largest = [40, 400, 2000, 9000][draw(4)];
            let longest = [5, 200][draw(2)];
            let sizes: Vec<usize> = (0..=draw(longest)).map(|_| 20 + draw(largest)).collect();
            for edge in [false, true] {
                let ends = leaf(&sizes, edge);
                assert_eq!(ends.last(), Some(&sizes.len()));
                assert!(ends.is_sorted_by(|a, b| a < b) && ends[0] > 0);
                let ends = branch(&sizes, edge);
                assert_eq!(ends.last(), Some(&sizes.len()));
                assert!(sizes.len() < 2 || ends.windows(2).all(|pair| pair[1] >= pair[0] + 2));
                assert!(sizes.len() < 2 || ends[0] >= 2);
            }
        }
    }
}
