//! Compares settings that should be equal on all members, because the stored state depends on them, and logs a warning
//! if they differ.
//!
//! A member applies entries with its own settings, and the log does not contain the settings of other members.
//! Therefore each request for a stream carries the sender's settings in a Quorate-specific header. etcd members ignore
//! the header and do not send it.
//!
//! # Bound
//!
//! Only the last header of each peer with streams is stored, up to [`HEADER_BYTES_MAX`]. Differences are logged once,
//! and again if the header changes.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use quorate_raft::MemberId;
use quorate_telemetry::log;

const SETTINGS: HeaderName = HeaderName::from_static("x-quorate-settings");

/// Maximum length of a header. Longer headers are ignored.
const HEADER_BYTES_MAX: usize = 1024;

/// The settings of this member and of the other members.
#[derive(Debug)]
pub(crate) struct SharedSettings {
    /// Names and values, which never contain the header's separators.
    own: Vec<(&'static str, String)>,
    /// Settings that other members need to know but that may differ between members.
    announced: Vec<(&'static str, String)>,
    received: Mutex<BTreeMap<MemberId, HeaderValue>>,
}

/// A setting whose value on another member differs from this member's.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Difference {
    name: &'static str,
    own: String,
    other: String,
}

impl SharedSettings {
    pub(crate) fn new(
        own: Vec<(&'static str, String)>,
        announced: Vec<(&'static str, String)>,
    ) -> Self {
        Self { own, announced, received: Mutex::default() }
    }

    /// Returns the header for stream requests.
    pub(crate) fn header(&self) -> (HeaderName, HeaderValue) {
        let all = self.own.iter().chain(&self.announced);
        let pairs: Vec<String> = all.map(|(name, value)| format!("{name}={value}")).collect();
        let value = HeaderValue::try_from(pairs.join("; "));
        (SETTINGS, value.expect("the names and values of settings are valid in a header"))
    }

    /// Returns the last value of a setting that a peer sent; `None` if the peer does not send this setting, as etcd
    /// members do not.
    pub(crate) fn announced_by(&self, peer: MemberId, name: &str) -> Option<String> {
        let received = self.received.lock();
        let text = received.get(&peer)?.to_str().ok()?;
        pairs(text).find(|(named, _)| *named == name).map(|(_, value)| value.to_owned())
    }

    /// Returns whether a peer sends its settings, as Quorate members do and etcd members do not. Every write may call
    /// this.
    pub(crate) fn are_announced_by(&self, peer: MemberId) -> bool {
        self.received.lock().contains_key(&peer)
    }

    /// Stores a peer's settings, and logs a warning about each setting that differs from this member's.
    pub(crate) fn compare(&self, from: MemberId, headers: &HeaderMap) {
        for difference in self.differences(from, headers) {
            log::warn!(
                "a peer has a different value for a setting that should be equal on all members: \
                 the stored states of the members may differ, as may the membership changes that \
                 they accept; set the same flags on all members",
                "setting" = difference.name,
                "local-value" = difference.own,
                "remote-value" = difference.other,
                "remote-peer-id" = format!("{from:x}")
            );
        }
    }

    /// Returns the differences, unless the peer has sent the same header before.
    fn differences(&self, from: MemberId, headers: &HeaderMap) -> Vec<Difference> {
        let Some(header) = headers.get(SETTINGS) else {
            // The peer may now run etcd, which does not send the header, so its settings are unknown.
            self.received.lock().remove(&from);
            return Vec::new();
        };
        let Some(text) = header.to_str().ok().filter(|text| text.len() <= HEADER_BYTES_MAX) else {
            return Vec::new();
        };
        if self.received.lock().insert(from, header.clone()).is_some_and(|before| before == *header)
        {
            return Vec::new();
        }
        let others: BTreeMap<&str, &str> = pairs(text).collect();
        let differs = |(name, own): &(&'static str, String)| {
            let other = (*others.get(name)?).to_owned();
            (other != *own).then(|| Difference { name, own: own.clone(), other })
        };
        self.own.iter().filter_map(differs).collect()
    }
}

fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split(';').filter_map(|pair| pair.trim().split_once('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(learners: &str) -> SharedSettings {
        let own = vec![("least-lease-secs", "2".to_owned()), ("max-learners", learners.to_owned())];
        SharedSettings::new(own, vec![("Gate", format!("{}", learners == "1"))])
    }

    fn headers(text: &str) -> HeaderMap {
        [(SETTINGS, HeaderValue::try_from(text).unwrap())].into_iter().collect()
    }

    #[test]
    fn equal_settings_are_not_reported_as_different() {
        let ours = settings("1");
        let header = [settings("1").header()].into_iter().collect();
        assert_eq!(ours.differences(2, &header), []);
        assert_eq!(ours.differences(3, &HeaderMap::new()), [], "etcd sends no settings");
    }

    #[test]
    fn a_difference_is_logged_once_for_each_peer_and_value() {
        let ours = settings("1");
        let theirs = |learners| [settings(learners).header()].into_iter().collect();
        let difference = |other: &str| {
            [Difference { name: "max-learners", own: "1".to_owned(), other: other.to_owned() }]
        };
        assert_eq!(ours.differences(2, &theirs("3")), difference("3"));
        assert_eq!(ours.differences(2, &theirs("3")), []);
        assert_eq!(ours.differences(3, &theirs("3")), difference("3"));
        assert_eq!(ours.differences(2, &theirs("4")), difference("4"));
    }

    #[test]
    fn announced_settings_are_stored_without_reporting_differences() {
        let ours = SharedSettings::new(Vec::new(), vec![("Gate", "false".to_owned())]);
        assert_eq!(ours.announced_by(2, "Gate"), None);
        let theirs = |learners| [settings(learners).header()].into_iter().collect();
        assert_eq!(ours.differences(2, &theirs("1")), []);
        assert_eq!(ours.announced_by(2, "Gate").as_deref(), Some("true"));
        assert_eq!(ours.differences(2, &theirs("2")), []);
        assert_eq!(ours.announced_by(2, "Gate").as_deref(), Some("false"));
        assert_eq!((ours.announced_by(2, "Gat"), ours.announced_by(3, "Gate")), (None, None));
        assert_eq!(ours.differences(2, &HeaderMap::new()), []);
        assert_eq!(ours.announced_by(2, "Gate"), None, "the member was replaced by etcd");
    }

    #[test]
    fn unreadable_settings_are_ignored() {
        let ours = settings("1");
        let long = "x".repeat(HEADER_BYTES_MAX + 1);
        for text in ["", "=", ";;", "max-learners", "learners-max=7", "\u{e9}max-learners=3", &long]
        {
            assert_eq!(ours.differences(2, &headers(text)), [], "{text}");
        }
        let newer = "max-learners=1; least-lease-secs=2; a-later-one=yes";
        assert_eq!(ours.differences(2, &headers(newer)), [], "a later version sends more settings");
    }
}
