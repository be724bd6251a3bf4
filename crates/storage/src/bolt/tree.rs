//! A bucket's tree while a transaction edits it.
//!
//! A tree starts as a link to its root page. An edited page is loaded into a [`Node`], together with the branches above
//! it. All other pages remain links. In memory, nodes may become much larger than a page, or empty. `shape` splits and
//! joins them into pages when the transaction commits.
//!
//! # Invariants
//!
//! * A loaded node's page is in `freed`, and every branch above a loaded node is loaded.
//! * Items of a leaf are strictly sorted by key. Children of a branch are sorted by key, and a
//!   child's key is not greater than any key below that child. The first child's key may be
//!   outdated, but it is never compared.
//! * The finger contains the position of a loaded leaf and the bounds of the keys that belong to this leaf.
//!
//! # Not here
//!
//! The bytes (`source`), page sizes (`shape`), page numbers, and writing (`commit`).

use bytes::Bytes;

use super::bucket::bucket_header;
use super::error::{BoltError, Result};
use super::page::{ELEMENT_BYTES, HEADER_BYTES, LeafElement, Page, PageKind};
use super::reach::tree_pages;
use super::source::{Source, Span};
use super::{DEPTH_MAX, PageId, Run};

/// The number of items at which a leaf is split before another item is inserted, which bounds the
/// cost of an insertion.
const LEAF_ITEMS_MAX: usize = 1024;

/// An entry of a leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) key: Span,
    pub(super) value: Span,
    pub(super) is_bucket: bool,
}

/// A subtree, either on its page or loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Page(PageId),
    Node(usize),
}

/// An entry of a branch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Child {
    pub(super) key: Span,
    pub(super) link: Link,
}

#[derive(Debug)]
pub(super) enum Body {
    Leaf(Vec<Item>),
    Branch(Vec<Child>),
}

/// A page that is being edited.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) body: Body,
    /// Whether an entry was removed, so that the node should be joined with a neighbour if it is
    /// small.
    pub(super) shrunk: bool,
    /// Whether the node's children already fit into their pages (see `shape`).
    pub(super) shaped: bool,
}

impl Item {
    /// Returns the number of bytes that the entry occupies in a page.
    pub(super) fn page_bytes(&self) -> usize {
        ELEMENT_BYTES + self.key.len() + self.value.len()
    }
}

impl Child {
    /// Returns the number of bytes that the entry occupies in a page.
    pub(super) fn page_bytes(&self) -> usize {
        ELEMENT_BYTES + self.key.len()
    }
}

impl Node {
    pub(super) fn new(body: Body) -> Self {
        Self { body, shrunk: false, shaped: false }
    }

    pub(super) fn is_empty(&self) -> bool {
        match &self.body {
            Body::Leaf(items) => items.is_empty(),
            Body::Branch(children) => children.is_empty(),
        }
    }

    /// Returns the first key, or `None` if the node is empty.
    pub(super) fn first_key(&self) -> Option<Span> {
        match &self.body {
            Body::Leaf(items) => items.first().map(|item| item.key),
            Body::Branch(children) => children.first().map(|child| child.key),
        }
    }

    /// Returns the number of bytes that the node occupies as one page, including the header.
    pub(super) fn page_bytes(&self) -> usize {
        let content: usize = match &self.body {
            Body::Leaf(items) => items.iter().map(Item::page_bytes).sum(),
            Body::Branch(children) => children.iter().map(Child::page_bytes).sum(),
        };
        HEADER_BYTES + content
    }
}

/// The leaf that was used last, and the keys that belong to it: from `low` (inclusive) to `high`
/// (exclusive).
#[derive(Clone, Copy, Debug)]
struct Finger {
    leaf: usize,
    low: Option<Span>,
    high: Option<Span>,
}

/// A bucket's tree with its edits.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) root: Link,
    pub(super) nodes: Vec<Node>,
    /// Pages of the snapshot that this tree no longer uses.
    pub(super) freed: Vec<Run>,
    finger: Option<Finger>,
    changed: bool,
}

/// An entry that was found without loading any page.
enum Found<'a> {
    Loaded(Item),
    OnPage(LeafElement<'a>),
}

impl Tree {
    /// Creates a tree with this root page.
    pub(super) fn on_page(root: PageId) -> Self {
        Self {
            root: Link::Page(root),
            nodes: Vec::new(),
            freed: Vec::new(),
            finger: None,
            changed: false,
        }
    }

    /// Creates a tree from an inline page.
    pub(super) fn from_inline(source: &Source, page: &Page<'_>, holder: PageId) -> Result<Self> {
        let mut tree = Self::on_page(PageId(0));
        let body = load_body(source, page, holder)?;
        tree.root = tree.add(Node::new(body));
        Ok(tree)
    }

    /// Creates a tree without entries.
    pub(super) fn empty() -> Self {
        let mut tree = Self::on_page(PageId(0));
        tree.root = tree.add(Node::new(Body::Leaf(Vec::new())));
        tree.changed = true;
        tree
    }

    /// Returns whether a commit has anything to write for this tree.
    pub(super) fn is_changed(&self) -> bool {
        self.changed || !self.freed.is_empty()
    }

    pub(super) fn add(&mut self, node: Node) -> Link {
        self.nodes.push(node);
        Link::Node(self.nodes.len() - 1)
    }

    /// Returns the value of `key` with all edits so far, and whether the key names a nested bucket.
    pub(super) fn get<'a>(
        &self,
        source: &'a Source,
        key: &[u8],
    ) -> Result<Option<(&'a [u8], bool)>> {
        Ok(self.find(source, key)?.map(|found| match found {
            Found::Loaded(item) => (source.bytes(item.value), item.is_bucket),
            Found::OnPage(element) => (element.value, element.is_bucket),
        }))
    }

    fn find<'a>(&self, source: &'a Source, key: &[u8]) -> Result<Option<Found<'a>>> {
        let mut link = self.root;
        for _ in 0..DEPTH_MAX {
            link = match link {
                Link::Node(index) => match &self.nodes[index].body {
                    Body::Leaf(items) => {
                        let at = items.binary_search_by(|item| source.bytes(item.key).cmp(key));
                        return Ok(at.ok().map(|at| Found::Loaded(items[at])));
                    }
                    Body::Branch(children) => children[seek_child(source, children, key)].link,
                },
                Link::Page(id) => {
                    let page = source.snapshot.page(id)?;
                    let fault = |e| source.snapshot.fault(id, e);
                    if page.kind == PageKind::Leaf {
                        let (at, exact) = page.seek(key).map_err(fault)?;
                        let element = exact.then(|| page.leaf_element(at).map_err(fault));
                        return Ok(element.transpose()?.map(Found::OnPage));
                    }
                    let at = page.child_index(key).map_err(fault)?;
                    Link::Page(page.child(at).map_err(fault)?)
                }
            };
        }
        Err(source.snapshot.corrupt(PageId(0), 0, "tree is too deep or has a cycle"))
    }

    /// Sets the value of `key`. The caller has checked the lengths of key and value.
    pub(super) fn put(
        &mut self,
        source: &mut Source,
        key: &[u8],
        value: Bytes,
        is_bucket: bool,
    ) -> Result<()> {
        let leaf = self.locate(source, key)?;
        let Body::Leaf(items) = &mut self.nodes[leaf].body else {
            unreachable!("locate returns a leaf");
        };
        let at = match items.last() {
            // In the largest bucket, keys are usually appended in order, so the last key is compared first.
            Some(last) if source.bytes(last.key) < key => Err(items.len()),
            Some(_) => items.binary_search_by(|item| source.bytes(item.key).cmp(key)),
            None => Err(0),
        };
        match at {
            Ok(at) if items[at].is_bucket != is_bucket => {
                return Err(BoltError::WrongKind { key: key.into() });
            }
            Ok(at) => items[at].value = source.add_value(value),
            Err(at) => {
                let (key, value) = (source.add_key(key), source.add_value(value));
                let item = Item { key, value, is_bucket };
                if items.len() < LEAF_ITEMS_MAX {
                    items.insert(at, item);
                } else {
                    self.insert_into_full(source, leaf, at, item);
                }
            }
        }
        self.changed = true;
        Ok(())
    }

    /// Removes `key` and returns whether it existed.
    pub(super) fn delete(&mut self, source: &Source, key: &[u8]) -> Result<bool> {
        let found = match self.find(source, key)? {
            None => return Ok(false),
            Some(Found::Loaded(item)) => item.is_bucket,
            Some(Found::OnPage(element)) => element.is_bucket,
        };
        if found {
            return Err(BoltError::WrongKind { key: key.into() });
        }
        let leaf = self.locate(source, key)?;
        let node = &mut self.nodes[leaf];
        let Body::Leaf(items) = &mut node.body else { unreachable!("locate returns a leaf") };
        if let Ok(at) = items.binary_search_by(|item| source.bytes(item.key).cmp(key)) {
            items.remove(at);
            node.shrunk = true;
            self.changed = true;
        }
        Ok(true)
    }

    /// Removes the given keys, which must be in ascending order, and visits each leaf only once.
    /// Returns the number of keys that existed.
    pub(super) fn delete_sorted<K: AsRef<[u8]>>(
        &mut self,
        source: &Source,
        keys: &[K],
    ) -> Result<u64> {
        if let Some(at) = keys.windows(2).position(|pair| pair[0].as_ref() >= pair[1].as_ref()) {
            return Err(BoltError::KeysUnsorted { index: at + 1 });
        }
        let mut removed = 0;
        let mut rest = keys;
        while let Some(first) = rest.first() {
            let leaf = self.locate(source, first.as_ref())?;
            let high = self.finger.and_then(|finger| finger.high).map(|high| source.bytes(high));
            let here = rest.iter().take_while(|key| high.is_none_or(|high| key.as_ref() < high));
            let (here, behind) = rest.split_at(here.count());
            removed += self.delete_from_leaf(source, leaf, here)?;
            rest = behind;
        }
        Ok(removed)
    }

    fn delete_from_leaf<K: AsRef<[u8]>>(
        &mut self,
        source: &Source,
        leaf: usize,
        keys: &[K],
    ) -> Result<u64> {
        let node = &mut self.nodes[leaf];
        let Body::Leaf(items) = &mut node.body else { unreachable!("locate returns a leaf") };
        let before = items.len();
        let mut keys = keys.iter().map(AsRef::as_ref).peekable();
        let mut bucket = None;
        items.retain(|item| {
            let key = source.bytes(item.key);
            while keys.next_if(|wanted| *wanted < key).is_some() {}
            if keys.next_if_eq(&key).is_none() {
                return true;
            }
            if item.is_bucket {
                bucket = Some(item.key);
            }
            item.is_bucket
        });
        let removed = before - items.len();
        if removed > 0 {
            node.shrunk = true;
            self.changed = true;
        }
        match bucket {
            Some(key) => Err(BoltError::WrongKind { key: source.bytes(key).into() }),
            None => Ok(removed as u64),
        }
    }

    /// Removes all entries, including nested buckets.
    pub(super) fn clear(&mut self, source: &Source) -> Result<()> {
        let snapshot = &source.snapshot;
        let mut pending = vec![self.root];
        let mut freed = Vec::new();
        while let Some(link) = pending.pop() {
            match link {
                Link::Page(id) => freed.extend(tree_pages(snapshot, id)?),
                Link::Node(index) => match &self.nodes[index].body {
                    Body::Branch(children) => pending.extend(children.iter().map(|c| c.link)),
                    Body::Leaf(items) => {
                        for item in items.iter().filter(|item| item.is_bucket) {
                            let root = bucket_header(source.bytes(item.value));
                            if let Some((root, _)) = root.filter(|(root, _)| *root != PageId(0)) {
                                freed.extend(tree_pages(snapshot, root)?);
                            }
                        }
                    }
                },
            }
        }
        self.freed.extend(freed);
        self.root = self.add(Node::new(Body::Leaf(Vec::new())));
        self.finger = None;
        self.changed = true;
        Ok(())
    }

    /// Loads the leaf that `key` belongs to, so that a commit rewrites it.
    pub(super) fn locate(&mut self, source: &Source, key: &[u8]) -> Result<usize> {
        if let Some(finger) = self.finger
            && finger.low.is_none_or(|low| source.bytes(low) <= key)
            && finger.high.is_none_or(|high| key < source.bytes(high))
        {
            return Ok(finger.leaf);
        }
        let (mut low, mut high) = (None, None);
        let mut page = PageId(0);
        let mut index = self.load_root(source)?;
        for _ in 0..DEPTH_MAX {
            let children = match &self.nodes[index].body {
                Body::Branch(children) => children,
                Body::Leaf(items) => {
                    // The leaf is found again by its first key when it is split.
                    if let Some(first) = items.first().map(|item| source.bytes(item.key))
                        && (low.is_some_and(|low| first < source.bytes(low))
                            || high.is_some_and(|high| first >= source.bytes(high)))
                    {
                        let reason = "the keys of a leaf are outside the range in its branch";
                        return Err(source.snapshot.corrupt(page, 0, reason));
                    }
                    self.finger = Some(Finger { leaf: index, low, high });
                    return Ok(index);
                }
            };
            let at = seek_child(source, children, key);
            if at > 0 {
                low = Some(children[at].key);
            }
            if let Some(next) = children.get(at + 1) {
                high = Some(next.key);
            }
            if let Link::Page(id) = children[at].link {
                page = id;
            }
            index = self.load_child(source, index, at)?;
        }
        Err(source.snapshot.corrupt(PageId(0), 0, "tree is too deep or has a cycle"))
    }

    pub(super) fn load_root(&mut self, source: &Source) -> Result<usize> {
        match self.root {
            Link::Node(index) => Ok(index),
            Link::Page(id) => {
                let index = self.load(source, id)?;
                self.root = Link::Node(index);
                Ok(index)
            }
        }
    }

    /// Loads the page at the end of a path from the root, and all pages above it. `positions` contains the position of
    /// the child to follow at each level.
    pub(super) fn load_at(&mut self, source: &Source, positions: &[usize]) -> Result<()> {
        let mut index = self.load_root(source)?;
        for &at in positions {
            index = self.load_child(source, index, at)?;
        }
        Ok(())
    }

    /// Loads child `at` of the loaded branch `branch`.
    pub(super) fn load_child(
        &mut self,
        source: &Source,
        branch: usize,
        at: usize,
    ) -> Result<usize> {
        let Body::Branch(children) = &self.nodes[branch].body else {
            unreachable!("the node is a branch");
        };
        let mut child = children[at];
        let index = self.loaded(source, &mut child)?;
        if let Body::Branch(children) = &mut self.nodes[branch].body {
            children[at] = child;
        }
        Ok(index)
    }

    /// Loads a child unless it is already loaded, and returns its node.
    pub(super) fn loaded(&mut self, source: &Source, child: &mut Child) -> Result<usize> {
        let index = match child.link {
            Link::Node(index) => index,
            Link::Page(id) => self.load(source, id)?,
        };
        child.link = Link::Node(index);
        Ok(index)
    }

    fn load(&mut self, source: &Source, id: PageId) -> Result<usize> {
        let snapshot = &source.snapshot;
        let page = snapshot.page(id)?;
        let used = page.used_bytes().map_err(|e| snapshot.fault(id, e))?;
        let pages = page.len() / snapshot.page_bytes();
        // Freeing a page also frees its overflow pages. With a wrong overflow count, a neighbour's pages would be freed
        // as well.
        if pages > used / snapshot.page_bytes() + 1 {
            return Err(snapshot.corrupt(id, 12, "page is longer than its elements require"));
        }
        let body = load_body(source, &page, id)?;
        self.freed.push(Run { start: id, count: pages as u64 });
        self.nodes.push(Node::new(body));
        Ok(self.nodes.len() - 1)
    }

    /// Splits a full leaf and inserts `item` at position `at`.
    fn insert_into_full(&mut self, source: &Source, leaf: usize, at: usize, item: Item) {
        let Body::Leaf(items) = &mut self.nodes[leaf].body else {
            unreachable!("only leaves have items");
        };
        let right = if at == items.len() {
            vec![item]
        } else {
            let middle = items.len() / 2;
            let mut right = items.split_off(middle);
            match at.checked_sub(middle) {
                Some(at) => right.insert(at, item),
                None => items.insert(at, item),
            }
            right
        };
        let first = items.first().map(|item| item.key);
        let (left_key, right_key) = (first.unwrap_or(right[0].key), right[0].key);
        let shrunk = self.nodes[leaf].shrunk;
        let right = self.add(Node { shrunk, ..Node::new(Body::Leaf(right)) });
        let right = Child { key: right_key, link: right };
        self.finger = None;
        match self.parent_of(source, leaf, left_key) {
            Some((parent, position)) => {
                if let Body::Branch(children) = &mut self.nodes[parent].body {
                    children.insert(position + 1, right);
                }
            }
            None => {
                let left = Child { key: left_key, link: Link::Node(leaf) };
                self.root = self.add(Node::new(Body::Branch(vec![left, right])));
            }
        }
    }

    /// Returns the branch above a loaded leaf, and the leaf's position in it. Returns `None` for
    /// the root.
    fn parent_of(&self, source: &Source, leaf: usize, key: Span) -> Option<(usize, usize)> {
        let key = source.bytes(key);
        let mut above = None;
        let mut link = self.root;
        while link != Link::Node(leaf) {
            let Link::Node(index) = link else {
                unreachable!("branches above a loaded leaf are loaded");
            };
            let Body::Branch(children) = &self.nodes[index].body else {
                unreachable!("the search for a key of a leaf ends in this leaf");
            };
            let at = seek_child(source, children, key);
            above = Some((index, at));
            link = children[at].link;
        }
        above
    }
}

/// Returns the position of the child that covers `key`.
fn seek_child(source: &Source, children: &[Child], key: &[u8]) -> usize {
    let rest = children.get(1..).unwrap_or_default();
    rest.partition_point(|child| source.bytes(child.key) <= key)
}

/// Converts a page to a node's body. The page's keys must ascend, because later searches and merges
/// rely on it.
fn load_body(source: &Source, page: &Page<'_>, at: PageId) -> Result<Body> {
    let snapshot = &source.snapshot;
    let fault = |e| snapshot.fault(at, e);
    let mut previous: Option<&[u8]> = None;
    let mut ascend = |key| {
        let ascends = previous.replace(key).is_none_or(|previous| previous < key);
        if ascends {
            Ok(())
        } else {
            Err(snapshot.corrupt(at, 0, "keys are not in ascending order"))
        }
    };
    if page.kind == PageKind::Leaf {
        let mut items = Vec::with_capacity(page.count() + 1);
        for index in 0..page.count() {
            let element = page.leaf_element(index).map_err(fault)?;
            ascend(element.key)?;
            let (key, value) = (source.mapped(element.key), source.mapped(element.value));
            items.push(Item { key, value, is_bucket: element.is_bucket });
        }
        return Ok(Body::Leaf(items));
    }
    let mut children = Vec::with_capacity(page.count() + 1);
    for index in 0..page.count() {
        let key = page.branch_key(index).map_err(fault)?;
        ascend(key)?;
        let link = Link::Page(page.child(index).map_err(fault)?);
        children.push(Child { key: source.mapped(key), link });
    }
    Ok(Body::Branch(children))
}
