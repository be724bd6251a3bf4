//! Checks that a run is correct, while it is under way and at its end.
//!
//! The judge follows the log independently. It applies every entry that any member reports as committed, once, to a
//! state that never crashes, never compacts and has no file. It compares the members with that state: the revision at
//! every published index, and every key at random revisions from time to time (above all at every start). So no crash
//! may cause a change to be lost, half applied or applied twice.
//!
//! # Checks
//!
//! * Members never contradict each other about committed entries, the leader of a term, or the vote of a member.
//! * A member keeps the promises that it made before a crash: its term, its vote, the entries that it acknowledged.
//! * Members at equal revisions have equal hashes.
//! * The results that clients saw are possible: [`quorate_history_checker`].

use std::collections::{BTreeMap, BTreeSet};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use prost::Message as _;
use quorate_api::etcdserverpb::{AlarmType, RangeRequest, WatchCreateRequest, WatchResponse};
use quorate_api::raftpb;
use quorate_history_checker::{Event, History, Rules};
use quorate_raft::{Configuration, Entry, EntryKind, LogIndex, Message, MessageKind, Term};
use quorate_state::apply::{
    Command, EntryMeta, Readers, Refusal, Request, State, StateOptions, read_range,
};
use quorate_state::lease::LessorOptions;
use quorate_state::mvcc::MvccError;
use quorate_state::units::Millis;
use quorate_state::watch::{HeaderFields, WatchStream};
use quorate_storage::checksum::crc32c;

use crate::member::{Ends, GivenUp};
use crate::translate;

/// What is remembered of a committed entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Digest {
    term: Term,
    kind: EntryKind,
    sum: u32,
    /// The revision once it is applied.
    revision: i64,
    /// No leader of a later term than this may be without it.
    known_in: Term,
}

/// The reference state of a run, and the facts that members and clients have reported.
#[derive(Debug)]
pub struct Judge {
    truth: State,
    stream: WatchStream,
    digests: Vec<Digest>,
    /// Who led in each term, and what it knew to be committed when it began.
    leaders: BTreeMap<Term, (u64, LogIndex)>,
    votes: BTreeMap<(u64, Term), u64>,
    hashes: BTreeMap<(i64, i64), (u32, usize)>,
    /// What clients saw.
    pub history: History,
    /// The first failure.
    wrong: Option<String>,
}

impl Judge {
    /// A judge of a run that has just begun, whose members allow so many learners.
    #[must_use]
    pub fn new(learner_max: usize) -> Self {
        let truth = State::new(StateOptions {
            learner_count_max: learner_max,
            quota_bytes: -1,
            lessor: LessorOptions { ttl_secs_min: 1, ..LessorOptions::default() },
            ..StateOptions::default()
        });
        let mut stream = truth.readers().hub.open_stream(usize::MAX);
        let everything = WatchCreateRequest {
            key: Bytes::from_static(b"\0"),
            range_end: Bytes::from_static(b"\0"),
            start_revision: 1,
            ..WatchCreateRequest::default()
        };
        stream.create(everything, |_, _| Ok(()));
        Self {
            truth,
            stream,
            digests: Vec::new(),
            leaders: BTreeMap::new(),
            votes: BTreeMap::new(),
            hashes: BTreeMap::new(),
            history: History::default(),
            wrong: None,
        }
    }

    /// Records a failure, unless there already is one.
    pub fn object(&mut self, what: impl FnOnce() -> String) {
        if self.wrong.is_none() {
            self.wrong = Some(what());
        }
    }

    /// The first failure, if there is one.
    #[must_use]
    pub fn verdict(&self) -> Option<&str> {
        self.wrong.as_deref()
    }

    /// The last entry that is known to be committed.
    #[must_use]
    pub const fn committed(&self) -> LogIndex {
        LogIndex(self.digests.len() as u64)
    }

    /// The newest revision.
    #[must_use]
    pub const fn revision(&self) -> i64 {
        self.truth.store().current_revision()
    }

    /// The members as of the last committed entry.
    #[must_use]
    pub const fn members(&self) -> &quorate_state::members::Members {
        self.truth.members()
    }

    /// Users and roles.
    #[must_use]
    pub fn accounts(&self) -> &quorate_state::auth::View {
        self.truth.auth().view()
    }

    /// A member that has raised the alarm that there is no space, if any has.
    #[must_use]
    pub fn out_of_space(&self) -> Option<u64> {
        let kind = AlarmType::Nospace.into();
        self.truth.alarms().of_kind(kind).next().map(|alarm| alarm.member.0)
    }

    /// Records that a member reports these entries as committed.
    pub fn note_committed(&mut self, host: usize, entries: &[Entry]) {
        for entry in entries {
            let known = self.committed();
            let sum = crc32c(&entry.data);
            if entry.index > known + 1 {
                return self.object(|| {
                    format!("host {host} applies {}, and only {known} is known", entry.index)
                });
            }
            if entry.index == known + 1 {
                self.carry_out(entry);
                let revision = self.truth.store().current_revision();
                // Whoever has committed it led in no later term.
                let known_in = self.leaders.last_key_value().map_or(entry.term, |(term, _)| *term);
                let (term, kind) = (entry.term, entry.kind);
                self.digests.push(Digest { term, kind, sum, revision, known_in });
                continue;
            }
            let digest = self.digest(entry.index).expect("it is known");
            if (digest.term, digest.kind, digest.sum) != (entry.term, entry.kind, sum) {
                return self.object(|| {
                    let (index, term) = (entry.index, entry.term);
                    format!(
                        "host {host} applies another entry {index}: of term {term}, not {}",
                        digest.term
                    )
                });
            }
        }
        self.truth.publish();
        self.follow_events();
    }

    fn digest(&self, index: LogIndex) -> Option<Digest> {
        let at = usize::try_from(index.checked_distance_from(LogIndex(1))?).ok()?;
        self.digests.get(at).copied()
    }

    fn carry_out(&mut self, entry: &Entry) {
        let meta = EntryMeta {
            index: entry.index.get(),
            term: entry.term.get(),
            now: Millis(0),
            file_bytes: 0,
            reply_wanted: false,
        };
        let done = match entry.kind {
            EntryKind::Normal if entry.data.is_empty() => {
                self.truth.apply_noop(meta);
                Ok(())
            }
            EntryKind::Normal => match Request::decode(entry.data.clone()) {
                Ok(request) => {
                    if let Command::Compaction(_) = request.command {
                        // The truth refuses what is compacted, and forgets nothing of it. Its watcher is told first.
                        self.truth.publish();
                        self.follow_events();
                    }
                    self.truth.apply(meta, request).map(drop).map_err(|fault| fault.to_string())
                }
                Err(fault) => Err(fault.to_string()),
            },
            EntryKind::ConfChange | EntryKind::ConfChangeV2 => {
                match raftpb::ConfChange::decode(entry.data.clone()) {
                    Ok(change) => {
                        let applied = self.truth.apply_conf_change(meta, change);
                        applied.map(drop).map_err(|fault| fault.to_string())
                    }
                    Err(error) => Err(error.to_string()),
                }
            }
        };
        // What is kept for a file that there is none of.
        drop(self.truth.take_batch());
        if let Err(fault) = done {
            let index = entry.index;
            self.object(|| format!("entry {index} cannot be carried out: {fault}"));
        }
    }

    /// Writes down what the log's entries have changed.
    fn follow_events(&mut self) {
        let context = Context::from_waker(Waker::noop());
        let mut events: BTreeMap<i64, Vec<Event>> = BTreeMap::new();
        loop {
            while self.truth.readers().hub.catch_up().unwrap_or(false) {}
            let Poll::Ready(Ok(frame)) = self.stream.poll_next(&context, &HeaderFields::default())
            else {
                break;
            };
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            let response = WatchResponse::decode(&bytes[..]).expect("a frame is a response");
            for event in &response.events {
                let event = translate::event(event);
                events.entry(event.revision()).or_default().push(event);
            }
        }
        for (revision, events) in events {
            if let Err(error) = self.history.event_log.record(revision, events) {
                self.object(|| format!("the truth contradicts itself: {error}"));
            }
        }
    }

    /// A member shows everything up to an index.
    pub fn note_published(&mut self, host: usize, index: LogIndex, readers: &Readers) {
        let shown = readers.view().current_revision();
        let Some(digest) = self.digest(index) else {
            return self.object(|| format!("host {host} shows {index}, which is not committed"));
        };
        if digest.revision != shown {
            self.object(|| {
                let right = digest.revision;
                format!("host {host} is at revision {shown} at index {index}, which is {right}")
            });
        }
    }

    /// Compares all keys of a member with what they should be, at its newest revision or an older one.
    pub fn compare(&mut self, host: usize, readers: &Readers, revision: i64) {
        let view = readers.view();
        let revision = if revision == 0 { view.current_revision() } else { revision };
        let all = RangeRequest { revision, ..everything() };
        let theirs = match read_range(&view, &all) {
            Ok(Ok(response)) => translate::read(&response),
            Ok(Err(_)) => return,
            Err(fault) => {
                return self.object(|| format!("host {host} cannot read its keys: {fault}"));
            }
        };
        let ours = read_range(&self.truth.readers().view(), &all);
        let ours = match ours {
            Ok(Ok(response)) => translate::read(&response),
            // The member has not come to the compaction yet.
            Ok(Err(Refusal::Compacted)) => return,
            Ok(Err(refusal)) => {
                return self.object(|| format!("host {host} has revision {revision}: {refusal}"));
            }
            Err(fault) => return self.object(|| format!("the truth cannot be read: {fault}")),
        };
        if theirs != ours {
            self.object(|| {
                format!("host {host} holds other keys at {revision}: {theirs:?}, not {ours:?}")
            });
        }
    }

    /// Compares the leases and the members of somebody who is where the truth is.
    pub fn compare_rest(&mut self, host: usize, state: &State) {
        if LogIndex(state.applied().0) != self.committed() {
            return;
        }
        let (mut theirs, mut ours) =
            (state.readers().leases.list(), self.truth.readers().leases.list());
        theirs.sort_unstable();
        ours.sort_unstable();
        if theirs != ours {
            self.object(|| format!("host {host} has leases {theirs:?}, not {ours:?}"));
        }
        for id in ours {
            let (theirs, ours) =
                (state.readers().leases.keys(id), self.truth.readers().leases.keys(id));
            if theirs != ours {
                self.object(|| format!("host {host}: lease {id:?} has {theirs:?}, not {ours:?}"));
            }
        }
        if state.members() != self.truth.members() {
            self.object(|| format!("host {host} has other members"));
        }
        if state.alarms() != self.truth.alarms() {
            self.object(|| format!("host {host} has other alarms"));
        }
        if state.auth().view() != self.truth.auth().view() {
            let (theirs, ours) = (state.auth().view(), self.truth.auth().view().clone());
            self.object(|| {
                format!("host {host} has other users or roles: {theirs:?}, not {ours:?}")
            });
        }
        if state.versions() != self.truth.versions() {
            self.object(|| format!("host {host} has other versions"));
        }
    }

    /// Compares a member's hash at a revision with what others have said.
    ///
    /// Where no key is alive at a revision, hashes tell how far garbage has been removed, as etcd's do.
    pub fn compare_hash(&mut self, host: usize, readers: &Readers, revision: i64) {
        let all = RangeRequest { revision, count_only: true, ..everything() };
        let count = read_range(&self.truth.readers().view(), &all);
        if !matches!(count, Ok(Ok(response)) if response.count > 0) {
            return;
        }
        let hash = match readers.view().hash_kv(revision) {
            Ok(hash) => hash,
            Err(MvccError::Refusal(_)) => return,
            Err(MvccError::Fault(fault)) => {
                return self.object(|| format!("host {host} cannot hash its keys: {fault}"));
            }
        };
        let place = (hash.hash_revision, hash.compact_revision);
        let (known, by) = *self.hashes.entry(place).or_insert((hash.hash, host));
        if known != hash.hash {
            self.object(|| {
                format!(
                    "hosts {by} and {host} have other hashes at {place:?}: {known:x}, {:x}",
                    hash.hash
                )
            });
        }
    }

    /// A member leads in a term.
    pub fn note_leader(&mut self, term: Term, id: u64, commit: LogIndex) {
        let (known, _) = *self.leaders.entry(term).or_insert((id, commit));
        if known != id {
            self.object(|| format!("{known:x} and {id:x} both lead in term {term}"));
        }
    }

    /// A new leader has all that was committed before its term: the entry at an index is of the term that its log says.
    pub fn check_leader(
        &mut self,
        host: usize,
        term: Term,
        term_at: impl FnOnce(LogIndex) -> Result<Option<Term>, Ends>,
    ) {
        let count = self.digests.partition_point(|digest| digest.known_in < term);
        let index = LogIndex(count as u64);
        let Some(digest) = self.digest(index) else { return };
        match term_at(index) {
            Ok(None) => {}
            Ok(Some(its)) if its == digest.term => {}
            Ok(Some(its)) => self.object(|| {
                let right = digest.term;
                format!("host {host} leads in term {term} with another entry {index}: of term {its}, not {right}")
            }),
            Err(ends) => self.object(|| {
                format!("host {host} leads in term {term} without the committed entry {index}: {ends}")
            }),
        }
    }

    /// A leader says that everything up to here is committed.
    pub fn check_commit(&mut self, host: usize, term: Term, commit: LogIndex) {
        let began = self.leaders.get(&term).map_or(commit, |(_, commit)| *commit);
        let its = self.digest(commit).map_or(term, |digest| digest.term);
        // What it knew to be committed before it led, others have committed.
        if commit > began && its != term {
            self.object(|| {
                format!("host {host}, leader in term {term}, commits entry {commit} of term {its} by itself")
            });
        }
    }

    /// A member's log holds something no more: nothing that is committed, and nothing for what it had already.
    pub fn note_given_up(&mut self, host: usize, given_up: GivenUp) {
        match given_up {
            GivenUp::ForItsOwnPast { index } => self.object(|| {
                format!("host {host} gives its log up for a snapshot at {index}, which it had")
            }),
            GivenUp::ForALeaders { index, term } => {
                if self.digest(index).is_some_and(|digest| digest.term == term) {
                    self.object(|| format!("host {host} gives up the committed entry {index}"));
                }
            }
        }
    }

    /// Compares whom a member's consensus counts with whom its state knows.
    pub fn compare_members(&mut self, host: usize, state: &State, config: &Configuration) {
        let of = |is_learner: bool| -> BTreeSet<u64> {
            let rows = state.members().iter().filter(|row| row.is_learner == is_learner);
            rows.map(|row| row.id.0).collect()
        };
        let (voters, learners) = (of(false), of(true));
        let counts = config.conf_state();
        let is_same = counts.voters.iter().eq(&voters) && counts.learners.iter().eq(&learners);
        if !is_same || config.voters.is_joint() {
            self.object(|| {
                format!("host {host} counts {counts:?}, not {voters:?} and {learners:?}")
            });
        }
    }

    /// A member sends this.
    pub fn note_sent(&mut self, message: &Message) {
        if message.kind == MessageKind::VoteResponse && !message.reject {
            let vote = (message.from, message.term);
            let known = *self.votes.entry(vote).or_insert(message.to);
            if known != message.to {
                let (from, to, term) = (message.from, message.to, message.term);
                self.object(|| {
                    format!("{from:x} votes for {known:x} and for {to:x} in term {term}")
                });
            }
        }
    }

    /// A member has lost its memory by what somebody did to its disk: its promises do not count.
    pub fn forget_votes(&mut self, id: u64) {
        self.votes.retain(|(from, _), _| *from != id);
    }

    /// Checks what clients saw.
    pub fn check_history(&mut self, rules: &Rules) {
        if let Err(violation) = quorate_history_checker::check(&self.history, rules) {
            self.object(|| violation.to_string());
        }
    }
}

/// A read of all keys.
fn everything() -> RangeRequest {
    RangeRequest {
        key: Bytes::from_static(b"\0"),
        range_end: Bytes::from_static(b"\0"),
        ..RangeRequest::default()
    }
}
