//! The membership in `.snap` files, which is encoded as a JSON tree of the retired v2 store.
//!
//! Up to version 3.5, etcd reads its membership from this tree. Version 3.6 checks the tree, and version 3.7 only
//! writes it. Quorate therefore always writes the tree, and reads it to restore members that etcd 3.5 did not store in
//! the buckets. In addition to the tree, etcd writes the store's watcher hub and statistics. Both are optional: if they
//! are missing, a reader starts with an empty watcher hub and empty statistics.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;

use super::json::write_string;
use super::{Member, Members, parse_id};
use crate::units::MemberId;
use crate::versions::Version;

/// The membership in a v2 tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct V2Membership {
    /// The members and the removed ids.
    pub members: Members,
    /// The cluster version, if it is set.
    pub cluster_version: Option<Version>,
}

/// The JSON is not a v2 tree with members.
#[derive(Debug, thiserror::Error)]
pub enum V2Error {
    /// The data is not JSON, or not a v2 tree.
    #[error("v2 store: {0}")]
    Json(#[from] serde_json::Error),
    /// A node is missing or invalid.
    #[error("v2 store: {path}: {problem}")]
    Node {
        /// The path of the node.
        path: String,
        /// Why the node is invalid.
        problem: String,
    },
}

#[derive(Deserialize)]
struct Tree {
    #[serde(rename = "Root")]
    root: Node,
}

#[derive(Default, Deserialize)]
struct Node {
    #[serde(rename = "Value", default)]
    value: String,
    #[serde(rename = "Children", default)]
    children: Option<BTreeMap<String, Self>>,
}

impl Node {
    fn child(&self, name: &str) -> Option<&Self> {
        self.children.as_ref()?.get(name)
    }

    fn children(&self) -> impl Iterator<Item = (&String, &Self)> {
        self.children.iter().flatten()
    }
}

/// Returns the path of a node in the data of a `.snap` file that the v2 API created; `None` if there is none. As in
/// etcd, empty directories do not count, nor do the settings of a disabled authentication.
pub fn path_of_v2_data(json: &[u8]) -> Result<Option<String>, V2Error> {
    let tree: Tree = serde_json::from_slice(json)?;
    let of_child = |parent: &str, node: &Node| {
        node.children().next().map(|(name, _)| format!("{parent}/{name}"))
    };
    Ok(tree.root.children().find_map(|(name, node)| match name.as_str() {
        "0" => None,
        "2" => node.children().find_map(|(name, node)| of_child(&format!("/2/{name}"), node)),
        name => of_child(&format!("/{name}"), node),
    }))
}

impl V2Membership {
    /// Decodes the data of a `.snap` file.
    pub fn from_json(json: &[u8]) -> Result<Self, V2Error> {
        let tree: Tree = serde_json::from_slice(json)?;
        let Some(meta) = tree.root.child("0") else { return Ok(Self::default()) };
        let mut members = Vec::new();
        for (name, node) in meta.child("members").iter().flat_map(|node| node.children()) {
            members.push(member(name, node)?);
        }
        let mut removed = Vec::new();
        for (name, _) in meta.child("removed_members").iter().flat_map(|node| node.children()) {
            removed.push(id("/0/removed_members", name)?);
        }
        let cluster_version = meta
            .child("version")
            .map(|node| {
                Version::parse(&node.value)
                    .ok_or_else(|| problem("/0/version".to_owned(), "not a version"))
            })
            .transpose()?;
        Ok(Self { members: Members::new(members, removed), cluster_version })
    }

    /// Encodes the data of a `.snap` file.
    #[must_use]
    pub fn to_json(&self) -> String {
        Writer::default().write(self)
    }
}

fn problem(path: String, problem: impl ToString) -> V2Error {
    V2Error::Node { path, problem: problem.to_string() }
}

fn id(path: &str, name: &str) -> Result<MemberId, V2Error> {
    parse_id(name).ok_or_else(|| problem(format!("{path}/{name}"), "not a member id"))
}

fn member(name: &str, node: &Node) -> Result<Member, V2Error> {
    let path = format!("/0/members/{name}");
    let part = |part: &str| -> Result<Option<Member>, V2Error> {
        let Some(node) = node.child(part) else { return Ok(None) };
        let read = Member::from_json(node.value.as_bytes());
        read.map(Some).map_err(|error| problem(format!("{path}/{part}"), error))
    };
    let id = id("/0/members", name)?;
    let Some(raft) = part("raftAttributes")? else {
        return Err(problem(path, "raftAttributes are missing"));
    };
    let attributes = part("attributes")?.unwrap_or_else(|| Member::new(id, Vec::new()));
    Ok(Member {
        id,
        peer_urls: raft.peer_urls,
        is_learner: raft.is_learner,
        name: attributes.name,
        client_urls: attributes.client_urls,
    })
}

/// Writes the tree. Nodes are numbered as if they had been created one after another.
#[derive(Default)]
struct Writer {
    json: String,
    index: u64,
}

impl Writer {
    fn write(mut self, membership: &V2Membership) -> String {
        let members = &membership.members;
        self.json.push_str("{\"Root\":");
        self.open("/");
        self.child("0", true);
        self.open("/0");
        self.child("members", true);
        self.open("/0/members");
        for (position, member) in members.iter().enumerate() {
            self.child(&member.id.to_string(), position == 0);
            self.member(member);
        }
        self.close();
        if members.removed().len() > 0 {
            self.child("removed_members", false);
            self.open("/0/removed_members");
            for (position, id) in members.removed().enumerate() {
                self.child(&id.to_string(), position == 0);
                self.leaf(&format!("/0/removed_members/{id}"), "");
            }
            self.close();
        }
        if let Some(version) = membership.cluster_version {
            self.child("version", false);
            self.leaf("/0/version", &version.to_string());
        }
        self.close();
        self.child("1", false);
        self.open("/1");
        self.close();
        self.close();
        let index = self.index;
        write!(self.json, ",\"CurrentIndex\":{index},\"CurrentVersion\":2}}")
            .expect("writing to a string cannot fail");
        self.json
    }

    fn member(&mut self, member: &Member) {
        let path = format!("/0/members/{}", member.id);
        self.open(&path);
        let has_attributes = member.is_started() || !member.client_urls.is_empty();
        if has_attributes {
            self.child("attributes", true);
            self.leaf(&format!("{path}/attributes"), &member.attributes_json());
        }
        self.child("raftAttributes", !has_attributes);
        self.leaf(&format!("{path}/raftAttributes"), &member.raft_attributes_json());
        self.close();
    }

    fn child(&mut self, name: &str, first: bool) {
        if !first {
            self.json.push(',');
        }
        write_string(&mut self.json, name);
        self.json.push(':');
    }

    fn open(&mut self, path: &str) {
        self.node(path, "");
        self.json.push_str("\"Children\":{");
    }

    fn close(&mut self) {
        self.json.push_str("}}");
    }

    fn leaf(&mut self, path: &str, value: &str) {
        self.index += 1;
        self.node(path, value);
        self.json.push_str("\"Children\":null}");
    }

    fn node(&mut self, path: &str, value: &str) {
        let index = self.index;
        self.json.push_str("{\"Path\":");
        write_string(&mut self.json, path);
        write!(
            self.json,
            ",\"CreatedIndex\":{index},\"ModifiedIndex\":{index},\
             \"ExpireTime\":\"0001-01-01T00:00:00Z\",\"Value\":"
        )
        .expect("writing to a string cannot fail");
        write_string(&mut self.json, value);
        self.json.push(',');
    }
}
