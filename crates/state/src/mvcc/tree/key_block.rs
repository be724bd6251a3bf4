//! The keys of one tree node, in one immutable allocation that all versions of the node share.
//!
//! ```text
//! count u32 | prefix length u32 | prefix | heads: count × 8 bytes | ends: count × u32 LE | keys, whole
//! ```
//!
//! A head is the next eight bytes of a key after the prefix shared by all keys of the block, padded with zeros. A
//! search compares heads, which are adjacent integers, and reads a whole key only once or twice. The bytes that most
//! searches read are together at the front, because most blocks are not in a CPU cache when they are searched.
//!
//! # Invariants
//!
//! * Keys are unique and in byte order.
//!
//! # Not here
//!
//! The entries of the keys (`node`).

use std::ops::Range;
use std::sync::Arc;

/// A sorted sequence of keys. Cloning does not copy bytes.
#[derive(Clone)]
pub(super) struct KeyBlock {
    bytes: Arc<[u8]>,
}

const HEADER_LEN: usize = 8;
const HEAD_LEN: usize = 8;
const END_LEN: usize = 4;

impl KeyBlock {
    pub(super) fn empty() -> Self {
        Self { bytes: Arc::from([0; HEADER_LEN]) }
    }

    /// Builds a block from sorted keys.
    pub(super) fn build<'a>(keys: impl Iterator<Item = &'a [u8]> + Clone) -> Self {
        let (mut count, mut key_bytes) = (0, 0);
        let (mut first, mut last): (Option<&[u8]>, &[u8]) = (None, &[]);
        for key in keys.clone() {
            debug_assert!(
                first.is_none() || last < key,
                "the keys of a block are unique and in order: otherwise a search would miss some of them"
            );
            first = first.or(Some(key));
            last = key;
            count += 1;
            key_bytes += key.len();
        }
        let first = first.unwrap_or_default();
        let prefix_len = common_prefix_len(first, last);
        let mut bytes = header(count, &first[..prefix_len], key_bytes);
        for key in keys.clone() {
            bytes.extend_from_slice(&head(&key[prefix_len..]));
        }
        let mut end = 0;
        for key in keys.clone() {
            end += key.len();
            bytes.extend_from_slice(&length(end).to_le_bytes());
        }
        for key in keys {
            bytes.extend_from_slice(key);
        }
        Self { bytes: bytes.into() }
    }

    pub(super) fn len(&self) -> usize {
        self.u32_at(0)
    }

    pub(super) fn key(&self, position: usize) -> &[u8] {
        let (count, keys) = (self.len(), self.keys_at());
        assert!(
            position < count,
            "position {position} must be less than {count}, the number of keys in the block"
        );
        let ends = self.ends_at();
        let start = if position == 0 { 0 } else { self.u32_at(ends + END_LEN * (position - 1)) };
        let end = self.u32_at(ends + END_LEN * position);
        &self.bytes[keys + start..keys + end]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.range(0..self.len())
    }

    pub(super) fn range(&self, positions: Range<usize>) -> impl Iterator<Item = &[u8]> + Clone {
        let (ends_at, keys_at) = (self.ends_at(), self.keys_at());
        let (ends, _) = self.bytes[ends_at..keys_at].as_chunks::<END_LEN>();
        let end = |bytes: &[u8; END_LEN]| u32::from_le_bytes(*bytes) as usize;
        let first = positions.start.checked_sub(1).map_or(0, |before| end(&ends[before]));
        let keys = &self.bytes[keys_at..];
        ends[positions].iter().scan(first, move |start, bytes| {
            let key_at = std::mem::replace(start, end(bytes));
            Some(&keys[key_at..*start])
        })
    }

    /// Returns the position of a key, or an error with the position at which the key would be inserted.
    pub(super) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let count = self.len();
        if count == 0 {
            return Err(0);
        }
        let prefix_len = self.prefix_len();
        let prefix = &self.bytes[HEADER_LEN..][..prefix_len];
        let Some((key_prefix, rest)) = key.split_at_checked(prefix_len) else {
            // A key that is a proper prefix of the common prefix sorts before all keys.
            return Err(if key > prefix { count } else { 0 });
        };
        match key_prefix.cmp(prefix) {
            std::cmp::Ordering::Less => return Err(0),
            std::cmp::Ordering::Greater => return Err(count),
            std::cmp::Ordering::Equal => {}
        }
        let sought = u64::from_be_bytes(head(rest));
        let (heads, _) = self.bytes[self.heads_at()..self.ends_at()].as_chunks::<HEAD_LEN>();
        let mut low = heads.partition_point(|bytes| u64::from_be_bytes(*bytes) < sought);
        let mut high = low;
        while high < count && u64::from_be_bytes(heads[high]) == sought {
            high += 1;
        }
        while low < high {
            let middle = low.midpoint(high);
            match self.key(middle).cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Returns a block with an additional key at `position`.
    pub(super) fn insert(&self, position: usize, key: &[u8]) -> Self {
        let (count, keys) = (self.len(), self.keys_at());
        let prefix = &self.bytes[HEADER_LEN..self.heads_at()];
        if count < 2 || !key.starts_with(prefix) {
            let before = self.range(0..position);
            return Self::build(
                before.chain(std::iter::once(key)).chain(self.range(position..count)),
            );
        }
        let ends = self.ends_at();
        let mut bytes = header(count + 1, prefix, self.bytes.len() - keys + key.len());
        let head_at = self.heads_at() + HEAD_LEN * position;
        bytes.extend_from_slice(&self.bytes[self.heads_at()..head_at]);
        bytes.extend_from_slice(&head(&key[prefix.len()..]));
        bytes.extend_from_slice(&self.bytes[head_at..ends]);
        let end_at = ends + END_LEN * position;
        bytes.extend_from_slice(&self.bytes[ends..end_at]);
        let start = if position == 0 { 0 } else { self.u32_at(end_at - END_LEN) };
        bytes.extend_from_slice(&length(start + key.len()).to_le_bytes());
        for end in self.bytes[end_at..keys].as_chunks::<END_LEN>().0 {
            let end = u32::from_le_bytes(*end) as usize + key.len();
            bytes.extend_from_slice(&length(end).to_le_bytes());
        }
        bytes.extend_from_slice(&self.bytes[keys..keys + start]);
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(&self.bytes[keys + start..]);
        Self { bytes: bytes.into() }
    }

    /// Returns a block without the key at `position`.
    pub(super) fn remove(&self, position: usize) -> Self {
        Self::build(self.range(0..position).chain(self.range(position + 1..self.len())))
    }

    /// Returns a block with only the keys at `positions`.
    pub(super) fn slice(&self, positions: Range<usize>) -> Self {
        Self::build(self.range(positions))
    }

    fn prefix_len(&self) -> usize {
        self.u32_at(4)
    }

    fn heads_at(&self) -> usize {
        HEADER_LEN + self.prefix_len()
    }

    fn ends_at(&self) -> usize {
        self.heads_at() + HEAD_LEN * self.len()
    }

    fn keys_at(&self) -> usize {
        self.heads_at() + (HEAD_LEN + END_LEN) * self.len()
    }

    fn u32_at(&self, at: usize) -> usize {
        let bytes = self.bytes[at..].first_chunk().expect("the block contains all of its tables");
        u32::from_le_bytes(*bytes) as usize
    }
}

/// Returns the length of the longest common prefix of two keys.
pub(super) fn common_prefix_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn header(count: usize, prefix: &[u8], key_bytes: usize) -> Vec<u8> {
    let tables = prefix.len() + (HEAD_LEN + END_LEN) * count;
    let mut bytes = Vec::with_capacity(HEADER_LEN + tables + key_bytes);
    bytes.extend_from_slice(&length(count).to_le_bytes());
    bytes.extend_from_slice(&length(prefix.len()).to_le_bytes());
    bytes.extend_from_slice(prefix);
    bytes
}

fn head(rest: &[u8]) -> [u8; HEAD_LEN] {
    if let Some(head) = rest.first_chunk() {
        return *head;
    }
    let mut head = [0; HEAD_LEN];
    head[..rest.len()].copy_from_slice(rest);
    head
}

fn length(len: usize) -> u32 {
    u32::try_from(len).expect("the keys of one node are smaller than 4 GiB")
}
