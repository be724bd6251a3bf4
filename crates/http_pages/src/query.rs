//! Parses the paths and queries of request targets like Go's router.

use std::borrow::Cow;

/// Returns the values of a parameter in a query, in order. Malformed entries are ignored.
pub fn values(query: Option<&str>, name: &str) -> Vec<String> {
    query
        .unwrap_or_default()
        .split('&')
        .filter(|entry| !entry.is_empty() && !entry.contains(';'))
        .filter_map(|entry| {
            let (key, value) = entry.split_once('=').unwrap_or((entry, ""));
            let key = decode(&key.replace('+', " "))?;
            let value = decode(&value.replace('+', " "))?;
            (key == name).then_some(value)
        })
        .collect()
}

/// Decodes the percent-escapes in a path. Returns the path unchanged if an escape is invalid.
pub fn decode_path(path: &str) -> Cow<'_, str> {
    if !path.contains('%') {
        return Cow::Borrowed(path);
    }
    decode(path).map_or(Cow::Borrowed(path), Cow::Owned)
}

/// Removes empty, `.` and `..` segments from a path. A trailing slash is kept.
pub fn clean_path(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let slash = if path.ends_with('/') && !parts.is_empty() { "/" } else { "" };
    format!("/{}{slash}", parts.join("/"))
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            let value = digit()? * 16 + digit()?;
            bytes.push(u8::try_from(value).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_values_of_a_query_parameter_are_returned() {
        let query = Some("exclude=a&x=1&exclude=b%20c&exclude=d+e&exclude=%zz&exclude=f;g&verbose");
        assert_eq!(values(query, "exclude"), ["a", "b c", "d e"]);
        assert_eq!(values(query, "verbose"), [""]);
        assert!(values(None, "verbose").is_empty());
    }

    #[test]
    fn request_paths_are_normalized() {
        for (path, clean) in [
            ("/", "/"),
            ("/health", "/health"),
            ("//health", "/health"),
            ("/a/../health", "/health"),
            ("/../..", "/"),
            ("/livez/", "/livez/"),
            ("/livez/./x//", "/livez/x/"),
        ] {
            assert_eq!(clean_path(path), clean);
        }
        assert_eq!(decode_path("/hea%6Cth"), "/health");
        assert_eq!(decode_path("/hea%6"), "/hea%6");
    }
}
