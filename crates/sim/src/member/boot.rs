//! Starts a member from its disk.
//!
//! Production code decides whether and how the member starts ([`quorate_core::bootstrap`]). The other members' answers
//! ([`OtherMembers`]) are simulated. The files are opened in the same order as in `server::bootstrap`.

use std::path::Path;
use std::sync::Arc;

use quorate_core::bootstrap::{self, Cluster, Decision, Directory, Identity, InitialCluster};
use quorate_core::bootstrap::{NoCluster, Refusal, Step, create_log, is_blank};
use quorate_core::configuration_of;
use quorate_core::incoming::Depot;
use quorate_core::start::{self, Start, StartError};
use quorate_node::Node;
use quorate_raft::{LogIndex, Term};
use quorate_state::apply::{RecoverError, State};
use quorate_state::backend::{Backend, Fault};
use quorate_state::members::Members;
use quorate_storage::data_dir::{DataDir, DataDirError};
use quorate_storage::disk::{Disk, FaultyDisk};
use quorate_storage::lost_log;
use quorate_storage::snap::{self, SnapError};
use quorate_storage::wal::{self, Wal, WalError};

use super::{Settings, Terms};

/// The other members, from which a starting process requests information.
pub trait OtherMembers {
    /// Returns the cluster descriptions from the members at `urls` that answer.
    fn clusters(&self, urls: &[String]) -> Vec<Cluster>;
}

/// The flags of a member.
#[derive(Clone, Debug)]
pub struct Flags {
    /// The name of the member.
    pub name: String,
    /// The names and peer URLs of the initial cluster.
    pub initial: Vec<(String, String)>,
    /// Whether the member joins an existing cluster.
    pub joins: bool,
    /// The cluster token.
    pub token: String,
    /// All other settings.
    pub settings: Settings,
}

impl Flags {
    fn of_start(&self) -> bootstrap::Flags {
        bootstrap::Flags {
            name: self.name.clone(),
            joins: self.joins,
            is_alone: false,
            is_discovered: false,
            learner_count_max: self.settings.learner_max,
            held_version: None,
        }
    }

    fn initial_cluster(&self) -> InitialCluster {
        let members = self.initial.iter().map(|(name, url)| (name.clone(), vec![url.clone()]));
        InitialCluster { members: members.collect(), token: self.token.clone() }
    }
}

/// The reason why a process does not start.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Production code refused to start the member.
    #[error(transparent)]
    Bootstrap(#[from] Refusal),
    /// The files are invalid or contradict each other.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DataDirError),
    /// The marker file of a lost log cannot be read.
    #[error(transparent)]
    Mark(#[from] std::io::Error),
    /// The snapshot directory cannot be used.
    #[error(transparent)]
    Snapshot(#[from] SnapError),
    /// The log cannot be created.
    #[error(transparent)]
    Wal(#[from] WalError),
    /// The backend cannot be opened.
    #[error(transparent)]
    Backend(#[from] Fault),
    /// The state cannot be recovered.
    #[error(transparent)]
    State(#[from] RecoverError),
    /// Consensus rejected its initial state.
    #[error(transparent)]
    Node(#[from] quorate_node::StartError),
}

/// A member that is ready to start.
#[derive(Debug)]
pub struct Booted {
    pub(super) identity: Identity,
    pub(super) settings: Settings,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) dirs: DataDir,
    pub(super) depot: Depot,
    pub(super) wal: Wal,
    pub(super) backend: Backend,
    pub(super) state: State,
    pub(super) node: Node,
    /// The other members known before the log is replayed.
    pub(super) members: Vec<u64>,
    /// The terms of the entries in the log.
    pub(super) terms: Terms,
}

impl Booted {
    /// Returns the recovered state.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Returns the id of the member.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.identity.member_id
    }
}

/// Returns the directory of a member's files on its disk.
#[must_use]
pub fn dirs() -> DataDir {
    DataDir::new(Path::new("/sim/data"), None)
}

/// The log and snapshots that a starting member found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FoundLog {
    /// The last index of the log.
    pub last_index: LogIndex,
    /// The term of the hard state.
    pub term: Term,
    /// The commit index of the hard state.
    pub commit: LogIndex,
    /// Whether the starting member installed a leader's snapshot that had arrived earlier.
    pub was_installed: bool,
}

/// Starts a member from its disk. `seed` determines its election timeouts. The numbers of its temporary files start at
/// `first_number`.
///
/// # Errors
///
/// The real program would refuse to start, or the disk failed.
pub fn boot(
    disk: &FaultyDisk,
    flags: &Flags,
    others: &dyn OtherMembers,
    (seed, first_number): (u64, u64),
) -> Result<(Booted, FoundLog), Refused> {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let dirs = dirs();
    dirs.prepare(&*shared)?;
    let lost = lost_log::reason(&*shared, &dirs)?;
    let directory = flags.of_start().classify_directory(lost, dirs.is_initialised(&*shared)?)?;
    let depot = Depot::new(Arc::clone(&shared), &dirs.snap(), first_number);
    let booted = match directory {
        Directory::Used => restart((&shared, &dirs, depot), flags, others, seed),
        Directory::New => create((&shared, &dirs, depot), flags, others, seed),
    }?;
    snap::clean_up(&*shared, &dirs.snap())?;
    Ok(booted)
}

/// The disk and directories of a member.
type MemberFiles<'a> = (&'a Arc<dyn Disk>, &'a DataDir, Depot);

/// Answers the questions of the start procedure until the procedure has decided. Two URLs count as the same host only
/// if they are equal, and every version is considered compatible.
fn decide(flags: &Flags, others: &dyn OtherMembers, mut step: Step) -> Result<Decision, Refusal> {
    loop {
        step = match step {
            Step::Decided(decision) => return Ok(decision),
            Step::Initial(question) => question.answer(flags.initial_cluster())?,
            Step::Members(question) => {
                let mut clusters = others.clusters(question.urls()).into_iter();
                let first = clusters.find(|cluster| !cluster.members.is_empty());
                question.answer(first.ok_or(NoCluster::Unreachable))?
            }
            Step::OwnRow(question) => {
                let clusters = others.clusters(question.urls()).into_iter();
                let id = question.id();
                question.answer(clusters.filter_map(|mut cluster| cluster.members.remove(&id)))?
            }
            Step::SameUrls(question) => {
                let (left, right) = question.urls();
                let compared = if left == right { Ok(()) } else { Err(String::new()) };
                question.answer(compared)?
            }
            Step::Versions(question) => question.answer(Ok(()))?,
        };
    }
}

fn restart(
    (disk, dirs, depot): MemberFiles<'_>,
    flags: &Flags,
    others: &dyn OtherMembers,
    seed: u64,
) -> Result<(Booted, FoundLog), Refused> {
    let settings = &flags.settings;
    let open = || Backend::open(disk, &dirs.backend(), settings.bolt_options());
    let marks = wal::snapshot_marks(&**disk, dirs.wal())?;
    let newest = marks.last().map_or(0, |mark| mark.index);
    let waits = || snap::has_database(&**disk, &dirs.snap(), newest).is_ok_and(|waits| waits);
    let had_waited = waits();
    let recovered = start::recover(disk, dirs, settings.state_options(), open)?;
    let mark = recovered.mark();
    let (backend, mut state) = (recovered.backend, recovered.state);
    let applied = LogIndex(state.applied().0);
    let (mut wal, contents) = start::open_log(disk, dirs, &mark, settings.wal.clone())?;
    start::check_log(&**disk, dirs, &contents, applied)?;
    let identity = Identity::from_metadata(contents.metadata.as_deref(), &flags.name)?;
    let found = FoundLog {
        last_index: LogIndex(contents.last_index),
        term: Term(contents.hard_state.term),
        commit: LogIndex(contents.hard_state.commit),
        was_installed: had_waited && !waits(),
    };
    let (own, start_flags) = (identity.clone(), flags.of_start());
    let (mut start, step) = if is_blank(&contents, &mark, applied) {
        (Start::default(), start_flags.begin_again(own, None)?)
    } else {
        let start = Start::new(&state, contents, mark)?;
        start.correct_members(&mut state);
        start_flags.check_members(&own, state.members())?;
        let step = start_flags.go_on(own, &start, state.members());
        (start, step)
    };
    let others = match decide(flags, others, step)? {
        Decision::Found(founding) => {
            start = founding.write(&mut wal)?;
            founding.others()
        }
        Decision::Join(joining) => joining.others,
        Decision::Continue { others, .. } => others,
    };
    start::release_passed(&**disk, dirs, applied)?;
    let terms = Terms::of(&start.entries);
    let node = node_at(start, state.members(), settings, identity.member_id, seed)?;
    let (settings, members) = (settings.clone(), others.iter().map(|one| one.id.0).collect());
    let (disk, dirs) = (Arc::clone(disk), dirs.clone());
    let booted =
        Booted { identity, settings, disk, dirs, depot, wal, backend, state, node, members, terms };
    Ok((booted, found))
}

fn create(
    (disk, dirs, depot): MemberFiles<'_>,
    flags: &Flags,
    others: &dyn OtherMembers,
    seed: u64,
) -> Result<(Booted, FoundLog), Refused> {
    let settings = &flags.settings;
    let open = || Backend::open(disk, &dirs.backend(), settings.bolt_options());
    let has_backend = disk.metadata(&dirs.backend()).is_ok_and(|facts| facts.is_some());
    let applied = if has_backend { open()?.read().consistent_index()?.0 } else { 0 };
    let step = flags.of_start().create(LogIndex(applied))?;
    let (identity, founding, others) = match decide(flags, others, step)? {
        Decision::Found(founding) => {
            (founding.identity.clone(), Some(founding.clone()), founding.others())
        }
        Decision::Join(joining) => (joining.identity, None, joining.others),
        Decision::Continue { .. } => unreachable!("there is no log to continue from"),
    };
    let backend = open()?;
    let state = State::recover(&backend, settings.state_options())?;
    let options = settings.wal.clone();
    let (wal, start) = create_log(disk, dirs, &identity, founding.as_ref(), options)?;
    let terms = Terms::of(&start.entries);
    let node = node_at(start, state.members(), settings, identity.member_id, seed)?;
    let (settings, members) = (settings.clone(), others.iter().map(|one| one.id.0).collect());
    let (disk, dirs) = (Arc::clone(disk), dirs.clone());
    let booted =
        Booted { identity, settings, disk, dirs, depot, wal, backend, state, node, members, terms };
    Ok((booted, FoundLog::default()))
}

fn node_at(
    start: Start,
    members: &Members,
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
        checks_reconfigurations: true,
        snapshot_policy: settings.snapshot_policy,
        flow_limits: settings.flow_limits,
        hard_state: start.hard_state,
        conf_state: configuration_of(members),
        snapshot_index: LogIndex(start.mark.index),
        snapshot_term: Term(start.mark.term),
        entries: start.entries,
        applied: start.applied,
    })
}
