//! Replays a directory's log onto its backend file, using the same state machine as members.
//!
//! The replay runs twice: first as a dry run that writes nothing, then onto a copy of the file. Both runs have the same
//! result.
//!
//! # Differences from a member
//!
//! The learner limit and the minimum lease TTL are settings that a member's files do not contain. The replay accepts
//! any number of learners, and raises lease TTLs below two seconds to two seconds, as etcd does with default settings.

use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_api::etcdserverpb::AlarmType;
use quorate_core::old_members;
use quorate_core::start::{self, Start};
use quorate_core::{Begun, Job, Now, Outlet, Output, Pace, StateMachine};
use quorate_raft::{Entry, Term};
use quorate_state::apply::{Refusal, Request, Response, State, StateOptions};
use quorate_state::auth::View;
use quorate_state::backend::{Backend, Batch};
use quorate_state::members::Members;
use quorate_state::mvcc::RangeQuery;
use quorate_state::units::{MemberId, Millis};
use quorate_storage::disk::Disk;
use quorate_storage::wal;

use super::source::Source;
use crate::failure::ReplayError;
use crate::files;

/// Maximum number of entries applied at once.
const ENTRIES_MAX: usize = 1000;

/// Pace of commits. The batches are large, because no client waits for a commit.
const PACE: Pace = Pace {
    batch_interval: Duration::from_secs(1),
    batch_ops_max: 10_000,
    compaction_step: 1000,
    compaction_pause: Duration::ZERO,
    lease_extension_millis: 0,
};

/// State after the replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Number of replayed entries.
    pub(super) entry_count: usize,
    /// Members after all membership changes in the log.
    pub(super) members: Members,
    pub(super) revision: i64,
    pub(super) compacted: i64,
    pub(super) key_count: i64,
    /// Hash of the keyspace, as members report it.
    pub(super) hash: u32,
    pub(super) lease_count: usize,
    pub(super) user_count: usize,
    pub(super) role_count: usize,
    pub(super) is_auth_enabled: bool,
    /// Alarms, each with the id of its member.
    pub(super) alarms: Vec<(String, u64)>,
    pub(super) cluster_version: Option<String>,
}

/// Replays a directory's log onto `backend`, which is the directory's backend file or a copy of it. The file is changed
/// only if `writes` is set.
pub(super) fn replay(
    disk: &dyn Disk,
    source: &Source,
    backend: &Backend,
    writes: bool,
) -> Result<Outcome, ReplayError> {
    let options = StateOptions { learner_count_max: usize::MAX, ..StateOptions::default() };
    let mut state = State::recover(backend, options)?;
    complete_members(disk, source, backend, &mut state)?;
    let (outline, applied) = (&source.outline, state.applied().0);
    let contents = wal::read(disk, source.dirs.wal(), &outline.mark())?;
    let (_, last) = outline.last();
    let mut entries = Start::new(&state, contents, outline.mark())?.entries;
    entries.retain(|entry| (applied.saturating_add(1)..=last).contains(&entry.index.get()));
    let entry_count = entries.len();
    let own_id = MemberId(outline.member.unwrap_or_default());
    let begun = Instant::now();
    let now = || Now { instant: Instant::now(), millis: Millis(elapsed_millis(begun)) };
    let mut machine = StateMachine::new(state, backend.clone(), own_id, PACE, begun);
    let mut outlet = Batches::default();
    let mut entries = entries.into_iter().peekable();
    while entries.peek().is_some() {
        let some = entries.by_ref().take(ENTRIES_MAX).collect();
        machine.take(Job::Apply(some), now(), &mut outlet)?;
        machine.hand_over_if_due(Instant::now(), &mut outlet);
        outlet.commit(backend, &mut machine, now, writes)?;
    }
    machine.take(Job::Stop, now(), &mut outlet)?;
    outlet.commit(backend, &mut machine, now, writes)?;
    outcome(machine.state(), entry_count)
}

fn elapsed_millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Determines the members if the file was written by etcd 3.5, because such a file does not contain all members.
fn complete_members(
    disk: &dyn Disk,
    source: &Source,
    backend: &Backend,
    state: &mut State,
) -> Result<(), ReplayError> {
    if old_members::are_complete(start::storage_version(backend)) {
        return Ok(());
    }
    let (marks, wal_dir) = (source.outline.marks(), source.dirs.wal());
    let snapshot = files::newest_snapshot(disk, &source.dirs, marks)?;
    match old_members::repair(state, (disk, wal_dir), snapshot.as_ref(), marks) {
        // The log has been purged, so the members in the backend file are used. A starting member would use the same
        // members.
        Err(old_members::OldMembersError::Log(_)) if snapshot.is_none() => Ok(()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn outcome(state: &State, entry_count: usize) -> Result<Outcome, ReplayError> {
    let view = state.published().view();
    let hash = view.hash_kv(0)?;
    let everything = RangeQuery {
        key: Bytes::from_static(b"\0"),
        range_end: Bytes::from_static(b"\0"),
        count_only: true,
        ..RangeQuery::default()
    };
    let auth = state.auth().view();
    let alarms = state.alarms().of_kind(AlarmType::None as i32).map(|alarm| {
        let name = AlarmType::try_from(alarm.kind).map_or("unknown", |kind| kind.as_str_name());
        (name.to_owned(), alarm.member.0)
    });
    Ok(Outcome {
        entry_count,
        members: state.members().clone(),
        revision: hash.hash_revision,
        compacted: hash.compact_revision,
        key_count: view.range(&everything)?.count,
        hash: hash.hash,
        lease_count: state.published().leases.count(),
        user_count: auth.user_names().count(),
        role_count: auth.role_names().count(),
        is_auth_enabled: auth.is_enabled(),
        alarms: alarms.collect(),
        cluster_version: state.versions().cluster().map(|version| version.to_string()),
    })
}

/// Receives the effects of the state machine. Keeps only the batches, because no client waits for a response.
#[derive(Debug, Default)]
struct Batches {
    waiting: Vec<Batch>,
}

impl Batches {
    /// Writes the batch if `writes` is set. In either case, later reads see the changes.
    fn commit(
        &mut self,
        backend: &Backend,
        machine: &mut StateMachine<()>,
        now: impl Fn() -> Now,
        writes: bool,
    ) -> Result<(), ReplayError> {
        for batch in std::mem::take(&mut self.waiting) {
            if writes {
                let committed = backend.commit(&batch)?;
                let job = Job::Committed { committed, generation: 0 };
                machine.take(job, now(), self)?;
            }
        }
        Ok(())
    }
}

impl Outlet for Batches {
    type Ticket = ();
    type Completion = ();

    fn begin(&mut self, _: &Request, _: &View) -> Begun<()> {
        Begun { ticket: (), reply_wanted: false, kind: "a request" }
    }

    fn finish(&mut self, (): (), _: &Entry, _: Option<Result<Response, Refusal>>) {}

    fn leads_in(&self, _: Term) -> bool {
        false
    }

    fn is_backend_behind(&self) -> bool {
        false
    }

    fn put(&mut self, output: Output<()>) {
        match output {
            Output::Commit { batch, .. } => self.waiting.push(batch),
            Output::Decided { .. }
            | Output::Members(_)
            | Output::Changed { .. }
            | Output::ChangeRefused(_)
            | Output::Removed
            | Output::ChangeAnswered { .. }
            | Output::Published { .. }
            | Output::CompactionAccepted { .. }
            | Output::ClusterVersion { .. }
            | Output::StorageVersion { .. }
            | Output::StorageVersionStays(_)
            | Output::OverQuota { .. }
            | Output::TakingSnapshot { .. }
            | Output::Install { .. }
            | Output::Installed { .. }
            | Output::Complete(()) => {}
        }
    }
}
