//! Joining a running cluster: the new member obtains its id and its cluster's id from the other members.
//!
//! The flags must name exactly the members of the cluster, identified by their peer URLs. Names may differ. Only the
//! identity is written to disk, because everything else comes from the leader's log.
//!
//! A member is refused if the cluster knows its client URLs. Such a member has run before. It has voted and
//! acknowledged entries. With an empty directory, it could vote twice in a term, and it would lack entries that it has
//! acknowledged, so the cluster could lose data. A known name is not enough to refuse a member, because founders are
//! known by name before they first run.

use std::collections::{BTreeMap, VecDeque};

use quorate_state::members::Member;
use quorate_state::units::MemberId;
use quorate_state::versions::Version;

use super::{
    Cluster, Decision, Flags, Founding, Identity, InitialCluster, PeerUrlsMismatch, Refusal, Step,
    has_published,
};

/// A member that joins a running cluster.
#[derive(Clone, Debug)]
pub struct Joining {
    /// The identity of this member.
    pub identity: Identity,
    /// The other members, as the cluster describes them.
    pub others: Vec<Member>,
}

/// A member that is about to join a cluster, with the description of that cluster.
#[derive(Debug)]
pub(super) struct Candidate {
    flags: Flags,
    initial: InitialCluster,
    cluster: Cluster,
}

/// How two lists of URLs are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlComparison {
    /// The URLs are compared as strings.
    Literal,
    /// The addresses to which the host names resolve are compared.
    Resolved,
}

/// The question of whether a cluster member's peer URLs equal the peer URLs of a member in the flags.
#[derive(Debug)]
pub struct AskSameUrls {
    candidate: Candidate,
    /// Members that have not been matched with a name in the flags yet. All members are first compared as strings.
    /// Those still unmatched are then compared by address.
    unmatched: VecDeque<(Member, UrlComparison)>,
    /// Names in the flags that have not been matched with a member yet.
    unclaimed: Vec<(String, Vec<String>)>,
    /// The position in `unclaimed` that is being compared.
    position: usize,
    /// The difference found by the last comparison.
    last: Option<String>,
    /// Member ids by name in the flags, for all matched members.
    ids: BTreeMap<String, MemberId>,
}

impl AskSameUrls {
    /// Starts to match the members of a cluster with the members in the flags.
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

    /// Returns the two lists to compare.
    #[must_use]
    pub fn urls(&self) -> (&[String], &[String]) {
        let (member, _) = self
            .unmatched
            .front()
            .expect("a comparison is requested only while a member is unmatched");
        (&member.peer_urls, &self.unclaimed[self.position].1)
    }

    /// Returns how to compare the lists.
    #[must_use]
    pub fn comparison(&self) -> UrlComparison {
        self.unmatched.front().map_or(UrlComparison::Literal, |(_, comparison)| *comparison)
    }

    /// Continues with the result of the comparison. If the lists differ, the result is an error that describes the
    /// difference.
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
        // Ask the other members, too. The member that described the cluster may lag behind members that know this
        // member's client URLs.
        let urls = self.initial.urls_of_others(&self.flags.name);
        Ok(Step::OwnRow(AskOwnRow { urls, id, then: Then::Join(Box::new(self), ids) }))
    }
}

/// A question about this member, which is sent to all URLs concurrently.
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

    /// Returns the URLs to ask.
    #[must_use]
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Returns this member's id.
    #[must_use]
    pub const fn id(&self) -> MemberId {
        self.id
    }

    /// Returns whether this answer decides the question, so that the caller need not wait for other answers.
    #[must_use]
    pub fn is_settled_by(&self, row: &Member) -> bool {
        has_published(row)
    }

    /// Continues with the descriptions of this member that were received.
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

/// The question of whether the versions of the members at these addresses allow this member to join.
#[derive(Debug)]
pub struct AskVersions {
    flags: Flags,
    cluster: Cluster,
    own: MemberId,
    others: BTreeMap<MemberId, Vec<String>>,
}

impl AskVersions {
    /// Returns the URLs of each of the other members.
    #[must_use]
    pub const fn others(&self) -> &BTreeMap<MemberId, Vec<String>> {
        &self.others
    }

    /// Returns the version of this member.
    #[must_use]
    pub fn own_version(&self) -> Version {
        self.flags.held_version.unwrap_or(Version::OWN)
    }

    /// Continues with the answer, which is the refusal if the versions do not allow this member to join.
    pub fn answer(self, checked: Result<(), Refusal>) -> Result<Step, Refusal> {
        checked?;
        self.flags.check_learners(self.cluster.members.values())?;
        let (cluster_id, member_id, name) = (self.cluster.id, self.own.0, self.flags.name);
        let identity = Identity { cluster_id, member_id, name };
        let others = self.cluster.others(self.own);
        Ok(Step::Decided(Decision::Join(Joining { identity, others })))
    }
}
