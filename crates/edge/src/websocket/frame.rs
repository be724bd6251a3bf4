//! Frames of the WebSocket protocol (RFC 6455), for a server without extensions.
//!
//! ```text
//!  byte 0            byte 1                 0, 2 or 8 bytes   4 bytes   payload
//!  FIN RSV×3 opcode  MASK length (7 bits)   longer length     mask      XOR mask
//! ```
//!
//! Data is passed on as it arrives, however long a message is. Only frame headers, and control frames of at most 125
//! bytes, are buffered here. A protocol violation by the client is returned as an error and ends the connection.
//!
//! # Invariants
//!
//! * The events do not depend on how the bytes are split, except that the data of a message may be split
//!   differently.
//!
//! # Not here
//!
//! UTF-8 validation of text, which is left to the JSON parser, as in etcd.

use bytes::{Buf as _, Bytes, BytesMut};

/// Maximum payload length of a control frame, in bytes.
pub(super) const CONTROL_BYTES_MAX: usize = 125;

/// Maximum length of a frame header: two bytes, eight for the length, four for the mask.
const HEAD_BYTES_MAX: usize = 14;

/// An event from a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The next part of a message.
    Data(Bytes),
    /// The message is complete.
    End,
    /// A ping, which must be answered with the same bytes.
    Ping(Bytes),
    /// The client closes the connection with this code, if it sends one.
    Close(Option<u16>),
}

/// A protocol violation by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Violation {
    /// A reserved bit is set. Only extensions use these bits.
    #[error("reserved bits of a frame are set")]
    ReservedBits,
    /// An unknown opcode.
    #[error("unknown opcode")]
    Opcode,
    /// A frame without a mask.
    #[error("a frame is not masked")]
    Unmasked,
    /// A length that does not fit in 63 bits.
    #[error("the length of a frame exceeds 63 bits")]
    Length,
    /// A control frame that is fragmented or longer than [`CONTROL_BYTES_MAX`].
    #[error("a control frame is fragmented or longer than 125 bytes")]
    Control,
    /// A message that starts before the previous message is complete, or a continuation without a message.
    #[error("fragments are out of order")]
    Fragment,
    /// An incomplete close code, or a close code that must not be sent.
    #[error("a close frame has an invalid code")]
    CloseCode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opcode {
    Continuation,
    /// Text or binary data, both of which contain JSON here.
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

/// The header of a frame, and the number of payload bytes that have not been read yet.
#[derive(Clone, Copy, Debug)]
struct Head {
    opcode: Opcode,
    is_last: bool,
    rest: u64,
    mask: [u8; 4],
}

/// Parses the frames of one connection.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    frame: Option<Head>,
    /// Whether a message has begun and its last frame has not arrived yet.
    is_in_message: bool,
}

impl Decoder {
    /// Returns the next event in the received bytes, or `None` if more bytes are needed.
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
        assert!(head_bytes <= HEAD_BYTES_MAX, "a frame header has at most HEAD_BYTES_MAX bytes");
        input.advance(head_bytes);
        Ok(Some(Head { opcode, is_last, rest, mask }))
    }

    /// Returns the payload of a control frame, once it is complete.
    fn take_control(&mut self, head: Head, input: &mut BytesMut) -> Option<Bytes> {
        let len = usize::try_from(head.rest).ok().filter(|len| *len <= input.len())?;
        let mut payload = input.split_to(len);
        unmask(&mut payload, head.mask);
        self.frame = None;
        Some(payload.freeze())
    }

    /// Returns the received part of a message's payload.
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

/// Returns the event of a control frame. A pong has no event, because this server sends no pings.
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

/// The kinds of frames that a server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Close,
    Pong,
}

/// Appends the header of an unfragmented server frame. Frames from a server are not masked.
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
