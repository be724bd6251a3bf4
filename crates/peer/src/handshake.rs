//! The handshake headers between members: versions, the cluster id, and the member's URLs.
//!
//! Every request to the raft paths, except a probe, carries the sender's version and cluster id. Versions are compared
//! by major and minor number only. A missing version counts as 2.0.

use http::{HeaderMap, HeaderName, HeaderValue, request};

use crate::dialer::Target;
use quorate_version::ETCD_MIN_CLUSTER_VERSION;

pub(crate) const CLUSTER_ID: HeaderName = HeaderName::from_static("x-etcd-cluster-id");
pub(crate) const SERVER_VERSION: HeaderName = HeaderName::from_static("x-server-version");
const MIN_CLUSTER_VERSION: HeaderName = HeaderName::from_static("x-min-cluster-version");
const SERVER_FROM: HeaderName = HeaderName::from_static("x-server-from");
const PEER_URLS: HeaderName = HeaderName::from_static("x-peerurls");
const RAFT_TO: HeaderName = HeaderName::from_static("x-raft-to");

/// Maximum number of URLs that are accepted from a sender.
const PEER_URLS_MAX: usize = 16;

/// Maximum total length of the URLs that are accepted from a sender. They are stored and logged.
const PEER_URLS_BYTES_MAX: usize = 4 << 10;

/// Why a member refuses another member's request. The error messages are sent to the other member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Mismatch {
    #[error("incompatible version")]
    Version,
    #[error("cluster ID mismatch")]
    Cluster,
    /// The two members have states of different origins. This reason is Quorate's own: only Quorate members send or
    /// receive it.
    #[error("restored from another snapshot, or not restored")]
    Origin,
}

/// The major and minor version number of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(u64, u64);

impl Version {
    /// The assumed version of a member that sends no version.
    const SILENT: Self = Self(2, 0);
    /// The first version that supports both kinds of streams.
    const FIRST_WITH_STREAMS: Self = Self(2, 1);

    /// Parses a version such as `3.7.1`, with or without a suffix.
    fn parse(text: &str) -> Option<Self> {
        let core = text.split(['-', '+']).next()?;
        let mut parts = core.split('.');
        let mut number = || {
            let part = parts.next()?;
            part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())?
        };
        let (major, minor, _patch) = (number()?, number()?, number()?);
        parts.next().is_none().then_some(Self(major, minor))
    }

    fn of_header(headers: &HeaderMap, name: &HeaderName) -> Option<Self> {
        match headers.get(name).map(HeaderValue::as_bytes) {
            None | Some(b"") => Some(Self::SILENT),
            Some(value) => std::str::from_utf8(value).ok().and_then(Self::parse),
        }
    }

    fn min_cluster() -> Self {
        Self::parse(ETCD_MIN_CLUSTER_VERSION).expect("our own version is valid")
    }
}

/// The headers that identify this member in requests and responses.
#[derive(Clone, Debug)]
pub(crate) struct Introduction {
    version: Version,
    pub(crate) version_text: String,
    pub(crate) member: String,
    pub(crate) cluster: String,
    /// `None` if there are no URLs, or if they cannot be encoded in a header.
    peer_urls: Option<HeaderValue>,
}

impl Introduction {
    /// Creates the headers. `version` is the version that this member reports. The ids are sent in hex, as in all
    /// headers.
    pub(crate) fn new(
        version: &str,
        member_id: u64,
        cluster_id: u64,
        peer_urls: &[String],
    ) -> Self {
        Self {
            version: Version::parse(version).expect("the caller's version is valid"),
            version_text: version.to_owned(),
            member: format!("{member_id:x}"),
            cluster: format!("{cluster_id:x}"),
            peer_urls: Some(peer_urls.join(","))
                .filter(|urls| !urls.is_empty())
                .and_then(|urls| HeaderValue::from_bytes(urls.as_bytes()).ok()),
        }
    }

    /// Adds the headers that every request except a probe carries.
    pub(crate) fn introduce(&self, request: request::Builder) -> request::Builder {
        let request = request
            .header(SERVER_FROM, &self.member)
            .header(SERVER_VERSION, &self.version_text)
            .header(MIN_CLUSTER_VERSION, ETCD_MIN_CLUSTER_VERSION)
            .header(CLUSTER_ID, &self.cluster);
        match &self.peer_urls {
            Some(urls) => request.header(PEER_URLS, urls),
            None => request,
        }
    }

    /// Adds the id of the member to which the stream request is addressed.
    pub(crate) fn address(request: request::Builder, to: &str) -> request::Builder {
        request.header(RAFT_TO, to)
    }

    /// Returns whether the stream request is addressed to this member.
    pub(crate) fn is_addressed(&self, headers: &HeaderMap) -> bool {
        headers.get(RAFT_TO).is_some_and(|to| to == self.member.as_str())
    }

    /// Checks that the sender of a request is compatible with this member.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Mismatch> {
        let server = Version::of_header(headers, &SERVER_VERSION).ok_or(Mismatch::Version)?;
        let min = Version::of_header(headers, &MIN_CLUSTER_VERSION).ok_or(Mismatch::Version)?;
        if server < Version::min_cluster() || min > self.version {
            return Err(Mismatch::Version);
        }
        match headers.get(CLUSTER_ID) {
            Some(cluster) if cluster == self.cluster.as_str() => Ok(()),
            _ => Err(Mismatch::Cluster),
        }
    }

    /// Returns whether the member that sent these headers supports streams.
    pub(crate) fn streams_with(&self, headers: &HeaderMap) -> bool {
        Version::of_header(headers, &SERVER_VERSION)
            .is_some_and(|other| other >= self.version || other >= Version::FIRST_WITH_STREAMS)
    }
}

/// Returns the sender's id, if the request contains one.
pub(crate) fn sender_id(headers: &HeaderMap) -> Option<u64> {
    headers.get(SERVER_FROM)?.to_str().ok().and_then(parse_id)
}

/// Returns the sender's id and URLs, if the request contains both, each URL is valid, and neither their number nor their
/// length exceeds the limits.
pub(crate) fn sender(headers: &HeaderMap) -> Option<(u64, Vec<String>)> {
    let from = sender_id(headers)?;
    let urls = headers.get(PEER_URLS)?.to_str().ok()?;
    if urls.len() > PEER_URLS_BYTES_MAX {
        return None;
    }
    let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
    let are_valid = urls.len() <= PEER_URLS_MAX && urls.iter().all(|url| Target::of(url).is_some());
    are_valid.then_some((from, urls))
}

/// Parses an id in a header or path.
pub(crate) fn parse_id(text: &str) -> Option<u64> {
    // The standard parser would also accept a sign.
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u64::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn versions_are_compared_by_major_and_minor_number() {
        let us = Introduction::new("3.7.1", 1, 0xabc, &[]);
        let check = |server, min| {
            let mut given = headers(&[(CLUSTER_ID, "abc")]);
            given.extend(headers(&[(SERVER_VERSION, server), (MIN_CLUSTER_VERSION, min)]));
            us.check(&given)
        };
        for server in ["3.5.16", "3.6.0", "3.7.1", "3.9.0", "4.0.0-alpha.0+git", "3.0.0"] {
            assert_eq!(check(server, "3.0.0"), Ok(()), "{server}");
        }
        for server in ["2.3.8", "", "3", "3.7", "x.y.z", "3.7.1.2", "+3.7.1"] {
            assert_eq!(check(server, "3.0.0"), Err(Mismatch::Version), "{server}");
        }
        assert_eq!(check("3.7.1", "3.7.9"), Ok(()));
        assert_eq!(check("3.7.1", "3.8.0"), Err(Mismatch::Version));
        assert_eq!(check("3.7.1", ""), Ok(()), "a missing minimum version is accepted");
        let unsaid = headers(&[(CLUSTER_ID, "abc")]);
        assert_eq!(us.check(&unsaid), Err(Mismatch::Version));
    }

    #[test]
    fn the_version_is_checked_before_the_cluster_id() {
        let us = Introduction::new("3.5.0", 1, 0xabc, &[]);
        assert_eq!(us.check(&headers(&[(SERVER_VERSION, "3.5.0")])), Err(Mismatch::Cluster));
        let other = headers(&[(SERVER_VERSION, "3.5.0"), (CLUSTER_ID, "0abc")]);
        assert_eq!(us.check(&other), Err(Mismatch::Cluster));
        let old = headers(&[(SERVER_VERSION, "2.0.0"), (CLUSTER_ID, "0abc")]);
        assert_eq!(us.check(&old), Err(Mismatch::Version));
    }

    #[test]
    fn handshake_headers_round_trip() {
        let urls = ["http://a:1".to_owned(), "http://b:2".to_owned()];
        let us = Introduction::new("3.7.1", 0xfe, 0xabc, &urls);
        let request = us.introduce(http::Request::get("/"));
        let request = Introduction::address(request, "fe").body(()).unwrap();
        assert_eq!(us.check(request.headers()), Ok(()));
        assert!(us.is_addressed(request.headers()));
        assert_eq!(sender(request.headers()), Some((0xfe, urls.to_vec())));
        let odd = Introduction::new("3.7.1", 1, 2, &["http://\u{fc}:1\n".to_owned()]);
        assert!(odd.introduce(http::Request::get("/")).body(()).is_ok());
        assert_eq!(parse_id("+f"), None);
        assert_eq!(parse_id(""), None);
    }
}
