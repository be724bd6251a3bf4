//! Frames of the WebSocket protocol (RFC 6455), as a server without extensions has them.
//!
//! ```text
//!  byte 0            byte 1                 0, 2 or 8 bytes   4 bytes   payload
//!  FIN RSV×3 opcode  MASK length (7 bits)   longer length     mask      XOR mask
//! ```
//!
//! What comes is handed on as it comes: of a message nothing is held here, however long it is, and of a frame that
//! steers the connection its 125 bytes at most. What clients may not send is named; the connection ends by it.
//!
//! # Invariants
//!
//! * The same events whatever pieces the bytes come in, but for where the data of a message is parted.
//!
//! # Not here
//!
//! Whether text is UTF-8: what reads it says so, as in etcd.

use bytes::{Buf as _, Bytes, BytesMut};

/// The longest payload of a frame that steers the connection.
pub(super) const CONTROL_BYTES_MAX: usize = 125;

/// The longest head: two bytes, eight of the length, four of the mask.
const HEAD_BYTES_MAX: usize = 14;

/// What a client says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// More of a message.
    Data(Bytes),
    /// The message is whole.
    End,
    /// It asks to be answered with the same bytes.
    Ping(Bytes),
    /// It ends the connection, with this code if it says one.
    Close(Option<u16>),
}

/// What a client may not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Violation {
    /// Bits that only extensions give a meaning.
    #[error("reserved bits are set")]
    ReservedBits,
    /// No kind of frame.
    #[error("unknown opcode")]
    Opcode,
    /// Clients mask all they send.
    #[error("a frame is not masked")]
    Unmasked,
    /// A length that no number of 63 bits is.
    #[error("a length is too large")]
    Length,
    /// A frame that steers the connection comes whole, and short.
    #[error("a control frame is fragmented or too long")]
    Control,
    /// A message begins within another one, or goes on where there is none.
    #[error("fragments are out of order")]
    Fragment,
    /// A code that is not for sending, or half of one.
    #[error("a close frame says no code")]
    CloseCode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opcode {
    Continuation,
    /// Text or bytes: both are JSON here.
    Message,
    Close,
    Ping,
    Pong,
}

impl Opcode {
    const fn of(byte: u8) -> Option<Self> {
        match byte & 0x0f {
            0 => Some(Self::Continuation),
            1 | 2 => Some(Self::Message),
            8 => Some(Self::Close),
            9 => Some(Self::Ping),
            10 => Some(Self::Pong),
            _ => None,
        }
    }

    const fn is_control(self) -> bool {
        matches!(self, Self::Close | Self::Ping | Self::Pong)
    }
}

/// A frame that has begun.
#[derive(Clone, Copy, Debug)]
struct Head {
    opcode: Opcode,
    is_last: bool,
    rest: u64,
    mask: [u8; 4],
}

/// Reads frames.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    frame: Option<Head>,
    /// Whether a message has begun whose last frame has not come.
    is_in_message: bool,
}

impl Decoder {
    /// Takes the next event from what has come. None: more has to come.
    pub(super) fn next(&mut self, input: &mut BytesMut) -> Result<Option<Event>, Violation> {
        loop {
            let Some(head) = self.frame else {
                let Some(head) = self.take_head(input)? else { return Ok(None) };
                self.frame = Some(head);
                continue;
            };
            if head.opcode.is_control() {
                let Some(payload) = self.take_control(head, input) else { return Ok(None) };
                match control_event(head.opcode, payload)? {
                    Some(event) => return Ok(Some(event)),
                    None => continue,
                }
            }
            if head.rest > 0 {
                return Ok(self.take_data(head, input));
            }
            self.frame = None;
            self.is_in_message = !head.is_last;
            if head.is_last {
                return Ok(Some(Event::End));
            }
        }
    }

    fn take_head(&self, input: &mut BytesMut) -> Result<Option<Head>, Violation> {
        let [first, second, ..] = input[..] else { return Ok(None) };
        if first & 0x70 != 0 {
            return Err(Violation::ReservedBits);
        }
        let opcode = Opcode::of(first).ok_or(Violation::Opcode)?;
        if second & 0x80 == 0 {
            return Err(Violation::Unmasked);
        }
        let is_last = first & 0x80 != 0;
        let short = second & 0x7f;
        match opcode {
            Opcode::Close | Opcode::Ping | Opcode::Pong => {
                if !is_last || usize::from(short) > CONTROL_BYTES_MAX {
                    return Err(Violation::Control);
                }
            }
            Opcode::Message if self.is_in_message => return Err(Violation::Fragment),
            Opcode::Continuation if !self.is_in_message => return Err(Violation::Fragment),
            Opcode::Message | Opcode::Continuation => {}
        }
        let length_bytes = match short {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let Some((length, rest)) = input[2..].split_at_checked(length_bytes) else {
            return Ok(None);
        };
        let Some(mask) = rest.first_chunk::<4>().copied() else { return Ok(None) };
        let rest = match length_bytes {
            0 => u64::from(short),
            _ => length.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
        };
        if rest > i64::MAX.cast_unsigned() {
            return Err(Violation::Length);
        }
        let head_bytes = 2 + length_bytes + mask.len();
        assert!(head_bytes <= HEAD_BYTES_MAX, "a head is no longer than that");
        input.advance(head_bytes);
        Ok(Some(Head { opcode, is_last, rest, mask }))
    }

    /// The payload of a frame that steers the connection, once it is whole.
    fn take_control(&mut self, head: Head, input: &mut BytesMut) -> Option<Bytes> {
        let len = usize::try_from(head.rest).ok().filter(|len| *len <= input.len())?;
        let mut payload = input.split_to(len);
        unmask(&mut payload, head.mask);
        self.frame = None;
        Some(payload.freeze())
    }

    /// What there is of the payload of a message.
    fn take_data(&mut self, mut head: Head, input: &mut BytesMut) -> Option<Event> {
        if input.is_empty() {
            return None;
        }
        let len = usize::try_from(head.rest).map_or(input.len(), |rest| rest.min(input.len()));
        let mut data = input.split_to(len);
        unmask(&mut data, head.mask);
        head.rest -= len as u64;
        head.mask.rotate_left(len % 4);
        self.frame = Some(head);
        Some(Event::Data(data.freeze()))
    }
}

fn unmask(data: &mut [u8], mask: [u8; 4]) {
    for (byte, mask) in data.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

/// What such a frame says. Answers to pings say nothing: nobody here asks.
fn control_event(opcode: Opcode, payload: Bytes) -> Result<Option<Event>, Violation> {
    match opcode {
        Opcode::Ping => Ok(Some(Event::Ping(payload))),
        Opcode::Close => match payload[..] {
            [] => Ok(Some(Event::Close(None))),
            [high, low, ref reason @ ..] => {
                let code = u16::from_be_bytes([high, low]);
                let is_sent = matches!(code, 1000..=1003 | 1007..=1013 | 3000..=4999);
                if !is_sent || std::str::from_utf8(reason).is_err() {
                    return Err(Violation::CloseCode);
                }
                Ok(Some(Event::Close(Some(code))))
            }
            [_] => Err(Violation::CloseCode),
        },
        Opcode::Pong | Opcode::Message | Opcode::Continuation => Ok(None),
    }
}

/// What a server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Close,
    Pong,
}

/// The head of a whole frame of a server, which is not masked.
pub(super) fn put_head(kind: Kind, len: usize, out: &mut Vec<u8>) {
    let opcode = match kind {
        Kind::Text => 1,
        Kind::Close => 8,
        Kind::Pong => 10,
    };
    out.push(0x80 | opcode);
    match (u8::try_from(len), u16::try_from(len)) {
        (Ok(short @ ..126), _) => out.push(short),
        (_, Ok(medium)) => {
            out.push(126);
            out.extend_from_slice(&medium.to_be_bytes());
        }
        (_, Err(_)) => {
            out.push(127);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests;
