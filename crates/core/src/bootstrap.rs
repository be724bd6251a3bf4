//! Decides how a member starts: it founds a cluster, joins one, continues from its log, or refuses to start.
//!
//! The decision is reached in a chain of [`Step`]s. A step is either a question for the caller (which members the flags
//! name, what other members report) or the [`Decision`]. A question holds the facts known so far. Answering it returns
//! the next step or a [`Refusal`]:
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
//! * The log alone decides whether a member is new. The flags about the initial cluster matter only if there is no log,
//!   or if neither the log nor the backend file lists any members.
//! * No member starts under an id that was used before with another log. The other members show whether an id was used:
//!   they list a member's client URLs only after that member's own log has listed the member.
//! * A removed member does not start. A member whose log has lost entries starts only with `--force-new-cluster`.
//! * A member whose log is empty because of a crash founds the same cluster again, or founds no cluster.
//!
//! # Not here
//!
//! How questions are answered (DNS, HTTP, time limits), how flags are parsed, and the order in which files are opened
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

/// The identity of a member and of its cluster. It is decided before the first thread starts, and does not change.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The cluster's id.
    pub cluster_id: u64,
    /// The member's id in the cluster.
    pub member_id: u64,
    /// The name of the member (`--name`).
    pub name: String,
}

impl Identity {
    /// Reads the identity from a log's metadata record. The record has no name, so `name` comes from the flags.
    pub fn from_metadata(metadata: Option<&[u8]>, name: &str) -> Result<Self, Refusal> {
        let metadata = Metadata::decode(metadata.ok_or(Refusal::NoMetadata)?)?;
        match (metadata.node_id, metadata.cluster_id) {
            (Some(member_id), Some(cluster_id)) if member_id != 0 => {
                Ok(Self { cluster_id, member_id, name: name.to_owned() })
            }
            _ => Err(Refusal::NoMetadata),
        }
    }

    /// Encodes the metadata record at the start of a log.
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

/// The flags that affect how a member starts.
#[derive(Clone, Debug)]
pub struct Flags {
    /// The name of the member (`--name`).
    pub name: String,
    /// Whether the member joins a running cluster (`--initial-cluster-state=existing`).
    pub joins: bool,
    /// Whether the member continues as the only member (`--force-new-cluster`).
    pub is_alone: bool,
    /// Whether a discovery service provides the founders.
    pub is_discovered: bool,
    /// The maximum number of learners (`--max-learners`).
    pub learner_count_max: usize,
    /// The version above which the cluster version must not rise (`--hold-cluster-version`).
    pub held_version: Option<Version>,
}

/// The members listed in the flags, or in the DNS records that the flags name.
#[derive(Clone, Debug, Default)]
pub struct InitialCluster {
    /// Names with their peer URLs, sorted by name. The URLs of each member are also sorted.
    pub members: Vec<(String, Vec<String>)>,
    /// The token from which the ids are derived (`--initial-cluster-token`).
    pub token: String,
}

impl InitialCluster {
    /// Returns the peer URLs of all members except the named one, sorted.
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
    /// Members of the cluster. Empty if the describing member is still joining.
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

/// Formats the cluster as etcd does in its errors.
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

/// Returns whether a member has published its client URLs. A member publishes its client URLs only after its own log
/// lists the member.
fn has_published(member: &Member) -> bool {
    !member.client_urls.is_empty()
}

/// Why no description of the cluster is available. The error messages are etcd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCluster {
    /// No response was received from any URL.
    #[error("could not retrieve cluster information from the given URLs")]
    Unreachable,
    /// All members that responded are still joining.
    #[error("failed to get raft cluster member(s) from the given URLs")]
    Empty,
}

/// Why the members in the flags are not the members of the running cluster. The error messages are etcd's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerUrlsMismatch {
    /// The flags name more or fewer members than the cluster has.
    #[error("member count is unequal")]
    Count,
    /// The peer URLs of a member of the cluster match no member in the flags.
    #[error(
        "PeerURLs: no match found for existing member ({id}, [{urls}]), last resolver error ({last})"
    )]
    NoMatch {
        /// The id of the member.
        id: MemberId,
        /// The member's peer URLs.
        urls: String,
        /// The difference that was found when these URLs were last compared with URLs in the flags.
        last: String,
    },
}

/// Why a member must not start. The error message is etcd's if etcd has this error.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the error text describes each variant")]
pub enum Refusal {
    #[error("this member has found that its log has lost entries, and must not vote again ({0})")]
    LogMarkedLost(String),
    #[error("entries up to index {0} have been applied, but there is no write-ahead log")]
    LogMissing(LogIndex),
    #[error("the write-ahead log has no metadata record with the member id and the cluster id")]
    NoMetadata,
    #[error("cannot read the metadata of the write-ahead log: {0}")]
    Metadata(#[from] prost::DecodeError),
    #[error(
        "invalid downgrade; server version is lower than determined cluster version: {held} (by \
         --hold-cluster-version) < {cluster}; start without this flag, lower the cluster version \
         with `ctl downgrade enable`, and set the flag again once `/version` shows the lower version"
    )]
    HeldBack { held: Version, cluster: Version },
    #[error(
        "the cluster version is {cluster}, but members older than 3.5 stop with a panic when they apply the entry \
         with which this member would publish its client URLs; upgrade all members to etcd 3.5 first, and wait until \
         `/version` shows the cluster version 3.5.0"
    )]
    TooOld { cluster: Version },
    #[error("the member has been permanently removed from the cluster")]
    Removed,
    #[error("membership: too many learner members in cluster")]
    TooManyLearners,
    #[error(
        "the write-ahead log was created for member {logged_member:x} of cluster {logged_cluster:x} and is \
         still empty, but the flags describe cluster {cluster:x} with this member as {member:x}; remove the \
         data directory, or start with the same flags as the first time"
    )]
    OtherFounding { logged_cluster: u64, logged_member: u64, cluster: u64, member: u64 },
    #[error("couldn't find local name {0:?} in the initial cluster configuration")]
    NotInitial(String),
    #[error("member {0} has already been bootstrapped")]
    Bootstrapped(MemberId),
    #[error(
        "member {id} of the cluster has already run, under the name {name:?}, but its log is missing or incomplete"
    )]
    Published { id: MemberId, name: String },
    #[error("cannot fetch cluster info from peer urls: {0}")]
    NoCluster(#[from] NoCluster),
    #[error("error validating peerURLs {cluster}: {mismatch}")]
    PeerUrls { cluster: String, mismatch: PeerUrlsMismatch },
    #[error("incompatible with current running cluster")]
    Incompatible,
}

/// The oldest version of members that can apply the entries that a Quorate member proposes.
const OLDEST_SUPPORTED: Version = Version::new(3, 5);

/// Checks that the members of a cluster with this version can apply the entries that a Quorate member proposes.
///
/// Every new cluster has version 3.0 at first. Then only the versions of its members matter: `server` is the version of
/// one member, if it is known.
pub fn check_supported(cluster: Version, server: Option<Version>) -> Result<(), Refusal> {
    let is_supported = match server {
        Some(server) if cluster == Version::MINIMUM => server >= OLDEST_SUPPORTED,
        Some(_) | None => cluster >= OLDEST_SUPPORTED || cluster == Version::MINIMUM,
    };
    if is_supported { Ok(()) } else { Err(Refusal::TooOld { cluster }) }
}

/// Why the initial cluster in the flags is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The member founds a cluster.
    Found,
    /// The member joins a cluster.
    Join,
    /// The member repeats a founding that was interrupted by a crash.
    FoundAgain,
    /// The member, which has a log, needs to learn who the other members are. Missing or wrong flags are ignored.
    Learn,
}

/// A question about the members that the flags name.
#[derive(Debug)]
pub struct AskInitial {
    flags: Flags,
    purpose: Purpose,
    /// The identity in the log, if there is a log.
    identity: Option<Identity>,
}

/// The next step towards the decision.
#[derive(Debug)]
pub enum Step {
    /// Asks which members the flags name.
    Initial(AskInitial),
    /// Asks these URLs in turn for a description of the cluster.
    Members(AskMembers),
    /// Asks each of these URLs for its description of this member.
    OwnRow(AskOwnRow),
    /// Asks whether two lists of URLs resolve to the same addresses.
    SameUrls(AskSameUrls),
    /// Asks whether the versions of these members allow this member to join.
    Versions(AskVersions),
    /// The decision. No questions are left.
    Decided(Decision),
}

/// How the member starts.
#[derive(Debug)]
pub enum Decision {
    /// The member founds its cluster.
    Found(Founding),
    /// The member joins a cluster, with an empty log.
    Join(Joining),
    /// The member continues from its log.
    Continue {
        /// The other members as listed by a peer, if the member's own files do not list them.
        others: Vec<Member>,
        /// Why the other members are still unknown, if this member asked for them and received no usable answer.
        unlearned: Option<Unlearned>,
    },
}

/// Whether a directory contains a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directory {
    /// There is no log, so the member is created.
    New,
    /// There is a log.
    Used,
}

impl Flags {
    /// Classifies a directory by whether it has a log, and by the mark that records why its log was lost. A directory
    /// with such a mark is refused, unless it has a log and `--force-new-cluster` is set.
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

    /// Creates a member in a directory without a log. `applied` is the last entry that a backend file in the directory
    /// contains. Such an entry came from a log. Without that log the entries that this member has acknowledged and the
    /// votes that it has cast are unknown, so the member refuses to start. A backend file without applied entries comes
    /// from a new member that stopped before it created the log.
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
        // If the cluster has more learners than this member allows, this member would refuse membership changes that
        // the other members accept, so it does not start.
        if count > self.learner_count_max { Err(Refusal::TooManyLearners) } else { Ok(()) }
    }

    /// Checks that a member may continue with these members in its backend file.
    pub fn check_members(&self, own: &Identity, members: &Members) -> Result<(), Refusal> {
        if members.is_removed(own.id()) {
            return Err(Refusal::Removed);
        }
        self.check_learners(members.iter())
    }

    /// Checks that this member can continue in a cluster with the version in its files: the version must be supported,
    /// and must not exceed `--hold-cluster-version`.
    pub fn check_version(&self, cluster: Option<Version>) -> Result<(), Refusal> {
        if let Some(cluster) = cluster {
            check_supported(cluster, None)?;
        }
        match (self.held_version, cluster) {
            (Some(held), Some(cluster)) if cluster > held => {
                Err(Refusal::HeldBack { held, cluster })
            }
            _ => Ok(()),
        }
    }
}

impl AskInitial {
    /// Returns the purpose of the question, which determines how the flags are checked.
    #[must_use]
    pub const fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Continues with the members in the flags.
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

    /// Continues if the flags name no usable members. Returns `None` if the decision depends on them.
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
