//! Converts the headers of an HTTP request to the metadata and the deadline of its gRPC call.
//!
//! `Grpc-Metadata-<name>` becomes the metadata `<name>`, `Authorization` is kept, and `Grpc-Timeout` sets the deadline.
//! Other headers and the certificate of the connection are not passed to the call.

use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use tonic::Status;

use quorate_grpc::head::{FIELD_BYTES, base64_fault, parse_timeout};

/// The prefix of metadata headers.
const PREFIX: &str = "grpc-metadata-";

/// The metadata and deadline of a call.
#[derive(Debug)]
pub(super) struct Metadata {
    pub(super) headers: HeaderMap,
    pub(super) timeout: Option<Duration>,
    /// Memory that the headers of the HTTP request occupy, in bytes.
    pub(super) bytes: u64,
}

impl Metadata {
    pub(super) fn of(fields: &HeaderMap) -> Result<Self, Status> {
        let (mut headers, mut bytes) = (HeaderMap::new(), 0);
        for (name, value) in fields {
            bytes += FIELD_BYTES + name.as_str().len() + value.len();
            if name == AUTHORIZATION {
                headers.append(AUTHORIZATION, value.clone());
            }
            let Some(rest) = name.as_str().strip_prefix(PREFIX) else { continue };
            let Ok(given) = HeaderName::from_bytes(rest.as_bytes()) else { continue };
            if is_reserved(rest) {
                continue;
            }
            if rest.ends_with("-bin")
                && let Some(offset) = base64_fault(value.as_bytes())
            {
                let name = title_case(name.as_str());
                return Err(Status::invalid_argument(format!(
                    "invalid binary header {name}: illegal base64 data at input byte {offset}"
                )));
            }
            headers.append(given, value.clone());
        }
        let timeout = match fields.get("grpc-timeout") {
            None => None,
            Some(value) => Some(parse_timeout(value).map_err(|_| {
                let text = String::from_utf8_lossy(value.as_bytes());
                Status::invalid_argument(format!("invalid grpc-timeout: {text}"))
            })?),
        };
        Ok(Self { headers, timeout, bytes: bytes as u64 })
    }
}

/// Returns whether gRPC reserves this metadata name.
fn is_reserved(name: &str) -> bool {
    name.starts_with("grpc-") || matches!(name, "content-type" | "user-agent" | "te" | "host")
}

fn title_case(name: &str) -> String {
    let mut is_first = true;
    let to_case = |letter: char| {
        let upper = std::mem::replace(&mut is_first, letter == '-');
        if upper { letter.to_ascii_uppercase() } else { letter }
    };
    name.chars().map(to_case).collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn metadata(fields: &[(&'static str, &'static str)]) -> Result<Metadata, String> {
        let fields = fields
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        Metadata::of(&fields.collect()).map_err(|status| status.message().to_owned())
    }

    #[test]
    fn only_permitted_headers_become_metadata() {
        let found = metadata(&[
            ("host", "x"),
            ("content-type", "text/plain"),
            ("cookie", "token=t"),
            ("token", "not this way"),
            ("authorization", "abc.1"),
            ("grpc-metadata-hasleader", "true"),
            ("grpc-metadata-x-bin", "AAE="),
            ("grpc-metadata-grpc-encoding", "gzip"),
            ("grpc-metadata-content-type", "x"),
            ("grpc-metadata-", "x"),
            ("grpc-timeout", "1S"),
        ]);
        let found = found.unwrap();
        let mut names: Vec<_> = found.headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["authorization", "hasleader", "x-bin"]);
        assert_eq!(found.timeout, Some(Duration::from_secs(1)));
    }

    #[test]
    fn malformed_metadata_is_refused() {
        let expected =
            "invalid binary header Grpc-Metadata-X-Bin: illegal base64 data at input byte 0";
        assert_eq!(metadata(&[("grpc-metadata-x-bin", "!!")]).unwrap_err(), expected);
        assert_eq!(metadata(&[("grpc-timeout", "zz")]).unwrap_err(), "invalid grpc-timeout: zz");
    }
}
