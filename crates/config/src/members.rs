//! The first members of a cluster, as listed in `--initial-cluster`.

use std::collections::{BTreeMap, BTreeSet};

use quorate_gotext::quote::go_quote;

use super::url::{Url, UrlError};

/// The initial members by name, each with its sorted peer URLs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitialMembers {
    members: BTreeMap<String, Vec<Url>>,
}

/// The reason why the initial cluster is invalid. The error messages are etcd's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InitialClusterError {
    /// A URL is invalid.
    #[error("error setting up initial cluster: {0}")]
    Url(#[from] UrlError),
    /// This member is missing from the initial cluster.
    #[error("couldn't find local name {} in the initial cluster configuration", go_quote(.0))]
    NoLocalMember(String),
    /// Two members share this URL.
    #[error("initial cluster {0} has duplicate url")]
    DuplicateUrl(String),
}

impl InitialMembers {
    /// Parses a list such as `a=http://x:1,a=http://x:2,b=http://y:1`.
    ///
    /// # Errors
    ///
    /// An entry has no URL, or its URL is invalid.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let mut members: BTreeMap<String, Vec<Url>> = BTreeMap::new();
        for entry in text.split(',').filter(|entry| !entry.is_empty()) {
            let (name, url) = entry.split_once('=').unwrap_or((entry, ""));
            members.entry(name.to_owned()).or_default().push(Url::parse(url)?);
        }
        members.values_mut().for_each(|urls| urls.sort());
        Ok(Self { members })
    }

    /// Returns the members and their peer URLs, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[Url])> {
        self.members.iter().map(|(name, urls)| (name.as_str(), urls.as_slice()))
    }

    /// Returns the peer URLs of a member, if it is an initial member.
    pub fn urls_of(&self, name: &str) -> Option<&[Url]> {
        self.members.get(name).map(Vec::as_slice)
    }

    /// Checks that the named member is among the initial members.
    ///
    /// # Errors
    ///
    /// There is no member with this name.
    pub fn check_holds(&self, name: &str) -> Result<(), InitialClusterError> {
        match self.urls_of(name) {
            Some(_) => Ok(()),
            None => Err(InitialClusterError::NoLocalMember(name.to_owned())),
        }
    }

    /// Checks that no URL is used twice.
    ///
    /// # Errors
    ///
    /// Two members share a URL, or one member lists it twice.
    pub fn check_urls(&self) -> Result<(), InitialClusterError> {
        let mut seen = BTreeSet::new();
        if self.iter().flat_map(|(_, urls)| urls).any(|url| !seen.insert(url)) {
            return Err(InitialClusterError::DuplicateUrl(self.to_string()));
        }
        Ok(())
    }

    /// Returns the number of members.
    pub fn count(&self) -> usize {
        self.members.len()
    }
}

impl std::fmt::Display for InitialMembers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pairs = self.iter().flat_map(|(name, urls)| urls.iter().map(move |url| (name, url)));
        let pairs: BTreeSet<String> = pairs.map(|(name, url)| format!("{name}={url}")).collect();
        f.write_str(&pairs.into_iter().collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(name: &str, text: &str) -> Result<InitialMembers, String> {
        let checked =
            InitialMembers::parse(text).map_err(InitialClusterError::from).and_then(|members| {
                members.check_holds(name)?;
                members.check_urls()?;
                Ok(members)
            });
        checked.map_err(|error| error.to_string())
    }

    #[test]
    fn members_may_have_several_urls() {
        let members = members("a", "b=http://y:1,a=http://x:2,,a=http://x:1").unwrap();
        assert_eq!(members.to_string(), "a=http://x:1,a=http://x:2,b=http://y:1");
        assert_eq!(members.count(), 2);
        assert_eq!(crate::joined(members.urls_of("a").unwrap()), "http://x:1,http://x:2");
    }

    #[test]
    fn invalid_initial_clusters_are_refused_with_etcd_errors() {
        let refused = |name, text| members(name, text).unwrap_err();
        assert_eq!(
            refused("c", "a=http://x:1"),
            "couldn't find local name \"c\" in the initial cluster configuration"
        );
        assert_eq!(
            refused("a", "a=http://x:1,b=http://x:1"),
            "initial cluster a=http://x:1,b=http://x:1 has duplicate url"
        );
        assert_eq!(
            refused("a", "a"),
            "error setting up initial cluster: URL scheme must be http, https, unix, or unixs: "
        );
    }
}
