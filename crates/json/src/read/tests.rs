//! Tests the conversion of JSON to the wire format, and the errors for invalid input.

use super::*;
use crate::Conversion;

/// Converts a request to the wire format. A method that is not listed here belongs to the KV service.
fn request(method: &str, json: &str) -> Result<Vec<u8>, String> {
    let service = match method {
        "Watch" => "etcdserverpb.Watch",
        "Alarm" => "etcdserverpb.Maintenance",
        "Authenticate" => "etcdserverpb.Auth",
        "MemberAdd" => "etcdserverpb.Cluster",
        _ => "etcdserverpb.KV",
    };
    let mut wire = Vec::new();
    let of = Conversion::of(service, method).unwrap();
    of.request(json.as_bytes(), &mut wire).map_err(|refusal| refusal.to_string())?;
    Ok(wire)
}

#[track_caller]
fn check(method: &str, json: &str, wire: &[u8]) {
    assert_eq!(request(method, json), Ok(wire.to_vec()), "{json}");
}

#[track_caller]
fn refused(method: &str, json: &str, error: &str) {
    assert_eq!(request(method, json), Err(error.to_owned()), "{json}");
}

#[test]
fn json_and_proto_field_names_are_accepted_and_unknown_fields_are_ignored() {
    check("Range", "{}", b"");
    check("Range", r#" { "key" : "aw==" , "range_end":"bA"} "#, b"\x0a\x01k\x12\x01l");
    check("Range", r#"{"rangeEnd":"bA=="}"#, b"\x12\x01l");
    check("Range", r#"{"x":[{"y":"]}\"","z":-1.5e3},null,true],"key":"aw=="}"#, b"\x0a\x01k");
    check("Range", r#"{"k\u0065y":"aw=="}"#, b"\x0a\x01k");
    check("Range", r#"{"key":null,"limit":null}"#, b"");
}

#[test]
fn numeric_fields_are_accepted_as_numbers_or_strings() {
    for json in [r#"{"limit":5}"#, r#"{"limit":"5"}"#, r#"{"limit":5.0}"#, r#"{"limit":"50e-1"}"#] {
        check("Range", json, b"\x18\x05");
    }
    let minus = b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
    check("Range", r#"{"limit":"-1"}"#, minus);
    for (json, error) in [
        (r#"{"limit":1.5}"#, "proto: (line 1:10): invalid value for int64 field limit: 1.5"),
        (r#"{"limit":"x"}"#, "proto: (line 1:10): invalid value for int64 field limit: \"x\""),
        (r#"{"limit":" 1"}"#, "proto: (line 1:10): invalid value for int64 field limit: \" 1\""),
        (r#"{"limit":true}"#, "proto: (line 1:10): invalid value for int64 field limit: true"),
        (r#"{"limit":{}}"#, "proto: (line 1:10): invalid value for int64 field limit: {"),
        (
            r#"{"limit":9223372036854775808}"#,
            "proto: (line 1:10): invalid value for int64 field limit: 9223372036854775808",
        ),
        (
            r#"{"count_only":"true"}"#,
            "proto: (line 1:15): invalid value for bool field countOnly: \"true\"",
        ),
        (r#"{"keys_only":1}"#, "proto: (line 1:14): invalid value for bool field keysOnly: 1"),
    ] {
        refused("Range", json, error);
    }
    refused(
        "Alarm",
        r#"{"memberID":-1}"#,
        "proto: (line 1:13): invalid value for uint64 field memberID: -1",
    );
}

#[test]
fn unknown_enum_names_are_ignored() {
    check("Range", r#"{"sort_order":"DESCEND","sort_target":3}"#, b"\x28\x02\x30\x03");
    check("Range", r#"{"sort_order":"SIDEWAYS","sort_target":77}"#, b"\x30\x4d");
    refused(
        "Range",
        r#"{"sort_order":1.5}"#,
        "proto: (line 1:15): invalid value for enum field sortOrder: 1.5",
    );
}

#[test]
fn bytes_are_accepted_in_both_base64_alphabets_with_or_without_padding() {
    for json in ["-_8=", "-_8", "+/8=", "+/8"] {
        check("Range", &format!("{{\"key\":\"{json}\"}}"), b"\x0a\x02\xfb\xff");
    }
    // GNU base64 wraps its output. Like Go, the decoder ignores line breaks, except in the length of the text, which
    // decides whether padding is required or refused.
    for json in ["+/8\\n=\\n\\n\\n", "+\\r\\n/8", "\\n\\n+/8=\\n\\n"] {
        check("Range", &format!("{{\"key\":\"{json}\"}}"), b"\x0a\x02\xfb\xff");
    }
    for json in ["!!", "YQ=", "YQ==\\n", "YWI\\n"] {
        let error = format!("proto: (line 1:8): invalid value for bytes field key: \"{json}\"");
        refused("Range", &format!("{{\"key\":\"{json}\"}}"), &error);
    }
    refused("Range", r#"{"key":5}"#, "proto: (line 1:8): invalid value for bytes field key: 5");
}

#[test]
fn string_escapes_must_be_valid_unicode() {
    let name = |json: &str| request("Authenticate", json);
    assert_eq!(name(r#"{"name":"a\u00e4\ud83d\ude00\n\/"}"#), Ok("\n\u{9}aä😀\n/".into()));
    for lone in [
        r#"{"name":"\ud83d"}"#,
        r#"{"name":"\ude00"}"#,
        r#"{"name":"\ud83dx"}"#,
        r#"{"name":"\ud83d\u0041"}"#,
    ] {
        let error = "proto: syntax error (line 1:9): invalid escape code in string";
        assert_eq!(name(lone), Err(error.to_owned()), "{lone}");
    }
    assert_eq!(name(r#"{"other":["a",{"b":"\u00e4"}],"name":"a"}"#), Ok("\n\u{1}a".into()));
    let error = "proto: syntax error (line 1:17): invalid escape code in string";
    assert_eq!(name(r#"{"other":[{"b": "\ud83d"}]}"#), Err(error.to_owned()));
    let of = Conversion::of("etcdserverpb.Auth", "Authenticate").unwrap();
    let refusal = of.request(b"{\"name\":\"\xff\"}", &mut Vec::new()).unwrap_err();
    assert_eq!(refusal.to_string(), "proto: syntax error (line 1:9): invalid UTF-8 in string");
}

#[test]
fn repeated_nested_and_oneof_fields_are_converted() {
    let length = |len: u8| [0x80 | len, 0x80, 0x80, 0x80, 0];
    let put = [&b"\x12"[..], &length(3), b"\x0a\x01k"].concat();
    let txn = [&b"\x12"[..], &length(9), &put].concat();
    check("Txn", r#"{"success":[{"request_put":{"key":"aw=="}}],"failure":[]}"#, &txn);
    check("MemberAdd", r#"{"peerURLs":["a","b"],"isLearner":true}"#, b"\x0a\x01a\x0a\x01b\x10\x01");
    let create = [&b"\x0a"[..], &length(4), b"\x28\x00\x28\x01"].concat();
    check("Watch", r#"{"create_request":{"filters":["NOPUT",1]}}"#, &create);
    check("Watch", r#"{"progress_request":{}}"#, &[&b"\x1a"[..], &length(0)].concat());
    // `encoding/json` writes a `oneof` like this, with the names of Go's fields. They are unknown fields here.
    check(
        "Txn",
        r#"{"success":[{"Request":{"RequestPut":{}}}]}"#,
        &[&b"\x12"[..], &length(0)].concat(),
    );
    for (json, error) in [
        ("[]", "proto: syntax error (line 1:1): unexpected token ["),
        ("5", "proto: syntax error (line 1:1): unexpected token 5"),
        ("null", "proto: syntax error (line 1:1): unexpected token null"),
        (r#"{"success":{}}"#, "proto: syntax error (line 1:12): unexpected token {"),
        (r#"{"success":[null]}"#, "proto: syntax error (line 1:13): unexpected token null"),
        (r#"{"success":[], "success":[]}"#, "proto: (line 1:16): duplicate field \"success\""),
        (
            "{\n\"success\":[{\"request_put\":{},\n \"requestRange\":{}}]}",
            "proto: (line 3:2): error parsing \"requestRange\", oneof etcdserverpb.RequestOp.request is already set",
        ),
    ] {
        refused("Txn", json, error);
    }
}

#[test]
fn message_nesting_is_limited() {
    // Each level consists of an operation and a transaction.
    let nested = |steps: usize| {
        let (before, after) = (r#"{"success":[{"request_txn":"#, "}]}");
        format!("{}{{}}{}", before.repeat(steps), after.repeat(steps))
    };
    assert!(request("Txn", &nested((DEPTH_MAX - 1) / 2)).is_ok());
    let error = "proto: exceeded max recursion depth";
    refused("Txn", &nested(DEPTH_MAX / 2 + 1), error);
    refused("Txn", &nested(2_000), error);
}
