//! Converts JSON to the wire format.
//!
//! The input was returned by [`Values`](crate::Values), so it is valid JSON. This module checks that it matches the
//! message. The length of a message is known only after the message is written, so enough space for the longest
//! possible length is reserved in front of the message. Readers of the wire format accept lengths that use more bytes
//! than necessary.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use quorate_protobuf::{begin_message, put_bytes, put_number};

use crate::DEPTH_MAX;
use crate::number::whole;
use crate::schema::{self, Field, Kind, Message};

/// Base64 settings with this padding. The spare bits of the last digit are ignored, as in Go.
const fn base64_with(padding: DecodePaddingMode) -> GeneralPurposeConfig {
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(padding)
        .with_decode_allow_trailing_bits(true)
}

const PADDED: GeneralPurposeConfig = base64_with(DecodePaddingMode::RequireCanonical);
const UNPADDED: GeneralPurposeConfig = base64_with(DecodePaddingMode::RequireNone);

/// The reason why a value does not match the message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("proto: {fault}")]
pub struct Refusal {
    fault: String,
}

/// Converts a value to a message and appends it.
pub(super) fn message(
    message: &'static Message,
    json: &[u8],
    wire: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let mut reader = Reader { json, at: 0 };
    reader.message(message, DEPTH_MAX, wire)
}

/// Reads a value from start to end.
struct Reader<'a> {
    json: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn message(
        &mut self,
        message: &'static Message,
        depth: usize,
        wire: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(Refusal { fault: "exceeded max recursion depth".to_owned() });
        };
        if self.peek() != b'{' {
            return Err(self.unexpected());
        }
        self.at += 1;
        let mut seen = 0_u64;
        let mut chosen: Vec<&str> = Vec::new();
        while self.peek() != b'}' {
            let (start, name) = (self.at, self.text()?);
            self.pass(b':');
            let known = |field: &Field| field.name == name || field.camel == name;
            match message.fields.iter().position(known) {
                Some(position) => {
                    let field = &message.fields[position];
                    if seen & 1 << position != 0 {
                        let raw = self.raw_text(start);
                        return Err(self.fault(start, &format!("duplicate field {raw}")));
                    }
                    seen |= 1 << position;
                    if self.peek() == b'n' {
                        self.skip();
                    } else {
                        if let Some(choice) = field.choice {
                            if chosen.contains(&choice) {
                                let raw = self.raw_text(start);
                                let what = format!(
                                    "error parsing {raw}, oneof {}.{choice} is already set",
                                    message.name
                                );
                                return Err(self.fault(start, &what));
                            }
                            chosen.push(choice);
                        }
                        self.field(field, depth, wire)?;
                    }
                }
                None => self.skip_unknown()?,
            }
            if self.peek() == b',' {
                self.at += 1;
            }
        }
        self.at += 1;
        Ok(())
    }

    fn field(
        &mut self,
        field: &'static Field,
        depth: usize,
        wire: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        if !field.is_list {
            return self.value(field, depth, wire);
        }
        if self.peek() != b'[' {
            return Err(self.unexpected());
        }
        self.at += 1;
        while self.peek() != b']' {
            self.value(field, depth, wire)?;
            if self.peek() == b',' {
                self.at += 1;
            }
        }
        self.at += 1;
        Ok(())
    }

    fn value(
        &mut self,
        field: &'static Field,
        depth: usize,
        wire: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let number = match &field.kind {
            Kind::Message(position) => {
                let begun = begin_message(field.number, wire);
                self.message(schema::message(*position), depth, wire)?;
                begun.end(wire).expect("a body is shorter than 4 GiB");
                return Ok(());
            }
            Kind::Text => {
                self.expect_text(field)?;
                let text = self.text()?;
                put_bytes(field.number, text.as_bytes(), wire);
                return Ok(());
            }
            Kind::Bytes => {
                let start = self.expect_text(field)?;
                let text = self.text()?;
                let bytes = decode_base64(&text).ok_or_else(|| self.invalid(start, field))?;
                put_bytes(field.number, &bytes, wire);
                return Ok(());
            }
            Kind::Bool => match self.peek() {
                b't' => Some(1),
                b'f' => Some(0),
                _ => return Err(self.invalid(self.at, field)),
            }
            .inspect(|_| self.skip()),
            Kind::Enum(values) if self.peek() == b'"' => {
                let name = self.text()?;
                let known = values.iter().find(|(known, _)| *known == name);
                known.map(|(_, number)| i64::from(*number).cast_unsigned())
            }
            Kind::Enum(_) => Some(i64::from(self.number::<i32>(field)?).cast_unsigned()),
            Kind::Int64 => Some(self.number::<i64>(field)?.cast_unsigned()),
            Kind::Uint32 => Some(u64::from(self.number::<u32>(field)?)),
            Kind::Uint64 => Some(self.number::<u64>(field)?),
        };
        // An unknown enum name is ignored.
        if let Some(number) = number {
            put_number(field.number, number, wire);
        }
        Ok(())
    }

    /// Reads a number, or a string that contains a number.
    fn number<N: TryFrom<i128>>(&mut self, field: &Field) -> Result<N, Refusal> {
        self.peek();
        let start = self.at;
        let number = match self.peek() {
            b'"' => {
                let text = self.text()?;
                whole(text.as_bytes())
            }
            b'-' | b'0'..=b'9' => {
                self.skip();
                whole(&self.json[start..self.at])
            }
            _ => None,
        };
        let number = number.and_then(|number| N::try_from(number).ok());
        number.ok_or_else(|| self.invalid(start, field))
    }

    /// Returns the start of the string that the field requires, or an error if the value is not a string.
    fn expect_text(&mut self, field: &Field) -> Result<usize, Refusal> {
        if self.peek() == b'"' { Ok(self.at) } else { Err(self.invalid(self.at, field)) }
    }

    /// Skips white space and returns the next byte.
    fn peek(&mut self) -> u8 {
        while self.json[self.at].is_ascii_whitespace() {
            self.at += 1;
        }
        self.json[self.at]
    }

    fn pass(&mut self, byte: u8) {
        assert_eq!(
            self.peek(),
            byte,
            "the scanner has accepted the value, so the expected byte follows"
        );
        self.at += 1;
    }

    /// Skips a value of any kind.
    fn skip(&mut self) {
        let mut open = 0_usize;
        loop {
            match self.peek() {
                b'{' | b'[' => {
                    open += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    open -= 1;
                    self.at += 1;
                }
                b',' | b':' => self.at += 1,
                b'"' => self.at += raw_text_len(&self.json[self.at..]),
                _ => {
                    let rest = &self.json[self.at..];
                    let is_end =
                        |byte: &u8| !byte.is_ascii_alphanumeric() && !b"+-.".contains(byte);
                    self.at += rest.iter().position(is_end).unwrap_or(rest.len());
                }
            }
            if open == 0 {
                return;
            }
        }
    }

    /// Skips the value of an unknown field. The strings in it must be valid, as in protobuf-go.
    fn skip_unknown(&mut self) -> Result<(), Refusal> {
        let mut strings = Reader { json: self.json, at: self.at };
        self.skip();
        let is_quote = |byte: &u8| *byte == b'"';
        while let Some(offset) = self.json[strings.at..self.at].iter().position(is_quote) {
            strings.at += offset;
            strings.text()?;
        }
        Ok(())
    }

    /// Reads a string and resolves its escapes.
    fn text(&mut self) -> Result<Cow<'a, str>, Refusal> {
        self.peek();
        let start = self.at;
        self.at += raw_text_len(&self.json[start..]);
        let raw = &self.json[start + 1..self.at - 1];
        let Ok(raw) = std::str::from_utf8(raw) else {
            return Err(self.syntax(start, "invalid UTF-8 in string"));
        };
        if !raw.contains('\\') {
            return Ok(Cow::Borrowed(raw));
        }
        match unescaped(raw) {
            Some(text) => Ok(Cow::Owned(text)),
            None => Err(self.syntax(start, "invalid escape code in string")),
        }
    }

    /// Returns the string that starts at this position, as written.
    fn raw_text(&self, start: usize) -> Cow<'a, str> {
        let end = start + raw_text_len(&self.json[start..]);
        String::from_utf8_lossy(&self.json[start..end])
    }

    fn invalid(&self, start: usize, field: &Field) -> Refusal {
        let mut of_value = Reader { json: self.json, at: start };
        let raw = match of_value.peek() {
            b'{' => Cow::Borrowed("{"),
            b'[' => Cow::Borrowed("["),
            _ => of_value.raw(),
        };
        let what = format!("invalid value for {} field {}: {raw}", field.kind.name(), field.camel);
        self.fault(start, &what)
    }

    /// Returns the error for a value of the wrong kind.
    fn unexpected(&mut self) -> Refusal {
        let first = self.peek();
        let start = self.at;
        let raw = match first {
            b'{' => Cow::Borrowed("{"),
            b'[' => Cow::Borrowed("["),
            _ => self.raw(),
        };
        self.syntax(start, &format!("unexpected token {raw}"))
    }

    /// Returns the next value as written. The value must not be an array or an object.
    fn raw(&mut self) -> Cow<'a, str> {
        /// Maximum length of a value in an error, in bytes. Longer values are truncated.
        const QUOTED_BYTES_MAX: usize = 256;
        let start = self.at;
        self.skip();
        let end = self.at.min(start + QUOTED_BYTES_MAX);
        String::from_utf8_lossy(&self.json[start..end])
    }

    fn syntax(&self, at: usize, what: &str) -> Refusal {
        Refusal { fault: format!("syntax error {}: {what}", self.place(at)) }
    }

    fn fault(&self, at: usize, what: &str) -> Refusal {
        Refusal { fault: format!("{}: {what}", self.place(at)) }
    }

    fn place(&self, at: usize) -> String {
        let before = &self.json[..at];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        let column = String::from_utf8_lossy(&before[start..]).chars().count() + 1;
        format!("(line {line}:{column})")
    }
}

/// Returns the length of a string, including both quotation marks.
fn raw_text_len(json: &[u8]) -> usize {
    let mut at = 1;
    loop {
        match json[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Returns a string with its escapes resolved, or `None` if an escape is an unpaired surrogate.
fn unescaped(raw: &str) -> Option<String> {
    let mut text = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((before, after)) = rest.split_once('\\') {
        text.push_str(before);
        let mut letters = after.chars();
        match letters.next()? {
            'b' => text.push('\u{8}'),
            'f' => text.push('\u{c}'),
            'n' => text.push('\n'),
            'r' => text.push('\r'),
            't' => text.push('\t'),
            'u' => {
                let (letter, behind) = escaped_letter(letters.as_str())?;
                text.push(letter);
                rest = behind;
                continue;
            }
            other => text.push(other),
        }
        rest = letters.as_str();
    }
    text.push_str(rest);
    Some(text)
}

/// Returns the character for the four hexadecimal digits at the start, and the remaining text. If the digits encode a
/// high surrogate, the escape of a low surrogate must follow.
fn escaped_letter(digits: &str) -> Option<(char, &str)> {
    let (first, rest) = unit(digits)?;
    if let Some(letter) = char::from_u32(u32::from(first)) {
        return Some((letter, rest));
    }
    let (second, rest) = unit(rest.strip_prefix("\\u")?)?;
    let letter = char::decode_utf16([first, second]).next()?.ok()?;
    Some((letter, rest))
}

fn unit(digits: &str) -> Option<(u16, &str)> {
    let (digits, rest) = digits.split_at_checked(4)?;
    Some((u16::from_str_radix(digits, 16).ok()?, rest))
}

/// Decodes base64 by the rules of protobuf-go: the length of the text decides whether it is padded, and line breaks are
/// part of the length, but are otherwise ignored.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let is_of_urls = text.bytes().any(|byte| matches!(byte, b'-' | b'_'));
    let alphabet = if is_of_urls { &URL_SAFE } else { &STANDARD };
    let padding = if text.len().is_multiple_of(4) { PADDED } else { UNPADDED };
    let engine = GeneralPurpose::new(alphabet, padding);
    if text.contains(['\r', '\n']) {
        return engine.decode(text.replace(['\r', '\n'], "")).ok();
    }
    engine.decode(text).ok()
}

#[cfg(test)]
#[path = "read/tests.rs"]
mod tests;
