//! Finds the start and end of JSON values while their bytes arrive, and checks their syntax.
//!
//! A body may contain several values in sequence. Each value is returned as soon as it is complete. Invalid JSON is
//! refused with the errors of Go's library, which parses bodies in etcd.

use bytes::{Buf as _, Bytes, BytesMut};

use crate::NESTED_MAX;

/// A syntax error in JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    /// An unexpected character.
    #[error("invalid character {} {where_found}", quoted(*byte))]
    Character {
        /// The first byte of the character.
        byte: u8,
        /// The element that was expected or was being read.
        where_found: &'static str,
    },
    /// A value is nested too deeply.
    #[error("exceeded max depth")]
    TooDeep,
    /// The body ends within a value.
    #[error("unexpected EOF")]
    Truncated,
}

fn quoted(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        b'\\' => r"'\\'".to_owned(),
        b'\n' => r"'\n'".to_owned(),
        b'\r' => r"'\r'".to_owned(),
        b'\t' => r"'\t'".to_owned(),
        0x20..=0x7e | 0xa1.. => format!("'{}'", char::from(byte)),
        _ => format!("'\\x{byte:02x}'"),
    }
}

/// The state of the scanner: the element expected next or, within a number, the part that was read last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Value,
    /// A value, or the end of an empty array.
    ValueOrEnd,
    Key,
    KeyOrEnd,
    AfterKey,
    /// A separator or the end, after a value in an array or object.
    AfterValue,
    Text,
    Escape,
    /// The given number of hexadecimal digits.
    Hex(u8),
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
    /// The remaining letters of `true`, `false` or `null`, with the error text for each position.
    Word(&'static [u8], &'static [&'static str]),
}

/// The effect of a byte on the current value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The byte is part of the value or precedes it.
    On,
    /// The byte is the last byte of the value.
    Last,
    /// The value is a number that ended before this byte.
    Past,
}

const TRUE: &[&str] = &[
    "in literal true (expecting 'r')",
    "in literal true (expecting 'u')",
    "in literal true (expecting 'e')",
];
const FALSE: &[&str] = &[
    "in literal false (expecting 'a')",
    "in literal false (expecting 'l')",
    "in literal false (expecting 's')",
    "in literal false (expecting 'e')",
];
const NULL: &[&str] = &[
    "in literal null (expecting 'u')",
    "in literal null (expecting 'l')",
    "in literal null (expecting 'l')",
];

/// Splits a body into values while it arrives.
#[derive(Debug)]
pub struct Values {
    /// The bytes not yet returned as values.
    waiting: BytesMut,
    /// Number of bytes in `waiting` that have been scanned.
    scanned: usize,
    state: State,
    /// The open arrays and objects; true stands for an object.
    open: Vec<bool>,
    /// Whether the current string is a key.
    is_key: bool,
    has_begun: bool,
}

impl Default for Values {
    fn default() -> Self {
        Self {
            waiting: BytesMut::new(),
            scanned: 0,
            state: State::Value,
            open: Vec::new(),
            is_key: false,
            has_begun: false,
        }
    }
}

impl Values {
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.waiting.extend_from_slice(bytes);
    }

    /// Returns the number of bytes not yet returned as values.
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the next value, if it is complete.
    pub fn next_value(&mut self) -> Result<Option<Bytes>, SyntaxError> {
        while let Some(&byte) = self.waiting.get(self.scanned) {
            let step = self.step(byte)?;
            self.scanned += usize::from(step != Step::Past);
            if !self.has_begun {
                // The scanned bytes are white space between values.
                self.waiting.advance(self.scanned);
                self.scanned = 0;
            } else if step != Step::On {
                return Ok(Some(self.hand_out()));
            }
        }
        Ok(None)
    }

    /// Ends the body. If the last value is a number, returns it: [`Self::next_value`] has not returned it, because only
    /// the end of the body shows that the number is complete.
    pub fn finish(&mut self) -> Result<Option<Bytes>, SyntaxError> {
        if !self.has_begun {
            return Ok(None);
        }
        match self.state {
            State::Zero | State::Integer | State::Fraction | State::ExponentDigits
                if self.open.is_empty() =>
            {
                Ok(Some(self.hand_out()))
            }
            _ => Err(SyntaxError::Truncated),
        }
    }

    fn hand_out(&mut self) -> Bytes {
        let value = self.waiting.split_to(self.scanned).freeze();
        let waiting = std::mem::take(&mut self.waiting);
        *self = Self { waiting, ..Self::default() };
        value
    }

    fn step(&mut self, byte: u8) -> Result<Step, SyntaxError> {
        let refuse = |where_found| Err(SyntaxError::Character { byte, where_found });
        let is_space = matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        match self.state {
            State::Value
            | State::ValueOrEnd
            | State::Key
            | State::KeyOrEnd
            | State::AfterKey
            | State::AfterValue
                if is_space =>
            {
                Ok(Step::On)
            }
            State::ValueOrEnd if byte == b']' => Ok(self.close()),
            State::Value | State::ValueOrEnd => self.begin(byte),
            State::KeyOrEnd if byte == b'}' => Ok(self.close()),
            State::Key | State::KeyOrEnd if byte == b'"' => {
                self.is_key = true;
                Ok(self.go(State::Text))
            }
            State::Key | State::KeyOrEnd => refuse("looking for beginning of object key string"),
            State::AfterKey if byte == b':' => Ok(self.go(State::Value)),
            State::AfterKey => refuse("after object key"),
            State::AfterValue => self.after_value(byte),
            State::Text => match byte {
                b'"' if std::mem::take(&mut self.is_key) => Ok(self.go(State::AfterKey)),
                b'"' => Ok(self.end()),
                b'\\' => Ok(self.go(State::Escape)),
                0..0x20 => refuse("in string literal"),
                _ => Ok(Step::On),
            },
            State::Escape => match byte {
                b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => Ok(self.go(State::Text)),
                b'u' => Ok(self.go(State::Hex(4))),
                _ => refuse("in string escape code"),
            },
            State::Hex(_) if !byte.is_ascii_hexdigit() => {
                refuse("in \\u hexadecimal character escape")
            }
            State::Hex(1) => Ok(self.go(State::Text)),
            State::Hex(left) => Ok(self.go(State::Hex(left - 1))),
            State::Word([expected, ..], [message, ..]) if byte != *expected => refuse(message),
            State::Word([_], _) => Ok(self.end()),
            State::Word([_, rest @ ..], [_, message @ ..]) => {
                Ok(self.go(State::Word(rest, message)))
            }
            State::Word(..) => unreachable!("each letter of a literal has an error text"),
            State::Minus
            | State::Zero
            | State::Integer
            | State::Point
            | State::Fraction
            | State::Exponent
            | State::ExponentSign
            | State::ExponentDigits => self.number(byte),
        }
    }

    const fn go(&mut self, state: State) -> Step {
        self.state = state;
        Step::On
    }

    /// Processes the first byte of a value.
    fn begin(&mut self, byte: u8) -> Result<Step, SyntaxError> {
        let state = match byte {
            b'{' => return self.open(true),
            b'[' => return self.open(false),
            b'"' => State::Text,
            b'-' => State::Minus,
            b'0' => State::Zero,
            b'1'..=b'9' => State::Integer,
            b't' => State::Word(b"rue", TRUE),
            b'f' => State::Word(b"alse", FALSE),
            b'n' => State::Word(b"ull", NULL),
            _ => {
                let where_found = "looking for beginning of value";
                return Err(SyntaxError::Character { byte, where_found });
            }
        };
        self.has_begun = true;
        Ok(self.go(state))
    }

    fn open(&mut self, is_object: bool) -> Result<Step, SyntaxError> {
        if self.open.len() >= NESTED_MAX {
            return Err(SyntaxError::TooDeep);
        }
        self.has_begun = true;
        self.open.push(is_object);
        Ok(self.go(if is_object { State::KeyOrEnd } else { State::ValueOrEnd }))
    }

    fn close(&mut self) -> Step {
        self.open.pop();
        self.end()
    }

    /// Ends the current value with the byte being processed.
    const fn end(&mut self) -> Step {
        self.state = State::AfterValue;
        if self.open.is_empty() { Step::Last } else { Step::On }
    }

    fn after_value(&mut self, byte: u8) -> Result<Step, SyntaxError> {
        let is_object = self.open.last().copied().unwrap_or_default();
        match (is_object, byte) {
            (true, b',') => Ok(self.go(State::Key)),
            (false, b',') => Ok(self.go(State::Value)),
            (true, b'}') | (false, b']') => Ok(self.close()),
            (true, _) => {
                Err(SyntaxError::Character { byte, where_found: "after object key:value pair" })
            }
            (false, _) => Err(SyntaxError::Character { byte, where_found: "after array element" }),
        }
    }

    fn number(&mut self, byte: u8) -> Result<Step, SyntaxError> {
        let is_digit = byte.is_ascii_digit();
        let refuse = |where_found| Err(SyntaxError::Character { byte, where_found });
        let state = match (self.state, byte) {
            (State::Minus, b'0') => State::Zero,
            (State::Minus | State::Integer, _) if is_digit => State::Integer,
            (State::Minus, _) => return refuse("in numeric literal"),
            (State::Zero | State::Integer, b'.') => State::Point,
            (State::Zero | State::Integer | State::Fraction, b'e' | b'E') => State::Exponent,
            (State::Point | State::Fraction, _) if is_digit => State::Fraction,
            (State::Point, _) => return refuse("after decimal point in numeric literal"),
            (State::Exponent, b'+' | b'-') => State::ExponentSign,
            (State::Exponent | State::ExponentSign | State::ExponentDigits, _) if is_digit => {
                State::ExponentDigits
            }
            (State::Exponent | State::ExponentSign, _) => {
                return refuse("in exponent of numeric literal");
            }
            _ => {
                self.state = State::AfterValue;
                return if self.open.is_empty() { Ok(Step::Past) } else { self.step(byte) };
            }
        };
        Ok(self.go(state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the values of a body that arrives in pieces of this size, and the error after the last value, if there
    /// is one.
    fn values(body: &[u8], piece: usize) -> (Vec<String>, Option<String>) {
        let (mut values, mut found) = (Values::default(), Vec::new());
        let text = |value: Bytes| String::from_utf8_lossy(&value).into_owned();
        for bytes in body.chunks(piece) {
            values.push(bytes);
            loop {
                match values.next_value() {
                    Ok(Some(value)) => found.push(text(value)),
                    Ok(None) => break,
                    Err(error) => return (found, Some(error.to_string())),
                }
            }
        }
        match values.finish() {
            Ok(last) => found.extend(last.map(text)),
            Err(error) => return (found, Some(error.to_string())),
        }
        (found, None)
    }

    #[track_caller]
    fn check(body: &[u8], expected: &[&str], error: Option<&str>) {
        for piece in 1..=body.len().max(1) {
            let (found, refused) = values(body, piece);
            assert_eq!(
                (&found[..], refused.as_deref()),
                (&expected.iter().map(ToString::to_string).collect::<Vec<_>>()[..], error),
                "{piece}"
            );
        }
    }

    #[test]
    fn consecutive_json_values_are_returned_in_order() {
        check(b"", &[], None);
        check(b" \n\t", &[], None);
        check(b"{}", &["{}"], None);
        check(
            b" {\"a\": [1, {\"}\": \"\\\"]\"}]} {} ",
            &["{\"a\": [1, {\"}\": \"\\\"]\"}]}", "{}"],
            None,
        );
        check(
            b"1 2.5e+3[]\"x\"true null-0",
            &["1", "2.5e+3", "[]", "\"x\"", "true", "null", "-0"],
            None,
        );
        check(b"\"\\u00e4\\n\xff\"", &["\"\\u00e4\\n\u{fffd}\""], None);
    }

    #[test]
    fn invalid_json_is_refused_with_the_errors_of_go() {
        for (body, message) in [
            (&b"zzz"[..], "invalid character 'z' looking for beginning of value"),
            (b"{", "unexpected EOF"),
            (b"\"abc", "unexpected EOF"),
            (b"[1,", "unexpected EOF"),
            (b"tru", "unexpected EOF"),
            (b"-", "unexpected EOF"),
            (b"{a", "invalid character 'a' looking for beginning of object key string"),
            (b"{\"a\" 1", "invalid character '1' after object key"),
            (b"{\"a\":1 2", "invalid character '2' after object key:value pair"),
            (b"{\"a\":}", "invalid character '}' looking for beginning of value"),
            (b"{,", "invalid character ',' looking for beginning of object key string"),
            (b"{\"a\":1,}", "invalid character '}' looking for beginning of object key string"),
            (b"[1 2", "invalid character '2' after array element"),
            (b"[1}", "invalid character '}' after array element"),
            (b"[1,]", "invalid character ']' looking for beginning of value"),
            (b"\"\n", "invalid character '\\n' in string literal"),
            (b"\"\\x", "invalid character 'x' in string escape code"),
            (b"\"\\u12g", "invalid character 'g' in \\u hexadecimal character escape"),
            (b"[01", "invalid character '1' after array element"),
            (b"-x", "invalid character 'x' in numeric literal"),
            (b"1.x", "invalid character 'x' after decimal point in numeric literal"),
            (b"1ex", "invalid character 'x' in exponent of numeric literal"),
            (b"NaN", "invalid character 'N' looking for beginning of value"),
            (b"nul\"", "invalid character '\"' in literal null (expecting 'l')"),
            (b"\xff", "invalid character 'ÿ' looking for beginning of value"),
        ] {
            check(body, &[], Some(message));
        }
        check(b"{}'", &["{}"], Some("invalid character '\\'' looking for beginning of value"));
    }

    #[test]
    fn value_nesting_is_limited() {
        let nested = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
        let (found, refused) = values(&nested(NESTED_MAX), usize::MAX);
        assert_eq!((found.len(), refused), (1, None));
        let (found, refused) = values(&nested(NESTED_MAX + 1), usize::MAX);
        assert_eq!((found.len(), refused.as_deref()), (0, Some("exceeded max depth")));
    }
}
