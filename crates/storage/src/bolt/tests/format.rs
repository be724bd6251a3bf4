//! Tests that `FORMAT.md` and the engine agree about pages.

use super::super::commit::{RESERVED_BYTES, WRITE_BYTES};
use super::super::meta::{
    CHECKED_BYTES, MAGIC, META_END, Meta, NO_FREELIST, PAGE_BYTES_MAX, PAGE_BYTES_MIN, VERSION,
};
use super::super::page::{
    ELEMENT_BYTES, ELEMENT_IS_BUCKET, FLAG_BRANCH, FLAG_FREELIST, FLAG_LEAF, FLAG_META,
    HEADER_BYTES, Header, put_branch, put_header, put_leaf,
};
use super::super::shape::GROUP_PAGES_MAX;
use super::*;
use crate::checksum::fnv1a_64;
use crate::format_file::{assert_says, declared, grouped, layout, read_numbers};

/// Converts field names and values to the type that `read_numbers` returns.
fn fields(fields: &[(&str, u64)]) -> Vec<(String, u64)> {
    fields.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect()
}

#[test]
fn the_documented_layout_of_a_page_header_matches_the_encoding() {
    let mut bytes = Vec::new();
    put_header(&mut bytes, &Header { id: PageId(1), flags: 2, count: 3, overflow: 4 });
    assert_eq!(bytes.len(), HEADER_BYTES);
    let expected = fields(&[("id", 1), ("flags", 2), ("count", 3), ("overflow", 4)]);
    assert_eq!(read_numbers(&layout("header"), &bytes), (expected, &[][..]));
}

#[test]
fn the_documented_page_header_lists_every_kind_of_page() {
    let kinds = [
        ("branch", FLAG_BRANCH, "FLAG_BRANCH"),
        ("leaf", FLAG_LEAF, "FLAG_LEAF"),
        ("meta", FLAG_META, "FLAG_META"),
        ("free list", FLAG_FREELIST, "FLAG_FREELIST"),
    ];
    let said: Vec<_> = kinds.iter().map(|(name, flag, _)| format!("{flag} {name}")).collect();
    assert!(layout("header").contains(&format!("flags u16 ({})", said.join(", "))));
    let listed: Vec<_> = kinds.iter().map(|(_, _, constant)| *constant).collect();
    assert_eq!(declared(include_str!("../page.rs"), "FLAG_"), listed);
}

#[test]
fn the_documented_layout_of_elements_matches_the_encoding() {
    let mut leaf = Vec::new();
    put_leaf(&mut leaf, PageId(5), 0, [(&b"key"[..], &b"value"[..], true)].into_iter());
    let element = &leaf[HEADER_BYTES..];
    let flags = ("flags", u64::from(ELEMENT_IS_BUCKET));
    let pos = ("pos", ELEMENT_BYTES as u64);
    let expected = fields(&[flags, pos, ("key bytes", 3), ("value bytes", 5)]);
    assert_eq!(read_numbers(&layout("leaf"), element), (expected, &b"keyvalue"[..]));
    assert!(layout("leaf").contains(&format!("flags u32 ({ELEMENT_IS_BUCKET}: bucket)")));

    let mut branch = Vec::new();
    put_branch(&mut branch, PageId(5), 0, [(&b"key"[..], PageId(6))].into_iter());
    let expected = fields(&[pos, ("key bytes", 3), ("child id", 6)]);
    assert_eq!(read_numbers(&layout("branch"), &branch[HEADER_BYTES..]), (expected, &b"key"[..]));
}

#[test]
fn the_documented_layout_of_a_meta_page_matches_the_encoding() {
    let meta = Meta {
        page_bytes: 1024,
        root: PageId(7),
        root_sequence: 8,
        freelist: PageId(9),
        high_water: PageId(10),
        txid: TxId(11),
    };
    let mut page = Vec::new();
    meta.put(&mut page, PageId(1));
    let checked = &page[HEADER_BYTES..][..CHECKED_BYTES];
    let expected = fields(&[
        (&format!("magic {MAGIC:X}"), MAGIC.into()),
        (&format!("version {VERSION}"), VERSION.into()),
        ("page bytes", 1024),
        ("0", 0),
        ("root page", 7),
        ("root sequence", 8),
        ("free list page", 9),
        ("high-water mark", 10),
        ("transaction", 11),
        (&format!("FNV-1a 64 of the {CHECKED_BYTES} bytes before"), fnv1a_64(checked)),
    ]);
    let (read, rest) = read_numbers(&layout("meta"), &page[HEADER_BYTES..]);
    assert_eq!(read, expected);
    assert_eq!(rest.len(), page.len() - META_END);
}

#[test]
fn the_documented_limits_match_the_engine() {
    let (least, most) = (PAGE_BYTES_MIN >> 10, PAGE_BYTES_MAX >> 10);
    assert_says(&format!("(a power of two from {least} to {most} KiB, "));
    let options = Options::default();
    assert_says(&format!("{} for new files)", options.page_bytes_new));
    assert_says(&format!("Keys are 1 to {} bytes long", grouped(KEY_BYTES_MAX as u64)));
    assert_eq!(VALUE_BYTES_MAX, (1 << 31) - 2);
    assert_says("values are up to 2^31 - 2 bytes long.");
    assert_says(&format!("never: id {:X}", NO_FREELIST.0));
    assert_says(&format!("up to {GROUP_PAGES_MAX} pages where that packs"));
    assert_says(&format!("by {} MiB or by an eighth", options.growth_bytes >> 20));
    assert_says(&format!("in steps of {} KiB (`fallocate`)", RESERVED_BYTES >> 10));
    assert_says(&format!("up to {} MiB at a time", WRITE_BYTES >> 20));
}
