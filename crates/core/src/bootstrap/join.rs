//! A member that was added to a running cluster: it learns its id and its cluster from the other members.
//!
//! The flags must name exactly the members that the cluster has, by peer URLs; names do not matter. Only the identity
//! is written: everything else comes from the leader's log.
//!
//! A member whose client URLs the cluster knows has run before. It has voted and acknowledged entries, and with an empty
//! directory it would do both again, and others would lose data: it is refused. A name proves less: founders are known
//! by name before they have ever run.

use std::collections::{BTreeMap, VecDeque};

use quorate_state::members::Member;
use quorate_state::units::MemberId;
use quorate_state::versions::Version;

use super::{
    Cluster, Decision, Flags, Founding, Identity, InitialCluster, PeerUrlsMismatch, Refusal, Step,
    has_published,
};

/// A member that joins.
#[derive(Clone, Debug)]
pub struct Joining {
    /// This member.
    pub identity: Identity,
    /// The other members, as the cluster describes them.
    pub others: Vec<Member>,
}

/// A member that is to join a cluster that was described to it.
#[derive(Debug)]
pub(super) struct Candidate {
    flags: Flags,
    initial: InitialCluster,
    cluster: Cluster,
}

/// How two lists of URLs are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlComparison {
    /// As they are written.
    Literal,
    /// By the addresses that their host names resolve to.
    Resolved,
}

/// Asks whether the peer URLs of a member of the cluster are those that the flags give one.
#[derive(Debug)]
pub struct AskSameUrls {
    candidate: Candidate,
    /// Members for which no name in the flags has been found. First all are compared literally, then the rest by
    /// address.
    unmatched: VecDeque<(Member, UrlComparison)>,
    /// Names in the flags that no member has been found for.
    unclaimed: Vec<(String, Vec<String>)>,
    /// Which of them is compared.
    position: usize,
    /// How the last ones differed.
    last: Option<String>,
    /// The ids of the members by their names in the flags.
    ids: BTreeMap<String, MemberId>,
}

impl AskSameUrls {
    /// Begins to match the members of a cluster with those that the flags name.
    pub(super) fn begin(
        flags: Flags,
        initial: InitialCluster,
        cluster: Cluster,
    ) -> Result<Step, Refusal> {
        if !initial.members.iter().any(|(name, _)| *name == flags.name) {
            return Err(Refusal::NotInitial(flags.name));
        }
        let candidate = Candidate { flags, initial, cluster };
        if candidate.cluster.members.len() != candidate.initial.members.len() {
            return Err(candidate.mismatch(PeerUrlsMismatch::Count));
        }
        let members = candidate.cluster.members.values();
        let unmatched = members.map(|member| (member.clone(), UrlComparison::Literal)).collect();
        let unclaimed = candidate.initial.members.clone();
        let (position, last, ids) = (0, None, BTreeMap::new());
        Self { candidate, unmatched, unclaimed, position, last, ids }.next()
    }

    /// The two lists.
    #[must_use]
    pub fn urls(&self) -> (&[String], &[String]) {
        let (member, _) = self.unmatched.front().expect("a question is about a member");
        (&member.peer_urls, &self.unclaimed[self.position].1)
    }

    /// How they are to be compared.
    #[must_use]
    pub fn comparison(&self) -> UrlComparison {
        self.unmatched.front().map_or(UrlComparison::Literal, |(_, comparison)| *comparison)
    }

    /// Continues with how the lists differ, if they do.
    pub fn answer(mut self, compared: Result<(), String>) -> Result<Step, Refusal> {
        match compared {
            Ok(()) => {
                let (name, _) = self.unclaimed.swap_remove(self.position);
                if let Some((member, _)) = self.unmatched.pop_front() {
                    self.ids.insert(name, member.id);
                }
                (self.position, self.last) = (0, None);
            }
            Err(difference) => {
                self.position += 1;
                self.last = Some(difference);
            }
        }
        self.next()
    }

    fn next(mut self) -> Result<Step, Refusal> {
        while self.position >= self.unclaimed.len() {
            let Some((member, comparison)) = self.unmatched.pop_front() else {
                return self.candidate.ask_own_row(self.ids);
            };
            if comparison == UrlComparison::Resolved {
                let last = self.last.unwrap_or_else(|| "<nil>".to_owned());
                let (id, urls) = (member.id, member.peer_urls.join(" "));
                return Err(self.candidate.mismatch(PeerUrlsMismatch::NoMatch { id, urls, last }));
            }
            self.unmatched.push_back((member, UrlComparison::Resolved));
            (self.position, self.last) = (0, None);
        }
        Ok(Step::SameUrls(self))
    }
}

impl Candidate {
    fn mismatch(&self, mismatch: PeerUrlsMismatch) -> Refusal {
        Refusal::PeerUrls { cluster: self.cluster.to_string(), mismatch }
    }

    fn ask_own_row(self, ids: BTreeMap<String, MemberId>) -> Result<Step, Refusal> {
        let id = ids[&self.flags.name];
        if let Some(Member { id, name, .. }) = self.cluster.published(id) {
            return Err(Refusal::Published { id: *id, name: name.clone() });
        }
        // The member that has answered may lag behind those that know the client URLs.
        let urls = self.initial.urls_of_others(&self.flags.name);
        Ok(Step::OwnRow(AskOwnRow { urls, id, then: Then::Join(Box::new(self), ids) }))
    }
}

/// Asks all these URLs at once what they know of this member.
#[derive(Debug)]
pub struct AskOwnRow {
    urls: Vec<String>,
    id: MemberId,
    then: Then,
}

#[derive(Debug)]
enum Then {
    Found(Founding),
    Join(Box<Candidate>, BTreeMap<String, MemberId>),
}

impl AskOwnRow {
    pub(super) fn to_found(urls: Vec<String>, founding: Founding) -> Self {
        Self { urls, id: MemberId(founding.identity.member_id), then: Then::Found(founding) }
    }

    /// The URLs.
    #[must_use]
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// This member's id.
    #[must_use]
    pub const fn id(&self) -> MemberId {
        self.id
    }

    /// Whether this answer settles it, so that no other needs to be awaited.
    #[must_use]
    pub fn is_settled_by(&self, row: &Member) -> bool {
        has_published(row)
    }

    /// Continues with what those that have answered say.
    pub fn answer(self, rows: impl IntoIterator<Item = Member>) -> Result<Step, Refusal> {
        let published = rows.into_iter().find(has_published);
        match (self.then, published) {
            (Then::Found(founding), None) => Ok(Step::Decided(Decision::Found(founding))),
            (Then::Found(_), Some(_)) => Err(Refusal::Bootstrapped(self.id)),
            (Then::Join(..), Some(Member { id, name, .. })) => Err(Refusal::Published { id, name }),
            (Then::Join(candidate, ids), None) => {
                let Candidate { flags, initial, cluster } = *candidate;
                let own = self.id;
                let named = initial.members.into_iter().map(|(name, urls)| (ids[&name], urls));
                let others = named.filter(|(id, _)| *id != own).collect();
                Ok(Step::Versions(AskVersions { flags, cluster, own, others }))
            }
        }
    }
}

/// Asks whether the members at these addresses are of versions that this member may join.
#[derive(Debug)]
pub struct AskVersions {
    flags: Flags,
    cluster: Cluster,
    own: MemberId,
    others: BTreeMap<MemberId, Vec<String>>,
}

impl AskVersions {
    /// Where each member is asked.
    #[must_use]
    pub const fn others(&self) -> &BTreeMap<MemberId, Vec<String>> {
        &self.others
    }

    /// This member's version.
    #[must_use]
    pub fn own_version(&self) -> Version {
        self.flags.held_version.unwrap_or(Version::OWN)
    }

    /// Continues if they are.
    pub fn answer(self, are_compatible: bool) -> Result<Step, Refusal> {
        if !are_compatible {
            return Err(Refusal::Incompatible);
        }
        self.flags.check_learners(self.cluster.members.values())?;
        let (cluster_id, member_id, name) = (self.cluster.id, self.own.0, self.flags.name);
        let identity = Identity { cluster_id, member_id, name };
        let others = self.cluster.others(self.own);
        Ok(Step::Decided(Decision::Join(Joining { identity, others })))
    }
}
