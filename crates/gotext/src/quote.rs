//! Formats quoted values and system errors in messages as etcd does.
//!
//! Tools and people search for these texts in Go's format. JSON uses different escapes and has a separate encoder
//! (`telemetry::log::encode`).

use std::fmt::Write;

/// Quotes a string with Go's escapes, as etcd's messages quote input.
pub fn go_quote(text: &str) -> String {
    go_quote_bytes(text.as_bytes())
}

/// Quotes bytes that may not be valid UTF-8.
pub fn go_quote_bytes(bytes: &[u8]) -> String {
    let mut quoted = String::with_capacity(bytes.len() + 2);
    quoted.push('"');
    for chunk in bytes.utf8_chunks() {
        escape(chunk.valid(), &mut quoted);
        for byte in chunk.invalid() {
            write!(quoted, "\\x{byte:02x}").expect("writing to a string cannot fail");
        }
    }
    quoted.push('"');
    quoted
}

fn escape(text: &str, quoted: &mut String) {
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            c if u32::from(c) < 0x20 || c == '\u{7f}' => {
                write!(quoted, "\\x{:02x}", u32::from(c)).expect("writing to a string cannot fail");
            }
            c if is_printable(c) => quoted.push(c),
            c if u32::from(c) < 0x1_0000 => {
                write!(quoted, "\\u{:04x}", u32::from(c)).expect("writing to a string cannot fail");
            }
            c => {
                write!(quoted, "\\U{:08x}", u32::from(c)).expect("writing to a string cannot fail");
            }
        }
    }
}

/// Returns whether Go prints the character unescaped: letters, marks, numbers, punctuation, symbols and the ASCII
/// space.
fn is_printable(c: char) -> bool {
    matches!(c, ' ' | '\'')
        || !c.is_control()
            && !c.is_whitespace()
            && (c.is_alphanumeric() || c.escape_debug().len() == 1)
}

/// Parses a Go string literal in double quotes at the start of `text`. Returns its value and the rest of the text.
pub fn unquote(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut rest = text.strip_prefix(b"\"")?;
    let mut out = Vec::new();
    loop {
        let (&byte, tail) = rest.split_first()?;
        rest = tail;
        match byte {
            b'"' => return Some((out, rest)),
            b'\n' => return None,
            b'\\' => rest = unescape(rest, &mut out)?,
            _ => out.push(byte),
        }
    }
}

fn unescape<'a>(rest: &'a [u8], out: &mut Vec<u8>) -> Option<&'a [u8]> {
    let (&kind, rest) = rest.split_first()?;
    let digits = |count, radix| {
        let (digits, tail) = rest.split_at_checked(count)?;
        let value = u32::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()?;
        Some((value, tail))
    };
    let plain = match kind {
        b'a' => 7,
        b'b' => 8,
        b'f' => 12,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 11,
        b'\\' | b'"' => kind,
        b'x' => {
            let (value, tail) = digits(2, 16)?;
            out.push(u8::try_from(value).ok()?);
            return Some(tail);
        }
        b'u' | b'U' => {
            let (value, tail) = digits(if kind == b'u' { 4 } else { 8 }, 16)?;
            let c = char::from_u32(value)?;
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            return Some(tail);
        }
        b'0'..=b'7' => {
            let (tail, value) = rest.split_at_checked(2).and_then(|(more, tail)| {
                let more = u32::from_str_radix(std::str::from_utf8(more).ok()?, 8).ok()?;
                Some((tail, u32::from(kind - b'0') * 64 + more))
            })?;
            out.push(u8::try_from(value).ok()?);
            return Some(tail);
        }
        _ => return None,
    };
    out.push(plain);
    Some(rest)
}

/// Returns the text of a system error without its number, and with the first letter in lower case.
pub fn go_reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    let words = text.split(" (os error ").next().unwrap_or_default();
    let mut rest = words.chars();
    rest.next().map_or_else(String::new, |first| first.to_lowercase().chain(rest).collect())
}

/// Returns the reason why a connection failed: `dial tcp 127.0.0.1:1: connect: connection refused`. `place` is the
/// network and the address.
pub fn go_dial_reason(place: impl std::fmt::Display, error: &std::io::Error) -> String {
    let step = if error.raw_os_error().is_some() { "connect: " } else { "" };
    format!("dial {place}: {step}{}", go_reason(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_quoted_as_in_go() {
        assert_eq!(go_quote("plain"), "\"plain\"");
        assert_eq!(go_quote("a\"b\\c"), "\"a\\\"b\\\\c\"");
        assert_eq!(go_quote("\n\t\u{1}\u{7f}\u{85}\u{e9}"), "\"\\n\\t\\x01\\x7f\\u0085\u{e9}\"");
        assert_eq!(go_quote_bytes(b"a\"\xff\xc3"), "\"a\\\"\\xff\\xc3\"");
    }

    #[test]
    fn system_errors_are_worded_as_in_go() {
        let missing = std::fs::read("/nonexistent/file").unwrap_err();
        assert_eq!(go_reason(&missing), "no such file or directory");
        assert_eq!(go_reason(&std::io::Error::other("")), "");
        let refused = std::io::Error::from_raw_os_error(111);
        let text = go_dial_reason("tcp 127.0.0.1:1", &refused);
        assert_eq!(text, "dial tcp 127.0.0.1:1: connect: connection refused");
        let own = std::io::Error::other("tls: no");
        assert_eq!(go_dial_reason("tcp a:1", &own), "dial tcp a:1: tls: no");
    }

    #[test]
    fn unquoting_restores_the_original_text() {
        for (bytes, text) in [
            (&b"it's a b"[..], r#""it's a b""#),
            (b"\"\\\n\t\x00\x7f", r#""\"\\\n\t\x00\x7f""#),
            ("é世\u{200b}\u{a0}".as_bytes(), r#""é世\u200b\u00a0""#),
            (b"\xff\xc3", r#""\xff\xc3""#),
        ] {
            assert_eq!(go_quote_bytes(bytes), text);
            assert_eq!(unquote(text.as_bytes()), Some((bytes.to_vec(), &b""[..])));
        }
        assert_eq!(unquote(br#""\101\u00e9" rest"#), Some(("Aé".into(), &b" rest"[..])));
        for bad in [r#""open"#, r#""\q""#, r#""\x4""#, "plain", r#""\777""#] {
            assert_eq!(unquote(bad.as_bytes()), None, "{bad}");
        }
    }
}
