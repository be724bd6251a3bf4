//! The verdict of a start: found a cluster, join one, continue from the log, or refuse to start.
//!
//! A start is a chain of [`Step`]s. A step is either a question that the caller answers (what the flags name, what
//! other members know) or the [`Decision`]. A question holds all that is known so far, and answering it returns the
//! next step or a [`Refusal`]:
//!
//! ```text
//! log?  joins?
//! no    no      Initial -> OwnRow                                         -> Found
//! no    yes     Initial -> Members -> SameUrls ... -> OwnRow -> Versions   -> Join
//! yes   any     the log holds nothing: Initial -> [Members]                -> Found or Continue
//!               the log or the file lists members:                            Continue
//!               neither lists any: Initial -> Members                      -> Continue
//! ```
//!
//! # Invariants
//!
//! * The log alone decides whether a member is new. The flags about the initial cluster matter only without a log, or
//!   with one that holds nothing.
//! * No member starts under an id that has been used with a log that it does not have. Other members show that: they
//!   list client URLs only of a member whose log has listed it.
//! * A member that was removed, or whose log has lost entries, does not start, except that the latter may with
//!   `--force-new-cluster`.
//! * A log that a crash left without entries founds the same cluster again or none.
//!
//! # Not here
//!
//! How questions are answered (DNS, HTTP, time limits), reading the flags, and the order in which files are opened
//! ([`super::start`] and the server).

mod found;
mod join;
mod restart;

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use prost::Message as _;
use quorate_api::etcdserverpb::Metadata;
use quorate_raft::LogIndex;
use quorate_state::members::{Member, Members};
use quorate_state::units::MemberId;
use quorate_state::versions::Version;

pub use self::found::{Founding, append_entries, create_log};
pub use self::join::{AskOwnRow, AskSameUrls, AskVersions, Joining, UrlComparison};
pub use self::restart::{AskMembers, Unlearned, is_blank};

/// Which member of which cluster this is. It is decided before the first thread starts, and does not change.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The cluster's id.
    pub cluster_id: u64,
    /// The member's id in it.
    pub member_id: u64,
    /// `--name`.
    pub name: String,
}

impl Identity {
    /// Reads the identity from the metadata record of a log. `name` is the one in the flags: the log has none.
    pub fn from_metadata(metadata: Option<&[u8]>, name: &str) -> Result<Self, Refusal> {
        let metadata = Metadata::decode(metadata.ok_or(Refusal::NoMetadata)?)?;
        match (metadata.node_id, metadata.cluster_id) {
            (Some(member_id), Some(cluster_id)) if member_id != 0 => {
                Ok(Self { cluster_id, member_id, name: name.to_owned() })
            }
            _ => Err(Refusal::NoMetadata),
        }
    }

    /// The metadata record that a log begins with.
    #[must_use]
    pub fn to_metadata(&self) -> Bytes {
        let metadata =
            Metadata { node_id: Some(self.member_id), cluster_id: Some(self.cluster_id) };
        metadata.encode_to_vec().into()
    }

    const fn id(&self) -> MemberId {
        MemberId(self.member_id)
    }
}

/// The flags that affect a start.
#[derive(Clone, Debug)]
pub struct Flags {
    /// `--name`.
    pub name: String,
    /// `--initial-cluster-state=existing`.
    pub joins: bool,
    /// `--force-new-cluster`.
    pub is_alone: bool,
    /// Whether the founders are found through a discovery service.
    pub is_discovered: bool,
    /// `--max-learners`.
    pub learner_count_max: usize,
    /// `--hold-cluster-version`.
    pub held_version: Option<Version>,
}

/// The members listed by the flags, or by the DNS records that the flags name.
#[derive(Clone, Debug, Default)]
pub struct InitialCluster {
    /// Names and peer URLs, each list sorted.
    pub members: Vec<(String, Vec<String>)>,
    /// `--initial-cluster-token`.
    pub token: String,
}

impl InitialCluster {
    /// The peer URLs of all members but the named one, sorted.
    #[must_use]
    pub fn urls_of_others(&self, own: &str) -> Vec<String> {
        let others = self.members.iter().filter(|(name, _)| name != own);
        let mut urls: Vec<String> = others.flat_map(|(_, urls)| urls.clone()).collect();
        urls.sort();
        urls
    }
}

/// A cluster, as one of its members describes it.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The cluster's id.
    pub id: u64,
    /// Its members. A member that is itself only joining lists none.
    pub members: BTreeMap<MemberId, Member>,
}

impl Cluster {
    fn others(self, own: MemberId) -> Vec<Member> {
        self.members.into_values().filter(|member| member.id != own).collect()
    }

    fn published(&self, id: MemberId) -> Option<&Member> {
        self.members.get(&id).filter(|member| has_published(member))
    }
}

/// As etcd prints it in its errors.
impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members: Vec<String> = self
            .members
            .values()
            .map(|member| {
                format!(
                    "&{{ID:{} RaftAttributes:{{PeerURLs:[{}] IsLearner:{}}} Attributes:{{Name:{} \
                     ClientURLs:[{}]}}}}",
                    member.id,
                    member.peer_urls.join(" "),
                    member.is_learner,
                    member.name,
                    member.client_urls.join(" ")
                )
            })
            .collect();
        let (id, members) = (self.id, members.join(" "));
        write!(f, "{{ClusterID:{id:x} Members:[{members}] RemovedMemberIDs:[]}}")
    }
}

/// Whether a member has published its client URLs. It does that only when its own log lists it.
fn has_published(member: &Member) -> bool {
    !member.client_urls.is_empty()
}

/// Why no description of the cluster is known; prints as etcd does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCluster {
    /// No URL has answered.
    #[error("could not retrieve cluster information from the given URLs")]
    Unreachable,
    /// Members that are only joining have answered, and no other.
    #[error("failed to get raft cluster member(s) from the given URLs")]
    Empty,
}

/// Why the members that the flags name are not those of the running cluster; prints as etcd does.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerUrlsMismatch {
    /// There are more of them, or fewer.
    #[error("member count is unequal")]
    Count,
    /// A member of the cluster has other URLs than any in the flags.
    #[error(
        "PeerURLs: no match found for existing member ({id}, [{urls}]), last resolver error ({last})"
    )]
    NoMatch {
        /// The member.
        id: MemberId,
        /// Its peer URLs.
        urls: String,
        /// How they differ from the last ones that they were compared with.
        last: String,
    },
}

/// Why a member must not start; where etcd has a text for it, the text is etcd's.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say what each is")]
pub enum Refusal {
    #[error("this member has found that its log has lost entries, and must not vote again ({0})")]
    LogMarkedLost(String),
    #[error("entries up to index {0} have been applied, and there is no write-ahead log")]
    LogMissing(LogIndex),
    #[error("the write-ahead log has no metadata record with the member id and the cluster id")]
    NoMetadata,
    #[error("cannot read the metadata of the write-ahead log: {0}")]
    Metadata(#[from] prost::DecodeError),
    #[error(
        "invalid downgrade; server version is lower than determined cluster version: {held} (by \
         --hold-cluster-version) < {cluster}; start without it and lower the version first, by `ctl downgrade \
         enable`; if that has been done, wait until `/version` shows the lower version"
    )]
    HeldBack { held: Version, cluster: Version },
    #[error("the member has been permanently removed from the cluster")]
    Removed,
    #[error("membership: too many learner members in cluster")]
    TooManyLearners,
    #[error(
        "the write-ahead log was created for member {logged_member:x} of cluster {logged_cluster:x} and is \
         still empty, but the flags found cluster {cluster:x} with this member as {member:x}; remove the \
         data directory, or start with the flags of the first start"
    )]
    OtherFounding { logged_cluster: u64, logged_member: u64, cluster: u64, member: u64 },
    #[error("couldn't find local name {0:?} in the initial cluster configuration")]
    NotInitial(String),
    #[error("member {0} has already been bootstrapped")]
    Bootstrapped(MemberId),
    #[error("member {id} of the cluster has run before, as {name:?}, and its log is missing")]
    Published { id: MemberId, name: String },
    #[error("cannot fetch cluster info from peer urls: {0}")]
    NoCluster(#[from] NoCluster),
    #[error("error validating peerURLs {cluster}: {mismatch}")]
    PeerUrls { cluster: String, mismatch: PeerUrlsMismatch },
    #[error("incompatible with current running cluster")]
    Incompatible,
}

/// The purpose of a question about the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To found a cluster.
    Found,
    /// To join a cluster.
    Join,
    /// To finish a founding that a crash has cut short.
    FoundAgain,
    /// To find other members. Missing or wrong flags are ignored.
    Learn,
}

/// Asks which members the flags name.
#[derive(Debug)]
pub struct AskInitial {
    flags: Flags,
    purpose: Purpose,
    /// The identity in the log, if there is a log.
    identity: Option<Identity>,
}

/// The next step of a start.
#[derive(Debug)]
pub enum Step {
    /// Which members do the flags name?
    Initial(AskInitial),
    /// How does the first of these URLs that knows the cluster describe it?
    Members(AskMembers),
    /// How does each of these URLs describe this member?
    OwnRow(AskOwnRow),
    /// Do these two lists of URLs lead to the same addresses?
    SameUrls(AskSameUrls),
    /// Do the versions of these members allow this one to join?
    Versions(AskVersions),
    /// The decision; no question is left.
    Decided(Decision),
}

/// How the member starts.
#[derive(Debug)]
pub enum Decision {
    /// It founds its cluster.
    Found(Founding),
    /// It joins a cluster, with an empty log.
    Join(Joining),
    /// It continues from its log.
    Continue {
        /// The other members, if its files do not list them and a member has.
        others: Vec<Member>,
        /// Why they were asked for in vain.
        unlearned: Option<Unlearned>,
    },
}

/// Whether a directory holds a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directory {
    /// There is no log: the member is created.
    New,
    /// There is one.
    Used,
}

impl Flags {
    /// Decides what a directory holds by the mark that says why its log is lost, and by whether there is a log. With
    /// `--force-new-cluster` a lost log is used, but only if there is one.
    pub fn classify_directory(
        &self,
        lost_log: Option<String>,
        has_log: bool,
    ) -> Result<Directory, Refusal> {
        match lost_log {
            Some(reason) if !(self.is_alone && has_log) => Err(Refusal::LogMarkedLost(reason)),
            _ => Ok(if has_log { Directory::Used } else { Directory::New }),
        }
    }

    /// Creates a member in a directory without a log. `applied` is the last entry that a backend file there contains:
    /// it came from a log, and without that log it is unknown what this member has acknowledged and whom it has voted
    /// for. A backend file that has applied nothing is what a first start leaves that did not get as far as the log.
    pub fn create(self, applied: LogIndex) -> Result<Step, Refusal> {
        if applied > LogIndex::ZERO {
            return Err(Refusal::LogMissing(applied));
        }
        let purpose = if self.joins { Purpose::Join } else { Purpose::Found };
        Ok(Step::Initial(AskInitial { flags: self, purpose, identity: None }))
    }

    fn check_learners<'a>(
        &self,
        members: impl IntoIterator<Item = &'a Member>,
    ) -> Result<(), Refusal> {
        let count = members.into_iter().filter(|member| member.is_learner).count();
        // With more learners than it allows, this member would judge membership changes unlike the others.
        if count > self.learner_count_max { Err(Refusal::TooManyLearners) } else { Ok(()) }
    }

    /// Makes sure that a member may continue with these members in its backend file.
    pub fn check_members(&self, own: &Identity, members: &Members) -> Result<(), Refusal> {
        if members.is_removed(own.id()) {
            return Err(Refusal::Removed);
        }
        self.check_learners(members.iter())
    }

    /// Makes sure that a member which is held back does not open the files of a cluster of a higher version.
    pub fn check_version(&self, cluster: Option<Version>) -> Result<(), Refusal> {
        match (self.held_version, cluster) {
            (Some(held), Some(cluster)) if cluster > held => {
                Err(Refusal::HeldBack { held, cluster })
            }
            _ => Ok(()),
        }
    }
}

impl AskInitial {
    /// The purpose, which determines how the flags are checked.
    #[must_use]
    pub const fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Continues with the members that the flags name.
    pub fn answer(self, initial: InitialCluster) -> Result<Step, Refusal> {
        let Self { flags, purpose, identity } = self;
        match (purpose, identity) {
            (Purpose::Join, _) => {
                let urls = initial.urls_of_others(&flags.name);
                Ok(Step::Members(AskMembers::to_join(urls, flags, initial)))
            }
            (Purpose::Found, _) | (_, None) => {
                let urls = initial.urls_of_others(&flags.name);
                let founding = Founding::of(&initial, &flags.name)?;
                Ok(Step::OwnRow(AskOwnRow::to_found(urls, founding)))
            }
            (Purpose::FoundAgain, Some(identity)) => {
                restart::found_again(&flags, identity, &initial)
            }
            (Purpose::Learn, Some(identity)) => {
                Ok(restart::learn(initial.urls_of_others(&flags.name), identity))
            }
        }
    }

    /// Continues although the flags name no usable members, or returns `None` if the start depends on them.
    #[must_use]
    pub fn go_without(self) -> Option<Step> {
        let Self { flags, purpose, identity } = self;
        match (purpose, identity) {
            (Purpose::FoundAgain, Some(identity)) if !restart::is_sole_founder(&identity) => {
                let (purpose, identity) = (Purpose::Learn, Some(identity));
                Some(Step::Initial(Self { flags, purpose, identity }))
            }
            (Purpose::Learn, _) => {
                Some(Step::Decided(Decision::Continue { others: Vec::new(), unlearned: None }))
            }
            (Purpose::Found | Purpose::Join | Purpose::FoundAgain, _) => None,
        }
    }
}

#[cfg(test)]
mod tests;
