//! A minimal HTTP/2 client that can send requests that no library sends.
//!
//! Header fields are sent as literals, unchanged, and frames are built by hand. Responses may use the header
//! compression that servers use.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::DEADLINE;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Maximum payload of a frame that a server accepts by default, in bytes.
const FRAME_BYTES_MAX: usize = 16 * 1024;

/// Number of bytes that may be sent before the server's first window update.
const WINDOW: i64 = (1 << 16) - 1;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawAnswer {
    /// The server sent a response.
    Response(RawResponse),
    /// The server reset the stream with this code.
    Reset(u32),
    /// The server closed the connection, with this code if it sent one.
    Closed(Option<u32>),
}

/// A response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawResponse {
    /// Fields of the header and the trailers, in order.
    pub fields: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// A frame of a response, or the answer to a ping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawFrame {
    /// The header fields or trailers, in order, and whether the frame ends the stream.
    Headers(Vec<(String, String)>, bool),
    /// A part of the body.
    Data(Vec<u8>),
    /// The answer to a ping on the connection.
    Pong,
}

impl RawResponse {
    /// Returns the first field with this name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(present, _)| present == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl RawAnswer {
    /// Summarises the answer: the HTTP status, the gRPC status and the gRPC message or, if there is no response, how
    /// the request ended.
    #[must_use]
    pub fn summary(&self) -> String {
        match self {
            Self::Response(response) => {
                let field = |name| response.field(name).unwrap_or("none");
                let message = response.field("grpc-message").unwrap_or_default();
                let text =
                    format!("{} {} {}", field(":status"), field("grpc-status"), decode(message));
                text.trim_end().to_owned()
            }
            Self::Reset(code) => format!("reset {code}"),
            Self::Closed(Some(code)) => format!("closed {code}"),
            Self::Closed(None) => "closed".to_owned(),
        }
    }
}

/// Decodes the escapes of a message. Servers do not all escape the same characters.
fn decode(message: &str) -> String {
    let (mut decoded, mut rest) = (Vec::new(), message.as_bytes());
    while let [byte, tail @ ..] = rest {
        let escaped = (*byte == b'%').then(|| std::str::from_utf8(tail.get(..2)?).ok()).flatten();
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                rest = &tail[2..];
            }
            None => {
                decoded.push(*byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// A connection.
#[derive(Debug)]
pub struct RawHttp2 {
    stream: TcpStream,
    decoder: Decoder,
    next_stream: u32,
    windows: Windows,
}

/// Windows granted by the server: for the connection, for a new stream, and for each open stream.
#[derive(Debug)]
struct Windows {
    connection: i64,
    initial: i64,
    streams: HashMap<u32, i64>,
}

struct Decoder(loona_hpack::Decoder<'static>);

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Decoder")
    }
}

impl RawHttp2 {
    /// Connects to a local server.
    #[must_use]
    pub fn connect(port: u16) -> Self {
        Self::connect_with(port, b"")
    }

    /// Connects to a local server, which may send only headers and trailers, because every stream has an empty window.
    #[must_use]
    pub fn connect_without_room(port: u16) -> Self {
        Self::connect_with(port, &[0, 4, 0, 0, 0, 0])
    }

    fn connect_with(port: u16, settings: &[u8]) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(PREFACE).unwrap();
        let decoder = Decoder(loona_hpack::Decoder::new());
        let windows = Windows { connection: WINDOW, initial: WINDOW, streams: HashMap::new() };
        let mut connection = Self { stream, decoder, next_stream: 1, windows };
        connection.send(&frame(SETTINGS, 0, 0, settings));
        connection
    }

    /// Sends a request with these fields and this body, and reads the answer to its end.
    pub fn ask(&mut self, fields: &[(&[u8], &[u8])], body: &[u8]) -> RawAnswer {
        let block: Vec<u8> = fields.iter().flat_map(|(name, value)| literal(name, value)).collect();
        self.ask_block(&block, body)
    }

    /// Sends a request with an encoded field section.
    pub fn ask_block(&mut self, block: &[u8], body: &[u8]) -> RawAnswer {
        let id = self.open(block);
        self.send_body(id, body, true);
        self.read_answer(id)
    }

    /// Opens a stream and leaves it open.
    pub fn open(&mut self, block: &[u8]) -> u32 {
        let id = self.next_stream;
        self.next_stream += 2;
        let mut kind = HEADERS;
        let mut pieces = block.chunks(FRAME_BYTES_MAX).peekable();
        while let Some(piece) = pieces.next() {
            let flags = if pieces.peek().is_none() { END_HEADERS } else { 0 };
            self.send(&frame(kind, flags, id, piece));
            kind = CONTINUATION;
        }
        id
    }

    /// Sends part of a body.
    pub fn send_body(&mut self, id: u32, body: &[u8], is_last: bool) {
        self.send(&frame(DATA, if is_last { END_STREAM } else { 0 }, id, body));
    }

    /// Sends this number of bytes of a body as fast as the server's windows permit. Returns whether all were sent
    /// before the server ended the stream.
    pub fn send_body_within_windows(&mut self, id: u32, bytes: &[u8]) -> bool {
        for piece in bytes.chunks(FRAME_BYTES_MAX) {
            let len = i64::try_from(piece.len()).unwrap();
            let initial = self.windows.initial;
            while self.windows.connection < len
                || *self.windows.streams.entry(id).or_insert(initial) < len
            {
                match self.read_any_frame() {
                    Some((SETTINGS, flags, ..)) if flags & ACK == 0 => {
                        self.send(&frame(SETTINGS, ACK, 0, b""));
                    }
                    Some((PING, flags, _, payload)) if flags & ACK == 0 => {
                        self.send(&frame(PING, ACK, 0, &payload));
                    }
                    Some((HEADERS | RST_STREAM, _, stream, _)) if stream == id => return false,
                    Some((GOAWAY, ..)) | None => return false,
                    Some(_) => {}
                }
            }
            self.windows.connection -= len;
            *self.windows.streams.entry(id).or_insert(initial) -= len;
            self.send(&frame(DATA, 0, id, piece));
        }
        true
    }

    /// Sends bytes. Errors are ignored, because a read detects that the server has closed the connection.
    fn send(&mut self, bytes: &[u8]) {
        drop(self.stream.write_all(bytes));
    }

    /// Returns the initial window of a new stream, after reading the server's settings.
    pub fn stream_window(&mut self) -> i64 {
        while let Some((kind, flags, ..)) = self.read_any_frame() {
            if kind == SETTINGS && flags & ACK == 0 {
                self.send(&frame(SETTINGS, ACK, 0, b""));
                break;
            }
        }
        self.windows.initial
    }

    /// Sends a ping, and reads until its answer arrives or the connection ends. The error contains the code and the
    /// text, if the server sent any.
    pub fn ping(&mut self) -> Result<(), (Option<u32>, String)> {
        self.send(&frame(PING, 0, 0, &[0; 8]));
        loop {
            match self.read_frame() {
                Some((PING, flags, ..)) if flags & ACK != 0 => return Ok(()),
                Some((GOAWAY, _, _, payload)) => return Err(farewell(&payload)),
                Some((SETTINGS, flags, ..)) if flags & ACK == 0 => {
                    self.send(&frame(SETTINGS, ACK, 0, b""));
                }
                Some(_) => {}
                None => return Err((None, String::new())),
            }
        }
    }

    /// Reads until the connection ends. Returns the code and the text that the server sent.
    pub fn read_farewell(&mut self) -> (Option<u32>, String) {
        loop {
            match self.read_frame() {
                Some((GOAWAY, _, _, payload)) => return farewell(&payload),
                Some(_) => {}
                None => return (None, String::new()),
            }
        }
    }

    /// Sends a ping without waiting for its answer.
    pub fn send_ping(&mut self) {
        self.send(&frame(PING, 0, 0, &[0; 8]));
    }

    /// Reads the next frame of this stream, or the answer to a ping if it arrives first.
    pub fn read_frame_of(&mut self, id: u32) -> RawFrame {
        loop {
            match self.read_response_frame() {
                (stream, frame) if stream == id || frame == RawFrame::Pong => return frame,
                _ => {}
            }
        }
    }

    /// Reads the next frame of any response, or the answer to a ping if it arrives first. Returns the frame's stream.
    pub fn read_response_frame(&mut self) -> (u32, RawFrame) {
        loop {
            let (kind, flags, id, payload) = self.read_frame().unwrap();
            match kind {
                HEADERS => {
                    let fields = self.decode_fields(&payload);
                    return (id, RawFrame::Headers(fields, flags & END_STREAM != 0));
                }
                DATA => return (id, RawFrame::Data(payload)),
                PING if flags & ACK != 0 => return (id, RawFrame::Pong),
                PING => self.send(&frame(PING, ACK, 0, &payload)),
                SETTINGS if flags & ACK == 0 => self.send(&frame(SETTINGS, ACK, 0, b"")),
                // After a complete response, the code zero only asks the client to stop sending.
                RST_STREAM if number(&payload) == 0 => {}
                RST_STREAM | GOAWAY => panic!("the response has no end: {kind} {payload:?}"),
                _ => {}
            }
        }
    }

    fn decode_fields(&mut self, block: &[u8]) -> Vec<(String, String)> {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let fields = self.decoder.0.decode(block).unwrap();
        fields.into_iter().map(|(name, value)| (text(name), text(value))).collect()
    }

    /// Reads until the stream has ended.
    pub fn read_answer(&mut self, id: u32) -> RawAnswer {
        let mut response = RawResponse::default();
        loop {
            let Some((kind, flags, stream, payload)) = self.read_frame() else {
                return RawAnswer::Closed(None);
            };
            match kind {
                HEADERS => {
                    assert!(flags & END_HEADERS != 0, "the header fits into one frame");
                    let fields = self.decode_fields(&payload);
                    if stream != id {
                        continue;
                    }
                    response.fields.extend(fields);
                }
                DATA if stream == id => response.body.extend_from_slice(&payload),
                RST_STREAM if stream == id => {
                    // A server that has answered may reset the stream to show that it accepts no more of the request.
                    return if response.field("grpc-status").is_some() {
                        RawAnswer::Response(response)
                    } else {
                        RawAnswer::Reset(number(&payload))
                    };
                }
                GOAWAY => return RawAnswer::Closed(Some(number(&payload[4..]))),
                SETTINGS if flags & ACK == 0 => self.send(&frame(SETTINGS, ACK, 0, b"")),
                PING if flags & ACK == 0 => self.send(&frame(PING, ACK, 0, &payload)),
                _ => {}
            }
            if stream == id && matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0 {
                return RawAnswer::Response(response);
            }
        }
    }

    /// Reads from a stream until this number of bytes has arrived.
    pub fn read_body(&mut self, id: u32, count: usize) -> Vec<u8> {
        let mut body = Vec::new();
        while body.len() < count {
            let (kind, flags, stream, payload) = self.read_frame().unwrap();
            match kind {
                HEADERS => {
                    let fields = self.decoder.0.decode(&payload).unwrap();
                    let ended = stream == id && flags & END_STREAM != 0;
                    assert!(!ended, "the stream has ended: {fields:?}");
                }
                DATA if stream == id => body.extend_from_slice(&payload),
                RST_STREAM | GOAWAY => panic!("the stream has ended"),
                SETTINGS if flags & ACK == 0 => self.send(&frame(SETTINGS, ACK, 0, b"")),
                PING if flags & ACK == 0 => self.send(&frame(PING, ACK, 0, &payload)),
                _ => {}
            }
        }
        body
    }

    /// Discards everything that has arrived, and lets the server send `bytes` more bytes on a stream.
    pub fn grant(&mut self, id: u32, bytes: u32) {
        self.stream.set_nonblocking(true).unwrap();
        let mut discarded = [0; 1 << 16];
        while matches!(self.stream.read(&mut discarded), Ok(count) if count > 0) {}
        self.stream.set_nonblocking(false).unwrap();
        for window in [0, id] {
            self.send(&frame(WINDOW_UPDATE, 0, window, &bytes.to_be_bytes()));
        }
    }

    fn read_frame(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        loop {
            let read = self.read_any_frame()?;
            if read.0 != WINDOW_UPDATE {
                return Some(read);
            }
        }
    }

    fn read_any_frame(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).ok()?;
        let length = number(&[0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        self.stream.read_exact(&mut payload).ok()?;
        let (kind, flags, id) = (head[3], head[4], number(&head[5..]));
        match kind {
            WINDOW_UPDATE => self.windows.open(id, i64::from(number(&payload))),
            SETTINGS if flags & ACK == 0 => self.windows.set_initial(&payload),
            _ => {}
        }
        Some((kind, flags, id, payload))
    }
}

impl Windows {
    fn open(&mut self, id: u32, bytes: i64) {
        let initial = self.initial;
        match id {
            0 => self.connection += bytes,
            id => *self.streams.entry(id).or_insert(initial) += bytes,
        }
    }

    fn set_initial(&mut self, settings: &[u8]) {
        for setting in settings.chunks_exact(6).filter(|setting| setting[..2] == [0, 4]) {
            let more = i64::from(number(&setting[2..])) - self.initial;
            self.initial += more;
            self.streams.values_mut().for_each(|window| *window += more);
        }
    }
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

/// Returns the code and the text of a GOAWAY frame.
fn farewell(payload: &[u8]) -> (Option<u32>, String) {
    (Some(number(&payload[4..])), String::from_utf8_lossy(&payload[8..]).into_owned())
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Returns the header of a gRPC call to this path, as an encoded field section.
#[must_use]
pub fn call_head(path: &str) -> Vec<u8> {
    let lines = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    lines.iter().flat_map(|(name, value)| literal(name.as_bytes(), value.as_bytes())).collect()
}

/// Encodes a field that is not indexed.
#[must_use]
pub fn literal(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut line = vec![0];
    for text in [name, value] {
        line.extend(string(text));
    }
    line
}

/// Encodes a string in a field section, without compression.
#[must_use]
pub fn string(text: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::new();
    let mut rest = text.len();
    if rest < 127 {
        encoded.push(u8::try_from(rest).unwrap());
    } else {
        encoded.push(127);
        rest -= 127;
        while rest >= 128 {
            encoded.push(u8::try_from(rest % 128).unwrap() | 128);
            rest /= 128;
        }
        encoded.push(u8::try_from(rest).unwrap());
    }
    encoded.extend(text);
    encoded
}

/// Adds the gRPC frame header to a message.
#[must_use]
pub fn framed(message: &[u8]) -> Vec<u8> {
    let mut body = vec![0];
    body.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    body.extend(message);
    body
}
