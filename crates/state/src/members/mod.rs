//! Who is in the cluster: members, removed ids, and whether a proposed change of them is valid.
//!
//! Every member must come to the same verdict about a conf change in the log, so the verdict depends on
//! the members as applied and on the learner limit, which must be configured alike everywhere.
//!
//! # Invariants
//!
//! * A removed id never comes back.
//! * No two members share a peer URL, as far as changes are valid by these rules.
//!
//! # Not here
//!
//! Quorum and connectivity checks before proposing a change (the server's `membership`), what consensus makes
//! of it (`quorate-raft`).

mod founders;
mod json;
mod v2_store;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use quorate_api::raftpb::{ConfChange, ConfChangeType, ConfState};
use sha1::{Digest, Sha1};

pub use self::founders::{FOUNDING_TERM, Founders};
pub use self::json::{ChangeContext, JsonError};
pub use self::v2_store::{V2Error, V2Membership};
use crate::backend::Batch;
use crate::schema::Bucket;
use crate::units::MemberId;

/// The cluster token when none is configured.
#[cfg(test)]
pub(crate) const CLUSTER_TOKEN_DEFAULT: &str = "etcd-cluster";

/// One member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub id: MemberId,
    /// Where its peers reach it, in the order in which they were given.
    pub peer_urls: Vec<String>,
    /// Whether it only listens.
    pub is_learner: bool,
    /// Its name; empty until it has started and told.
    pub name: String,
    /// Where clients reach it; empty until it has told.
    pub client_urls: Vec<String>,
}

impl Member {
    /// A voter that has not started.
    #[must_use]
    pub const fn new(id: MemberId, peer_urls: Vec<String>) -> Self {
        Self { id, peer_urls, is_learner: false, name: String::new(), client_urls: Vec::new() }
    }

    /// Whether it has told its name.
    #[must_use]
    pub const fn is_started(&self) -> bool {
        !self.name.is_empty()
    }
}

/// Computes a member's id from its peer URLs and what makes it unlike others with the same ones: the
/// cluster token for founders, the time of the request in Unix seconds for members added later.
#[must_use]
pub fn member_id(peer_urls: &[String], token: &str, unix_secs: Option<u64>) -> MemberId {
    let mut urls: Vec<&str> = peer_urls.iter().map(String::as_str).collect();
    urls.sort_unstable();
    let mut sha1 = Sha1::new();
    for part in urls {
        sha1.update(part);
    }
    sha1.update(token);
    if let Some(unix_secs) = unix_secs {
        sha1.update(unix_secs.to_string());
    }
    MemberId(first_eight(sha1))
}

/// Computes a new cluster's id from its founders.
#[must_use]
pub fn cluster_id(founders: impl IntoIterator<Item = MemberId>) -> u64 {
    let founders: BTreeSet<MemberId> = founders.into_iter().collect();
    let mut sha1 = Sha1::new();
    for founder in founders {
        sha1.update(founder.0.to_be_bytes());
    }
    first_eight(sha1)
}

fn first_eight(sha1: Sha1) -> u64 {
    let digest: [u8; 20] = sha1.finalize().into();
    let first = digest.first_chunk().expect("twenty bytes have a first eight");
    u64::from_be_bytes(*first)
}

/// Why a conf change is turned down, as the proposer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipRefusal {
    /// The id was removed before, and is gone for good.
    #[error("etcdserver: member not found")]
    Removed,
    /// There is no such member.
    #[error("etcdserver: member not found")]
    NotFound,
    /// There is a member of that id.
    #[error("etcdserver: member ID already exist")]
    Exists,
    /// Another member has one of the URLs.
    #[error("etcdserver: Peer URLs already exists")]
    PeerUrlExists,
    /// Only learners are promoted.
    #[error("etcdserver: can only promote a learner member")]
    NotLearner,
    /// One learner more than allowed.
    #[error("etcdserver: too many learner members in cluster")]
    TooManyLearners,
}

impl MembershipRefusal {
    /// The words members use among themselves.
    #[must_use]
    pub const fn peer_text(self) -> &'static str {
        match self {
            Self::Removed => "membership: ID removed",
            Self::NotFound => "membership: ID not found",
            Self::Exists => "membership: ID exists",
            Self::PeerUrlExists => "membership: peerURL exists",
            Self::NotLearner => "membership: can only promote a learner member",
            Self::TooManyLearners => "membership: too many learner members in cluster",
        }
    }
}

/// A conf change in the log, or a row of a bucket, makes no sense at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipFault {
    /// The JSON cannot be read.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// The change is about one member and carries another.
    #[error("conf change of member {change} carries member {context}")]
    OtherMember {
        /// As the change says.
        change: MemberId,
        /// As its context says.
        context: MemberId,
    },
    /// A type of change this version does not know.
    #[error("unknown conf change type {0}")]
    UnknownType(i32),
    /// A row's key is no id.
    #[error("bucket {bucket}: {key:?} is no member id")]
    Key {
        /// The bucket.
        bucket: &'static str,
        /// The key.
        key: String,
    },
}

/// A valid change of the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// A new member, voter or learner.
    Add(Member),
    /// A learner becomes a voter.
    Promote(MemberId),
    /// A member leaves.
    Remove(MemberId),
    /// A member's peer URLs change.
    UpdatePeerUrls(MemberId, Vec<String>),
}

/// The members of the cluster, and who was one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    members: BTreeMap<MemberId, Member>,
    removed: BTreeSet<MemberId>,
}

impl Members {
    /// A cluster of these members.
    #[must_use]
    pub fn new(
        members: impl IntoIterator<Item = Member>,
        removed: impl IntoIterator<Item = MemberId>,
    ) -> Self {
        let members = members.into_iter().map(|member| (member.id, member)).collect();
        Self { members, removed: removed.into_iter().collect() }
    }

    /// Reads the rows of buckets `members` and `members_removed`.
    pub fn load<'a>(
        members: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        removed: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Self, MembershipFault> {
        let mut loaded = Self::default();
        for (key, value) in members {
            let id = id_of_key("members", key)?;
            let member = Member { id, ..Member::from_json(value)? };
            loaded.members.insert(id, member);
        }
        for key in removed {
            loaded.removed.insert(id_of_key("members_removed", key)?);
        }
        Ok(loaded)
    }

    /// All members, by id.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.members.values()
    }

    /// One member.
    #[must_use]
    pub fn get(&self, id: MemberId) -> Option<&Member> {
        self.members.get(&id)
    }

    /// Whether the id belonged to a member that was removed.
    #[must_use]
    pub fn is_removed(&self, id: MemberId) -> bool {
        self.removed.contains(&id)
    }

    /// The ids that were removed, ascending.
    pub fn removed(&self) -> impl ExactSizeIterator<Item = MemberId> {
        self.removed.iter().copied()
    }

    /// What consensus must make of these members.
    #[must_use]
    pub fn conf_state(&self) -> ConfState {
        let ids = |learners: bool| {
            let chosen = self.iter().filter(move |member| member.is_learner == learners);
            chosen.map(|member| member.id.0).collect()
        };
        ConfState {
            voters: ids(false),
            learners: ids(true),
            auto_leave: Some(false),
            ..ConfState::default()
        }
    }

    /// Judges a conf change from the log, changing nothing.
    pub fn judge(
        &self,
        change: &ConfChange,
        learner_count_max: usize,
    ) -> Result<Result<MemberChange, MembershipRefusal>, MembershipFault> {
        let id = MemberId(change.node_id.unwrap_or_default());
        let number = change.r#type.unwrap_or_default();
        let kind =
            ConfChangeType::try_from(number).map_err(|_| MembershipFault::UnknownType(number))?;
        if self.removed.contains(&id) {
            return Ok(Err(MembershipRefusal::Removed));
        }
        let known = self.members.get(&id);
        let context = || -> Result<ChangeContext, MembershipFault> {
            let json = change.context.as_deref().unwrap_or_default();
            Ok(ChangeContext::from_json(json)?)
        };
        let verdict = match kind {
            ConfChangeType::ConfChangeAddNode | ConfChangeType::ConfChangeAddLearnerNode => {
                let ChangeContext { member, is_promote } = context()?;
                let learner = kind == ConfChangeType::ConfChangeAddLearnerNode;
                let verdict = match (is_promote, known) {
                    (true, None) => Err(MembershipRefusal::NotFound),
                    (true, Some(known)) if !known.is_learner => Err(MembershipRefusal::NotLearner),
                    (true, Some(_)) => Ok(()),
                    (false, Some(_)) => Err(MembershipRefusal::Exists),
                    (false, None) => self.check_new(&member, learner, learner_count_max),
                };
                match verdict {
                    Err(refusal) => Err(refusal),
                    Ok(()) => {
                        same_member(id, member.id)?;
                        Ok(if is_promote {
                            MemberChange::Promote(id)
                        } else {
                            MemberChange::Add(member)
                        })
                    }
                }
            }
            ConfChangeType::ConfChangeRemoveNode => match known {
                None => Err(MembershipRefusal::NotFound),
                Some(_) => Ok(MemberChange::Remove(id)),
            },
            ConfChangeType::ConfChangeUpdateNode => match known {
                None => Err(MembershipRefusal::NotFound),
                Some(_) => {
                    let member = context()?.member;
                    if self.has_peer_url(&member.peer_urls, Some(id)) {
                        Err(MembershipRefusal::PeerUrlExists)
                    } else {
                        same_member(id, member.id)?;
                        Ok(MemberChange::UpdatePeerUrls(id, member.peer_urls))
                    }
                }
            },
        };
        Ok(verdict)
    }

    /// Makes a change that was judged valid.
    pub fn apply(&mut self, change: MemberChange, batch: &mut Batch) {
        match change {
            MemberChange::Add(member) => {
                put(&member, batch);
                self.members.insert(member.id, member);
            }
            MemberChange::Promote(id) => {
                self.update(id, batch, |member| member.is_learner = false);
            }
            MemberChange::UpdatePeerUrls(id, peer_urls) => {
                self.update(id, batch, |member| member.peer_urls = peer_urls);
            }
            MemberChange::Remove(id) => {
                self.members.remove(&id);
                self.removed.insert(id);
                batch.delete(Bucket::Members, id.to_string());
                batch.put(Bucket::MembersRemoved, id.to_string(), &b"removed"[..]);
            }
        }
    }

    /// Takes over what a member tells of itself; without a batch only in memory. A member that is not
    /// there, because it was removed meanwhile, is skipped: says whether it was there.
    pub fn set_attributes(
        &mut self,
        id: MemberId,
        name: String,
        client_urls: Vec<String>,
        batch: Option<&mut Batch>,
    ) -> bool {
        let Some(member) = self.members.get_mut(&id) else { return false };
        member.name = name;
        member.client_urls = client_urls;
        if let Some(batch) = batch {
            put(member, batch);
        }
        true
    }

    /// Does to a v2 tree's members what a conf change in the log did to them: for replaying the log onto
    /// the tree of a `.snap` file. A change that was refused then is refused again.
    pub fn replay(
        &mut self,
        change: &ConfChange,
        learner_count_max: usize,
    ) -> Result<(), MembershipFault> {
        if let Ok(valid) = self.judge(change, learner_count_max)? {
            self.apply(valid, &mut Batch::new());
        }
        Ok(())
    }

    /// The truth about a file last written by a version that did not store every change of its members
    /// (3.5.1 to 3.5.19, and traces of it after an upgrade): `v2` is the tree of the chosen `.snap` file
    /// with all later entries of the log replayed onto it, and knows better, except about what it never
    /// heard of.
    #[must_use]
    pub fn reconciled(&self, v2: &Self) -> Self {
        let mut truth = self.clone();
        truth.removed.extend(&v2.removed);
        truth.members.extend(v2.members.iter().map(|(id, member)| (*id, member.clone())));
        truth.members.retain(|id, _| !truth.removed.contains(id));
        truth
    }

    /// Writes the rows that differ from `stored`, and takes out rows that `stored` has and this has not: for repairing what
    /// older versions left.
    pub fn rewrite(&self, stored: &Self, batch: &mut Batch) {
        for id in stored.members.keys().filter(|id| !self.members.contains_key(id)) {
            batch.delete(Bucket::Members, id.to_string());
        }
        for member in self.iter().filter(|member| stored.members.get(&member.id) != Some(member)) {
            put(member, batch);
        }
        for id in self.removed.difference(&stored.removed) {
            batch.put(Bucket::MembersRemoved, id.to_string(), &b"removed"[..]);
        }
    }

    fn check_new(
        &self,
        member: &Member,
        learner: bool,
        learner_count_max: usize,
    ) -> Result<(), MembershipRefusal> {
        if self.has_peer_url(&member.peer_urls, None) {
            return Err(MembershipRefusal::PeerUrlExists);
        }
        let learner_count = self.iter().filter(|member| member.is_learner).count();
        if learner && member.is_learner && learner_count >= learner_count_max {
            return Err(MembershipRefusal::TooManyLearners);
        }
        Ok(())
    }

    fn has_peer_url(&self, urls: &[String], except: Option<MemberId>) -> bool {
        self.iter()
            .filter(|member| Some(member.id) != except)
            .any(|member| member.peer_urls.iter().any(|url| urls.contains(url)))
    }

    fn update(&mut self, id: MemberId, batch: &mut Batch, change: impl FnOnce(&mut Member)) {
        let member = self.members.get_mut(&id).expect("a valid change is about a member");
        change(member);
        put(member, batch);
    }
}

/// Voters and learners as bucket `meta` holds them.
#[must_use]
pub fn conf_state_json(state: &ConfState) -> Bytes {
    let mut json = String::from("{");
    let lists = [
        ("voters", &state.voters),
        ("learners", &state.learners),
        ("voters_outgoing", &state.voters_outgoing),
        ("learners_next", &state.learners_next),
    ];
    for (name, ids) in lists {
        if !ids.is_empty() {
            let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
            json.push_str(&format!("\"{name}\":[{}],", ids.join(",")));
        }
    }
    json.push_str(&format!("\"auto_leave\":{}}}", state.auto_leave.unwrap_or_default()));
    json.into()
}

fn put(member: &Member, batch: &mut Batch) {
    batch.put(Bucket::Members, member.id.to_string(), member.to_json());
}

fn same_member(change: MemberId, context: MemberId) -> Result<(), MembershipFault> {
    if change == context { Ok(()) } else { Err(MembershipFault::OtherMember { change, context }) }
}

/// Reads an id in hexadecimal without padding.
pub(crate) fn parse_id(text: &str) -> Option<MemberId> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u64::from_str_radix(text, 16).ok()).flatten().map(MemberId)
}

fn id_of_key(bucket: &'static str, key: &[u8]) -> Result<MemberId, MembershipFault> {
    let text = String::from_utf8_lossy(key);
    parse_id(&text).ok_or_else(|| MembershipFault::Key { bucket, key: text.into_owned() })
}
