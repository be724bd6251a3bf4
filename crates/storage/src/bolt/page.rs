//! Tree pages: encoding and decoding. No other module knows their byte layout.
//!
//! ```text
//! header   id u64 | flags u16 | count u16 | overflow u32
//! leaf     count x { flags u32, pos u32, key bytes u32, value bytes u32 }   then keys and values
//! branch   count x { pos u32, key bytes u32, child id u64 }                 then keys
//! ```
//!
//! All numbers are little-endian. `pos` counts from the element itself. A page takes `1 + overflow`
//! pages of the file; only the first has a header. Inline pages (small buckets, inside a leaf's
//! value) have the same layout, but may be at any address, so nothing here assumes alignment.
//!
//! # Invariants
//!
//! * A [`Page`] exists only after its header was checked; every element access checks the element.
//! * No byte of a page can cause a panic: each failure is a [`PageFault`].
//!
//! # Not here
//!
//! Meta pages (`meta`), the free list (`free`), and whether keys ascend (`check`, and `tree` before
//! it rewrites a page).

use std::cmp::Ordering;
use std::ops::Range;

use super::PageId;
use crate::size::in_memory;

/// Size of a page header.
pub(super) const HEADER_BYTES: usize = 16;
/// Size of one element of the leaf or branch table.
pub(super) const ELEMENT_BYTES: usize = 16;

/// The number of remaining keys at which a search compares all of them instead of halving further.
const PROBED_TOGETHER: usize = 16;

pub(super) const FLAG_BRANCH: u16 = 0x01;
pub(super) const FLAG_LEAF: u16 = 0x02;
pub(super) const FLAG_META: u16 = 0x04;
pub(super) const FLAG_FREELIST: u16 = 0x10;
pub(super) const ELEMENT_IS_BUCKET: u32 = 0x01;

/// The problem of a page, before the file's name is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageFault {
    /// Byte within the page.
    pub(super) offset: usize,
    pub(super) reason: &'static str,
}

impl PageFault {
    fn at(offset: usize, reason: &'static str) -> Self {
        Self { offset, reason }
    }
}

/// The kind of a tree page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageKind {
    Branch,
    Leaf,
}

/// A tree page with a checked header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page<'a> {
    /// The page with its overflow.
    bytes: &'a [u8],
    count: usize,
    pub(super) kind: PageKind,
    /// The page's number; 0 for an inline page.
    pub(super) id: PageId,
}

/// One entry of a leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeafElement<'a> {
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
    pub(super) is_bucket: bool,
}

impl<'a> Page<'a> {
    /// Reads the page `id` that starts at `bytes[0]`; more bytes may follow.
    pub(super) fn parse(bytes: &'a [u8], id: PageId, page_bytes: usize) -> Result<Self, PageFault> {
        let header = header(bytes)?;
        if header.id != id {
            return Err(PageFault::at(0, "page has the number of another page"));
        }
        let pages = u64::from(header.overflow) + 1;
        let len = usize::try_from(pages * page_bytes as u64)
            .ok()
            .filter(|&len| len <= bytes.len())
            .ok_or_else(|| PageFault::at(12, "overflow reaches beyond the last page"))?;
        Self::with_header(&bytes[..len], &header)
    }

    /// Reads an inline page, which fills `bytes` to the end.
    pub(super) fn parse_inline(bytes: &'a [u8]) -> Result<Self, PageFault> {
        let header = header(bytes)?;
        let page = Self::with_header(bytes, &header)?;
        if header.id != PageId(0) || header.overflow != 0 || page.kind != PageKind::Leaf {
            return Err(PageFault::at(0, "inline bucket is not a single leaf"));
        }
        Ok(page)
    }

    fn with_header(bytes: &'a [u8], header: &Header) -> Result<Self, PageFault> {
        let kind = match header.flags {
            FLAG_BRANCH => PageKind::Branch,
            FLAG_LEAF => PageKind::Leaf,
            _ => return Err(PageFault::at(8, "neither a branch nor a leaf page")),
        };
        let count = usize::from(header.count);
        if HEADER_BYTES + count * ELEMENT_BYTES > bytes.len() {
            return Err(PageFault::at(10, "element table reaches beyond the page"));
        }
        if kind == PageKind::Branch && count == 0 {
            return Err(PageFault::at(10, "branch page without children"));
        }
        Ok(Self { bytes, count, kind, id: header.id })
    }

    /// Number of elements.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Bytes of the page with its overflow.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    fn element(&self, index: usize) -> Result<(usize, &'a [u8; ELEMENT_BYTES]), PageFault> {
        let at = HEADER_BYTES + index * ELEMENT_BYTES;
        match self.bytes.get(at..).and_then(|rest| rest.first_chunk()) {
            Some(element) if index < self.count => Ok((at, element)),
            _ => Err(PageFault::at(10, "no such element")),
        }
    }

    /// The bytes `pos..pos + len` after the element at `at`.
    fn data(&self, at: usize, pos: u32, len: u64) -> Result<&'a [u8], PageFault> {
        let start = at as u64 + u64::from(pos);
        let range = usize::try_from(start).ok().zip(usize::try_from(start + len).ok());
        range
            .and_then(|(start, end)| self.bytes.get(start..end))
            .ok_or_else(|| PageFault::at(at, "element reaches beyond the page"))
    }

    /// Entry `index` of a leaf.
    pub(super) fn leaf_element(&self, index: usize) -> Result<LeafElement<'a>, PageFault> {
        let (at, element) = self.element(index)?;
        let (key_len, value_len) = (u32_at(element, 8), u32_at(element, 12));
        let data = self.data(at, u32_at(element, 4), u64::from(key_len) + u64::from(value_len))?;
        let (key, value) = data.split_at(key_len as usize);
        Ok(LeafElement { key, value, is_bucket: u32_at(element, 0) & ELEMENT_IS_BUCKET != 0 })
    }

    /// The bytes that entry `index` of a leaf takes.
    pub(super) fn element_bytes(&self, index: usize) -> Result<usize, PageFault> {
        let (_, element) = self.element(index)?;
        Ok(ELEMENT_BYTES + u32_at(element, 8) as usize + u32_at(element, 12) as usize)
    }

    /// Key `index` of a leaf.
    pub(super) fn leaf_key(&self, index: usize) -> Result<&'a [u8], PageFault> {
        let (at, element) = self.element(index)?;
        self.data(at, u32_at(element, 4), u64::from(u32_at(element, 8)))
    }

    /// Key `index` of a branch.
    pub(super) fn branch_key(&self, index: usize) -> Result<&'a [u8], PageFault> {
        let (at, element) = self.element(index)?;
        self.data(at, u32_at(element, 0), u64::from(u32_at(element, 4)))
    }

    /// Child `index` of a branch.
    pub(super) fn child(&self, index: usize) -> Result<PageId, PageFault> {
        let (_, element) = self.element(index)?;
        Ok(PageId(u64_at(element, 8)))
    }

    /// Key `index`, of either kind of page.
    fn key(&self, index: usize) -> Result<&'a [u8], PageFault> {
        match self.kind {
            PageKind::Leaf => self.leaf_key(index),
            PageKind::Branch => self.branch_key(index),
        }
    }

    /// Position of the first key at or above `key`, and whether it is `key` itself.
    pub(super) fn seek(&self, key: &[u8]) -> Result<(usize, bool), PageFault> {
        self.seek_among(0..self.count, key)
    }

    /// As [`Page::seek`], but compares the key at `guess` first and those around it next.
    pub(super) fn seek_near(&self, guess: usize, key: &[u8]) -> Result<(usize, bool), PageFault> {
        if guess < self.count && self.key(guess)? == key {
            return Ok((guess, true));
        }
        let low = guess.saturating_sub(PROBED_TOGETHER / 2).min(self.count);
        let high = (low + PROBED_TOGETHER).min(self.count);
        if low > 0 && self.key(low - 1)? >= key {
            self.seek_among(0..low, key)
        } else if high < self.count && self.key(high)? < key {
            self.seek_among(high + 1..self.count, key)
        } else {
            self.seek_among(low..high, key)
        }
    }

    /// The likely index of `key` on a page whose keys are spread evenly from `from` to below `to`.
    pub(super) fn guess(&self, from: &[u8], to: &[u8], key: &[u8]) -> Option<usize> {
        let [from, to, at] = [from, to, key].map(prefix);
        let passed = u128::from(at.checked_sub(from)?) * self.count as u128;
        usize::try_from(passed.checked_div(u128::from(to.checked_sub(from)?))?).ok()
    }

    /// Prefetches element `index` and its key into the CPU cache, if they exist.
    pub(super) fn touch(&self, index: usize) {
        std::hint::black_box(self.key(index).ok().and_then(<[u8]>::first));
    }

    /// As [`Page::seek`], for a position that is known to be in `among` or at its end.
    fn seek_among(&self, among: Range<usize>, key: &[u8]) -> Result<(usize, bool), PageFault> {
        let (mut low, mut high) = (among.start, among.end);
        while high - low > PROBED_TOGETHER {
            let middle = low.midpoint(high);
            let probe = self.key(middle)?;
            let order = prefix(probe).cmp(&prefix(key)).then_with(|| probe.cmp(key));
            if order == Ordering::Less {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let halved = high;
        // Each key is on a cache line of its own, most likely not cached. Comparing the prefixes of
        // all remaining keys, instead of every other key one after the other, fetches them in
        // parallel.
        let target = prefix(key);
        let (mut below, mut not_above) = (low, low);
        for index in low..high {
            let prefix = prefix(self.key(index)?);
            below += usize::from(prefix < target);
            not_above += usize::from(prefix <= target);
        }
        let (mut low, mut high) = (below, not_above);
        while low < high {
            let middle = low.midpoint(high);
            match self.key(middle)?.cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok((middle, true)),
                Ordering::Greater => high = middle,
            }
        }
        // The halving above stops at an equal key without comparing it.
        let exact = low == halved && low < self.count && self.key(low)? == key;
        Ok((low, exact))
    }

    /// Position of the child that covers `key`: the last one whose key is not above it, else the
    /// first.
    pub(super) fn child_index(&self, key: &[u8]) -> Result<usize, PageFault> {
        let (index, exact) = self.seek(key)?;
        Ok(if exact { index } else { index.saturating_sub(1) })
    }

    /// The offset after the last byte that an element uses, from the page's start.
    pub(super) fn used_bytes(&self) -> Result<usize, PageFault> {
        let mut used = HEADER_BYTES + self.count * ELEMENT_BYTES;
        for index in 0..self.count {
            let (at, element) = self.element(index)?;
            let end = match self.kind {
                PageKind::Leaf => {
                    let bytes = u64::from(u32_at(element, 8)) + u64::from(u32_at(element, 12));
                    u64::from(u32_at(element, 4)) + bytes
                }
                PageKind::Branch => u64::from(u32_at(element, 0)) + u64::from(u32_at(element, 4)),
            } + at as u64;
            if end > self.bytes.len() as u64 {
                return Err(PageFault::at(at, "element reaches beyond the page"));
            }
            used = used.max(in_memory(end));
        }
        Ok(used)
    }
}

/// The first 16 bytes of any page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) id: PageId,
    pub(super) flags: u16,
    pub(super) count: u16,
    pub(super) overflow: u32,
}

/// Decodes a page header without validating it.
pub(super) fn header(bytes: &[u8]) -> Result<Header, PageFault> {
    let bytes: &[u8; HEADER_BYTES] =
        bytes.first_chunk().ok_or_else(|| PageFault::at(0, "page header is cut off"))?;
    Ok(Header {
        id: PageId(u64_at(bytes, 0)),
        flags: u16::from_le_bytes([bytes[8], bytes[9]]),
        count: u16::from_le_bytes([bytes[10], bytes[11]]),
        overflow: u32_at(bytes, 12),
    })
}

/// Appends a page header.
pub(super) fn put_header(out: &mut Vec<u8>, header: &Header) {
    out.extend_from_slice(&header.id.0.to_le_bytes());
    out.extend_from_slice(&header.flags.to_le_bytes());
    out.extend_from_slice(&header.count.to_le_bytes());
    out.extend_from_slice(&header.overflow.to_le_bytes());
}

/// Appends a leaf page without padding. An entry is a key, a value, and whether it is a bucket.
pub(super) fn put_leaf<'a>(
    out: &mut Vec<u8>,
    id: PageId,
    overflow: u32,
    entries: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8], bool)> + Clone,
) {
    let count = entries.len();
    put_header(out, &Header { id, flags: FLAG_LEAF, count: count_u16(count), overflow });
    let mut pos = count * ELEMENT_BYTES;
    for (key, value, is_bucket) in entries.clone() {
        let flags = if is_bucket { ELEMENT_IS_BUCKET } else { 0 };
        let mut element = [0; ELEMENT_BYTES];
        element[0..4].copy_from_slice(&flags.to_le_bytes());
        element[4..8].copy_from_slice(&u32_of(pos).to_le_bytes());
        element[8..12].copy_from_slice(&u32_of(key.len()).to_le_bytes());
        element[12..16].copy_from_slice(&u32_of(value.len()).to_le_bytes());
        out.extend_from_slice(&element);
        pos = pos + key.len() + value.len() - ELEMENT_BYTES;
    }
    for (key, value, _) in entries {
        out.extend_from_slice(key);
        out.extend_from_slice(value);
    }
}

/// A length or position within a page, as stored.
pub(super) fn u32_of(length: usize) -> u32 {
    u32::try_from(length).expect("lengths are checked by put, and nodes are split")
}

/// Appends a branch page without padding. An entry is a key and a child.
pub(super) fn put_branch<'a>(
    out: &mut Vec<u8>,
    id: PageId,
    overflow: u32,
    entries: impl ExactSizeIterator<Item = (&'a [u8], PageId)> + Clone,
) {
    let count = entries.len();
    put_header(out, &Header { id, flags: FLAG_BRANCH, count: count_u16(count), overflow });
    let mut pos = count * ELEMENT_BYTES;
    for (key, child) in entries.clone() {
        let mut element = [0; ELEMENT_BYTES];
        element[0..4].copy_from_slice(&u32_of(pos).to_le_bytes());
        element[4..8].copy_from_slice(&u32_of(key.len()).to_le_bytes());
        element[8..16].copy_from_slice(&child.0.to_le_bytes());
        out.extend_from_slice(&element);
        pos = pos + key.len() - ELEMENT_BYTES;
    }
    for (key, _) in entries {
        out.extend_from_slice(key);
    }
}

fn count_u16(count: usize) -> u16 {
    u16::try_from(count).expect("a page holds fewer than 65,535 elements by its size")
}

/// The first eight bytes as a number with the same order; a shorter key is padded with zeros.
fn prefix(key: &[u8]) -> u64 {
    match key.first_chunk() {
        Some(chunk) => u64::from_be_bytes(*chunk),
        None => key.iter().rev().fold(0, |prefix, byte| prefix >> 8 | u64::from(*byte) << 56),
    }
}

fn u32_at(bytes: &[u8; 16], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; 16], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
