//! Parses PEM files: decodes the content between the first and last line of a section.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";

/// Returns the label and the bytes of the first section, or `None` if there is no section.
pub(crate) fn first(text: &[u8]) -> Option<(String, Vec<u8>)> {
    let text = std::str::from_utf8(text).ok()?;
    let mut lines = text.lines().map(str::trim);
    let label = lines.find_map(|line| line.strip_prefix(BEGIN)?.strip_suffix(DASHES))?;
    let mut body = String::new();
    for line in lines {
        if let Some(end) = line.strip_prefix(END) {
            let is_whole = end.strip_suffix(DASHES) == Some(label);
            let bytes = BASE64_STANDARD.decode(body).ok()?;
            return is_whole.then(|| (label.to_owned(), bytes));
        }
        // Header lines such as `DEK-Info` are skipped.
        if !line.contains(':') {
            body.push_str(line);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_complete_pem_section_is_used() {
        let text = b"text\n-----BEGIN A KEY-----\nAAEC\nAwQ=\n-----END A KEY-----\nmore\n";
        assert_eq!(first(text), Some(("A KEY".to_owned(), vec![0, 1, 2, 3, 4])));
        for bad in [
            &b""[..],
            b"no key",
            b"-----BEGIN A-----\nAAEC\n",
            b"-----BEGIN A-----\n!!\n-----END A-----",
            b"-----BEGIN A-----\nAAEC\n-----END B-----",
            b"\xff\xfe",
        ] {
            assert_eq!(first(bad), None);
        }
    }
}
