//! Parts of responses as JSON: bytes in base64, ids as hexadecimal digits, and records of keys.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quorate_api::etcdserverpb::ResponseHeader;
use quorate_api::record::Fields;
use serde_json::{Map, Value, json};

/// Maximum length of a key in a response, in bytes. A longer key is truncated and marked as truncated.
pub(crate) const KEY_BYTES_SHOWN_MAX: usize = 4096;

pub(crate) fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub(crate) fn hex(id: u64) -> String {
    format!("{id:x}")
}

pub(crate) fn lease(id: i64) -> String {
    hex(id.cast_unsigned())
}

pub(crate) fn revision(header: Option<&ResponseHeader>) -> i64 {
    header.map_or(0, |header| header.revision)
}

/// Adds a key, truncated if it is too long.
pub(crate) fn put_key(entry: &mut Map<String, Value>, key: &[u8]) {
    let shown = &key[..key.len().min(KEY_BYTES_SHOWN_MAX)];
    entry.insert("key".to_owned(), base64(shown).into());
    if shown.len() < key.len() {
        entry.insert("key_truncated".to_owned(), true.into());
        entry.insert("key_size".to_owned(), key.len().into());
    }
}

/// Returns the fields of a key's record without the value.
pub(crate) fn key_meta(fields: &Fields<'_>) -> Map<String, Value> {
    let mut entry = Map::new();
    put_key(&mut entry, fields.key);
    entry.insert("create_revision".to_owned(), fields.create_revision.into());
    entry.insert("mod_revision".to_owned(), fields.mod_revision.into());
    entry.insert("version".to_owned(), fields.version.into());
    entry.insert("lease".to_owned(), lease(fields.lease).into());
    entry
}

/// Adds the first bytes of a value, and its size.
pub(crate) fn put_value(entry: &mut Map<String, Value>, value: &[u8], shown_max: usize) {
    let shown = &value[..value.len().min(shown_max)];
    entry.insert("value".to_owned(), base64(shown).into());
    entry.insert("size".to_owned(), value.len().into());
    entry.insert("truncated".to_owned(), (shown.len() < value.len()).into());
    entry.insert("too_large".to_owned(), false.into());
}

/// Marks a value as not fetched because of its size, and adds the size if it is known.
pub(crate) fn put_too_large(entry: &mut Map<String, Value>, size: Option<u64>) {
    entry.insert("value".to_owned(), Value::Null);
    entry.insert("size".to_owned(), json!(size));
    entry.insert("truncated".to_owned(), true.into());
    entry.insert("too_large".to_owned(), true.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_keys_and_values_are_truncated_and_marked() {
        let long = vec![b'x'; KEY_BYTES_SHOWN_MAX + 1];
        let fields = Fields { key: &long, value: b"abc", lease: -1, ..Fields::default() };
        let mut entry = key_meta(&fields);
        assert_eq!(entry["key_truncated"], true);
        assert_eq!(entry["key_size"], KEY_BYTES_SHOWN_MAX + 1);
        assert_eq!(entry["lease"], "ffffffffffffffff");
        put_value(&mut entry, fields.value, 2);
        assert_eq!((&entry["value"], &entry["size"]), (&"YWI=".into(), &3.into()));
        assert_eq!(entry["truncated"], true);
        let short = key_meta(&Fields { key: b"\xff", ..Fields::default() });
        assert!(!short.contains_key("key_truncated"));
    }
}
