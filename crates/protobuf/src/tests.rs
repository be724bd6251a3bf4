//! Checks that decoding an encoded value yields the same value, and that malformed bytes are
//! refused with the right error.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn small_or_any() -> impl Strategy<Value = u64> {
    prop_oneof![0..300_u64, any::<u64>()]
}

fn field_number() -> impl Strategy<Value = u32> {
    prop_oneof![1..20_u32, 1..1_u32 << 29]
}

/// Decodes a varint byte by byte, without the special cases of the real decoder.
fn naive_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0_u128;
    for (position, byte) in bytes.iter().enumerate().take(10) {
        value |= u128::from(byte & 0x7f) << (7 * position);
        if byte & 0x80 == 0 {
            return u64::try_from(value).ok().map(|value| (value, position + 1));
        }
    }
    None
}

proptest! {
    #[test]
    fn a_varint_round_trips_with_the_predicted_length(value in small_or_any(), more in any::<u8>()) {
        let mut bytes = Vec::new();
        put_varint(value, &mut bytes);
        prop_assert_eq!(bytes.len(), varint_len(value));
        bytes.push(more);
        let mut rest = &bytes[..];
        prop_assert_eq!(take_varint(&mut rest), Ok(value));
        prop_assert_eq!(rest, &[more]);
    }

    #[test]
    fn varint_decoding_matches_a_naive_decoder(bytes in vec(prop_oneof![any::<u8>(), 0x80_u8..], 0..14)) {
        let mut rest = &bytes[..];
        let read = take_varint(&mut rest).ok().map(|value| (value, bytes.len() - rest.len()));
        prop_assert_eq!(read, naive_varint(&bytes));
    }

    #[test]
    fn encoded_fields_round_trip(
        numbers in vec((field_number(), small_or_any()), 0..4),
        texts in vec((field_number(), vec(any::<u8>(), 0..200)), 0..4),
    ) {
        let mut bytes = Vec::new();
        for (number, value) in &numbers {
            put_number(*number, *value, &mut bytes);
        }
        for (number, text) in &texts {
            put_bytes(*number, text, &mut bytes);
        }
        let read: Vec<_> = Fields::new(&bytes).collect::<Result<_, _>>().unwrap();
        let written: Vec<_> = numbers
            .iter()
            .map(|(number, value)| (*number, Value::Varint(*value)))
            .chain(texts.iter().map(|(number, text)| (*number, Value::Bytes(text))))
            .collect();
        prop_assert_eq!(read, written);
    }

    #[test]
    fn parsing_arbitrary_bytes_terminates_without_panic(bytes in vec(any::<u8>(), 0..64)) {
        prop_assert!(Fields::new(&bytes).count() <= bytes.len());
    }

    #[test]
    fn a_truncated_message_is_refused_unless_cut_between_fields(
        value in any::<u64>(), text in vec(any::<u8>(), 1..20), cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = Vec::new();
        put_number(1, value, &mut bytes);
        let between = bytes.len();
        put_bytes(2, &text, &mut bytes);
        let cut = 1 + cut.index(bytes.len() - 1);
        let read: Result<Vec<_>, _> = Fields::new(&bytes[..cut]).collect();
        let expected = if cut == between { Ok(1) } else { Err(Malformed::Truncated) };
        prop_assert_eq!(read.map(|fields| fields.len()), expected);
    }
}

#[test]
fn fixed_width_fields_are_little_endian() {
    let mut bytes = Vec::new();
    put_fixed64(7, 0x0102_0304_0506_0708, &mut bytes);
    put_fixed32(16, 0x0102_0304, &mut bytes);
    assert_eq!(bytes, *b"\x39\x08\x07\x06\x05\x04\x03\x02\x01\x85\x01\x04\x03\x02\x01");
    let read: Vec<_> = Fields::new(&bytes).collect::<Result<_, _>>().unwrap();
    assert_eq!(read, [(7, Value::Fixed64), (16, Value::Fixed32)]);
}

fn refusal(bytes: &[u8]) -> Malformed {
    let mut fields = Fields::new(bytes);
    let refusal = fields.find_map(Result::err).unwrap();
    assert_eq!(fields.next(), None, "iteration ends after an error");
    refusal
}

#[test]
fn each_kind_of_malformed_field_has_its_own_error() {
    for (bytes, expected) in [
        (&b"\x08"[..], Malformed::Truncated),
        (b"\x08\xff", Malformed::Truncated),
        (b"\x09\0\0\0", Malformed::Truncated),
        (b"\x0d\0", Malformed::Truncated),
        (b"\x12\x02\0", Malformed::Truncated),
        // A length larger than any memory, and a length that would overflow when added to a position.
        (b"\x12\xff\xff\xff\xff\xff\x7f", Malformed::Truncated),
        (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", Malformed::Truncated),
        (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", Malformed::VarintOverflow),
        (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", Malformed::VarintOverflow),
        (b"\x00\x00", Malformed::FieldNumber),
        (b"\x80\x80\x80\x80\x10\x00", Malformed::FieldNumber),
        (b"\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x01\0", Malformed::FieldNumber),
        (b"\x0c", Malformed::WireType),
        (b"\x0e", Malformed::WireType),
        (b"\x0f", Malformed::WireType),
    ] {
        assert_eq!(refusal(bytes), expected, "{bytes:x?}");
    }
}

#[test]
fn padded_varints_and_the_longest_varint_are_decoded() {
    let read = |bytes: &[u8]| take_varint(&mut &*bytes);
    assert_eq!(read(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), Ok(u64::MAX));
    assert_eq!(read(b"\x81\x80\x80\x80\x80\x80\x80\x80\x80\x00"), Ok(1));
}

#[test]
fn groups_are_skipped_as_a_whole() {
    let groups = b"\x0b\x10\x01\x1b\x22\x01\x0c\x1c\x0c\x28\x07";
    let read: Vec<_> = Fields::new(groups).collect::<Result<_, _>>().unwrap();
    assert_eq!(read, [(1, Value::Group), (5, Value::Varint(7))]);
    assert_eq!(refusal(b"\x0b\x10\x01"), Malformed::Truncated);
    assert_eq!(refusal(b"\x0b\x14"), Malformed::Groups);
    // Groups that are nested so deeply that a recursive decoder would overflow the stack.
    let deep = [vec![0x0b; 1 << 20], vec![0x0c; 1 << 20]].concat();
    assert_eq!(refusal(&deep), Malformed::Groups);
    let depth = read::GROUP_DEPTH_MAX;
    let deep = [vec![0x0b; depth], vec![0x0c; depth]].concat();
    assert_eq!(Fields::new(&deep).next(), Some(Ok((1, Value::Group))));
}

#[test]
fn rest_returns_the_bytes_not_yet_decoded() {
    let bytes = b"\x08\x96\x01\x12\x02hi";
    let mut fields = Fields::new(bytes);
    fields.next();
    assert_eq!(fields.rest(), b"\x12\x02hi");
    fields.next();
    assert!(fields.rest().is_empty());
}

#[test]
fn a_message_whose_length_is_written_last_is_decoded_normally() {
    for len in [0, 1, 0x7f, 0x80, 0x3fff, 0x4000, 0x0020_0000] {
        let inner = vec![7; len];
        let mut out = b"before".to_vec();
        let begun = begin_message(300, &mut out);
        out.extend_from_slice(&inner);
        begun.end(&mut out).unwrap();
        put_number(2, 9, &mut out);
        let read: Vec<_> = Fields::new(&out[6..]).map(Result::unwrap).collect();
        assert_eq!(read, [(300, Value::Bytes(&inner)), (2, Value::Varint(9))]);
    }
}
