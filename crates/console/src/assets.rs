//! The files of the page, embedded in the binary.
//!
//! # Guarantees
//!
//! * The table names every file in `assets`. A test checks this.
//! * Each response has an ETag, so that a browser downloads a file again only after the program has been updated.

use std::sync::LazyLock;

use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};
use sha2::{Digest as _, Sha256};

use crate::reply::{Reply, whole};

/// Expands to the path and the content of a file.
macro_rules! asset {
    ($path:literal) => {
        ($path, include_bytes!(concat!("../assets/", $path)))
    };
}

/// The files, by path.
const FILES: &[(&str, &[u8])] = &[
    asset!("api.js"),
    asset!("bytes.js"),
    asset!("diff.js"),
    asset!("dom.js"),
    asset!("format.js"),
    asset!("gate.js"),
    asset!("history.js"),
    asset!("icon.svg"),
    asset!("index.html"),
    asset!("json.js"),
    asset!("kubernetes.js"),
    asset!("main.js"),
    asset!("pages/access.js"),
    asset!("pages/cluster.js"),
    asset!("pages/keys.js"),
    asset!("pages/leases.js"),
    asset!("pages/operate.js"),
    asset!("pages/problems.js"),
    asset!("pages/sizes.js"),
    asset!("pages/watch.js"),
    asset!("parts/as_of.js"),
    asset!("parts/chart.js"),
    asset!("parts/cluster_charts.js"),
    asset!("parts/dialog.js"),
    asset!("parts/history.js"),
    asset!("parts/icons.js"),
    asset!("parts/key_detail.js"),
    asset!("parts/key_edit.js"),
    asset!("parts/members.js"),
    asset!("parts/operations.js"),
    asset!("parts/rows.js"),
    asset!("parts/snapshot.js"),
    asset!("parts/tabs.js"),
    asset!("parts/ui.js"),
    asset!("parts/value.js"),
    asset!("permissions.js"),
    asset!("router.js"),
    asset!("scale.js"),
    asset!("session.js"),
    asset!("settings.js"),
    asset!("shell.js"),
    asset!("shortcuts.js"),
    asset!("store.js"),
    asset!("style/base.css"),
    asset!("style/pages.css"),
    asset!("style/parts.css"),
    asset!("style/shell.css"),
    asset!("tree.js"),
];

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

/// Returns the file at the path of a request, or `None` if there is no such file.
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn collect(folder: &Path, base: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, base, found);
            } else {
                found.push(path.strip_prefix(base).unwrap().to_str().unwrap().to_owned());
            }
        }
    }

    #[test]
    fn every_file_of_the_page_is_embedded() {
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets");
        let mut found = Vec::new();
        collect(&base, &base, &mut found);
        found.sort_unstable();
        let named: Vec<_> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(named, found);
        for (name, _) in FILES {
            assert_ne!(type_of(name), "application/octet-stream", "{name}");
        }
    }

    #[test]
    fn an_unchanged_file_is_not_sent_again() {
        let first = answer("/", &HeaderMap::new()).unwrap();
        assert_eq!(first.status(), StatusCode::OK);
        let known = HeaderMap::from_iter([(IF_NONE_MATCH, first.headers()[ETAG].clone())]);
        let again = answer("/index.html", &known).unwrap();
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert!(answer("/../Cargo.toml", &HeaderMap::new()).is_none());
    }
}
