//! Checks that a run is correct, during the run and at its end.
//!
//! The judge follows the log independently. It applies each entry once, when the first member reports it as committed,
//! to a reference state that never crashes, keeps compacted records and has no file. It compares every member with the
//! reference state: the revision at every published index, all keys whenever a member starts, and from time to time all
//! keys at a random revision. It therefore detects a crash that loses a change, or that causes a change to be applied
//! partly or twice.
//!
//! # Checks
//!
//! * Members never contradict each other about committed entries, the leader of a term, or the vote of a member.
//! * After a crash, a member still has everything that it promised to keep: its term, its vote, and the entries that it
//!   acknowledged.
//! * Members at equal revisions have equal hashes.
//! * The results that clients received are possible, as checked by [`quorate_history_checker`].

use std::collections::{BTreeMap, BTreeSet};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use prost::Message as _;
use quorate_api::etcdserverpb::{AlarmType, RangeRequest, WatchCreateRequest, WatchResponse};
use quorate_api::raftpb;
use quorate_history_checker::{Event, History, Rules};
use quorate_raft::{Configuration, Entry, EntryKind, LogIndex, Message, MessageKind, Term};
use quorate_state::apply::{
    Command, EntryMeta, PublishedState, Refusal, Request, State, StateOptions, read_range,
};
use quorate_state::lease::LessorOptions;
use quorate_state::mvcc::MvccError;
use quorate_state::units::Millis;
use quorate_state::watch::{HeaderFields, WatchStream};
use quorate_storage::checksum::crc32c;

use crate::member::{Dropped, LogEnds};
use crate::translate;

/// Identifies a committed entry and the state after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Digest {
    term: Term,
    kind: EntryKind,
    sum: u32,
    /// The revision after the entry is applied.
    revision: i64,
    /// The newest term with a leader when the entry was first reported as committed. The leaders of all later terms
    /// must have the entry.
    known_in: Term,
}

/// The reference state of a run, and the facts reported by members and clients.
#[derive(Debug)]
pub struct Judge {
    reference: State,
    stream: WatchStream,
    digests: Vec<Digest>,
    /// The leader of each term, and its commit index when its term began.
    leaders: BTreeMap<Term, (u64, LogIndex)>,
    votes: BTreeMap<(u64, Term), u64>,
    hashes: BTreeMap<(i64, i64), (u32, usize)>,
    /// The operations and watch events that clients recorded.
    pub history: History,
    /// The first failure of the run.
    failure: Option<String>,
}

impl Judge {
    /// Creates the judge of a new run in which a cluster may have at most `learner_max` learners.
    #[must_use]
    pub fn new(learner_max: usize) -> Self {
        let reference = State::new(StateOptions {
            learner_count_max: learner_max,
            quota_bytes: -1,
            lessor: LessorOptions { ttl_secs_min: 1, ..LessorOptions::default() },
            ..StateOptions::default()
        });
        let mut stream = reference.published().hub.open_stream(usize::MAX);
        let everything = WatchCreateRequest {
            key: Bytes::from_static(b"\0"),
            range_end: Bytes::from_static(b"\0"),
            start_revision: 1,
            ..WatchCreateRequest::default()
        };
        stream.create(everything, |_, _| Ok(()));
        Self {
            reference,
            stream,
            digests: Vec::new(),
            leaders: BTreeMap::new(),
            votes: BTreeMap::new(),
            hashes: BTreeMap::new(),
            history: History::default(),
            failure: None,
        }
    }

    /// Records a failure, unless the run has already failed.
    pub fn fail(&mut self, what: impl FnOnce() -> String) {
        if self.failure.is_none() {
            self.failure = Some(what());
        }
    }

    /// Returns the first failure of the run.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns the index of the last entry that a member has reported as committed.
    #[must_use]
    pub const fn committed(&self) -> LogIndex {
        LogIndex(self.digests.len() as u64)
    }

    /// Returns the newest revision of the reference state.
    #[must_use]
    pub const fn revision(&self) -> i64 {
        self.reference.store().current_revision()
    }

    /// Returns the membership after the last committed entry.
    #[must_use]
    pub const fn members(&self) -> &quorate_state::members::Members {
        self.reference.members()
    }

    /// Returns the users and roles after the last committed entry.
    #[must_use]
    pub fn accounts(&self) -> &quorate_state::auth::View {
        self.reference.auth().view()
    }

    /// Returns a member that has an active NOSPACE alarm.
    #[must_use]
    pub fn out_of_space(&self) -> Option<u64> {
        let kind = AlarmType::Nospace.into();
        self.reference.alarms().of_kind(kind).next().map(|alarm| alarm.member.0)
    }

    /// Checks and applies entries that a member reports as committed.
    pub fn note_committed(&mut self, host: usize, entries: &[Entry]) {
        for entry in entries {
            let known = self.committed();
            let sum = crc32c(&entry.data);
            if entry.index > known + 1 {
                return self.fail(|| {
                    format!(
                        "host {host} applies entry {}, but the last known entry is {known}",
                        entry.index
                    )
                });
            }
            if entry.index == known + 1 {
                self.apply_entry(entry);
                let revision = self.reference.store().current_revision();
                // The entry was committed in the newest term that has a leader, or in an earlier term.
                let known_in = self.leaders.last_key_value().map_or(entry.term, |(term, _)| *term);
                let (term, kind) = (entry.term, entry.kind);
                self.digests.push(Digest { term, kind, sum, revision, known_in });
                continue;
            }
            let digest =
                self.digest(entry.index).expect("the judge has a digest of every known entry");
            if (digest.term, digest.kind, digest.sum) != (entry.term, entry.kind, sum) {
                return self.fail(|| {
                    let (index, term) = (entry.index, entry.term);
                    format!(
                        "host {host} applies entry {index} of term {term}, which differs from the committed entry of \
                         term {}",
                        digest.term
                    )
                });
            }
        }
        self.reference.publish();
        self.follow_events();
    }

    fn digest(&self, index: LogIndex) -> Option<Digest> {
        let at = usize::try_from(index.checked_distance_from(LogIndex(1))?).ok()?;
        self.digests.get(at).copied()
    }

    fn apply_entry(&mut self, entry: &Entry) {
        let meta = EntryMeta {
            index: entry.index.get(),
            term: entry.term.get(),
            now: Millis(0),
            file_bytes: 0,
            reply_wanted: false,
        };
        let done = match entry.kind {
            EntryKind::Normal if entry.data.is_empty() => {
                self.reference.apply_noop(meta);
                Ok(())
            }
            EntryKind::Normal => match Request::decode(entry.data.clone()) {
                Ok(request) => {
                    if let Command::Compaction(_) = request.command {
                        // The reference state keeps compacted records but refuses to read them, so its watcher must
                        // read all events before the compaction is applied.
                        self.reference.publish();
                        self.follow_events();
                    }
                    self.reference.apply(meta, request).map(drop).map_err(|fault| fault.to_string())
                }
                Err(fault) => Err(fault.to_string()),
            },
            EntryKind::ConfChange | EntryKind::ConfChangeV2 => {
                match raftpb::ConfChange::decode(entry.data.clone()) {
                    Ok(change) => {
                        let applied = self.reference.apply_conf_change(meta, &change);
                        applied.map(drop).map_err(|fault| fault.to_string())
                    }
                    Err(error) => Err(error.to_string()),
                }
            }
        };
        // The batch is meant for a backend file, which the reference state does not have.
        drop(self.reference.take_batch());
        if let Err(fault) = done {
            let index = entry.index;
            self.fail(|| format!("entry {index} cannot be applied: {fault}"));
        }
    }

    /// Records the events of the applied entries.
    fn follow_events(&mut self) {
        let context = Context::from_waker(Waker::noop());
        let mut events: BTreeMap<i64, Vec<Event>> = BTreeMap::new();
        loop {
            while self.reference.published().hub.catch_up().unwrap_or(false) {}
            let Poll::Ready(Ok(frame)) = self.stream.poll_next(&context, &HeaderFields::default())
            else {
                break;
            };
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            let response =
                WatchResponse::decode(&bytes[..]).expect("every frame is an encoded response");
            for event in &response.events {
                let event = translate::event(event);
                events.entry(event.revision()).or_default().push(event);
            }
        }
        for (revision, events) in events {
            if let Err(error) = self.history.event_log.record(revision, events) {
                self.fail(|| format!("the reference state contradicts itself: {error}"));
            }
        }
    }

    /// Checks the revision of a member that has applied and published `index`.
    pub fn check_published(
        &mut self,
        host: usize,
        index: LogIndex,
        published_state: &PublishedState,
    ) {
        let revision = published_state.view().current_revision();
        let Some(digest) = self.digest(index) else {
            return self
                .fail(|| format!("host {host} publishes index {index}, which is not committed"));
        };
        if digest.revision != revision {
            self.fail(|| {
                let expected = digest.revision;
                format!("host {host} has revision {revision} at index {index}, not {expected}")
            });
        }
    }

    /// Compares all keys of a member with the reference state at a revision. Revision 0 means the member's newest
    /// revision.
    pub fn compare(&mut self, host: usize, published_state: &PublishedState, revision: i64) {
        let view = published_state.view();
        let revision = if revision == 0 { view.current_revision() } else { revision };
        let all = RangeRequest { revision, ..all_keys() };
        let actual = match read_range(&view, &all) {
            Ok(Ok(response)) => translate::range_result(&response),
            Ok(Err(_)) => return,
            Err(fault) => {
                return self.fail(|| format!("host {host} cannot read its keys: {fault}"));
            }
        };
        let expected = read_range(&self.reference.published().view(), &all);
        let expected = match expected {
            Ok(Ok(response)) => translate::range_result(&response),
            // The revision cannot be compared, because the reference state has applied a compaction that the member has
            // not.
            Ok(Err(Refusal::Compacted)) => return,
            Ok(Err(refusal)) => {
                return self.fail(|| {
                    format!("host {host} can read revision {revision}, but the reference state cannot: {refusal}")
                });
            }
            Err(fault) => {
                return self.fail(|| format!("the reference state cannot be read: {fault}"));
            }
        };
        if actual != expected {
            self.fail(|| {
                format!(
                    "host {host} has different keys at revision {revision}: {actual:?}, not {expected:?}"
                )
            });
        }
    }

    /// Compares a member's leases, membership, alarms, users, roles and versions with the reference state, if the
    /// member has applied all committed entries.
    pub fn compare_state(&mut self, host: usize, state: &State) {
        if LogIndex(state.applied().0) != self.committed() {
            return;
        }
        let (mut actual, mut expected) =
            (state.published().leases.list(), self.reference.published().leases.list());
        actual.sort_unstable();
        expected.sort_unstable();
        if actual != expected {
            self.fail(|| format!("host {host} has leases {actual:?}, not {expected:?}"));
        }
        for id in expected {
            let (actual, expected) =
                (state.published().leases.keys(id), self.reference.published().leases.keys(id));
            if actual != expected {
                self.fail(|| format!("host {host}: lease {id:?} has {actual:?}, not {expected:?}"));
            }
        }
        if state.members() != self.reference.members() {
            self.fail(|| format!("the members of host {host} differ from the reference state"));
        }
        if state.alarms() != self.reference.alarms() {
            self.fail(|| format!("the alarms of host {host} differ from the reference state"));
        }
        if state.auth().view() != self.reference.auth().view() {
            let (actual, expected) = (state.auth().view(), self.reference.auth().view().clone());
            self.fail(|| {
                format!("host {host} has different users or roles: {actual:?}, not {expected:?}")
            });
        }
        if state.versions() != self.reference.versions() {
            self.fail(|| format!("the versions of host {host} differ from the reference state"));
        }
    }

    /// Compares a member's hash at a revision with the hashes of other members.
    ///
    /// Revisions without live keys are skipped because, as in etcd, the hash of such a revision depends on how many
    /// records the compaction has removed.
    pub fn compare_hash(&mut self, host: usize, published_state: &PublishedState, revision: i64) {
        let all = RangeRequest { revision, count_only: true, ..all_keys() };
        let count = read_range(&self.reference.published().view(), &all);
        if !matches!(count, Ok(Ok(response)) if response.count > 0) {
            return;
        }
        let hash = match published_state.view().hash_kv(revision) {
            Ok(hash) => hash,
            Err(MvccError::Refusal(_)) => return,
            Err(MvccError::Fault(fault)) => {
                return self.fail(|| format!("host {host} cannot hash its keys: {fault}"));
            }
        };
        let place = (hash.hash_revision, hash.compact_revision);
        let (known, by) = *self.hashes.entry(place).or_insert((hash.hash, host));
        if known != hash.hash {
            self.fail(|| {
                format!(
                    "hosts {by} and {host} have different hashes at {place:?}: {known:x}, {:x}",
                    hash.hash
                )
            });
        }
    }

    /// Checks that a term has only one leader.
    pub fn note_leader(&mut self, term: Term, id: u64, commit: LogIndex) {
        let (known, _) = *self.leaders.entry(term).or_insert((id, commit));
        if known != id {
            self.fail(|| format!("{known:x} and {id:x} both lead in term {term}"));
        }
    }

    /// Checks that a new leader has all entries committed before its term. The last of these entries must have the same
    /// term in the leader's log.
    pub fn check_leader(
        &mut self,
        host: usize,
        term: Term,
        term_at: impl FnOnce(LogIndex) -> Result<Option<Term>, LogEnds>,
    ) {
        let count = self.digests.partition_point(|digest| digest.known_in < term);
        let index = LogIndex(count as u64);
        let Some(digest) = self.digest(index) else { return };
        match term_at(index) {
            Ok(None) => {}
            Ok(Some(entry_term)) if entry_term == digest.term => {}
            Ok(Some(entry_term)) => self.fail(|| {
                let expected = digest.term;
                format!(
                    "host {host} leads in term {term}, but its entry {index} has term {entry_term} instead of \
                     {expected}"
                )
            }),
            Err(ends) => self.fail(|| {
                format!("host {host} leads in term {term} without the committed entry {index}: {ends}")
            }),
        }
    }

    /// Checks that a leader commits an entry of an older term only together with a later entry of its own term.
    pub fn check_commit(&mut self, host: usize, term: Term, commit: LogIndex) {
        let began = self.leaders.get(&term).map_or(commit, |(_, commit)| *commit);
        let entry_term = self.digest(commit).map_or(term, |digest| digest.term);
        // Earlier leaders committed the entries up to the commit index at the start of this leader's term.
        if commit > began && entry_term != term {
            self.fail(|| {
                format!(
                    "host {host}, leader in term {term}, directly commits entry {commit} of the older term \
                     {entry_term}"
                )
            });
        }
    }

    /// Checks the entries that a member has dropped from its log: no dropped entry is committed, and a member drops its
    /// log in favour of a snapshot only if the log lacks the snapshot's last entry.
    pub fn check_dropped(&mut self, host: usize, dropped: Dropped) {
        match dropped {
            Dropped::ForOwnSnapshot { index } => self.fail(|| {
                format!(
                    "host {host} drops its log for a snapshot at {index}, although the log contains that entry"
                )
            }),
            Dropped::ForLeader { index, term } => {
                if self.digest(index).is_some_and(|digest| digest.term == term) {
                    self.fail(|| format!("host {host} drops the committed entry {index}"));
                }
            }
        }
    }

    /// Compares the voters and learners in a member's consensus core with the membership in its state.
    pub fn compare_members(&mut self, host: usize, state: &State, config: &Configuration) {
        let ids_of = |is_learner: bool| -> BTreeSet<u64> {
            let rows = state.members().iter().filter(|row| row.is_learner == is_learner);
            rows.map(|row| row.id.0).collect()
        };
        let (voters, learners) = (ids_of(false), ids_of(true));
        let counts = config.conf_state();
        let is_same = counts.voters.iter().eq(&voters) && counts.learners.iter().eq(&learners);
        if !is_same || config.voters.is_joint() {
            self.fail(|| {
                format!(
                    "host {host} uses the configuration {counts:?}, but its state has the voters {voters:?} and \
                     learners {learners:?}"
                )
            });
        }
    }

    /// Checks that a member votes for only one candidate in a term.
    pub fn check_vote(&mut self, message: &Message) {
        if message.kind == MessageKind::VoteResponse && !message.reject {
            let vote = (message.from, message.term);
            let known = *self.votes.entry(vote).or_insert(message.to);
            if known != message.to {
                let (from, to, term) = (message.from, message.to, message.term);
                self.fail(|| format!("{from:x} votes for {known:x} and for {to:x} in term {term}"));
            }
        }
    }

    /// Forgets the votes of a member whose files were tampered with, because it can no longer keep its promises.
    pub fn forget_votes(&mut self, id: u64) {
        self.votes.retain(|(from, _), _| *from != id);
    }

    /// Checks the recorded client history.
    pub fn check_history(&mut self, rules: &Rules) {
        if let Err(violation) = quorate_history_checker::check(&self.history, rules) {
            self.fail(|| violation.to_string());
        }
    }
}

/// Returns a request that reads all keys.
fn all_keys() -> RangeRequest {
    RangeRequest {
        key: Bytes::from_static(b"\0"),
        range_end: Bytes::from_static(b"\0"),
        ..RangeRequest::default()
    }
}
