//! Restart of a member that has a log: whether it repeats its founding, and how it finds the other members if its files
//! do not list them.

use quorate_raft::{EntryKind, LogIndex};
use quorate_state::members::{self, Members};
use quorate_storage::wal::{self, SnapshotMark};

use super::join::AskSameUrls;
use super::{
    AskInitial, Cluster, Decision, Flags, Founding, Identity, InitialCluster, NoCluster, Purpose,
    Refusal, Step,
};
use crate::start::Start;

/// A question about the members of the cluster. The URLs are asked one after another, until one of them lists members.
#[derive(Debug)]
pub struct AskMembers {
    urls: Vec<String>,
    then: Then,
}

#[derive(Debug)]
enum Then {
    Join(Flags, InitialCluster),
    Learn(Identity),
}

/// Why a restarting member does not know the other members yet. Such a member waits until the leader contacts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlearned {
    /// No URL returned a list of members.
    NoCluster(NoCluster),
    /// The members that answered belong to another cluster, which has this id.
    OtherCluster(u64),
}

impl AskMembers {
    pub(super) const fn to_join(urls: Vec<String>, flags: Flags, initial: InitialCluster) -> Self {
        Self { urls, then: Then::Join(flags, initial) }
    }

    /// Returns the URLs to ask.
    #[must_use]
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Continues with the first answer that lists members.
    pub fn answer(self, answer: Result<Cluster, NoCluster>) -> Result<Step, Refusal> {
        let identity = match self.then {
            Then::Join(flags, initial) => return AskSameUrls::begin(flags, initial, answer?),
            Then::Learn(identity) => identity,
        };
        let unlearned = match answer {
            Ok(cluster) if cluster.id == identity.cluster_id => {
                // A member that has published its client URLs had a member list in its files, so this member's files
                // have lost the list.
                return match cluster.published(identity.id()) {
                    Some(own) => Err(Refusal::Published { id: own.id, name: own.name.clone() }),
                    None => Ok(Step::Decided(Decision::Continue {
                        others: cluster.others(identity.id()),
                        unlearned: None,
                    })),
                };
            }
            Ok(cluster) => Unlearned::OtherCluster(cluster.id),
            Err(error) => Unlearned::NoCluster(error),
        };
        let (others, unlearned) = (Vec::new(), Some(unlearned));
        Ok(Step::Decided(Decision::Continue { others, unlearned }))
    }
}

/// Returns whether the member stopped after it had created its log and before it had written the first entries. The log
/// was read from `mark` on, and the state has applied all entries up to `applied`.
#[must_use]
pub fn is_blank(contents: &wal::Contents, mark: &SnapshotMark, applied: LogIndex) -> bool {
    contents.hard_state.is_empty() && mark.index == 0 && applied == LogIndex::ZERO
}

impl Flags {
    /// Resumes a member's first start that was interrupted by a crash, after the log was created and before its first
    /// entries were written.
    ///
    /// A founder repeats its founding, because it has not contacted any other member yet. The flags must still describe
    /// the same cluster, so that no second cluster is founded. A member that was joining waits for the leader, as
    /// before, and so does one of several founders that a discovery service brought together, because the flags do not
    /// list the other founders. A founder whose flags are missing also waits if there are other founders, because the
    /// other founders have it in their lists and will contact it.
    pub fn begin_again(
        self,
        identity: Identity,
        lost_log: Option<String>,
    ) -> Result<Step, Refusal> {
        if let Some(reason) = lost_log {
            return Err(Refusal::LogMarkedLost(reason));
        }
        let founds = is_sole_founder(&identity) || !self.joins && !self.is_discovered;
        let purpose = if founds { Purpose::FoundAgain } else { Purpose::Learn };
        Ok(Step::Initial(AskInitial { flags: self, purpose, identity: Some(identity) }))
    }

    /// Continues from a log, and a backend file with these members. If neither lists any member, this member stopped
    /// before the leader sent it entries or a snapshot, and the other members are asked.
    #[must_use]
    pub fn go_on(self, identity: Identity, start: &Start, applied: &Members) -> Step {
        let lists_members = applied.iter().len() > 0
            || start.entries.iter().any(|entry| entry.kind == EntryKind::ConfChange);
        if lists_members {
            return Step::Decided(Decision::Continue { others: Vec::new(), unlearned: None });
        }
        let (purpose, identity) = (Purpose::Learn, Some(identity));
        Step::Initial(AskInitial { flags: self, purpose, identity })
    }
}

pub(super) fn found_again(
    flags: &Flags,
    identity: Identity,
    initial: &InitialCluster,
) -> Result<Step, Refusal> {
    match Founding::of(initial, &flags.name) {
        Ok(founding) if founding.is_of(&identity) => Ok(Step::Decided(Decision::Found(founding))),
        // A sole founder has no other member to wait for, so the member refuses to start with different flags.
        Ok(founding) if is_sole_founder(&identity) => Err(Refusal::OtherFounding {
            logged_cluster: identity.cluster_id,
            logged_member: identity.member_id,
            cluster: founding.identity.cluster_id,
            member: founding.identity.member_id,
        }),
        Err(refusal) if is_sole_founder(&identity) => Err(refusal),
        _ => Ok(learn(initial.urls_of_others(&flags.name), identity)),
    }
}

pub(super) const fn learn(urls: Vec<String>, identity: Identity) -> Step {
    Step::Members(AskMembers { urls, then: Then::Learn(identity) })
}

/// Returns whether a member is the sole founder of its cluster. The cluster id is then derived from this member's id
/// alone.
pub(super) fn is_sole_founder(identity: &Identity) -> bool {
    members::cluster_id([identity.id()]) == identity.cluster_id
}
