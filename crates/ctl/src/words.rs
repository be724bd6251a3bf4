//! Splits the input lines of `txn` and `watch -i` into words, with shell-like quoting.

use crate::failure::{Failure, exit};
use crate::gotext::unquote;

/// Splits a line into words. Double quotes allow Go's escapes; single quotes are literal. Quotes inside an unquoted
/// word are part of the word.
pub(crate) fn split(line: &[u8]) -> Result<Vec<Vec<u8>>, Failure> {
    let mut words = Vec::new();
    let mut rest = line;
    while let Some(&first) = rest.first() {
        match first {
            byte if byte.is_ascii_whitespace() => rest = &rest[1..],
            b'\'' => match rest[1..].iter().position(|byte| *byte == b'\'') {
                Some(len) => {
                    words.push(rest[1..=len].to_vec());
                    rest = &rest[len + 2..];
                }
                // An unclosed quote is ignored.
                None => rest = &rest[1..],
            },
            b'"' if is_closed(rest) => {
                let (word, tail) = unquote(rest)
                    .ok_or_else(|| Failure::new(exit::INVALID_INPUT, "bad quoted string"))?;
                words.push(word);
                rest = tail;
            }
            b'"' => rest = &rest[1..],
            _ => {
                let len = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
                words.push(rest[..len].to_vec());
                rest = &rest[len..];
            }
        }
    }
    Ok(words)
}

/// Returns whether a closing quote follows the opening double quote.
fn is_closed(text: &[u8]) -> bool {
    let mut bytes = text.iter().skip(1);
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return true,
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_words_are_not_split() {
        for (line, words) in [
            (r#"put key1 "overwrote-key1""#, &["put", "key1", "overwrote-key1"][..]),
            (r#"  put  'a b'  "c\td\"" "#, &["put", "a b", "c\td\""]),
            ("put a\"b c", &["put", "a\"b", "c"]),
            ("put '' \"\"", &["put", "", ""]),
            ("put 'open", &["put", "open"]),
            ("", &[]),
        ] {
            let split: Vec<_> = split(line.as_bytes()).unwrap();
            assert_eq!(split, words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
        }
        assert_eq!(split(br#"put "\q""#).unwrap_err().code, exit::INVALID_INPUT);
    }
}
