//! A line of the audit log.
//!
//! ```text
//! {"ts":…,"method":…,"user":…,"certificate":…,"remote":…,"requests":[{"op":…,"key":…,…}],"code":…,"took":…}
//! ```
//!
//! If a call has too many operations, the others are in `"left-out":[{"op":…,"count":…,"first-key":…,…}]`, one element
//! for each kind of operation.
//!
//! Keys that are valid UTF-8 are written as text. Other keys are written in hex, under `key-hex`, `range-end-hex` and
//! similar names.

use std::net::SocketAddr;
use std::time::SystemTime;

use super::Outcome;
use crate::log::{Field as _, Value, put_value};

/// The maximum length of a key or name in a line, in bytes. A longer key or name is truncated, and `…` is appended.
const TEXT_BYTES_MAX: usize = 512;

/// A key and a range end, as in a request.
pub(super) type Keys = (Box<[u8]>, Box<[u8]>);

/// An operation of a request. It has no field for a value, a password or a token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The name of the operation.
    pub operation: &'static str,
    /// The key and the range end, as in the request; `None` for an operation without keys.
    pub keys: Option<Keys>,
    /// Whether the operation may affect keys that the request does not name, such as the keys of a lease.
    pub concerns_unknown_keys: bool,
    /// The names and values of further fields.
    pub details: Vec<(&'static str, Detail)>,
}

/// The value of a further field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detail {
    /// A name.
    Text(String),
    /// A number.
    Number(i64),
    /// A boolean.
    Bool(bool),
}

impl Asked {
    /// Creates an operation without keys.
    #[must_use]
    pub fn new(operation: &'static str) -> Self {
        Self { operation, ..Self::default() }
    }

    /// Sets the key or range of keys.
    #[must_use]
    pub fn of_keys(mut self, key: &[u8], range_end: &[u8]) -> Self {
        self.keys = Some((key.into(), range_end.into()));
        self
    }

    /// Records that the operation may affect keys that the request does not name.
    #[must_use]
    pub const fn of_unknown_keys(mut self) -> Self {
        self.concerns_unknown_keys = true;
        self
    }

    /// Adds a string field, unless the string is empty.
    #[must_use]
    pub fn text(mut self, name: &'static str, text: &str) -> Self {
        if !text.is_empty() {
            self.details.push((name, Detail::Text(text.to_owned())));
        }
        self
    }

    /// Adds a number field, unless it is 0.
    #[must_use]
    pub fn number(mut self, name: &'static str, number: i64) -> Self {
        if number != 0 {
            self.details.push((name, Detail::Number(number)));
        }
        self
    }

    /// Adds a boolean field with the value `true`, if `is_so` is set.
    #[must_use]
    pub fn when(mut self, name: &'static str, is_so: bool) -> Self {
        if is_so {
            self.details.push((name, Detail::Bool(true)));
        }
        self
    }
}

/// The operations of one kind that a line does not list. Every key that one of them names is in the range from
/// `first_key` up to and including `last_key`, or up to but excluding `range_end`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// The name of the operations.
    pub(super) operation: &'static str,
    count: u64,
    keys: Option<KeyBounds>,
}

/// The bounds of several keys and ranges.
#[derive(Debug, PartialEq, Eq)]
struct KeyBounds {
    first_key: Box<[u8]>,
    last_key: Box<[u8]>,
    /// The last range end, as in the request; empty if there are only single keys.
    range_end: Box<[u8]>,
}

impl LeftOut {
    pub(super) fn new(asked: Asked) -> Self {
        let bounds =
            |(key, range_end): Keys| KeyBounds { first_key: key.clone(), last_key: key, range_end };
        Self { operation: asked.operation, count: 1, keys: asked.keys.map(bounds) }
    }

    pub(super) fn add(&mut self, asked: Asked) {
        self.count += 1;
        let added = Self::new(asked).keys;
        self.keys = match (self.keys.take(), added) {
            (Some(known), Some(added)) => Some(known.with(added)),
            (known, added) => known.or(added),
        };
    }
}

impl KeyBounds {
    fn with(self, other: Self) -> Self {
        // The range end `\0` means that the range has no end.
        let is_open = [&self.range_end, &other.range_end].into_iter().any(|end| **end == [0]);
        let range_end = self.range_end.max(other.range_end);
        Self {
            first_key: self.first_key.min(other.first_key),
            last_key: self.last_key.max(other.last_key),
            range_end: if is_open { Box::new([0]) } else { range_end },
        }
    }
}

/// The contents of a line.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) time: SystemTime,
    pub(super) outcome: Outcome<'a>,
    pub(super) user: &'a str,
    pub(super) certificate: Option<&'a str>,
    pub(super) remote: Option<SocketAddr>,
    pub(super) asked: &'a [Asked],
    pub(super) left_out: &'a [LeftOut],
    pub(super) revision: Option<i64>,
}

/// Returns the encoded line, including the line break.
pub(super) fn encode(entry: &Entry<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    let Entry { outcome, .. } = entry;
    out.extend_from_slice(b"{\"ts\":");
    put_value(&mut out, &Value::Time(entry.time));
    put(&mut out, "method", &outcome.method.value());
    if !entry.user.is_empty() {
        put(&mut out, "user", &cut(entry.user).as_str().value());
    }
    if let Some(certificate) = entry.certificate {
        put(&mut out, "certificate", &cut(certificate).as_str().value());
    }
    if let Some(remote) = entry.remote {
        put(&mut out, "remote", &remote.to_string().as_str().value());
    }
    if !entry.asked.is_empty() {
        out.extend_from_slice(b",\"requests\":[");
        for (position, asked) in entry.asked.iter().enumerate() {
            if position > 0 {
                out.push(b',');
            }
            put_asked(&mut out, asked);
        }
        out.push(b']');
    }
    if !entry.left_out.is_empty() {
        let count = entry.left_out.iter().map(|kind| kind.count).sum();
        put(&mut out, "requests-left-out", &Value::Unsigned(count));
        out.extend_from_slice(b",\"left-out\":[");
        for (position, kind) in entry.left_out.iter().enumerate() {
            if position > 0 {
                out.push(b',');
            }
            put_left_out(&mut out, kind);
        }
        out.push(b']');
    }
    put(&mut out, "code", &outcome.code.value());
    if !outcome.error.is_empty() {
        put(&mut out, "error", &cut(outcome.error).as_str().value());
    }
    if let Some(revision) = entry.revision.filter(|revision| *revision != 0) {
        put(&mut out, "revision", &Value::Signed(revision));
    }
    if let Some(took) = outcome.took {
        put(&mut out, "took", &took.value());
    }
    out.extend_from_slice(b"}\n");
    out
}

fn put_asked(out: &mut Vec<u8>, asked: &Asked) {
    out.extend_from_slice(b"{\"op\":");
    put_value(out, &asked.operation.value());
    if let Some((key, range_end)) = &asked.keys {
        put_key(out, ("key", "key-hex"), key);
        if !range_end.is_empty() {
            put_key(out, ("range-end", "range-end-hex"), range_end);
        }
    }
    for (name, detail) in &asked.details {
        match detail {
            Detail::Text(text) => put(out, name, &cut(text).as_str().value()),
            Detail::Number(number) => put(out, name, &Value::Signed(*number)),
            Detail::Bool(is_so) => put(out, name, &Value::Bool(*is_so)),
        }
    }
    out.push(b'}');
}

fn put_left_out(out: &mut Vec<u8>, kind: &LeftOut) {
    out.extend_from_slice(b"{\"op\":");
    put_value(out, &kind.operation.value());
    put(out, "count", &Value::Unsigned(kind.count));
    if let Some(KeyBounds { first_key, last_key, range_end }) = &kind.keys {
        put_key(out, ("first-key", "first-key-hex"), first_key);
        put_key(out, ("last-key", "last-key-hex"), last_key);
        if !range_end.is_empty() {
            put_key(out, ("range-end", "range-end-hex"), range_end);
        }
    }
    out.push(b'}');
}

fn put_key(out: &mut Vec<u8>, (name, in_hex): (&str, &str), key: &[u8]) {
    match std::str::from_utf8(key) {
        Ok(text) => put(out, name, &cut(text).as_str().value()),
        Err(_) => {
            let kept = &key[..key.len().min(TEXT_BYTES_MAX / 2)];
            let mut hex: String = kept.iter().map(|byte| format!("{byte:02x}")).collect();
            if kept.len() < key.len() {
                hex.push('…');
            }
            put(out, in_hex, &hex.as_str().value());
        }
    }
}

fn cut(text: &str) -> String {
    let kept = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    if kept.len() == text.len() { text.to_owned() } else { format!("{kept}…") }
}

fn put(out: &mut Vec<u8>, name: &str, value: &Value<'_>) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    put_value(out, value);
}
