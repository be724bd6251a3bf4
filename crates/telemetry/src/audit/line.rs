//! A line of the audit log.
//!
//! ```text
//! {"ts":…,"method":…,"user":…,"certificate":…,"remote":…,"requests":[{"op":…,"key":…,…}],"code":…,"took":…}
//! ```
//!
//! Keys that are valid UTF-8 are written as text. Other keys are written in hex, under `key-hex` and
//! `range-end-hex`.

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

/// The contents of a line.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) time: SystemTime,
    pub(super) outcome: Outcome<'a>,
    pub(super) user: &'a str,
    pub(super) certificate: Option<&'a str>,
    pub(super) remote: Option<SocketAddr>,
    pub(super) asked: &'a [Asked],
    pub(super) left_out: usize,
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
    if entry.left_out > 0 {
        put(&mut out, "requests-left-out", &Value::Unsigned(entry.left_out as u64));
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
