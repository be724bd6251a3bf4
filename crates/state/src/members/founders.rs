//! The founders of a cluster: their ids, and the first entries of each founder's log.
//!
//! # Invariants
//!
//! * Every founder computes the same ids and entries. They depend only on the founders' names and
//!   URLs and on the token, and the entries are sorted by id.
//!
//! # Not here
//!
//! Checking whether a cluster may be founded and whether the URLs are valid (the caller).

use bytes::Bytes;
use prost::Message;
use quorate_api::raftpb::{ConfChange, ConfChangeType};

use super::{Member, Members, cluster_id, member_id};

/// Term of the first entries.
pub const FOUNDING_TERM: u64 = 1;

/// The founders of a cluster, by id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Founders {
    members: Vec<Member>,
}

impl Founders {
    /// Creates the founders with these names and peer URLs.
    #[must_use]
    pub fn new<'a>(initial: impl IntoIterator<Item = (&'a str, Vec<String>)>, token: &str) -> Self {
        let member = |(name, peer_urls): (&str, Vec<String>)| {
            let id = member_id(&peer_urls, token, None);
            Member { name: name.to_owned(), ..Member::new(id, peer_urls) }
        };
        let mut members: Vec<Member> = initial.into_iter().map(member).collect();
        members.sort_by_key(|member| member.id);
        Self { members }
    }

    /// Returns the cluster's id.
    #[must_use]
    pub fn cluster_id(&self) -> u64 {
        cluster_id(self.members.iter().map(|member| member.id))
    }

    /// Returns the founder with this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }

    /// Returns all founders, ordered by id.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.members.iter()
    }

    /// Returns the members as they are after the first entries are applied.
    #[must_use]
    pub fn to_members(&self) -> Members {
        Members::new(self.members.iter().cloned(), [])
    }

    /// Returns the data of the first entries: one conf change for each founder, from index 1 on.
    pub fn conf_changes(&self) -> impl ExactSizeIterator<Item = Bytes> {
        self.members.iter().map(|member| {
            let change = ConfChange {
                // No request caused this change, so it has no id. As in etcd 3.7, the field is omitted. Older versions
                // of etcd write id 0.
                id: None,
                r#type: Some(ConfChangeType::ConfChangeAddNode.into()),
                node_id: Some(member.id.0),
                context: Some(member.to_json().into()),
            };
            change.encode_to_vec().into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn founders_have_the_same_ids_and_entries_as_in_etcd() {
        let founders = Founders::new(
            [("default", vec!["http://localhost:2380".to_owned()])],
            super::super::CLUSTER_TOKEN_DEFAULT,
        );
        // `etcdutl snapshot restore` prints this id with its default options.
        assert_eq!(founders.cluster_id(), 0xcdf8_1819_4e3a_8c32);
        assert_eq!(founders.named("default").unwrap().id.0, 0x8e9e_05c5_2164_694d);
        let json =
            br#"{"id":10276657743932975437,"peerURLs":["http://localhost:2380"],"name":"default"}"#;
        let mut expected = vec![0x10, 0, 0x18];
        expected.extend([0xcd, 0xd2, 0x91, 0x8b, 0xd2, 0xb8, 0x81, 0xcf, 0x8e, 0x01]);
        expected.extend([0x22, u8::try_from(json.len()).unwrap()]);
        expected.extend_from_slice(json);
        assert_eq!(founders.conf_changes().collect::<Vec<_>>(), [Bytes::from(expected)]);
    }

    #[test]
    fn the_order_in_which_founders_are_listed_has_no_effect() {
        let url = |name: &str| vec![format!("http://{name}:2380")];
        let one = Founders::new([("a", url("a")), ("b", url("b")), ("c", url("c"))], "t");
        let other = Founders::new([("c", url("c")), ("a", url("a")), ("b", url("b"))], "t");
        assert_eq!(one, other);
        assert!(one.iter().is_sorted_by_key(|member| member.id));
        assert_eq!(one.to_members().conf_state().voters.len(), 3);
        assert!(one.named("d").is_none());
    }
}
