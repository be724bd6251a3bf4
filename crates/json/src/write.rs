//! Converts the wire format to JSON.
//!
//! Fields are written in the order in which they arrive, which is the order of their numbers. The elements of a list
//! arrive together. Default values are omitted, except in a `oneof`, where they show which field is set.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quorate_protobuf::{Fields, Value, take_varint};

use crate::DEPTH_MAX;
use crate::schema::{self, Field, Kind, Message};

/// The reason why bytes are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The wire format is invalid.
    #[error("the bytes are not a valid message: {0}")]
    Bytes(#[from] quorate_protobuf::Malformed),
    /// A string is not valid UTF-8.
    #[error("a string is not valid UTF-8")]
    Text,
    /// Messages are nested too deeply.
    #[error("messages are nested too deeply")]
    TooDeep,
}

/// Appends a message as JSON.
pub(super) fn message(
    message: &'static Message,
    wire: &[u8],
    json: &mut Vec<u8>,
) -> Result<(), Malformed> {
    nested(message, wire, DEPTH_MAX, json)
}

fn nested(
    message: &'static Message,
    wire: &[u8],
    depth: usize,
    json: &mut Vec<u8>,
) -> Result<(), Malformed> {
    let depth = depth.checked_sub(1).ok_or(Malformed::TooDeep)?;
    json.push(b'{');
    let start = json.len();
    // Number of the list field that is being written.
    let mut list = None;
    for field in Fields::new(wire) {
        let (number, value) = field?;
        let Some(field) = message.fields.iter().find(|field| field.number == number) else {
            continue;
        };
        let is_packed = field.is_list && matches!(value, Value::Bytes(_));
        if !is_packed && !has_type(&field.kind, &value) {
            continue;
        }
        if list == Some(number) {
            json.push(b',');
            put_elements(field, &value, depth, json)?;
            continue;
        }
        if list.take().is_some() {
            json.push(b']');
        }
        if !field.is_list && field.choice.is_none() && is_default(field, &value) {
            continue;
        }
        if json.len() > start {
            json.push(b',');
        }
        json.push(b'"');
        json.extend_from_slice(field.name.as_bytes());
        json.extend_from_slice(b"\":");
        if field.is_list {
            json.push(b'[');
            list = Some(number);
            put_elements(field, &value, depth, json)?;
        } else {
            put_value(field, &value, depth, json)?;
        }
    }
    if list.is_some() {
        json.push(b']');
    }
    json.push(b'}');
    Ok(())
}

fn has_type(kind: &Kind, value: &Value<'_>) -> bool {
    match kind {
        Kind::Text | Kind::Bytes | Kind::Message(_) => matches!(value, Value::Bytes(_)),
        Kind::Bool | Kind::Int64 | Kind::Uint32 | Kind::Uint64 | Kind::Enum(_) => {
            matches!(value, Value::Varint(_))
        }
    }
}

fn is_default(field: &Field, value: &Value<'_>) -> bool {
    match value {
        Value::Varint(number) => *number == 0,
        Value::Bytes(bytes) => bytes.is_empty() && !matches!(field.kind, Kind::Message(_)),
        _ => false,
    }
}

/// Writes one element of a list, or several packed numbers.
fn put_elements(
    field: &Field,
    value: &Value<'_>,
    depth: usize,
    json: &mut Vec<u8>,
) -> Result<(), Malformed> {
    let Value::Bytes(mut packed) = *value else { return put_value(field, value, depth, json) };
    if has_type(&field.kind, value) {
        return put_value(field, value, depth, json);
    }
    let mut is_first = true;
    while !packed.is_empty() {
        if !std::mem::take(&mut is_first) {
            json.push(b',');
        }
        let number = take_varint(&mut packed)?;
        put_value(field, &Value::Varint(number), depth, json)?;
    }
    Ok(())
}

fn put_value(
    field: &Field,
    value: &Value<'_>,
    depth: usize,
    json: &mut Vec<u8>,
) -> Result<(), Malformed> {
    match (&field.kind, value) {
        (Kind::Message(position), Value::Bytes(bytes)) => {
            nested(schema::message(*position), bytes, depth, json)?;
        }
        (Kind::Text, Value::Bytes(bytes)) => {
            put_text(std::str::from_utf8(bytes).map_err(|_| Malformed::Text)?, json);
        }
        (Kind::Bytes, Value::Bytes(bytes)) => put_base64(bytes, json),
        (kind, Value::Varint(number)) => put_number(kind, *number, json),
        _ => unreachable!("the caller has checked the wire type"),
    }
    Ok(())
}

fn put_number(kind: &Kind, number: u64, json: &mut Vec<u8>) {
    let signed = number.cast_signed();
    #[expect(
        clippy::cast_possible_truncation,
        reason = "protobuf readers use only the lower 32 bits of a longer number"
    )]
    let (short, short_signed) = (number as u32, number as i32);
    let written = match kind {
        Kind::Bool => write!(json, "{}", number != 0),
        Kind::Int64 => write!(json, "\"{signed}\""),
        Kind::Uint64 => write!(json, "\"{number}\""),
        Kind::Uint32 => write!(json, "{short}"),
        Kind::Enum(values) => match values.iter().find(|(_, known)| *known == short_signed) {
            Some((name, _)) => write!(json, "\"{name}\""),
            None => write!(json, "{short_signed}"),
        },
        Kind::Text | Kind::Bytes | Kind::Message(_) => {
            write!(json, "{short_signed}")
        }
    };
    written.expect("writing to a buffer cannot fail");
}

fn put_base64(bytes: &[u8], json: &mut Vec<u8>) {
    json.push(b'"');
    let start = json.len();
    json.resize(start + bytes.len().div_ceil(3) * 4, 0);
    STANDARD
        .encode_slice(bytes, &mut json[start..])
        .expect("the buffer has space for the encoding");
    json.push(b'"');
}

/// Appends a string in quotation marks, with the necessary escapes.
pub fn put_text(text: &str, json: &mut Vec<u8>) {
    json.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => json.extend_from_slice(&[b'\\', byte]),
            b'\n' => json.extend_from_slice(b"\\n"),
            b'\r' => json.extend_from_slice(b"\\r"),
            b'\t' => json.extend_from_slice(b"\\t"),
            0..0x20 => write!(json, "\\u{byte:04x}").expect("writing to a buffer cannot fail"),
            other => json.push(other),
        }
    }
    json.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Conversion;

    fn response(service: &str, method: &str, wire: &[u8]) -> String {
        let mut json = Vec::new();
        Conversion::of(service, method).unwrap().response(wire, &mut json).unwrap();
        String::from_utf8(json).unwrap()
    }

    #[test]
    fn set_fields_are_written_with_their_json_names() {
        // A header (revision 5), a record (key, both revisions, value), `more`, and the count.
        let wire = b"\x0a\x02\x18\x05\x12\x0b\x0a\x01k\x10\x02\x18\x02\x2a\x02v\xff\x12\x00\x18\x01\x20\x02";
        assert_eq!(
            response("etcdserverpb.KV", "Range", wire),
            r#"{"header":{"revision":"5"},"kvs":[{"key":"aw==","create_revision":"2","mod_revision":"2","value":"dv8="},{}],"more":true,"count":"2"}"#
        );
        let hash =
            response("etcdserverpb.Maintenance", "Hash", b"\x0a\x00\x10\x80\x80\x80\x80\x08");
        assert_eq!(hash, r#"{"header":{},"hash":2147483648}"#);
        let alarms = response(
            "etcdserverpb.Maintenance",
            "Alarm",
            b"\x12\x04\x08\x01\x10\x02\x12\x02\x10\x07",
        );
        assert_eq!(alarms, r#"{"alarms":[{"memberID":"1","alarm":"CORRUPT"},{"alarm":7}]}"#);
        let users = response("etcdserverpb.Auth", "UserList", b"\x12\x02\"\n\x12\x01\x01");
        assert_eq!(users, r#"{"users":["\"\n","\u0001"]}"#.replace("\"\n", "\\\"\\n"));
        let lease = response(
            "etcdserverpb.Lease",
            "LeaseGrant",
            b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x18\x3c",
        );
        assert_eq!(lease, r#"{"ID":"-1","TTL":"60"}"#);
    }

    #[test]
    fn a_oneof_field_is_written_even_if_it_is_empty() {
        let txn = response("etcdserverpb.KV", "Txn", b"\x1a\x02\x0a\x00\x1a\x02\x12\x00");
        assert_eq!(txn, r#"{"responses":[{"response_range":{}},{"response_put":{}}]}"#);
    }

    #[test]
    fn malformed_messages_are_refused() {
        let of = Conversion::of("etcdserverpb.KV", "Range").unwrap();
        assert!(of.response(b"\x0a\x7f", &mut Vec::new()).is_err());
        let of = Conversion::of("etcdserverpb.Auth", "UserList").unwrap();
        assert_eq!(of.response(b"\x12\x01\xff", &mut Vec::new()), Err(Malformed::Text));
    }
}
