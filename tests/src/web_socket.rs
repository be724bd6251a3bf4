//! A minimal WebSocket client, which can also send invalid frames.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;

use crate::DEADLINE;

/// First bytes of the frames that tests send.
pub mod first {
    /// A complete text message.
    pub const TEXT: u8 = 0x81;
    /// The first fragment of a text message.
    pub const TEXT_BEGINS: u8 = 0x01;
    /// The last fragment of a text message.
    pub const ENDS: u8 = 0x80;
    /// A ping.
    pub const PING: u8 = 0x89;
    /// A close frame.
    pub const CLOSE: u8 = 0x88;
}

/// A message from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A text message.
    Text(String),
    /// A pong.
    Pong(Vec<u8>),
    /// A close frame, with its code if it has one, or the end of the connection.
    Closed(Option<u16>),
}

/// A connection. Dropping it ends the connection without a close frame.
#[derive(Debug)]
pub struct WebSocket {
    stream: TcpStream,
    /// Header of the response that opened the connection.
    pub head: String,
}

impl WebSocket {
    /// Opens a connection at a path with additional header fields. The error is the header of a response that refuses
    /// the upgrade.
    pub fn connect(port: u16, path: &str, headers: &[(&str, &str)]) -> Result<Self, String> {
        Self::try_connect(port, path, headers).unwrap()
    }

    /// Like `connect`, except that the server may close the connection instead of answering.
    pub fn try_connect(
        port: u16,
        path: &str,
        headers: &[(&str, &str)],
    ) -> io::Result<Result<Self, String>> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.write_all(Self::request(path, headers).as_bytes())?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let is_one = head.starts_with("HTTP/1.1 101 ");
        Ok(if is_one { Ok(Self { stream, head }) } else { Err(head) })
    }

    /// Returns the opening request.
    #[must_use]
    pub fn request(path: &str, headers: &[(&str, &str)]) -> String {
        let fields: String =
            headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        format!(
            "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{fields}\r\n"
        )
    }

    /// Sends a text message.
    pub fn send(&mut self, text: &str) {
        self.send_frame(first::TEXT, text.as_bytes());
    }

    /// Sends a frame with this first byte.
    pub fn send_frame(&mut self, first: u8, payload: &[u8]) {
        const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
        let mut frame = vec![first];
        match (u8::try_from(payload.len()), u16::try_from(payload.len())) {
            (Ok(short @ ..126), _) => frame.push(0x80 | short),
            (_, Ok(medium)) => {
                frame.push(0x80 | 126);
                frame.extend(medium.to_be_bytes());
            }
            (_, Err(_)) => {
                frame.push(0x80 | 127);
                frame.extend((payload.len() as u64).to_be_bytes());
            }
        }
        frame.extend(MASK);
        frame.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        self.send_raw(&frame);
    }

    /// Sends raw bytes. Errors are ignored because the server may have closed the connection.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        drop(self.stream.write_all(bytes));
    }

    /// Returns the next message.
    pub fn next_message(&mut self) -> Message {
        self.read_message().unwrap_or(Message::Closed(None))
    }

    fn read_message(&mut self) -> Option<Message> {
        let [first, short] = self.read()?;
        let len = match short {
            126 => usize::from(u16::from_be_bytes(self.read()?)),
            127 => usize::try_from(u64::from_be_bytes(self.read()?)).unwrap(),
            short => usize::from(short),
        };
        assert!(short < 0x80, "servers must not mask frames");
        let mut payload = vec![0; len];
        self.stream.read_exact(&mut payload).ok()?;
        Some(match first {
            0x81 => Message::Text(String::from_utf8(payload).unwrap()),
            0x8a => Message::Pong(payload),
            0x88 => Message::Closed(payload.first_chunk().map(|code| u16::from_be_bytes(*code))),
            other => panic!("unexpected frame that starts with {other:#x}"),
        })
    }

    fn read<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        match self.stream.read_exact(&mut bytes) {
            Ok(()) => Some(bytes),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                panic!("timed out waiting for data")
            }
            Err(_) => None,
        }
    }
}
