//! Encodes and decodes Raft messages as `raftpb` bytes.
//!
//! The code is handwritten to avoid copies: an entry's payload is copied from the log directly into the buffer that is
//! sent, and a received payload remains a slice of the buffer into which it was read.
//!
//! # Guarantees
//!
//! * An absent field is decoded as zero, because etcd versions differ: 3.5 and 3.6 write zeros, 3.5 also writes an
//!   empty snapshot, and 3.7 writes neither. Quorate writes only non-zero fields.
//! * Invalid bytes cause no panic. A decoded message uses at most a constant amount of memory in addition to the
//!   received bytes, because it has at most [`ENTRIES_MAX`] entries and [`MEMBER_IDS_MAX`] member ids.
//! * Unknown fields are skipped, as are known fields with an unexpected wire type. If a scalar field occurs several
//!   times, the last value is used. A message of an unknown kind is decoded as a local message, which is never accepted
//!   from peers.
//!
//! # Not here
//!
//! The framing of messages in a stream (`frame`). Fields that only a member's own threads use are not encoded.

use bytes::{BufMut, Bytes, BytesMut};
use quorate_protobuf::{Fields, Malformed, Value, put_length, take_varint, varint_len};
use quorate_raft::{
    ConfState, Entry, EntryKind, LogIndex, Message, MessageKind, Snapshot, SnapshotMetadata, Term,
};

/// Maximum number of entries in a message. A member fills an append with up to 1 MiB of entries. An entry takes at least
/// 4 bytes, so an append contains at most this many entries.
pub(crate) const ENTRIES_MAX: usize = 1 << 18;

/// Maximum number of member ids in a configuration.
const MEMBER_IDS_MAX: usize = 4096;

/// Why bytes are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    #[error("proto: cannot parse invalid wire-format data")]
    Malformed(#[from] Malformed),
    #[error("proto: unknown entry type {0}")]
    EntryKind(u64),
    #[error("a message has more than {ENTRIES_MAX} entries")]
    Entries,
    #[error("a configuration has more than {MEMBER_IDS_MAX} member ids")]
    MemberIds,
}

/// Returns the encoded length of the message.
pub(crate) fn message_len(message: &Message) -> usize {
    let entries = message.entries.iter().map(|entry| nested_len(entry_len(entry)));
    let snapshot = message.snapshot.as_deref().filter(|snapshot| !snapshot.is_empty());
    scalars(message).iter().map(|(_, value)| number_len(*value)).sum::<usize>()
        + entries.sum::<usize>()
        + snapshot.map_or(0, |snapshot| nested_len(snapshot_len(snapshot)))
        + bytes_len(message.context.len())
}

/// Appends the message.
pub(crate) fn put_message(message: &Message, out: &mut BytesMut) {
    let [head @ .., commit, reject, reject_hint] = scalars(message);
    for (number, value) in head {
        put_number(number, value, out);
    }
    for entry in &message.entries {
        put_length(7, entry_len(entry), out);
        put_entry(entry, out);
    }
    put_number(commit.0, commit.1, out);
    if let Some(snapshot) = message.snapshot.as_deref().filter(|snapshot| !snapshot.is_empty()) {
        put_length(9, snapshot_len(snapshot), out);
        put_snapshot(snapshot, out);
    }
    put_number(reject.0, reject.1, out);
    put_number(reject_hint.0, reject_hint.1, out);
    put_bytes(12, &message.context, out);
}

/// Returns the numeric fields in ascending order of field number.
fn scalars(message: &Message) -> [(u32, u64); 9] {
    let kind = u64::try_from(message.kind.to_wire())
        .expect("the numbers of message kinds are not negative");
    [
        (1, kind),
        (2, message.to),
        (3, message.from),
        (4, message.term.get()),
        (5, message.log_term.get()),
        (6, message.index.get()),
        (8, message.commit.get()),
        (10, u64::from(message.reject)),
        (11, message.reject_hint.get()),
    ]
}

/// Returns the encoded length of the entry.
pub(crate) fn entry_len(entry: &Entry) -> usize {
    number_len(entry.kind as u64)
        + number_len(entry.term.get())
        + number_len(entry.index.get())
        + bytes_len(entry.data.len())
}

/// Appends the entry.
pub(crate) fn put_entry(entry: &Entry, out: &mut BytesMut) {
    put_number(1, entry.kind as u64, out);
    put_number(2, entry.term.get(), out);
    put_number(3, entry.index.get(), out);
    put_bytes(4, &entry.data, out);
}

fn snapshot_len(snapshot: &Snapshot) -> usize {
    bytes_len(snapshot.data.len()) + nested_len(metadata_len(&snapshot.metadata))
}

fn put_snapshot(snapshot: &Snapshot, out: &mut BytesMut) {
    let metadata = &snapshot.metadata;
    put_bytes(1, &snapshot.data, out);
    put_length(2, metadata_len(metadata), out);
    put_length(1, conf_state_len(&metadata.conf_state), out);
    put_conf_state(&metadata.conf_state, out);
    put_number(2, metadata.index.get(), out);
    put_number(3, metadata.term.get(), out);
}

fn metadata_len(metadata: &SnapshotMetadata) -> usize {
    nested_len(conf_state_len(&metadata.conf_state))
        + number_len(metadata.index.get())
        + number_len(metadata.term.get())
}

/// Returns the member lists of a configuration with their field numbers.
fn conf_lists(state: &ConfState) -> [(u32, &[u64]); 4] {
    [
        (1, &state.voters),
        (2, &state.learners),
        (3, &state.voters_outgoing),
        (4, &state.learners_next),
    ]
}

fn conf_state_len(state: &ConfState) -> usize {
    let ids = conf_lists(state).into_iter().flat_map(|(_, ids)| ids);
    ids.map(|id| 1 + varint_len(*id)).sum::<usize>() + 2
}

/// Appends the configuration as Go's encoder does: lists are unpacked, and `auto_leave` is always present.
fn put_conf_state(state: &ConfState, out: &mut BytesMut) {
    for (number, ids) in conf_lists(state) {
        for id in ids {
            quorate_protobuf::put_number(number, *id, out);
        }
    }
    out.put_slice(&[5 << 3, u8::from(state.auto_leave)]);
}

/// Returns the encoded length of a number field whose key takes one byte. Zero is not encoded.
fn number_len(value: u64) -> usize {
    if value == 0 { 0 } else { 1 + varint_len(value) }
}

fn put_number(number: u32, value: u64, out: &mut BytesMut) {
    if value != 0 {
        quorate_protobuf::put_number(number, value, out);
    }
}

fn nested_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}

fn bytes_len(len: usize) -> usize {
    if len == 0 { 0 } else { nested_len(len) }
}

fn put_bytes(number: u32, bytes: &[u8], out: &mut BytesMut) {
    if !bytes.is_empty() {
        quorate_protobuf::put_bytes(number, bytes, out);
    }
}

/// Decodes a message, whose byte fields are slices of `bytes`.
pub(crate) fn decode_message(bytes: &Bytes) -> Result<Message, WireError> {
    let mut message = Message::default();
    for field in Fields::new(bytes) {
        match field? {
            (number, Value::Varint(value)) => set_scalar(&mut message, number, value),
            (7, Value::Bytes(_)) if message.entries.len() == ENTRIES_MAX => {
                return Err(WireError::Entries);
            }
            (7, Value::Bytes(entry)) => message.entries.push(decode_entry(bytes, entry)?),
            (9, Value::Bytes(snapshot)) => {
                let snapshot = decode_snapshot(bytes, snapshot)?;
                message.snapshot = (!snapshot.is_empty()).then(|| Box::new(snapshot));
            }
            (12, Value::Bytes(context)) => message.context = bytes.slice_ref(context),
            _ => {}
        }
    }
    Ok(message)
}

/// Decodes only the numeric fields of a message, which include the sender and the recipient. Allocates no memory.
pub(crate) fn decode_scalars(bytes: &[u8]) -> Result<Message, WireError> {
    let mut message = Message::default();
    for field in Fields::new(bytes) {
        if let (number, Value::Varint(value)) = field? {
            set_scalar(&mut message, number, value);
        }
    }
    Ok(message)
}

fn set_scalar(message: &mut Message, number: u32, value: u64) {
    match number {
        1 => message.kind = message_kind(value),
        2 => message.to = value,
        3 => message.from = value,
        4 => message.term = Term(value),
        5 => message.log_term = Term(value),
        6 => message.index = LogIndex(value),
        8 => message.commit = LogIndex(value),
        10 => message.reject = value != 0,
        11 => message.reject_hint = LogIndex(value),
        _ => {}
    }
}

fn message_kind(number: u64) -> MessageKind {
    i32::try_from(number).ok().and_then(MessageKind::from_wire).unwrap_or(MessageKind::Hup)
}

/// Decodes an entry that is part of `buffer`. Its payload is a slice of `buffer`.
pub(crate) fn decode_entry(buffer: &Bytes, entry: &[u8]) -> Result<Entry, WireError> {
    let mut decoded = Entry::default();
    for field in Fields::new(entry) {
        match field? {
            (1, Value::Varint(kind)) => {
                let known = i32::try_from(kind).ok().and_then(EntryKind::from_wire);
                decoded.kind = known.ok_or(WireError::EntryKind(kind))?;
            }
            (2, Value::Varint(term)) => decoded.term = Term(term),
            (3, Value::Varint(index)) => decoded.index = LogIndex(index),
            (4, Value::Bytes(data)) => decoded.data = buffer.slice_ref(data),
            _ => {}
        }
    }
    Ok(decoded)
}

fn decode_snapshot(buffer: &Bytes, snapshot: &[u8]) -> Result<Snapshot, WireError> {
    let mut decoded = Snapshot::default();
    for field in Fields::new(snapshot) {
        match field? {
            (1, Value::Bytes(data)) => decoded.data = buffer.slice_ref(data),
            (2, Value::Bytes(metadata)) => decoded.metadata = decode_metadata(metadata)?,
            _ => {}
        }
    }
    Ok(decoded)
}

fn decode_metadata(metadata: &[u8]) -> Result<SnapshotMetadata, WireError> {
    let mut decoded = SnapshotMetadata::default();
    for field in Fields::new(metadata) {
        match field? {
            (1, Value::Bytes(state)) => decoded.conf_state = decode_conf_state(state)?,
            (2, Value::Varint(index)) => decoded.index = LogIndex(index),
            (3, Value::Varint(term)) => decoded.term = Term(term),
            _ => {}
        }
    }
    Ok(decoded)
}

fn decode_conf_state(state: &[u8]) -> Result<ConfState, WireError> {
    let mut decoded = ConfState::default();
    let mut ids_left = MEMBER_IDS_MAX;
    let mut count_id = || {
        ids_left = ids_left.checked_sub(1).ok_or(WireError::MemberIds)?;
        Ok::<(), WireError>(())
    };
    for field in Fields::new(state) {
        let (number, value) = field?;
        let ids = match number {
            1 => &mut decoded.voters,
            2 => &mut decoded.learners,
            3 => &mut decoded.voters_outgoing,
            4 => &mut decoded.learners_next,
            5 => {
                if let Value::Varint(flag) = value {
                    decoded.auto_leave = flag != 0;
                }
                continue;
            }
            _ => continue,
        };
        match value {
            Value::Varint(id) => {
                count_id()?;
                ids.push(id);
            }
            // The list is packed. Go's encoder does not pack lists, but other encoders may.
            Value::Bytes(mut packed) => {
                while !packed.is_empty() {
                    count_id()?;
                    ids.push(take_varint(&mut packed)?);
                }
            }
            Value::Fixed64 | Value::Fixed32 | Value::Group => {}
        }
    }
    Ok(decoded)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn small_or_any() -> impl Strategy<Value = u64> {
        prop_oneof![0..200_u64, any::<u64>()]
    }

    fn payload() -> impl Strategy<Value = Bytes> {
        vec(any::<u8>(), 0..80).prop_map(Bytes::from)
    }

    prop_compose! {
        pub fn entry()(
            term in small_or_any(),
            index in small_or_any(),
            kind in 0..3_i32,
            data in payload(),
        ) -> Entry {
            let kind = EntryKind::from_wire(kind).unwrap();
            Entry { term: Term(term), index: LogIndex(index), kind, data }
        }
    }

    prop_compose! {
        fn snapshot()(
            data in payload(),
            index in 1..u64::MAX,
            term in small_or_any(),
            voters in vec(small_or_any(), 0..4),
            learners in vec(small_or_any(), 0..3),
            voters_outgoing in vec(small_or_any(), 0..3),
            learners_next in vec(small_or_any(), 0..3),
            auto_leave in any::<bool>(),
        ) -> Box<Snapshot> {
            let conf_state =
                ConfState { voters, learners, voters_outgoing, learners_next, auto_leave };
            let (index, term) = (LogIndex(index), Term(term));
            Box::new(Snapshot { data, metadata: SnapshotMetadata { conf_state, index, term } })
        }
    }

    prop_compose! {
        pub fn message()(
            kind in 0..24_i32,
            ids in (small_or_any(), small_or_any()),
            terms in (small_or_any(), small_or_any()),
            index in small_or_any(),
            entries in vec(entry(), 0..5),
            commit in small_or_any(),
            snapshot in proptest::option::of(snapshot()),
            reject in (any::<bool>(), small_or_any()),
            context in payload(),
        ) -> Message {
            Message {
                kind: MessageKind::from_wire(kind).unwrap(),
                to: ids.0,
                from: ids.1,
                term: Term(terms.0),
                log_term: Term(terms.1),
                index: LogIndex(index),
                entries,
                commit: LogIndex(commit),
                snapshot,
                reject: reject.0,
                reject_hint: LogIndex(reject.1),
                context,
                ..Message::default()
            }
        }
    }

    fn encoded(message: &Message) -> Bytes {
        let mut out = BytesMut::new();
        put_message(message, &mut out);
        out.freeze()
    }

    proptest! {
        #[test]
        fn messages_round_trip(message in message()) {
            let bytes = encoded(&message);
            prop_assert_eq!(bytes.len(), message_len(&message));
            prop_assert_eq!(&decode_message(&bytes).unwrap(), &message);
            let scalars = Message { entries: Vec::new(), snapshot: None, context: Bytes::new(), ..message };
            prop_assert_eq!(decode_scalars(&bytes).unwrap(), scalars);
        }

        #[test]
        fn the_prost_decoder_decodes_the_same_message(message in message()) {
            let bytes = encoded(&message);
            let read = <quorate_api::raftpb::Message as prost::Message>::decode(bytes).unwrap();
            prop_assert_eq!(read.r#type.unwrap_or_default(), message.kind.to_wire());
            prop_assert_eq!(read.to.unwrap_or_default(), message.to);
            prop_assert_eq!(read.log_term.unwrap_or_default(), message.log_term.get());
            prop_assert_eq!(read.index.unwrap_or_default(), message.index.get());
            prop_assert_eq!(read.commit.unwrap_or_default(), message.commit.get());
            prop_assert_eq!(read.reject.unwrap_or_default(), message.reject);
            prop_assert_eq!(read.reject_hint.unwrap_or_default(), message.reject_hint.get());
            prop_assert_eq!(read.context.unwrap_or_default(), message.context);
            prop_assert_eq!(read.snapshot.is_some(), message.snapshot.is_some());
            prop_assert_eq!(read.entries.len(), message.entries.len());
            for (read, entry) in read.entries.into_iter().zip(message.entries) {
                prop_assert_eq!(read.r#type.unwrap_or_default(), entry.kind as i32);
                prop_assert_eq!(read.term.unwrap_or_default(), entry.term.get());
                prop_assert_eq!(read.index.unwrap_or_default(), entry.index.get());
                prop_assert_eq!(read.data.unwrap_or_default(), entry.data);
            }
        }

        #[test]
        fn any_bytes_are_decoded_or_refused_without_a_panic(bytes in vec(any::<u8>(), 0..200)) {
            _ = decode_message(&bytes.into());
        }

        #[test]
        fn a_damaged_message_is_decoded_or_refused_without_a_panic(
            message in message(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
        ) {
            let mut bytes = encoded(&message).to_vec();
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
                _ = decode_message(&bytes.into());
            }
        }
    }

    fn from_hex(text: &str) -> Bytes {
        text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
    }

    #[test]
    fn the_link_heartbeats_of_all_releases_are_decoded() {
        let link = Message::new(MessageKind::Heartbeat, 0);
        for bytes in [
            // The link heartbeat of etcd 3.5 contains an empty snapshot.
            "08 08 10 00 18 00 20 00 28 00 30 00 40 00 4a 0a 12 08 0a 02 28 00 10 00 18 00 50 00 58 00",
            // The link heartbeat of etcd 3.6 contains fields with the value zero.
            "08 08 10 00 18 00 20 00 28 00 30 00 40 00 50 00 58 00 68 00",
            // The link heartbeat of etcd 3.7 and of Quorate contains only the message kind.
            "08 08",
        ] {
            assert_eq!(decode_message(&from_hex(bytes)), Ok(link.clone()), "{bytes}");
        }
        assert_eq!(encoded(&link), from_hex("08 08"));
    }

    #[test]
    fn entries_without_payload_from_every_release_are_decoded() {
        let entry = Entry { term: Term(2), index: LogIndex(5), ..Entry::default() };
        for bytes in ["10 02 18 05", "08 00 10 02 18 05"] {
            let bytes = from_hex(bytes);
            assert_eq!(decode_entry(&bytes, &bytes), Ok(entry.clone()));
        }
        let mut out = BytesMut::new();
        put_entry(&entry, &mut out);
        assert_eq!(out, from_hex("10 02 18 05"));
    }

    #[test]
    fn packed_lists_are_decoded_but_unpacked_lists_are_encoded() {
        let state = ConfState { voters: vec![1, 300], ..ConfState::default() };
        assert_eq!(decode_conf_state(&from_hex("0a 03 01 ac 02")), Ok(state.clone()));
        let mut out = BytesMut::new();
        put_conf_state(&state, &mut out);
        assert_eq!(out, from_hex("08 01 08 ac 02 28 00"));
    }

    #[test]
    fn the_numbers_of_entries_and_member_ids_are_limited() {
        let entries = |count| decode_message(&[0x3a, 0].repeat(count).into());
        assert_eq!(entries(ENTRIES_MAX).map(|message| message.entries.len()), Ok(ENTRIES_MAX));
        assert_eq!(entries(ENTRIES_MAX + 1), Err(WireError::Entries));
        let packed = |count: usize| {
            let mut state = BytesMut::new();
            quorate_protobuf::put_bytes(1, &vec![1; count], &mut state);
            decode_conf_state(&state).map(|state| state.voters.len())
        };
        assert_eq!(packed(MEMBER_IDS_MAX), Ok(MEMBER_IDS_MAX));
        assert_eq!(packed(MEMBER_IDS_MAX + 1), Err(WireError::MemberIds));
        let in_two_lists = [&[8, 1].repeat(MEMBER_IDS_MAX)[..], &[16, 1]].concat();
        assert_eq!(decode_conf_state(&in_two_lists), Err(WireError::MemberIds));
    }

    #[test]
    fn unknown_fields_are_skipped_and_unknown_entry_kinds_refused() {
        assert_eq!(decode_message(&from_hex("08 18")).unwrap().kind, MessageKind::Hup);
        assert_eq!(decode_message(&from_hex("3a 02 08 07")), Err(WireError::EntryKind(7)));
        assert_eq!(decode_message(&from_hex("3a 7f 08")), Err(Malformed::Truncated.into()));
        // The message contains the vote field and the old priority field, which other encoders write, and an unknown
        // field.
        assert_eq!(
            decode_message(&from_hex("68 00 70 05 fa 01 01 aa 08 08")).unwrap().kind,
            MessageKind::Heartbeat
        );
    }

    #[test]
    fn decoded_payloads_share_the_received_buffer() {
        let entry = Entry { data: Bytes::from_static(b"payload"), ..Entry::default() };
        let message = Message { entries: vec![entry], ..Message::new(MessageKind::Append, 1) };
        let bytes = encoded(&message);
        let read = decode_message(&bytes).unwrap();
        let range = bytes.as_ptr_range();
        assert!(range.contains(&read.entries[0].data.as_ptr()));
    }
}
