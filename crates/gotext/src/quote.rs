//! Foreign text inside messages, as etcd's messages have it: quoted values and system errors.
//!
//! Tools and people search for these texts as Go writes them. JSON has other escapes and its own
//! writer (`telemetry::log::encode`).

use std::fmt::Write;

/// Writes a text in double quotes with Go's escapes, as etcd's messages quote what they were given.
pub fn go_quote(text: &str) -> String {
    go_quote_bytes(text.as_bytes())
}

/// The same for bytes, which may be no text.
pub fn go_quote_bytes(bytes: &[u8]) -> String {
    let mut quoted = String::with_capacity(bytes.len() + 2);
    quoted.push('"');
    for chunk in bytes.utf8_chunks() {
        escape(chunk.valid(), &mut quoted);
        for byte in chunk.invalid() {
            write!(quoted, "\\x{byte:02x}").expect("a String takes any text");
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
                write!(quoted, "\\x{:02x}", u32::from(c)).expect("a String takes any text");
            }
            c if c.is_control() => {
                write!(quoted, "\\u{:04x}", u32::from(c)).expect("a String takes any text");
            }
            c => quoted.push(c),
        }
    }
}

/// A system error in the words of the system alone: no number, no capital.
pub fn go_reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    let words = text.split(" (os error ").next().unwrap_or_default();
    let mut rest = words.chars();
    rest.next().map_or_else(String::new, |first| first.to_lowercase().chain(rest).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_as_go_does() {
        assert_eq!(go_quote("plain"), "\"plain\"");
        assert_eq!(go_quote("a\"b\\c"), "\"a\\\"b\\\\c\"");
        assert_eq!(go_quote("\n\t\u{1}\u{7f}\u{85}\u{e9}"), "\"\\n\\t\\x01\\x7f\\u0085\u{e9}\"");
        assert_eq!(go_quote_bytes(b"a\"\xff\xc3"), "\"a\\\"\\xff\\xc3\"");
    }

    #[test]
    fn system_errors_are_told_in_the_systems_words() {
        let missing = std::fs::read("/nonexistent/file").unwrap_err();
        assert_eq!(go_reason(&missing), "no such file or directory");
        assert_eq!(go_reason(&std::io::Error::other("")), "");
    }
}
