//! Requests encoded once and patched for every operation.
//!
//! A run sends millions of messages that differ only in their keys and values, all of fixed length. A message is
//! therefore encoded once, with marker keys and a marker value. Each operation copies it and overwrites the markers.

use prost::Message;
use quorate_seeded_random::SplitMix64;

use crate::error::BenchError;

/// The number of possible start positions of a value in the pool of random bytes.
const POOL_BYTES: usize = 64 << 10;

/// The keys of a run: a prefix followed by a fixed-width number.
#[derive(Clone, Debug)]
pub(crate) struct KeySpace {
    prefix: String,
    digits: usize,
    /// The number of keys.
    pub(crate) count: u64,
}

impl KeySpace {
    /// Creates the key space. Fails if `key_bytes` is too small for the prefix and the largest number.
    pub(crate) fn new(prefix: &str, key_bytes: usize, count: u64) -> Result<Self, BenchError> {
        let needed = prefix.len() + count.max(1).to_string().len();
        if key_bytes < needed {
            let text = format!(
                "{count} keys need a --key-size of at least {needed} or a shorter --prefix"
            );
            return Err(BenchError::Usage(text));
        }
        let digits = key_bytes - prefix.len();
        Ok(Self { prefix: prefix.to_owned(), digits, count: count.max(1) })
    }

    /// Returns the key with this number.
    pub(crate) fn key(&self, number: u64) -> Vec<u8> {
        format!("{}{number:0width$}", self.prefix, width = self.digits).into_bytes()
    }

    /// Returns the smallest key that is greater than all keys of the run.
    pub(crate) fn end(&self) -> Vec<u8> {
        let mut end = self.prefix.clone().into_bytes();
        // In ASCII, ':' is the successor of '9'.
        end.resize(self.prefix.len() + self.digits, b':');
        end
    }

    fn write(&self, mut number: u64, key: &mut [u8]) {
        for digit in key[self.prefix.len()..].iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
    }

    /// Returns a key that no operation uses. A template searches its message for such markers to find the positions of
    /// its keys.
    fn marker(&self, letter: u8) -> Vec<u8> {
        let mut marker = self.prefix.clone().into_bytes();
        marker.resize(self.prefix.len() + self.digits, letter);
        marker
    }
}

/// The values of a run: slices of a pool of random bytes.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    pool: Vec<u8>,
    value_bytes: usize,
}

impl Values {
    pub(crate) fn new(value_bytes: usize, seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let pool = (0..(POOL_BYTES + value_bytes).div_ceil(8))
            .flat_map(|_| random.next_u64().to_le_bytes())
            .collect();
        Self { pool, value_bytes }
    }

    /// Returns a random value.
    pub(crate) fn choose(&self, random: &mut SplitMix64) -> &[u8] {
        let start = random.position(POOL_BYTES);
        &self.pool[start..start + self.value_bytes]
    }

    fn marker(&self) -> Vec<u8> {
        self.pool[..self.value_bytes].to_vec()
    }
}

/// The markers from which the message of a [`Template`] is built.
#[derive(Clone, Debug)]
pub(crate) struct Markers {
    /// The marker that is replaced by the operation's key.
    pub(crate) key: Vec<u8>,
    /// The marker that is replaced by the end of the operation's range.
    pub(crate) end: Vec<u8>,
    /// The marker that is replaced by a value.
    pub(crate) value: Vec<u8>,
}

/// An encoded message and the positions of its keys and values.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    message: Vec<u8>,
    keys: KeySpace,
    values: Values,
    key_offsets: Vec<usize>,
    end_offsets: Vec<usize>,
    value_offsets: Vec<usize>,
    /// The number of keys between an operation's key and the end of its range.
    span: u64,
}

impl Template {
    /// Builds the message from markers, and finds their positions in its encoding.
    pub(crate) fn new<M: Message>(
        keys: &KeySpace,
        values: &Values,
        span: u64,
        build: impl FnOnce(Markers) -> M,
    ) -> Self {
        let markers =
            Markers { key: keys.marker(b'K'), end: keys.marker(b'E'), value: values.marker() };
        let message = build(markers.clone()).encode_to_vec();
        Self {
            key_offsets: offsets(&message, &markers.key),
            end_offsets: offsets(&message, &markers.end),
            value_offsets: offsets(&message, &markers.value),
            message,
            keys: keys.clone(),
            values: values.clone(),
            span,
        }
    }

    /// Writes the message for key `number` to `out`, with random values.
    pub(crate) fn fill(&self, number: u64, random: &mut SplitMix64, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.message);
        let key_len = self.keys.prefix.len() + self.keys.digits;
        for offset in &self.key_offsets {
            self.keys.write(number, &mut out[*offset..offset + key_len]);
        }
        for offset in &self.end_offsets {
            self.keys.write(number + self.span, &mut out[*offset..offset + key_len]);
        }
        for offset in &self.value_offsets {
            let value = self.values.choose(random);
            out[*offset..offset + value.len()].copy_from_slice(value);
        }
    }

    /// Overwrites the beginning of each value in a filled message.
    pub(crate) fn stamp(&self, stamp: &[u8], message: &mut [u8]) {
        for offset in &self.value_offsets {
            message[*offset..offset + stamp.len()].copy_from_slice(stamp);
        }
    }
}

fn offsets(message: &[u8], marker: &[u8]) -> Vec<usize> {
    if marker.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = message[from..].windows(marker.len()).position(|part| part == marker) {
        found.push(from + at);
        from += at + marker.len();
    }
    found
}

#[cfg(test)]
mod tests {
    use quorate_api::etcdserverpb::{PutRequest, RangeRequest};

    use super::*;

    #[test]
    fn a_filled_template_equals_the_encoded_message() {
        let keys = KeySpace::new("k/", 8, 1000).unwrap();
        let values = Values::new(20, 1);
        let put = Template::new(&keys, &values, 0, |markers| PutRequest {
            key: markers.key.into(),
            value: markers.value.into(),
            ..Default::default()
        });
        let mut out = Vec::new();
        put.fill(123, &mut SplitMix64::new(5), &mut out);
        put.stamp(b"now", &mut out);
        let decoded = PutRequest::decode(&*out).unwrap();
        assert_eq!(&decoded.key[..], b"k/000123");
        assert_eq!((decoded.value.len(), &decoded.value[..3]), (20, &b"now"[..]));

        let range = Template::new(&keys, &values, 10, |markers| RangeRequest {
            key: markers.key.into(),
            range_end: markers.end.into(),
            ..Default::default()
        });
        range.fill(995, &mut SplitMix64::new(5), &mut out);
        let decoded = RangeRequest::decode(&*out).unwrap();
        assert_eq!(
            (&decoded.key[..], &decoded.range_end[..]),
            (&b"k/000995"[..], &b"k/001005"[..])
        );
    }

    #[test]
    fn key_lengths_too_short_for_the_key_numbers_are_refused() {
        assert!(KeySpace::new("prefix", 8, 100).is_err());
        assert_eq!(KeySpace::new("prefix", 9, 100).unwrap().key(7), b"prefix007");
    }
}
