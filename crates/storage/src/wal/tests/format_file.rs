//! Tests that `FORMAT.md` and the log agree about frames, records and space.

use std::collections::BTreeMap;

use super::super::record::{RecordEncoder, decode_record, kind, split_length};
use super::super::scan::SECTOR_BYTES;
use super::*;
use crate::format_file::{
    Content, Content::Number, assert_says, declared, grouped, layout, read_message, read_numbers,
    table,
};

/// Returns the record in the frame that `write` encodes.
fn record_of(write: impl FnOnce(&mut RecordEncoder)) -> Vec<u8> {
    let mut encoder = RecordEncoder::new(0);
    write(&mut encoder);
    let (length, rest) = read_numbers(&layout("frame"), &encoder.buffer);
    assert_eq!(length[0].0, "length");
    let (bytes, padding) = split_length(length[0].1);
    assert_eq!(rest.len() as u64, bytes + padding);
    rest[..bytes as usize].to_vec()
}

fn content(fields: &[(&str, Content)]) -> BTreeMap<String, Content> {
    fields.iter().map(|(name, content)| ((*name).to_owned(), content.clone())).collect()
}

#[test]
fn the_documented_layout_of_a_record_matches_the_encoding() {
    let record = record_of(|encoder| encoder.push_metadata(b"data"));
    let crc = crate::checksum::crc32c(b"data");
    let expected = content(&[
        ("type varint", Number(kind::METADATA as u64)),
        ("crc varint", Number(crc.into())),
        ("data bytes", Content::Bytes(b"data".to_vec())),
    ]);
    assert_eq!(read_message(&layout("Record"), &record), expected);
}

#[test]
fn the_documented_table_of_records_lists_every_type() {
    let kinds = [
        ("METADATA", kind::METADATA),
        ("ENTRY", kind::ENTRY),
        ("STATE", kind::STATE),
        ("CRC", kind::CRC),
        ("SNAPSHOT", kind::SNAPSHOT),
    ];
    let source = include_str!("../record.rs");
    let (_, module) = source.split_once("mod kind {").unwrap();
    let names: Vec<_> = kinds.iter().map(|(name, _)| *name).collect();
    assert_eq!(declared(module.split('}').next().unwrap(), ""), names);
    let named: Vec<_> =
        kinds.iter().map(|(name, kind)| format!("{kind} {}", name.to_lowercase())).collect();
    let rows = table("| type | data |");
    assert_eq!(rows.iter().map(|row| row[0].clone()).collect::<Vec<_>>(), named);
}

#[test]
fn the_documented_fields_of_records_match_the_encoding() {
    let fields_of = |kind: i64| {
        let rows = table("| type | data |");
        let row = rows.iter().find(|row| row[0].starts_with(&kind.to_string())).unwrap();
        row[1].split_once(": ").unwrap().1.to_owned()
    };
    let data_of = |write: &dyn Fn(&mut RecordEncoder)| {
        let record = record_of(write);
        let record = decode_record(&record).unwrap();
        (record.kind, record.data.to_vec())
    };
    let entry = Entry { kind: 1, ..entry(3, 2, b"data") };
    let mark = SnapshotMark { index: 1, term: 2, conf_state: Some(Bytes::from_static(b"conf")) };
    let (entry_kind, entry) = data_of(&|encoder| encoder.push_entry((&entry).into()));
    let (state_kind, state) = data_of(&|encoder| encoder.push_state(&state(1, 2, 3)));
    let (mark_kind, mark) = data_of(&|encoder| encoder.push_mark(&mark));
    assert_eq!((entry_kind, state_kind, mark_kind), (kind::ENTRY, kind::STATE, kind::SNAPSHOT));
    let data = Content::Bytes(b"data".to_vec());
    assert_eq!(
        read_message(&fields_of(entry_kind), &entry),
        content(&[("type", Number(1)), ("term", Number(2)), ("index", Number(3)), ("data", data)])
    );
    assert_eq!(
        read_message(&fields_of(state_kind), &state),
        content(&[("term", Number(1)), ("vote", Number(2)), ("commit", Number(3))])
    );
    let conf = Content::Bytes(b"conf".to_vec());
    assert_eq!(
        read_message(&fields_of(mark_kind), &mark),
        content(&[("index", Number(1)), ("term", Number(2)), ("ConfState", conf)])
    );
}

#[test]
fn the_documented_sizes_match_the_log() {
    let options = Options::default();
    assert_says(&format!("whole segment ({} bytes)", grouped(options.segment_bytes)));
    assert_says(&format!("in steps of {} KiB", options.zero_step_bytes >> 10));
    assert_says(&format!("up to {} MiB ahead", options.zero_lead_bytes >> 20));
    assert_says(&format!("only if {} MiB stay free", options.kept_free_bytes >> 20));
    assert_says(&format!("in some {SECTOR_BYTES}-byte sector"));
}
