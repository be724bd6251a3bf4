//! Fuzz targets for the bytes that other members send.

use bytes::{Bytes, BytesMut};
use prost::Message as _;
use quorate_api::raftpb;
use quorate_raft::Message;

use crate::frame::{Decoder, Encoder, FrameError, StreamKind};
use crate::response::{Body, Head, ResponseError};
use crate::wire;

/// Decodes arbitrary bytes as a message and compares the result with the result of the generated decoder. Also checks
/// that encoding and decoding leave the message unchanged.
pub fn message(data: &[u8]) {
    let data = Bytes::copy_from_slice(data);
    let decoded = wire::decode_message(&data);
    if let Ok(message) = &decoded {
        let mut out = BytesMut::new();
        wire::put_message(message, &mut out);
        assert_eq!(out.len(), wire::message_len(message));
        assert_eq!(wire::decode_message(&out.freeze()).as_ref(), Ok(message));
    }
    let Ok(usual) = raftpb::Message::decode(data) else { return };
    match decoded {
        Ok(message) => same(&message, &usual),
        Err(
            wire::WireError::EntryKind(_) | wire::WireError::Entries | wire::WireError::MemberIds,
        ) => {}
        Err(error) => panic!("only our decoder refuses the message: {error}"),
    }
}

/// Asserts that the messages are equal except for their snapshots. If a message contains several snapshots, our decoder
/// uses the last snapshot, while the generated decoder merges them.
fn same(message: &Message, usual: &raftpb::Message) {
    let numbers = [
        (message.to, usual.to),
        (message.from, usual.from),
        (message.term.get(), usual.term),
        (message.log_term.get(), usual.log_term),
        (message.index.get(), usual.index),
        (message.commit.get(), usual.commit),
        (message.reject_hint.get(), usual.reject_hint),
        (u64::from(message.reject), usual.reject.map(u64::from)),
    ];
    for (ours, usual) in numbers {
        assert_eq!(ours, usual.unwrap_or_default());
    }
    assert_eq!(message.context, usual.context.clone().unwrap_or_default());
    assert_eq!(message.entries.len(), usual.entries.len());
    for (entry, usual) in message.entries.iter().zip(&usual.entries) {
        assert_eq!(entry.term.get(), usual.term.unwrap_or_default());
        assert_eq!(entry.index.get(), usual.index.unwrap_or_default());
        assert_eq!(entry.data, usual.data.clone().unwrap_or_default());
    }
}

/// Decodes arbitrary bytes as a stream and checks that the result does not depend on how the bytes are split. The first
/// byte selects the stream, and the second the length of the pieces.
pub fn stream(data: &[u8]) {
    let [kind, piece, stream @ ..] = data else { return };
    let kind = StreamKind::ALL[usize::from(kind % 2)];
    let (whole, at_once) = read(kind, stream, stream.len().max(1));
    let (pieces, in_pieces) = read(kind, stream, usize::from(*piece).max(1));
    assert_eq!(at_once.is_ok(), in_pieces.is_ok());
    assert_eq!(whole, pieces);
    if kind == StreamKind::Message {
        let mut encoder = Encoder::new(kind);
        let mut out = BytesMut::new();
        for message in &whole {
            encoder.put(message, &mut out);
        }
        let (again, result) = read(kind, &out, 7);
        assert_eq!(result, Ok(()));
        assert_eq!(again, whole);
    }
}

fn read(kind: StreamKind, stream: &[u8], piece: usize) -> (Vec<Message>, Result<(), FrameError>) {
    let mut decoder = Decoder::new(kind, 2, 1);
    let mut messages = Vec::new();
    for bytes in stream.chunks(piece) {
        let fed = decoder.feed(bytes, &mut messages);
        if fed.is_err() {
            return (messages, fed);
        }
    }
    (messages, Ok(()))
}

/// Parses arbitrary bytes as the response that carries a stream, and checks that the result does not depend on how the
/// bytes are split. The first byte determines the length of the pieces.
pub fn response(data: &[u8]) {
    let [piece, response @ ..] = data else { return };
    let (at_once, whole) = body(response, response.len().max(1));
    let (in_pieces, pieces) = body(response, usize::from(*piece).max(1));
    assert_eq!(
        at_once.map_err(|error| error.to_string()),
        in_pieces.map_err(|error| error.to_string())
    );
    assert_eq!(whole, pieces);
}

/// Decodes a response that arrives in pieces. Returns whether the body has ended, or an error, and the decoded body,
/// which may be non-empty even after an error.
fn body(response: &[u8], piece: usize) -> (Result<bool, ResponseError>, Vec<u8>) {
    let mut decoded = Vec::new();
    let mut decode = || {
        let mut lengths = (0..response.len()).step_by(piece).chain([response.len()]);
        let mut searched = 0;
        let parsed = loop {
            let Some(len) = lengths.next() else { return Ok(false) };
            if let Some(parsed) = Head::parse(&response[..len], searched)? {
                break parsed;
            }
            searched = len;
        };
        let (head, len) = parsed;
        let mut body = Body::of(&head)?;
        for mut input in response[len..].chunks(piece) {
            while let Some(part) = body.decode(&mut input)? {
                assert!(!part.is_empty(), "an empty part could make the caller loop forever");
                decoded.extend_from_slice(part);
            }
            assert!(
                input.is_empty() || body.is_over(),
                "input is left over only after the end of the body"
            );
        }
        Ok(body.is_over())
    };
    let result = decode();
    (result, decoded)
}

#[cfg(test)]
mod tests {
    use quorate_raft::{Entry, LogIndex, MessageKind, Snapshot, Term};
    use quorate_test_support::mutate::bounded;

    use super::*;

    fn append(log_term: u64, index: u64) -> Message {
        let (log_term, index) = (Term(log_term), LogIndex(index));
        let entry = |index| Entry { term: Term(2), index, data: "data".into(), ..Entry::default() };
        Message {
            from: 2,
            term: Term(2),
            log_term,
            index,
            entries: vec![entry(index + 1), entry(index + 2)],
            commit: LogIndex(3),
            ..Message::new(MessageKind::Append, 1)
        }
    }

    fn snapshot() -> Message {
        let mut snapshot = Snapshot { data: "{}".into(), ..Snapshot::default() };
        snapshot.metadata.index = LogIndex(300);
        snapshot.metadata.term = Term(2);
        snapshot.metadata.conf_state.voters = vec![1, 2];
        snapshot.metadata.conf_state.learners = vec![3];
        let snapshot = Some(Box::new(snapshot));
        Message { from: 2, term: Term(2), snapshot, ..Message::new(MessageKind::Snapshot, 1) }
    }

    fn rejection() -> Message {
        Message {
            from: 2,
            term: Term(2),
            reject: true,
            reject_hint: LogIndex(9),
            context: "context".into(),
            ..Message::new(MessageKind::AppendResponse, 1)
        }
    }

    fn encoded(message: &Message) -> Vec<u8> {
        let mut out = BytesMut::new();
        wire::put_message(message, &mut out);
        out.to_vec()
    }

    fn streamed(kind: StreamKind, head: [u8; 2], messages: &[Message]) -> Vec<u8> {
        let mut encoder = Encoder::new(kind);
        let mut out = BytesMut::from(&head[..]);
        for message in messages {
            encoder.put(message, &mut out);
            encoder.put_link_heartbeat(&mut out);
        }
        out.to_vec()
    }

    #[test]
    fn any_message_is_decoded_or_refused_without_a_panic() {
        let samples = [
            ("append", encoded(&append(1, 7))),
            ("snapshot", encoded(&snapshot())),
            ("rejection", encoded(&rejection())),
        ];
        bounded("peer_message", &samples, 20_000, message);
    }

    #[test]
    fn any_response_is_decoded_or_refused_without_a_panic() {
        let with = |rest: &str| [b"\x03HTTP/1.1 200 OK\r\n", rest.as_bytes()].concat();
        let samples = [
            (
                "chunked",
                with("Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nx: y\r\n\r\n"),
            ),
            ("length", with("Content-Length: 5\r\nX-Server-Version: 3.7.1\r\n\r\nabcde")),
            ("until_end", with("\r\nabcde")),
        ];
        bounded("peer_response", &samples, 20_000, response);
    }

    #[test]
    fn any_stream_is_decoded_or_refused_without_a_panic() {
        let appends = [append(1, 7), append(2, 9), append(2, 11)];
        let messages = [append(1, 7), snapshot(), rejection()];
        let samples = [
            ("appends", streamed(StreamKind::Append, [0, 3], &appends)),
            ("messages", streamed(StreamKind::Message, [1, 200], &messages)),
        ];
        bounded("peer_stream", &samples, 20_000, stream);
    }
}
