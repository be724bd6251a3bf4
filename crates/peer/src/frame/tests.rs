//! Tests of the stream encodings: bytes as etcd writes them, and round trips in arbitrary pieces.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::wire::tests::message;

fn from_hex(text: &str) -> Bytes {
    text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

fn spaced_hex(number: u64) -> String {
    number.to_be_bytes().map(|byte| format!("{byte:02x}")).join(" ")
}

fn append(term: u64, log_term: u64, index: u64, payloads: &[&'static [u8]]) -> Message {
    let (term, log_term, index) = (Term(term), Term(log_term), LogIndex(index));
    let entry = |(offset, data): (usize, &&'static [u8])| Entry {
        term,
        index: index + 1 + offset as u64,
        data: Bytes::from_static(data),
        ..Entry::default()
    };
    Message {
        from: 1,
        term,
        log_term,
        index,
        commit: index,
        entries: payloads.iter().enumerate().map(entry).collect(),
        ..Message::new(MessageKind::Append, 2)
    }
}

fn encode(kind: StreamKind, messages: &[Message]) -> Bytes {
    let (mut encoder, mut out) = (Encoder::new(kind), BytesMut::new());
    for message in messages {
        encoder.put(message, &mut out);
    }
    out.freeze()
}

fn decode(kind: StreamKind, bytes: &Bytes, piece: usize) -> Result<Vec<Message>, FrameError> {
    let (mut decoder, mut messages) = (Decoder::new(kind, 1, 2), Vec::new());
    for piece in bytes.chunks(piece) {
        decoder.feed(piece, &mut messages)?;
    }
    assert!(decoder.buffer.is_empty(), "the decoder contains no incomplete frame");
    Ok(messages)
}

#[test]
fn consecutive_appends_are_sent_in_the_short_form() {
    let messages = [
        append(1, 0, 0, &[b"a"]),
        append(1, 1, 1, &[b"b", b"c"]),
        // Only the commit index advances.
        append(1, 1, 3, &[]),
        // An append from a lower index, as after a rejection.
        append(1, 1, 1, &[b"b"]),
        append(1, 1, 2, &[b"c"]),
        // The first append of the next term is a whole message, and the second uses the short form.
        append(2, 1, 3, &[b"d"]),
        append(2, 2, 4, &[b"e"]),
    ];
    let bytes = encode(StreamKind::Append, &messages);
    let mut types = Vec::new();
    let (mut rest, mut extent) = (bytes.clone(), Extent::default());
    while extent.find(StreamKind::Append, &rest).unwrap() && !rest.is_empty() {
        types.push(rest[0]);
        rest.advance(extent.known);
        extent = Extent::default();
    }
    assert_eq!(types, [2, 1, 1, 2, 1, 2, 1]);
    for piece in [1, 2, 3, 7, 8, 9, 20, 1000] {
        assert_eq!(decode(StreamKind::Append, &bytes, piece).unwrap(), messages, "{piece}");
    }
}

#[test]
fn appends_in_the_short_form_have_the_same_bytes_as_in_etcd() {
    let messages = [append(1, 1, 5, &[]), append(1, 1, 5, &[b"x"])];
    let bytes = encode(StreamKind::Append, &messages);
    let whole = "02 00 00 00 00 00 00 00 0e 08 03 10 02 18 01 20 01 28 01 30 05 40 05";
    let short = "01 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 07 10 01 18 06 22 01 78 \
                 00 00 00 00 00 00 00 05";
    assert_eq!(bytes, [from_hex(whole), from_hex(short)].concat());
}

#[test]
fn link_heartbeats_are_decoded_and_not_delivered() {
    let mut out = BytesMut::new();
    Encoder::new(StreamKind::Append).put_link_heartbeat(&mut out);
    assert_eq!(out, from_hex("00"));
    assert_eq!(decode(StreamKind::Append, &out.freeze(), 1), Ok(Vec::new()));
    let mut out = BytesMut::new();
    Encoder::new(StreamKind::Message).put_link_heartbeat(&mut out);
    assert_eq!(out, from_hex("00 00 00 00 00 00 00 02 08 08"));
    assert_eq!(decode(StreamKind::Message, &out.freeze(), 3), Ok(Vec::new()));
    // A link heartbeat of etcd 3.5.
    let bytes = from_hex(
        "00 00 00 00 00 00 00 1e 08 08 10 00 18 00 20 00 28 00 30 00 40 00 \
         4a 0a 12 08 0a 02 28 00 10 00 18 00 50 00 58 00",
    );
    assert_eq!(decode(StreamKind::Message, &bytes, 5), Ok(Vec::new()));
}

#[test]
fn an_overlong_frame_is_refused_before_its_payload_arrives() {
    let refused = |kind, text: &str| {
        let mut decoder = Decoder::new(kind, 1, 2);
        let outcome = decoder.feed(&from_hex(text), &mut Vec::new());
        assert!(decoder.buffer.capacity() <= BLOCK_BYTES);
        outcome
    };
    let too_long = Err(FrameError::TooLong);
    assert_eq!(refused(StreamKind::Message, "00 00 00 00 20 00 00 01"), too_long);
    assert_eq!(refused(StreamKind::Message, "ff ff ff ff ff ff ff ff"), too_long);
    assert_eq!(refused(StreamKind::Append, "02 00 00 00 00 20 00 00 01"), too_long);
    let entry = "01 00 00 00 00 00 00 00 01 ff ff ff ff ff ff ff ff";
    assert_eq!(refused(StreamKind::Append, entry), too_long);
    // The announcement of a long frame allocates no memory.
    assert_eq!(refused(StreamKind::Message, "00 00 00 00 1f 00 00 00 08"), Ok(()));
    let entries = |count: u64| refused(StreamKind::Append, &format!("01 {}", spaced_hex(count)));
    assert_eq!(entries(wire::ENTRIES_MAX as u64), Ok(()));
    assert_eq!(entries(wire::ENTRIES_MAX as u64 + 1), too_long);
    assert_eq!(refused(StreamKind::Append, "03"), Err(FrameError::Type(3)));
}

#[test]
fn payloads_of_small_entries_share_buffer_blocks() {
    let messages: Vec<Message> = (1..=2000).map(|index| append(1, 1, index, &[b"small"])).collect();
    let (mut encoder, mut decoder) =
        (Encoder::new(StreamKind::Append), Decoder::new(StreamKind::Append, 1, 2));
    let (mut kept, mut bytes) = (Vec::new(), 0);
    for message in &messages {
        let mut out = BytesMut::new();
        encoder.put(message, &mut out);
        bytes += out.len();
        decoder.feed(&out, &mut kept).unwrap();
    }
    assert_eq!(kept, messages);
    let places = kept.iter().map(|message| message.entries[0].data.as_ptr() as usize);
    let mut places: Vec<usize> = places.collect();
    places.sort_unstable();
    let blocks = places.windows(2).filter(|pair| pair[1] - pair[0] > 100).count() + 1;
    assert!(blocks <= bytes / BLOCK_BYTES + 1, "{blocks} blocks for {bytes} bytes");
    // Once no entry is retained, the block is reused.
    kept.clear();
    let place = decoder.buffer.as_ptr() as usize;
    for message in &messages {
        let mut out = BytesMut::new();
        encoder.put(message, &mut out);
        decoder.feed(&out, &mut kept).unwrap();
        kept.clear();
    }
    let moved = (decoder.buffer.as_ptr() as usize).abs_diff(place);
    assert!(moved <= BLOCK_BYTES, "the buffer moved by {moved} bytes");
}

proptest! {
    #[test]
    fn encoded_messages_are_decoded_in_order(
        messages in vec(message(), 0..8),
        piece in 1..200_usize,
        is_append in any::<bool>(),
    ) {
        let kind = if is_append { StreamKind::Append } else { StreamKind::Message };
        let bytes = encode(kind, &messages);
        let is_link = |m: &Message| kind == StreamKind::Message
            && m.kind == MessageKind::Heartbeat && m.from == 0 && m.to == 0;
        let expected: Vec<Message> = messages.into_iter().filter(|m| !is_link(m)).collect();
        prop_assert_eq!(decode(kind, &bytes, piece).unwrap(), expected);
    }

    #[test]
    fn encoded_runs_of_appends_are_decoded(
        // Each of the leader's appends: the number of its entries, the index (if any) to which the next append jumps,
        // and the term.
        steps in vec((0..4_u64, proptest::option::weighted(0.2, 0..50_u64), 1..3_u64), 1..20),
        piece in 1..100_usize,
    ) {
        let (mut messages, mut index) = (Vec::new(), 0);
        let mut terms: Vec<u64> = steps.iter().map(|step| step.2).collect();
        terms.sort_unstable();
        for ((count, anew, _), term) in steps.into_iter().zip(terms) {
            index = anew.unwrap_or(index);
            let payloads = vec![&b"payload"[..]; usize::try_from(count).unwrap()];
            messages.push(append(term, term, index, &payloads));
            index += count;
        }
        let bytes = encode(StreamKind::Append, &messages);
        prop_assert_eq!(decode(StreamKind::Append, &bytes, piece).unwrap(), messages);
    }

    #[test]
    fn encoded_payloads_of_any_size_are_decoded(
        // Payloads range from empty to larger than two blocks, and may need several reads.
        sizes in vec(vec(prop_oneof![0..20_usize, 0..2 * BLOCK_BYTES + 9], 0..4), 1..5),
        piece in prop_oneof![1000..3000_usize, 1..3 * BLOCK_BYTES],
        is_append in any::<bool>(),
    ) {
        let (mut messages, mut index) = (Vec::new(), 0);
        for sizes in sizes {
            let mut message = append(3, 3, index, &vec![&b""[..]; sizes.len()]);
            for (entry, size) in message.entries.iter_mut().zip(sizes) {
                entry.data = vec![7; size].into();
            }
            index += message.entries.len() as u64;
            messages.push(message);
        }
        let kind = if is_append { StreamKind::Append } else { StreamKind::Message };
        let bytes = encode(kind, &messages);
        prop_assert!(decode(kind, &bytes, piece).unwrap() == messages);
    }

    #[test]
    fn arbitrary_bytes_are_decoded_or_refused_without_a_panic(
        bytes in vec(prop_oneof![Just(0_u8), 0..4_u8, any::<u8>()], 0..300),
        piece in 1..50_usize,
        is_append in any::<bool>(),
    ) {
        let kind = if is_append { StreamKind::Append } else { StreamKind::Message };
        let mut decoder = Decoder::new(kind, 1, 2);
        for piece in bytes.chunks(piece) {
            if decoder.feed(piece, &mut Vec::new()).is_err() {
                break;
            }
        }
    }
}
