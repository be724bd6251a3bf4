//! Membership: the members of the cluster, removed ids, and the validation of conf changes.
//!
//! Every member must make the same decision about a conf change in the log. The decision therefore depends only on the
//! applied members and on the learner limit, which must be the same on every member.
//!
//! # Invariants
//!
//! * A removed id is never used again.
//! * No two members share a peer URL if every change was validated against these rules.
//!
//! # Not here
//!
//! Quorum and connectivity checks before a change is proposed (`member::membership`), and the effect of a change on
//! consensus (`quorate-raft`).

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
pub use self::v2_store::{V2Error, V2Membership, path_of_v2_data};
use crate::backend::Batch;
use crate::schema::Bucket;
use crate::units::MemberId;

/// The default cluster token.
#[cfg(test)]
pub(crate) const CLUSTER_TOKEN_DEFAULT: &str = "etcd-cluster";

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The member's id.
    pub id: MemberId,
    /// The URLs for peers, in their original order.
    pub peer_urls: Vec<String>,
    /// Whether the member is a learner, which does not vote.
    pub is_learner: bool,
    /// The member's name; empty until the member has started and published it.
    pub name: String,
    /// The URLs for clients; empty until the member has published them.
    pub client_urls: Vec<String>,
}

impl Member {
    /// Returns a voter that has not started yet.
    #[must_use]
    pub const fn new(id: MemberId, peer_urls: Vec<String>) -> Self {
        Self { id, peer_urls, is_learner: false, name: String::new(), client_urls: Vec::new() }
    }

    /// Returns whether the member has started. A member publishes its name when it starts.
    #[must_use]
    pub const fn is_started(&self) -> bool {
        !self.name.is_empty()
    }
}

/// Computes a member's id from its peer URLs and a value that distinguishes members with the same
/// URLs: the cluster token for founders, the time of the request in Unix seconds for members added
/// later.
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

/// Computes the id of a new cluster from its founders.
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
    let first = digest.first_chunk().expect("a digest of 20 bytes has at least 8 bytes");
    u64::from_be_bytes(*first)
}

/// Why a conf change is refused, with the text that the proposer receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipRefusal {
    /// The id belonged to a removed member and cannot be used again.
    #[error("etcdserver: member not found")]
    Removed,
    /// No member has this id.
    #[error("etcdserver: member not found")]
    NotFound,
    /// A member with this id already exists.
    #[error("etcdserver: member ID already exist")]
    Exists,
    /// Another member has one of the URLs.
    #[error("etcdserver: Peer URLs already exists")]
    PeerUrlExists,
    /// The member is not a learner, so it cannot be promoted.
    #[error("etcdserver: can only promote a learner member")]
    NotLearner,
    /// The learner limit is reached.
    #[error("etcdserver: too many learner members in cluster")]
    TooManyLearners,
    /// The change would leave no voter. It was checked when it was proposed, but another voter has been removed since.
    /// Consensus keeps its last voter, so the members table must keep it, too.
    #[error("etcdserver: re-configuration failed due to not enough started members")]
    LastVoter,
}

impl MembershipRefusal {
    /// Returns the text that is used in responses between members.
    #[must_use]
    pub const fn peer_text(self) -> &'static str {
        match self {
            Self::Removed => "membership: ID removed",
            Self::NotFound => "membership: ID not found",
            Self::Exists => "membership: ID exists",
            Self::PeerUrlExists => "membership: peerURL exists",
            Self::NotLearner => "membership: can only promote a learner member",
            Self::TooManyLearners => "membership: too many learner members in cluster",
            Self::LastVoter => "membership: the last voting member cannot be removed",
        }
    }
}

/// A conf change in the log, or a row of a bucket, is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipFault {
    /// The JSON cannot be decoded.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// The conf change and its context name different members.
    #[error("conf change for member {change} has a context for member {context}")]
    OtherMember {
        /// The member named in the conf change.
        change: MemberId,
        /// The member named in the context.
        context: MemberId,
    },
    /// The type of the conf change is unknown to this version.
    #[error("unknown conf change type {0}")]
    UnknownType(i32),
    /// The key of a row is not a member id.
    #[error("bucket {bucket}: {key:?} is not a member id")]
    Key {
        /// The bucket.
        bucket: &'static str,
        /// The key.
        key: String,
    },
}

/// A valid change to the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// A new member, voter or learner.
    Add(Member),
    /// A learner becomes a voter.
    Promote(MemberId),
    /// A member leaves the cluster.
    Remove(MemberId),
    /// A member's peer URLs change.
    UpdatePeerUrls(MemberId, Vec<String>),
}

/// The members of the cluster, and the ids of removed members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    members: BTreeMap<MemberId, Member>,
    removed: BTreeSet<MemberId>,
}

impl Members {
    /// Creates a cluster with these members and removed ids.
    #[must_use]
    pub fn new(
        members: impl IntoIterator<Item = Member>,
        removed: impl IntoIterator<Item = MemberId>,
    ) -> Self {
        let members = members.into_iter().map(|member| (member.id, member)).collect();
        Self { members, removed: removed.into_iter().collect() }
    }

    /// Decodes the rows of buckets `members` and `members_removed`.
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

    /// Returns all members, by id.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.members.values()
    }

    /// Returns the member with this id.
    #[must_use]
    pub fn get(&self, id: MemberId) -> Option<&Member> {
        self.members.get(&id)
    }

    /// Returns whether the id belonged to a removed member.
    #[must_use]
    pub fn is_removed(&self, id: MemberId) -> bool {
        self.removed.contains(&id)
    }

    /// Returns the removed ids, in ascending order.
    pub fn removed(&self) -> impl ExactSizeIterator<Item = MemberId> {
        self.removed.iter().copied()
    }

    /// Returns the raft configuration of these members.
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

    /// Validates a conf change from the log without applying it.
    pub fn validate(
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
        // In consensus, id 0 means no member.
        if id == MemberId(0) {
            return Ok(Err(MembershipRefusal::NotFound));
        }
        let known = self.members.get(&id);
        let context = || -> Result<ChangeContext, MembershipFault> {
            let json = change.context.as_deref().unwrap_or_default();
            Ok(ChangeContext::from_json(json)?)
        };
        let verdict = match kind {
            ConfChangeType::ConfChangeAddNode | ConfChangeType::ConfChangeAddLearnerNode => {
                let ChangeContext { member, is_promote } = context()?;
                // As in etcd's consensus, the type of the change, not its context, decides whether the member is a
                // learner.
                let is_learner = kind == ConfChangeType::ConfChangeAddLearnerNode;
                let member = Member { is_learner, ..member };
                let verdict = match (is_promote, known) {
                    (true, None) => Err(MembershipRefusal::NotFound),
                    (true, Some(known)) if is_learner || !known.is_learner => {
                        Err(MembershipRefusal::NotLearner)
                    }
                    (true, Some(_)) => Ok(()),
                    (false, Some(_)) => Err(MembershipRefusal::Exists),
                    (false, None) => self.check_new(&member, learner_count_max),
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
                Some(known) if !known.is_learner && self.voter_count() == 1 => {
                    Err(MembershipRefusal::LastVoter)
                }
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

    fn voter_count(&self) -> usize {
        self.iter().filter(|member| !member.is_learner).count()
    }

    /// Applies a validated change.
    pub fn apply(&mut self, change: MemberChange, batch: &mut Batch) {
        match change {
            MemberChange::Add(member) => {
                assert!(
                    !self.removed.contains(&member.id),
                    "a removed id is never added again: otherwise its old process would rejoin the cluster"
                );
                put(&member, batch);
                self.members.insert(member.id, member);
            }
            MemberChange::Promote(id) => {
                assert!(
                    self.members.get(&id).is_some_and(|member| member.is_learner),
                    "only a learner is promoted: otherwise consensus would count a voter twice"
                );
                self.update(id, batch, |member| member.is_learner = false);
            }
            MemberChange::UpdatePeerUrls(id, peer_urls) => {
                self.update(id, batch, |member| member.peer_urls = peer_urls);
            }
            MemberChange::Remove(id) => {
                let removed = self.members.remove(&id);
                assert!(
                    removed.is_some(),
                    "only an existing member is removed: otherwise a future member could not use the id"
                );
                self.removed.insert(id);
                batch.delete(Bucket::Members, id.to_string());
                batch.put(Bucket::MembersRemoved, id.to_string(), &b"removed"[..]);
            }
        }
    }

    /// Sets the attributes that a member publishes itself. Without a batch, they are set only in memory. If the member
    /// was removed in the meantime, nothing changes. Returns whether the member exists.
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

    /// Applies a conf change from the log to the members of a v2 tree. The caller uses it to replay the log onto the
    /// tree of a `.snap` file. A change that was refused originally is refused again.
    pub fn replay(
        &mut self,
        change: &ConfChange,
        learner_count_max: usize,
    ) -> Result<(), MembershipFault> {
        if let Ok(valid) = self.validate(change, learner_count_max)? {
            self.apply(valid, &mut Batch::new());
        }
        Ok(())
    }

    /// Returns the correct members for a backend file written by a version that did not store every change (3.5.1 to
    /// 3.5.19, including files that were upgraded afterwards). `v2` contains the members in the chosen `.snap` file,
    /// with all later entries of the log replayed onto them. The members in `v2` replace the members in the backend
    /// file. Members that are only in the backend file are kept unless they were removed.
    #[must_use]
    pub fn reconciled(&self, v2: &Self) -> Self {
        let mut truth = self.clone();
        truth.removed.extend(&v2.removed);
        truth.members.extend(v2.members.iter().map(|(id, member)| (*id, member.clone())));
        truth.members.retain(|id, _| !truth.removed.contains(id));
        truth
    }

    /// Returns the rows of the members in the raft configuration, with the learners marked. In etcd, the rows can
    /// differ from the raft configuration. An update of a learner's URLs turns its row into the row of a voter, some
    /// versions did not store promotions, and old restores left rows of former members. Returns `None` if a member of
    /// the configuration has no row.
    #[must_use]
    pub fn counted_as(&self, voters: &[u64], learners: &[u64]) -> Option<Self> {
        let counted = |ids: &[u64], is_learner| {
            let row = |id: &u64| self.members.get(&MemberId(*id)).cloned();
            let rows: Option<Vec<Member>> = ids.iter().map(row).collect();
            Some(rows?.into_iter().map(move |row| (row.id, Member { is_learner, ..row })))
        };
        let members = counted(voters, false)?.chain(counted(learners, true)?).collect();
        Some(Self { members, ..self.clone() })
    }

    /// Writes the rows that differ from `stored`, and removes the rows that exist only in `stored`. This repairs rows
    /// left by older versions.
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
        learner_count_max: usize,
    ) -> Result<(), MembershipRefusal> {
        if self.has_peer_url(&member.peer_urls, None) {
            return Err(MembershipRefusal::PeerUrlExists);
        }
        let voter_count = self.voter_count();
        if member.is_learner && self.members.len() - voter_count >= learner_count_max {
            return Err(MembershipRefusal::TooManyLearners);
        }
        if member.is_learner && voter_count == 0 {
            return Err(MembershipRefusal::LastVoter);
        }
        Ok(())
    }

    fn has_peer_url(&self, urls: &[String], except: Option<MemberId>) -> bool {
        self.iter()
            .filter(|member| Some(member.id) != except)
            .any(|member| member.peer_urls.iter().any(|url| urls.contains(url)))
    }

    fn update(&mut self, id: MemberId, batch: &mut Batch, change: impl FnOnce(&mut Member)) {
        let member = self.members.get_mut(&id).expect("a valid change names an existing member");
        change(member);
        put(member, batch);
    }
}

/// Encodes voters and learners as stored in bucket `meta`.
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

/// Parses a member id in hexadecimal without padding.
pub(crate) fn parse_id(text: &str) -> Option<MemberId> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u64::from_str_radix(text, 16).ok()).flatten().map(MemberId)
}

fn id_of_key(bucket: &'static str, key: &[u8]) -> Result<MemberId, MembershipFault> {
    let text = String::from_utf8_lossy(key);
    parse_id(&text).ok_or_else(|| MembershipFault::Key { bucket, key: text.into_owned() })
}
