//! How a process comes to life: from what its disk holds, as a founder, or as one that joins.
//!
//! The course is production's (`server::bootstrap`), with the other members asked through [`Others`] instead of over
//! the network. Where the real program refuses to start, this does, for the same reason.

use std::sync::Arc;

use prost::Message as _;
use quorate_api::etcdserverpb::Metadata;
use quorate_core::start::{self, Start, StartError};
use quorate_node::Node;
use quorate_raft::{ConfState, Entry, EntryKind, HardState, LogIndex, Term};
use quorate_state::apply::{RecoverError, State};
use quorate_state::backend::{Backend, Fault};
use quorate_state::members::{FOUNDING_TERM, Founders, Member, Members};
use quorate_state::units::MemberId;
use quorate_storage::data_dir::{DataDir, DataDirError};
use quorate_storage::disk::Disk;
use quorate_storage::lost_log;
use quorate_storage::snap::{self, SnapError};
use quorate_storage::wal::{self, Wal, WalError};

use super::{Settings, Terms};
use crate::disk::{SimDisk, root};

/// What is asked of other members before there is one here.
pub trait Others {
    /// The members of the cluster as those at these URLs know it, with the cluster's id; all that answer.
    fn clusters(&self, urls: &[String]) -> Vec<(u64, Members)>;
}

/// What the flags say.
#[derive(Clone, Debug)]
pub struct Flags {
    /// This member's name.
    pub name: String,
    /// Names and peer URLs of the initial cluster.
    pub initial: Vec<(String, String)>,
    /// Whether the cluster is there already.
    pub joins: bool,
    /// The cluster's token.
    pub token: String,
    /// The rest.
    pub settings: Settings,
}

/// Why a process does not start.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// What the disk holds is nothing to go on from.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DataDirError),
    /// The snapshot directory cannot be used.
    #[error(transparent)]
    Snapshot(#[from] SnapError),
    /// The log cannot be made.
    #[error(transparent)]
    Wal(#[from] WalError),
    /// The backend cannot be opened.
    #[error(transparent)]
    Backend(#[from] Fault),
    /// The state cannot be recovered.
    #[error(transparent)]
    State(#[from] RecoverError),
    /// Consensus refuses.
    #[error(transparent)]
    Node(#[from] quorate_node::StartError),
    /// Its log was found to have lost what it had acknowledged.
    #[error("the log is marked as lost: {0}")]
    MarkedLost(String),
    /// There is a backend file without its log.
    #[error("the backend file has applied {0}, and there is no log")]
    LogMissing(u64),
    /// The member was removed.
    #[error("the member has been removed")]
    Removed,
    /// Others say that it has been at work before.
    #[error("member {0:x} has already been bootstrapped")]
    Published(u64),
    /// Nobody has told of the cluster.
    #[error("nobody tells of the cluster")]
    NobodyAnswers,
    /// The flags name others than the cluster does.
    #[error("the members of the flags are not those of the cluster")]
    Mismatch,
    /// There are more learners than the flags allow.
    #[error("too many learners")]
    TooManyLearners,
    /// The log says nothing of whose it is.
    #[error("the log has no metadata")]
    NoMetadata,
}

/// What a process begins with.
#[derive(Debug)]
pub struct Booted {
    pub(super) id: u64,
    pub(super) cluster_id: u64,
    pub(super) settings: Settings,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) dirs: DataDir,
    pub(super) wal: Wal,
    pub(super) backend: Backend,
    pub(super) state: State,
    pub(super) node: Node,
    /// Others, as far as they are known before the log tells.
    pub(super) members: Vec<u64>,
    /// Of which term its log's entries are.
    pub(super) terms: Terms,
}

impl Booted {
    /// The state as it was recovered.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// The member's id.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }
}

/// The place of a member's files on its disk.
#[must_use]
pub fn dirs() -> DataDir {
    DataDir::new(&root().join("data"), None)
}

/// What a log begins with that says where it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Where the log ends.
    pub last_index: LogIndex,
    /// The hard state's term.
    pub term: Term,
    /// The hard state's commit index.
    pub commit: LogIndex,
    /// Whether a leader's snapshot had arrived and was still to be installed.
    pub was_installed: bool,
}

/// Starts a member from its disk. The seed is for its elections.
///
/// # Errors
///
/// The real program would refuse to start, or a fault of the disk has struck.
pub fn boot(
    disk: &SimDisk,
    flags: &Flags,
    others: &dyn Others,
    seed: u64,
) -> Result<(Booted, Found), Refused> {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let dirs = dirs();
    dirs.prepare(&*shared)?;
    check_lost_log(&*shared, &dirs)?;
    let booted = if dirs.is_initialised(&*shared) {
        restart(Arc::clone(&shared), dirs.clone(), flags, others, seed)
    } else {
        create(Arc::clone(&shared), dirs.clone(), flags, others, seed)
    }?;
    snap::clean_up(&*shared, &dirs.snap())?;
    Ok(booted)
}

fn check_lost_log(disk: &dyn Disk, dirs: &DataDir) -> Result<(), Refused> {
    match lost_log::reason(disk, dirs) {
        Ok(None) => Ok(()),
        Ok(Some(reason)) => Err(Refused::MarkedLost(reason)),
        Err(error) => Err(Refused::MarkedLost(error.to_string())),
    }
}

fn restart(
    disk: Arc<dyn Disk>,
    dirs: DataDir,
    flags: &Flags,
    others: &dyn Others,
    seed: u64,
) -> Result<(Booted, Found), Refused> {
    let settings = &flags.settings;
    let open = || Backend::open(&disk, &dirs.backend(), settings.bolt_options());
    let marks = wal::snapshot_marks(&*disk, dirs.wal())?;
    let newest = marks.last().map_or(0, |mark| mark.index);
    let waits = || snap::find_database(&*disk, &dirs.snap(), newest).is_ok();
    let had_waited = waits();
    let recovered = start::recover(&disk, &dirs, settings.state_options(), open)?;
    let mark = recovered.mark();
    let (backend, state) = (recovered.backend, recovered.state);
    let applied = LogIndex(state.applied().0);
    let (mut wal, contents) = start::open_log(&disk, &dirs, &mark, settings.wal.clone())?;
    start::check_log(&*disk, &dirs, &contents, applied)?;
    let metadata = contents.metadata.as_deref().ok_or(Refused::NoMetadata)?;
    let metadata = Metadata::decode(metadata).map_err(|_| Refused::NoMetadata)?;
    let (Some(id), Some(cluster_id)) = (metadata.node_id, metadata.cluster_id) else {
        return Err(Refused::NoMetadata);
    };
    let found = Found {
        last_index: LogIndex(contents.last_index),
        term: Term(contents.hard_state.term),
        commit: LogIndex(contents.hard_state.commit),
        was_installed: had_waited && !waits(),
    };
    let is_blank = contents.hard_state.is_empty() && mark.index == 0 && applied == LogIndex::ZERO;
    let (start, members) = if is_blank {
        begin_again(flags, others, (id, cluster_id), &mut wal)?
    } else {
        if state.members().is_removed(MemberId(id)) {
            return Err(Refused::Removed);
        }
        check_learners(settings, state.members().iter())?;
        let start = Start::new(&state, contents, mark)?;
        let knows = state.members().iter().len() > 0
            || start.entries.iter().any(|entry| entry.kind == EntryKind::ConfChange);
        let members = if knows { Vec::new() } else { learn_others(flags, others, id, cluster_id)? };
        (start, members)
    };
    start::release_passed(&*disk, &dirs, applied)?;
    let terms = Terms::of(&start.entries);
    let node = node_at(start, settings, id, seed)?;
    let settings = settings.clone();
    let booted =
        Booted { id, cluster_id, settings, disk, dirs, wal, backend, state, node, members, terms };
    Ok((booted, found))
}

/// Goes on where a crash has stopped the first start, between the creation of the log and its first entries.
fn begin_again(
    flags: &Flags,
    others: &dyn Others,
    (id, cluster_id): (u64, u64),
    wal: &mut Wal,
) -> Result<(Start, Vec<u64>), Refused> {
    let founders = founders(flags);
    let own = founders.named(&flags.name).map(|own| own.id.0);
    if !flags.joins && own == Some(id) && founders.cluster_id() == cluster_id {
        return Ok((found(&founders, wal)?, founders.iter().map(|one| one.id.0).collect()));
    }
    Ok((Start::default(), learn_others(flags, others, id, cluster_id)?))
}

fn learn_others(
    flags: &Flags,
    others: &dyn Others,
    id: u64,
    cluster_id: u64,
) -> Result<Vec<u64>, Refused> {
    let Some((found, members)) = others.clusters(&urls_of_others(flags)).into_iter().next() else {
        return Ok(Vec::new());
    };
    if found != cluster_id {
        return Ok(Vec::new());
    }
    if members.get(MemberId(id)).is_some_and(has_published) {
        return Err(Refused::Published(id));
    }
    Ok(members.iter().map(|member| member.id.0).filter(|other| *other != id).collect())
}

fn create(
    disk: Arc<dyn Disk>,
    dirs: DataDir,
    flags: &Flags,
    others: &dyn Others,
    seed: u64,
) -> Result<(Booted, Found), Refused> {
    let settings = &flags.settings;
    let open = || Backend::open(&disk, &dirs.backend(), settings.bolt_options());
    if disk.metadata(&dirs.backend()).is_ok_and(|facts| facts.is_some()) {
        let applied = open()?.read().consistent_index()?.0;
        if applied > 0 {
            return Err(Refused::LogMissing(applied));
        }
    }
    let founders = founders(flags);
    let (id, cluster_id, members) = if flags.joins {
        join(flags, others)?
    } else {
        let own = founders.named(&flags.name).ok_or(Refused::Mismatch)?.id;
        let told = others.clusters(&urls_of_others(flags));
        if told.iter().any(|(_, members)| members.get(own).is_some_and(has_published)) {
            return Err(Refused::Published(own.0));
        }
        let members = founders.iter().map(|one| one.id.0).collect();
        (own.0, founders.cluster_id(), members)
    };
    let backend = open()?;
    let state = State::recover(&backend, settings.state_options())?;
    let metadata = Metadata { node_id: Some(id), cluster_id: Some(cluster_id) };
    let metadata = metadata.encode_to_vec().into();
    let mut wal = Wal::create(Arc::clone(&disk), dirs.wal(), metadata, settings.wal.clone())?;
    let start = if flags.joins { Start::default() } else { found(&founders, &mut wal)? };
    let terms = Terms::of(&start.entries);
    let node = node_at(start, settings, id, seed)?;
    let settings = settings.clone();
    let booted =
        Booted { id, cluster_id, settings, disk, dirs, wal, backend, state, node, members, terms };
    Ok((booted, Found::default()))
}

/// Asks the cluster for this member's place in it.
fn join(flags: &Flags, others: &dyn Others) -> Result<(u64, u64, Vec<u64>), Refused> {
    let told = others.clusters(&urls_of_others(flags));
    let (cluster_id, cluster) = told.first().ok_or(Refused::NobodyAnswers)?;
    if cluster.iter().len() != flags.initial.len() {
        return Err(Refused::Mismatch);
    }
    let mut own = None;
    for member in cluster.iter() {
        let named = flags.initial.iter().find(|(_, url)| member.peer_urls == [url.clone()]);
        let (name, _) = named.ok_or(Refused::Mismatch)?;
        if *name == flags.name {
            own = Some(member.id);
        }
    }
    let own = own.ok_or(Refused::Mismatch)?;
    let knows = |(id, members): &(u64, Members)| {
        id == cluster_id && members.get(own).is_some_and(has_published)
    };
    if told.iter().any(knows) {
        return Err(Refused::Published(own.0));
    }
    check_learners(&flags.settings, cluster.iter())?;
    let members = cluster.iter().map(|member| member.id.0).filter(|id| *id != own.0);
    Ok((own.0, *cluster_id, members.collect()))
}

fn urls_of_others(flags: &Flags) -> Vec<String> {
    let others = flags.initial.iter().filter(|(name, _)| *name != flags.name);
    others.map(|(_, url)| url.clone()).collect()
}

/// Whether others know where clients reach it: only who has had a log tells that.
fn has_published(member: &Member) -> bool {
    !member.client_urls.is_empty()
}

fn check_learners<'a>(
    settings: &Settings,
    members: impl IntoIterator<Item = &'a Member>,
) -> Result<(), Refused> {
    let count = members.into_iter().filter(|member| member.is_learner).count();
    if count > settings.learner_max { Err(Refused::TooManyLearners) } else { Ok(()) }
}

fn founders(flags: &Flags) -> Founders {
    let initial = flags.initial.iter().map(|(name, url)| (name.as_str(), vec![url.clone()]));
    Founders::new(initial, &flags.token)
}

/// Writes the founders into a log that holds nothing else.
fn found(founders: &Founders, wal: &mut Wal) -> Result<Start, Refused> {
    let entries: Vec<Entry> = (1..)
        .zip(founders.conf_changes())
        .map(|(index, data)| Entry {
            term: Term(FOUNDING_TERM),
            index: LogIndex(index),
            kind: EntryKind::ConfChange,
            data,
        })
        .collect();
    let commit = entries.len() as u64;
    let written = entries.iter().map(|entry| wal::EntryRef {
        index: entry.index.get(),
        term: entry.term.get(),
        kind: entry.kind as u8,
        data: &entry.data,
    });
    wal.append(Some(&wal::HardState { term: FOUNDING_TERM, vote: 0, commit }), written)?;
    wal.sync()?;
    let voters = founders.iter().map(|member| member.id.0).collect();
    let conf_state = ConfState { voters, ..ConfState::default() };
    let hard_state = HardState { term: Term(FOUNDING_TERM), vote: 0, commit: LogIndex(commit) };
    Ok(Start { hard_state, conf_state, entries, ..Start::default() })
}

fn node_at(
    start: Start,
    settings: &Settings,
    id: u64,
    seed: u64,
) -> Result<Node, quorate_node::StartError> {
    Node::new(quorate_node::Config {
        id,
        election_ticks: settings.election_ticks,
        pre_vote: settings.pre_vote,
        initial_tick_advance: settings.initial_tick_advance,
        seed,
        first_read_request_id: id << 48 | (seed & 0xffff_ffff) << 16,
        proposal_ticks_max: u64::from(settings.election_ticks) * 2 + 50,
        fences_stalled_disk: settings.fences_stalled_disk,
        snapshot_policy: settings.snapshot_policy,
        hard_state: start.hard_state,
        conf_state: start.conf_state,
        snapshot_index: LogIndex(start.mark.index),
        snapshot_term: Term(start.mark.term),
        entries: start.entries,
        applied: start.applied,
    })
}
