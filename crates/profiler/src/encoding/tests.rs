//! Tests that decode profiles as `pprof` does.

use std::io::Read as _;

use flate2::read::GzDecoder;
use quorate_protobuf::{Fields, Value, take_varint};

use super::*;

/// A decoded profile with resolved strings.
#[derive(Debug, Default)]
pub(crate) struct Read {
    pub(crate) types: Vec<(String, String)>,
    pub(crate) rows: Vec<ReadRow>,
    pub(crate) period: (String, String, u64),
    pub(crate) mappings: Vec<String>,
    pub(crate) comments: Vec<String>,
    pub(crate) shown_first: String,
    pub(crate) nanos: (u64, u64),
}

#[derive(Debug, Default)]
pub(crate) struct ReadRow {
    pub(crate) stack: Vec<String>,
    pub(crate) values: Vec<u64>,
    pub(crate) labels: Vec<(String, String)>,
}

fn fields(bytes: &[u8]) -> Vec<(u32, Value<'_>)> {
    Fields::new(bytes).map(|field| field.unwrap()).collect()
}

fn number(of: &[(u32, Value<'_>)], wanted: u32) -> u64 {
    let found = of.iter().find(|(field, _)| *field == wanted);
    match found {
        Some((_, Value::Varint(number))) => *number,
        Some((_, other)) => panic!("{other:?}"),
        None => 0,
    }
}

fn all<'a>(of: &[(u32, Value<'a>)], wanted: u32) -> Vec<&'a [u8]> {
    let found = of.iter().filter(|(field, _)| *field == wanted);
    found
        .map(|(_, value)| match value {
            Value::Bytes(bytes) => *bytes,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn packed(mut bytes: &[u8]) -> Vec<u64> {
    let mut numbers = Vec::new();
    while !bytes.is_empty() {
        numbers.push(take_varint(&mut bytes).unwrap());
    }
    numbers
}

/// Decompresses and decodes a profile.
pub(crate) fn decode(gzipped: &[u8]) -> Read {
    let mut message = Vec::new();
    GzDecoder::new(gzipped).read_to_end(&mut message).unwrap();
    let top = fields(&message);
    let texts = all(&top, 6);
    assert_eq!(texts[0], b"", "the first string is empty");
    let text = |number: u64| String::from_utf8(texts[number as usize].to_vec()).unwrap();
    let value_type = |bytes: &[u8]| {
        let of = fields(bytes);
        (text(number(&of, 1)), text(number(&of, 2)))
    };
    let functions: Vec<String> = all(&top, 5)
        .iter()
        .enumerate()
        .map(|(index, function)| {
            let of = fields(function);
            assert_eq!(number(&of, 1), index as u64 + 1);
            text(number(&of, 2))
        })
        .collect();
    let locations: Vec<String> = all(&top, 4)
        .iter()
        .map(|location| {
            let of = fields(location);
            let line = all(&of, 4).first().map(|line| number(&fields(line), 1));
            line.map_or_else(
                || format!("{:#x}", number(&of, 3)),
                |function| functions[function as usize - 1].clone(),
            )
        })
        .collect();
    let rows = all(&top, 2)
        .iter()
        .map(|row| {
            let of = fields(row);
            let places = packed(all(&of, 1)[0]);
            let labels = all(&of, 3).into_iter().map(value_type).collect();
            let stack = places.iter().map(|at| locations[*at as usize - 1].clone()).collect();
            ReadRow { stack, values: packed(all(&of, 2)[0]), labels }
        })
        .collect();
    let (of, unit) = all(&top, 11).first().map(|of| value_type(of)).unwrap_or_default();
    let comments = top.iter().filter(|(field, _)| *field == 13).map(|(_, value)| match value {
        Value::Varint(number) => text(*number),
        other => panic!("{other:?}"),
    });
    Read {
        types: all(&top, 1).into_iter().map(value_type).collect(),
        rows,
        period: (of, unit, number(&top, 12)),
        mappings: all(&top, 3).iter().map(|it| text(number(&fields(it), 5))).collect(),
        comments: comments.collect(),
        shown_first: text(number(&top, 14)),
        nanos: (number(&top, 9), number(&top, 10)),
    }
}

#[test]
fn a_profile_survives_encoding_and_decoding() {
    let value = |what, unit| ValueType { what, unit };
    let function = |name: &str| FunctionNames { name: name.to_owned(), symbol: format!("_{name}") };
    let profile = Profile {
        types: vec![value("samples", "count"), value("cpu", "nanoseconds")],
        rows: vec![
            Row {
                locations: vec![1, 2],
                values: vec![3, 30_000_000],
                labels: vec![("thread", "a".to_owned())],
            },
            Row { locations: vec![3, 2], values: vec![1, 10_000_000], labels: Vec::new() },
        ],
        mappings: vec![Mapping {
            start: 0x1000,
            end: 0x9000,
            file_offset: 0x1000,
            file: "/bin/a".to_owned(),
            build_id: "ab".to_owned(),
            has_functions: true,
        }],
        locations: vec![
            Location { mapping: 1, address: 0x1234, function: 1 },
            Location { mapping: 1, address: 0x2345, function: 2 },
            Location { mapping: 0, address: 0xffff_0000_1234, function: 0 },
        ],
        functions: vec![function("inner"), function("outer")],
        began: UNIX_EPOCH + Duration::from_secs(7),
        lasted: Duration::from_millis(1500),
        period: Some((value("cpu", "nanoseconds"), 10_000_000)),
        comments: vec!["said".to_owned()],
        shown_first: Some("samples"),
    };
    let read = decode(&profile.encode());
    let pair = |one: &str, other: &str| (one.to_owned(), other.to_owned());
    assert_eq!(read.types, [pair("samples", "count"), pair("cpu", "nanoseconds")]);
    assert_eq!(read.rows[0].stack, ["inner", "outer"]);
    assert_eq!(read.rows[0].values, [3, 30_000_000]);
    assert_eq!(read.rows[0].labels, [pair("thread", "a")]);
    assert_eq!(read.rows[1].stack, ["0xffff00001234", "outer"]);
    assert_eq!(read.period, ("cpu".to_owned(), "nanoseconds".to_owned(), 10_000_000));
    assert_eq!(read.mappings, ["/bin/a"]);
    assert_eq!(read.comments, ["said"]);
    assert_eq!(read.shown_first, "samples");
    assert_eq!(read.nanos, (7_000_000_000, 1_500_000_000));
}

#[test]
fn an_empty_profile_is_valid() {
    let nothing = Profile {
        types: vec![ValueType { what: "samples", unit: "count" }],
        rows: Vec::new(),
        mappings: Vec::new(),
        locations: Vec::new(),
        functions: Vec::new(),
        began: UNIX_EPOCH,
        lasted: Duration::ZERO,
        period: None,
        comments: Vec::new(),
        shown_first: None,
    };
    let read = decode(&nothing.encode());
    assert!(read.rows.is_empty());
    assert_eq!(read.types.len(), 1);
}
