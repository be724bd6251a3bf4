//! Parses the caller's trace context: the W3C headers `traceparent` and `tracestate`.
//!
//! ```text
//! traceparent   version "-" trace-id "-" parent-id "-" flags      2, 32, 16 and 2 digits, in lower case
//! ```
//!
//! An invalid header is treated as missing. Later versions may add fields after another hyphen.

/// The maximum length of a `tracestate` header in bytes. Longer headers are dropped. The standard requires that headers
/// of this length are accepted.
const STATE_BYTES_MAX: usize = 512;

/// The flag that marks a call as traced by its caller.
const SAMPLED: u8 = 1;

/// The caller's span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parent {
    pub(super) trace_id: [u8; 16],
    pub(super) span_id: [u8; 8],
    pub(super) is_sampled: bool,
}

impl Parent {
    /// Parses a `traceparent` header.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let (version, rest) = take::<1>(text)?;
        let (trace_id, rest) = take::<16>(rest.strip_prefix(b"-")?)?;
        let (span_id, rest) = take::<8>(rest.strip_prefix(b"-")?)?;
        let (flags, rest) = take::<1>(rest.strip_prefix(b"-")?)?;
        let is_whole = match version {
            [0] => rest.is_empty(),
            [0xff] => false,
            [_] => rest.is_empty() || rest.starts_with(b"-"),
        };
        let is_valid = is_whole && trace_id != [0; 16] && span_id != [0; 8];
        is_valid.then_some(Self { trace_id, span_id, is_sampled: flags[0] & SAMPLED != 0 })
    }
}

/// Parses `LEN` bytes at the start of the text, each written as two hex digits. Returns the bytes and the rest of the
/// text.
fn take<const LEN: usize>(text: &[u8]) -> Option<([u8; LEN], &[u8])> {
    let (digits, rest) = text.split_at_checked(2 * LEN)?;
    let mut bytes = [0; LEN];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some((bytes, rest))
}

const fn digit(letter: u8) -> Option<u8> {
    match letter {
        b'0'..=b'9' => Some(letter - b'0'),
        b'a'..=b'f' => Some(letter - b'a' + 10),
        _ => None,
    }
}

/// Returns the `tracestate` for the spans of the call. The result is empty if the header is too long or is not UTF-8.
pub(super) fn kept_state(text: &[u8]) -> Box<str> {
    let is_kept = text.len() <= STATE_BYTES_MAX;
    let text = if is_kept { std::str::from_utf8(text).unwrap_or_default() } else { "" };
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn read(text: &str) -> Option<Parent> {
        Parent::read(text.as_bytes())
    }

    #[test]
    fn the_parent_span_is_read_from_the_traceparent_header() {
        let parent = read(&format!("00-{TRACE}-{SPAN}-01")).unwrap();
        assert_eq!(parent.trace_id[..3], [0x0a, 0xf7, 0x65]);
        assert_eq!(parent.span_id, [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]);
        assert!(parent.is_sampled);
        assert!(!read(&format!("00-{TRACE}-{SPAN}-00")).unwrap().is_sampled);
        assert!(read(&format!("00-{TRACE}-{SPAN}-03")).unwrap().is_sampled);
        // A `traceparent` of a later version must be accepted.
        assert!(read(&format!("cc-{TRACE}-{SPAN}-01")).is_some());
        assert!(read(&format!("cc-{TRACE}-{SPAN}-01-what-comes")).is_some());
    }

    #[test]
    fn an_invalid_traceparent_is_ignored() {
        for text in [
            String::new(),
            "00".to_owned(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-"),
            format!("00-{TRACE}-{SPAN}-0"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("00-{TRACE}-{SPAN}-011"),
            format!("cc-{TRACE}-{SPAN}-011"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("0x-{TRACE}-{SPAN}-01"),
            format!("00_{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{TRACE}-{SPAN}-0é"),
        ] {
            assert_eq!(read(&text), None, "{text}");
        }
    }

    #[test]
    fn a_tracestate_is_forwarded_completely_or_not_at_all() {
        assert_eq!(&*kept_state(b"a=1,b=2"), "a=1,b=2");
        assert_eq!(&*kept_state(&[b'x'; STATE_BYTES_MAX + 1]), "");
        assert_eq!(&*kept_state(b"\xff"), "");
    }
}
