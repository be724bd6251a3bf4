//! Quoting of foreign text inside messages, with the escapes of Go's `%q`.
//!
//! Error texts that tools and people search for repeat what they were given in this form.
//! JSON has other escapes and its own writer (`log::encode`).

use std::fmt::Write;

/// Writes a text in double quotes with Go's escapes, as etcd's messages quote what they were given.
pub fn go_quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
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
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_as_go_does() {
        assert_eq!(go_quote("plain"), "\"plain\"");
        assert_eq!(go_quote("a\"b\\c"), "\"a\\\"b\\\\c\"");
        assert_eq!(go_quote("\n\t\u{1}\u{7f}\u{85}\u{e9}"), "\"\\n\\t\\x01\\x7f\\u0085\u{e9}\"");
    }
}
