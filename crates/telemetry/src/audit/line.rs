//! A line of the audit log.
//!
//! ```text
//! {"ts":…,"method":…,"user":…,"certificate":…,"remote":…,"requests":[{"op":…,"key":…,…}],"code":…,"took":…}
//! ```
//!
//! Keys are text; those that are none are told in hex, under `key-hex` and `range-end-hex`.

use std::net::SocketAddr;
use std::time::SystemTime;

use super::Outcome;
use crate::log::{Field as _, Value, put_value};

/// Bytes of a key or a name that a line has; of a longer one it has as many, and `…`.
const TEXT_BYTES_MAX: usize = 512;

/// A key and the end of its range, as a request has them.
pub(super) type Keys = (Box<[u8]>, Box<[u8]>);

/// Something that a request asks for. There is no place in it for a value of a key, a password or a token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// What is to be done.
    pub operation: &'static str,
    /// A key, or the first of a range, and the end of that: as requests have them.
    pub keys: Option<Keys>,
    /// Whether it may concern keys that the request does not name: those of a lease.
    pub concerns_unknown_keys: bool,
    /// More about it.
    pub details: Vec<(&'static str, Detail)>,
}

/// More about what is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detail {
    /// A name.
    Text(String),
    /// A number.
    Number(i64),
    /// Yes or no.
    Bool(bool),
}

impl Asked {
    /// To do this.
    #[must_use]
    pub fn new(operation: &'static str) -> Self {
        Self { operation, ..Self::default() }
    }

    /// With a key, or a range of them.
    #[must_use]
    pub fn of_keys(mut self, key: &[u8], range_end: &[u8]) -> Self {
        self.keys = Some((key.into(), range_end.into()));
        self
    }

    /// Concerning keys that the request does not name.
    #[must_use]
    pub const fn of_unknown_keys(mut self) -> Self {
        self.concerns_unknown_keys = true;
        self
    }

    /// With a name, if it is one.
    #[must_use]
    pub fn text(mut self, name: &'static str, text: &str) -> Self {
        if !text.is_empty() {
            self.details.push((name, Detail::Text(text.to_owned())));
        }
        self
    }

    /// With a number, unless it is the usual 0.
    #[must_use]
    pub fn number(mut self, name: &'static str, number: i64) -> Self {
        if number != 0 {
            self.details.push((name, Detail::Number(number)));
        }
        self
    }

    /// With something that is not usual.
    #[must_use]
    pub fn when(mut self, name: &'static str, is_so: bool) -> Self {
        if is_so {
            self.details.push((name, Detail::Bool(true)));
        }
        self
    }
}

/// What a line tells.
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

/// The line, with its end.
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
