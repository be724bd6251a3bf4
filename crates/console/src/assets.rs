//! The files of the page, embedded in the binary.
//!
//! # Guarantees
//!
//! * Each answer has an ETag, so that a browser downloads a file again only after an update of the program.

use std::sync::LazyLock;

use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};
use sha2::{Digest as _, Sha256};

use crate::reply::{Reply, whole};

/// The files, by path.
const FILES: &[(&str, &[u8])] = &[];

/// The ETag of each file, in the order of the table.
static TAGS: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| {
    let tag = |(_, content): &(&str, &[u8])| {
        let digest = Sha256::digest(content);
        let hex: String = digest[..12].iter().map(|byte| format!("{byte:02x}")).collect();
        HeaderValue::try_from(format!("\"{hex}\""))
            .expect("hexadecimal digits are valid in a header")
    };
    FILES.iter().map(tag).collect()
});

/// Returns the file at a path of a request, or `None` if there is none.
pub(crate) fn answer(path: &str, headers: &HeaderMap) -> Option<Reply> {
    let name = if path == "/" { "index.html" } else { path.strip_prefix('/')? };
    let at = FILES.iter().position(|(file, _)| *file == name)?;
    let ((name, content), tag) = (FILES[at], &TAGS[at]);
    let known = headers.get(IF_NONE_MATCH).and_then(|tags| tags.to_str().ok()).unwrap_or_default();
    let is_known = known.split(',').any(|known| known.trim().as_bytes() == tag.as_bytes());
    let mut reply = whole(if is_known { &[] } else { content });
    if is_known {
        *reply.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let own = reply.headers_mut();
    own.insert(CONTENT_TYPE, HeaderValue::from_static(type_of(name)));
    own.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    own.insert(ETAG, tag.clone());
    Some(reply)
}

fn type_of(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "svg" => "image/svg+xml",
        _ => "application/octet-stream",
    }
}
