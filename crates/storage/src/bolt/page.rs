//! Encoding and decoding of tree pages. No other module depends on their byte layout.
//!
//! ```text
//! header   id u64 | flags u16 | count u16 | overflow u32
//! leaf     count x { flags u32, pos u32, key bytes u32, value bytes u32 }   then keys and values
//! branch   count x { pos u32, key bytes u32, child id u64 }                 then keys
//! ```
//!
//! All numbers are little-endian. `pos` is an offset from the start of the element. A page occupies
//! `1 + overflow` pages of the file; only the first has a header. Inline pages (small buckets,
//! stored in a leaf's value) have the same layout, but may be at any address, so nothing here
//! assumes alignment.
//!
//! # Invariants
//!
//! * A [`Page`] exists only if its header is valid. Every access to an element checks the element.
//! * No content of a page can cause a panic. Each failure is a [`PageFault`].
//!
//! # Not here
//!
//! Meta pages (`meta`), the free list (`free`), and the check that keys ascend (`check`, and `tree`
//! before it rewrites a page).

use std::cmp::Ordering;
use std::ops::Range;

use super::PageId;
use crate::size::in_memory;

/// The size of a page header, in bytes.
pub(super) const HEADER_BYTES: usize = 16;
/// The size of an element in the table of a leaf or branch, in bytes.
pub(super) const ELEMENT_BYTES: usize = 16;

/// The number of remaining keys at which a search compares all of them instead of halving the range
/// again.
const PROBED_TOGETHER: usize = 16;

pub(super) const FLAG_BRANCH: u16 = 0x01;
pub(super) const FLAG_LEAF: u16 = 0x02;
pub(super) const FLAG_META: u16 = 0x04;
pub(super) const FLAG_FREELIST: u16 = 0x10;
pub(super) const ELEMENT_IS_BUCKET: u32 = 0x01;

/// A problem with a page. The caller adds the file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageFault {
    /// The offset within the page.
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

/// A tree page with a valid header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page<'a> {
    /// The bytes of the page, including its overflow pages.
    bytes: &'a [u8],
    count: usize,
    pub(super) kind: PageKind,
    /// The page's number, or 0 for an inline page.
    pub(super) id: PageId,
}

/// An entry of a leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeafElement<'a> {
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
    pub(super) is_bucket: bool,
}

impl<'a> Page<'a> {
    /// Reads the page `id` at the start of `bytes`. More bytes may follow.
    pub(super) fn parse(bytes: &'a [u8], id: PageId, page_bytes: usize) -> Result<Self, PageFault> {
        let header = header(bytes)?;
        if header.id != id {
            return Err(PageFault::at(0, "page header has the number of another page"));
        }
        let pages = u64::from(header.overflow) + 1;
        let len = usize::try_from(pages * page_bytes as u64)
            .ok()
            .filter(|&len| len <= bytes.len())
            .ok_or_else(|| PageFault::at(12, "overflow extends beyond the last page"))?;
        Self::with_header(&bytes[..len], &header)
    }

    /// Reads an inline page, which occupies all of `bytes`.
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
            return Err(PageFault::at(10, "element table extends beyond the page"));
        }
        if kind == PageKind::Branch && count == 0 {
            return Err(PageFault::at(10, "branch page without children"));
        }
        Ok(Self { bytes, count, kind, id: header.id })
    }

    /// Returns the number of elements.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns the size of the page in bytes, including its overflow pages.
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

    /// Returns the bytes `pos..pos + len`, relative to the element at `at`.
    fn data(&self, at: usize, pos: u32, len: u64) -> Result<&'a [u8], PageFault> {
        let start = at as u64 + u64::from(pos);
        let range = usize::try_from(start).ok().zip(usize::try_from(start + len).ok());
        range
            .and_then(|(start, end)| self.bytes.get(start..end))
            .ok_or_else(|| PageFault::at(at, "element extends beyond the page"))
    }

    /// Returns entry `index` of a leaf.
    pub(super) fn leaf_element(&self, index: usize) -> Result<LeafElement<'a>, PageFault> {
        let (at, element) = self.element(index)?;
        let (key_len, value_len) = (u32_at(element, 8), u32_at(element, 12));
        let data = self.data(at, u32_at(element, 4), u64::from(key_len) + u64::from(value_len))?;
        let (key, value) = data.split_at(key_len as usize);
        Ok(LeafElement { key, value, is_bucket: u32_at(element, 0) & ELEMENT_IS_BUCKET != 0 })
    }

    /// Returns the number of bytes that entry `index` of a leaf occupies.
    pub(super) fn element_bytes(&self, index: usize) -> Result<usize, PageFault> {
        let (_, element) = self.element(index)?;
        Ok(ELEMENT_BYTES + u32_at(element, 8) as usize + u32_at(element, 12) as usize)
    }

    /// Returns key `index` of a leaf.
    pub(super) fn leaf_key(&self, index: usize) -> Result<&'a [u8], PageFault> {
        let (at, element) = self.element(index)?;
        self.data(at, u32_at(element, 4), u64::from(u32_at(element, 8)))
    }

    /// Returns key `index` of a branch.
    pub(super) fn branch_key(&self, index: usize) -> Result<&'a [u8], PageFault> {
        let (at, element) = self.element(index)?;
        self.data(at, u32_at(element, 0), u64::from(u32_at(element, 4)))
    }

    /// Returns child `index` of a branch.
    pub(super) fn child(&self, index: usize) -> Result<PageId, PageFault> {
        let (_, element) = self.element(index)?;
        Ok(PageId(u64_at(element, 8)))
    }

    /// Returns key `index` of a leaf or branch.
    fn key(&self, index: usize) -> Result<&'a [u8], PageFault> {
        match self.kind {
            PageKind::Leaf => self.leaf_key(index),
            PageKind::Branch => self.branch_key(index),
        }
    }

    /// Returns the position of the first key at or above `key`, and whether it equals `key`.
    pub(super) fn seek(&self, key: &[u8]) -> Result<(usize, bool), PageFault> {
        self.seek_among(0..self.count, key)
    }

    /// Searches like [`Page::seek`], but compares the key at `guess` first and then the keys around it.
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

    /// Returns the likely index of `key` on a page whose keys are evenly distributed between `from`
    /// (inclusive) and `to` (exclusive).
    pub(super) fn guess(&self, from: &[u8], to: &[u8], key: &[u8]) -> Option<usize> {
        let [from, to, at] = [from, to, key].map(prefix);
        let passed = u128::from(at.checked_sub(from)?) * self.count as u128;
        usize::try_from(passed.checked_div(u128::from(to.checked_sub(from)?))?).ok()
    }

    /// Prefetches element `index` and its key into the CPU cache, if they exist.
    pub(super) fn touch(&self, index: usize) {
        std::hint::black_box(self.key(index).ok().and_then(<[u8]>::first));
    }

    /// Searches like [`Page::seek`]. The resulting position must be in `among` or at its end.
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
        // Each key is on a different cache line, which is probably not cached. Comparing the
        // prefixes of all remaining keys, instead of halving the range further, fetches these lines
        // in parallel.
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
        // The binary search above stops in front of an equal key without detecting the equality.
        let exact = low == halved && low < self.count && self.key(low)? == key;
        Ok((low, exact))
    }

    /// Returns the position of the child that covers `key`: the last child whose key is not greater than `key`, or the
    /// first child if all keys are greater.
    pub(super) fn child_index(&self, key: &[u8]) -> Result<usize, PageFault> {
        let (index, exact) = self.seek(key)?;
        Ok(if exact { index } else { index.saturating_sub(1) })
    }

    /// Returns the end of the page's used bytes, as an offset within the page.
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
                return Err(PageFault::at(at, "element extends beyond the page"));
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
        bytes.first_chunk().ok_or_else(|| PageFault::at(0, "page header is truncated"))?;
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

/// Appends a leaf page without padding. An entry consists of a key, a value, and a flag that is set for a bucket.
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

/// Converts a length or position within a page to its stored form.
pub(super) fn u32_of(length: usize) -> u32 {
    u32::try_from(length).expect("`put` limits the lengths, and large nodes are split")
}

/// Appends a branch page without padding. An entry consists of a key and a child.
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
    u16::try_from(count).expect("a page is too small for 65,535 elements")
}

/// Returns the first eight bytes of a key as a number. The numbers have the same order as the keys' first bytes. A
/// shorter key is padded with zeros.
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
