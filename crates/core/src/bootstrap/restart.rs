//! A member that has a log: whether it finishes its founding, and where it learns of the other members if its files
//! do not list any.

use quorate_raft::{EntryKind, LogIndex};
use quorate_state::members::{self, Members};
use quorate_storage::wal::{self, SnapshotMark};

use super::join::AskSameUrls;
use super::{
    AskInitial, Cluster, Decision, Flags, Founding, Identity, InitialCluster, NoCluster, Purpose,
    Refusal, Step,
};
use crate::start::Start;

/// Asks one URL after the other who is in the cluster, until one lists members.
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

/// Why a member that continues does not know the others yet. It waits for the leader to reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlearned {
    /// No URL has answered with members.
    NoCluster(NoCluster),
    /// Members of the cluster with this id have answered.
    OtherCluster(u64),
}

impl AskMembers {
    pub(super) const fn to_join(urls: Vec<String>, flags: Flags, initial: InitialCluster) -> Self {
        Self { urls, then: Then::Join(flags, initial) }
    }

    /// The URLs.
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
                // Its files would list members if it had published its client URLs: they have lost that.
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

/// Whether a log read from this mark, and a state with this applied index, are what remains after a crash between the
/// creation of the log and its first entries.
#[must_use]
pub fn is_blank(contents: &wal::Contents, mark: &SnapshotMark, applied: LogIndex) -> bool {
    contents.hard_state.is_empty() && mark.index == 0 && applied == LogIndex::ZERO
}

impl Flags {
    /// Continues where a crash has stopped the first start, between the creation of the log and its first entries.
    ///
    /// A founder founds again: no other member has heard from it yet. So that this makes no other cluster, the flags
    /// must still found the same one. A member that was to join waits for the leader, as it did before. So does a
    /// founder whose flags are gone, if there were others, which know the founders too.
    pub fn begin_again(
        self,
        identity: Identity,
        lost_log: Option<String>,
    ) -> Result<Step, Refusal> {
        if let Some(reason) = lost_log {
            return Err(Refusal::LogMarkedLost(reason));
        }
        let founds = (!self.joins || is_sole_founder(&identity)) && !self.is_discovered;
        let purpose = if founds { Purpose::FoundAgain } else { Purpose::Learn };
        Ok(Step::Initial(AskInitial { flags: self, purpose, identity: Some(identity) }))
    }

    /// Continues from a log, and a backend file with these members. The other members are asked for if neither lists any: this member stopped
    /// before the leader had reached it.
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
        // A sole founder has no other member to wait for.
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

/// Whether a member is the only founder of its cluster, whose id is then made of its id alone.
pub(super) fn is_sole_founder(identity: &Identity) -> bool {
    members::cluster_id([identity.id()]) == identity.cluster_id
}
