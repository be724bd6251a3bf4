//! Tests of the required order of steps, with a scenario for each rule. The randomised tests exercise these rules only
//! by chance.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use quorate_api::raftpb;
use quorate_node::{Event, Persist};
use quorate_raft::confchange::wire as change_wire;
use quorate_raft::{
    ConfChange, ConfChangeKind, ConfState, Entry, EntryKind, HardState, LogIndex, Message,
    MessageKind, Snapshot, SnapshotMetadata, Term,
};
use quorate_seeded_random::SplitMix64;
use quorate_state::apply::{EntryMeta, Request, State};
use quorate_state::backend::{Backend, Batch};
use quorate_state::members::Member as Row;
use quorate_state::units::MemberId;
use quorate_storage::disk::{
    Disk, Fault, Faults, FaultyDisk, IO_ERROR, Operation, RealDisk, Surviving,
};
use quorate_storage::snap::{IncomingDatabase, database_path};
use quorate_storage::wal::{self, SnapshotMark, Wal};

use super::member::{Turn, bolt_options, small_segments, state_options};
use super::{Client, Folder, Member};
use crate::start;
use crate::{
    BackendError, BackendWriter, InstallError, Job, Log, Order, Purger, Report, SnapshotOrder, Then,
};

/// Returns the part of a leader's snapshot that is stored in the `snap` directory.
fn leaders_snapshot(index: u64, voters: &[u64]) -> Snapshot {
    let conf_state = ConfState { voters: voters.to_vec(), ..ConfState::default() };
    let metadata = SnapshotMetadata { conf_state, index: LogIndex(index), term: Term(2) };
    Snapshot { data: Bytes::from_static(b"{}"), metadata }
}

/// Index of the last acknowledged entry in the log with many segments.
const LAST: u64 = 12;

fn log_of_many_segments(folder: &Folder) -> (FaultyDisk, Log, Purger) {
    folder.found(&[1, 2, 3], small_segments());
    let disk = FaultyDisk::new(folder.path()).unwrap();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let dirs = folder.dirs();
    let start = SnapshotMark::default();
    let (wal, _) = Wal::open(Arc::clone(&shared), dirs.wal(), &start, small_segments()).unwrap();
    let mut log = Log::new(wal, Arc::clone(&shared), dirs.snap());
    for index in 4..=LAST {
        let data = vec![7; 1500].into();
        let entry = Entry { term: Term(1), index: LogIndex(index), kind: EntryKind::Normal, data };
        let persist = Persist { token: index, entries: vec![entry], ..Persist::default() };
        log.append(&persist).unwrap();
        assert_eq!(log.sync().unwrap().unwrap().token, index);
    }
    let purger = Purger {
        disk: shared,
        snap_dir: dirs.snap(),
        wal_dir: dirs.wal().to_path_buf(),
        snapshots_max: 1,
        segments_max: 1,
    };
    (disk, log, purger)
}

/// Returns the newest valid mark after a power cut, and the last index of the log that is read from this mark.
fn after_crash(disk: &FaultyDisk, seed: u64) -> (u64, u64) {
    let folder = Folder::new();
    disk.crash(seed, folder.path()).unwrap();
    let marks = wal::snapshot_marks(&RealDisk, folder.dirs().wal()).unwrap();
    let mark = marks.last().unwrap();
    let log: Arc<dyn Disk> = Arc::new(RealDisk);
    let (_, contents) = Wal::open(log, folder.dirs().wal(), mark, small_segments()).unwrap();
    (mark.index, contents.entries.last().map_or(mark.index, |last| last.index))
}

#[test]
fn segments_are_purged_only_after_the_hard_state_of_a_leaders_snapshot_is_synced() {
    let folder = Folder::new();
    let (disk, mut log, purger) = log_of_many_segments(&folder);
    let snapshot = Some(leaders_snapshot(40, &[1, 2, 3]));
    let hard_state = Some(HardState { term: Term(2), vote: 0, commit: LogIndex(40) });
    let persist = Persist { token: 40, snapshot, hard_state, ..Persist::default() };
    log.append(&persist).unwrap();
    purger.run(|path| panic!("{} was removed too early", path.display())).unwrap();
    for seed in 0..20 {
        let found = after_crash(&disk, seed);
        assert!([(0, LAST), (40, 40)].contains(&found), "{found:?}");
    }
    log.sync().unwrap();
    let mut purged = 0;
    purger.run(|_| purged += 1).unwrap();
    assert!(purged > 3, "{purged}");
    for seed in 0..20 {
        assert_eq!(after_crash(&disk, seed), (40, 40));
    }
}

#[test]
fn entries_after_a_leaders_snapshot_reach_the_disk_only_with_a_hard_state_that_covers_the_snapshot()
{
    // The first entry and the hard state of the order are in different sectors.
    let entry = |index, len| {
        let data = vec![7; len].into();
        Entry { term: Term(2), index: LogIndex(index), kind: EntryKind::Normal, data }
    };
    let persist = Persist {
        token: 40,
        snapshot: Some(leaders_snapshot(40, &[1, 2, 3])),
        entries: vec![entry(41, 100), entry(42, 1500)],
        hard_state: Some(HardState { term: Term(2), vote: 0, commit: LogIndex(40) }),
    };
    let folder = Folder::new();
    let (disk, mut log, _) = log_of_many_segments(&folder);
    log.append(&persist).unwrap();
    // The power is cut while the order is written.
    disk.stop_at(disk.operation_count());
    log.sync().unwrap_err();
    for seed in 0..40 {
        let found = after_crash(&disk, seed);
        let is_allowed = [(0, LAST), (40, 40), (40, 41), (40, 42)].contains(&found);
        assert!(is_allowed, "seed {seed}: {found:?}");
    }
}

#[test]
fn the_wal_mark_of_a_members_own_snapshot_is_durable_when_reported() {
    let folder = Folder::new();
    let (disk, mut log, purger) = log_of_many_segments(&folder);
    // An unsynced entry is appended first. The commit index on disk is still the commit index of the founding entries.
    let entry = Entry { term: Term(1), index: LogIndex(LAST + 1), ..Entry::default() };
    log.append(&Persist { token: 99, entries: vec![entry], ..Persist::default() }).unwrap();
    let mark = SnapshotMark { index: 10, term: 1, conf_state: Some(Bytes::new()) };
    let marked = log.mark(&mark).unwrap();
    assert_eq!((marked.synced.unwrap().token, marked.index), (99, LogIndex(10)));
    purger.run(|_| ()).unwrap();
    for seed in 0..20 {
        assert_eq!(after_crash(&disk, seed), (10, LAST + 1));
    }
    // A mark for an older snapshot is not written, because a restarting member uses the last mark in the log.
    let late = SnapshotMark { index: 8, term: 1, conf_state: Some(Bytes::new()) };
    assert_eq!(log.mark(&late).unwrap().synced, None);
    assert_eq!(after_crash(&disk, 1), (10, LAST + 1));
}

/// The third of three members, under explicit control of the test. The first member leads.
struct Scripted {
    member: Member,
    client: Client,
    folder: Folder,
}

impl Scripted {
    fn start() -> Self {
        let folder = Folder::new();
        folder.found(&[1, 2, 3], small_segments());
        let disk = FaultyDisk::new(folder.path()).unwrap();
        let member = Member::start(3, &folder, disk, small_segments()).unwrap();
        let mut scripted = Self { member, client: Client::default(), folder };
        // The machines process the membership changes of the founders.
        scripted.run(&[Turn::Consensus, Turn::StateMachine, Turn::Consensus]);
        scripted
    }

    fn run(&mut self, turns: &[Turn]) {
        for turn in turns {
            let draw = &mut SplitMix64::new(0);
            // Take several turns, so that the whole queue is processed regardless of the seed.
            for _ in 0..10 {
                self.member.take_turn(*turn, &mut self.client, draw).unwrap();
            }
        }
    }

    fn receive(&mut self, kind: MessageKind, fill: impl FnOnce(&mut Message)) {
        let mut message = Message { from: 1, term: Term(2), ..Message::new(kind, 3) };
        fill(&mut message);
        self.member.receive(message);
    }

    /// Receives a snapshot at `index` whose image contains only these writes.
    fn receive_snapshot(&mut self, index: u64, writes: u64) {
        let (snapshot, image) = snapshot_at(index, writes, &mut self.client);
        let message = Message {
            from: 1,
            term: Term(2),
            snapshot: Some(Box::new(snapshot)),
            ..Message::new(MessageKind::Snapshot, 3)
        };
        self.member.receive_snapshot(message, &image).unwrap();
    }

    fn voters(&self) -> String {
        format!("{:?}", self.member.consensus.status().config.voters)
    }
}

#[test]
fn a_membership_change_older_than_a_snapshot_is_ignored_while_the_snapshot_is_synced() {
    let mut third = Scripted::start();
    let everybody = third.voters();
    let removal =
        ConfChange { kind: ConfChangeKind::RemoveNode, node_id: 2, ..ConfChange::default() };
    third.receive(MessageKind::Append, |append| {
        (append.index, append.log_term, append.commit) = (LogIndex(3), Term(1), LogIndex(5));
        let data = change_wire::encode_v1(&removal);
        append.entries = vec![
            Entry { term: Term(2), index: LogIndex(4), ..Entry::default() },
            Entry { term: Term(2), index: LogIndex(5), kind: EntryKind::ConfChange, data },
        ];
    });
    third.run(&[Turn::Consensus, Turn::Log, Turn::Consensus]);
    let last = third.member.jobs.back();
    assert!(
        matches!(last, Some(Job::Apply(entries)) if entries.last().unwrap().index == LogIndex(5))
    );
    // A snapshot arrives, in which the second member has been added again.
    third.receive(MessageKind::Snapshot, |message| {
        message.snapshot = Some(Box::new(leaders_snapshot(40, &[1, 2, 3])));
    });
    third.run(&[Turn::Consensus]);
    assert_eq!(third.voters(), everybody);
    third.run(&[Turn::StateMachine, Turn::Consensus]);
    assert_eq!(third.voters(), everybody, "the membership decision is older than the snapshot");
    third.run(&[Turn::Log, Turn::Consensus]);
    assert_eq!(third.voters(), everybody);
    assert!(matches!(third.member.jobs.back(), Some(Job::InstallSnapshot(_))));
}

#[test]
fn the_applied_index_advances_only_after_the_membership_decision_reaches_consensus() {
    let mut third = Scripted::start();
    let removal =
        ConfChange { kind: ConfChangeKind::RemoveNode, node_id: 2, ..ConfChange::default() };
    third.receive(MessageKind::Append, |append| {
        (append.index, append.log_term, append.commit) = (LogIndex(3), Term(1), LogIndex(5));
        let data = change_wire::encode_v1(&removal);
        append.entries = vec![
            Entry { term: Term(2), index: LogIndex(4), ..Entry::default() },
            Entry { term: Term(2), index: LogIndex(5), kind: EntryKind::ConfChange, data },
        ];
    });
    third.run(&[Turn::Consensus, Turn::Log, Turn::Consensus, Turn::StateMachine]);
    assert_eq!(third.member.applied(), LogIndex(5));
    third.member.consensus.notice_applied(LogIndex(5));
    assert_eq!(
        third.member.consensus.status().applied,
        LogIndex(3),
        "the membership decision has not arrived"
    );
    third.run(&[Turn::Consensus]);
    assert_eq!(third.member.consensus.status().applied, LogIndex(5));
}

/// Returns a snapshot at `index` from a leader of three members, and its image, which contains only these writes.
fn snapshot_at(index: u64, writes: u64, client: &mut Client) -> (Snapshot, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let backend = Backend::open(&disk, &folder.path().join("db"), bolt_options()).unwrap();
    let mut state = State::recover(&backend, state_options()).unwrap();
    for id in 1..=3 {
        let row = Row::new(MemberId(id), vec![format!("http://{id}:2380")]);
        let change = raftpb::ConfChange {
            node_id: Some(id),
            context: Some(row.to_json().into()),
            ..raftpb::ConfChange::default()
        };
        let entry = EntryMeta { index: id, term: 1, ..EntryMeta::default() };
        state.apply_conf_change(entry, &change).unwrap().unwrap().unwrap();
    }
    for (index, proposal) in (index + 1 - writes..).zip(Client::default().ask_for(writes)) {
        let entry = EntryMeta { index, term: 2, ..EntryMeta::default() };
        state.apply(entry, Request::decode(proposal.data.clone()).unwrap()).unwrap();
        client.note_committed(LogIndex(index), &proposal.data);
    }
    backend.commit(&state.take_batch()).unwrap();
    let image = read_image(&backend);
    let order = SnapshotOrder::new(LogIndex(index), Term(2), state.members(), state.versions());
    (order.into_raft(), image)
}

#[test]
fn a_commit_report_for_a_replaced_backend_file_is_ignored() {
    let mut third = Scripted::start();
    third.receive(MessageKind::Append, |append| {
        (append.index, append.log_term, append.commit) = (LogIndex(3), Term(1), LogIndex(4));
        append.entries = vec![Entry { term: Term(2), index: LogIndex(4), ..Entry::default() }];
    });
    third.run(&[Turn::Consensus, Turn::Log, Turn::Consensus, Turn::StateMachine]);
    // The batch with that entry is queued for the backend when the snapshot arrives.
    (0..10).for_each(|_| third.member.let_time_pass());
    third.run(&[Turn::StateMachine]);
    third.receive_snapshot(40, 4);
    third.run(&[Turn::Consensus, Turn::Log, Turn::Consensus, Turn::StateMachine, Turn::Backend]);
    let is_commit = |job: &Job<u64>| matches!(job, Job::Committed { generation: 0, .. });
    assert!(third.member.jobs.iter().any(is_commit), "a commit to the replaced file is reported");
    third.run(&[Turn::StateMachine]);
    assert_eq!(third.member.applied(), LogIndex(40));
    assert_eq!(third.client.check(third.member.machine.state(), "after the installation"), 4);
}

/// Returns a backend file with this consistent index.
pub(super) fn image_at(index: u64) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let backend = Backend::open(&disk, &path, bolt_options()).unwrap();
    let mut batch = Batch::new();
    batch.set_consistent_index(index, 2);
    backend.commit(&batch).unwrap();
    read_image(&backend)
}

fn read_image(backend: &Backend) -> Vec<u8> {
    let len = usize::try_from(backend.db().read().image_len()).unwrap();
    let mut bytes = std::fs::read(backend.db().path()).unwrap();
    bytes.truncate(len);
    bytes
}

pub(super) struct Files {
    folder: Folder,
    pub(super) faulty: FaultyDisk,
    disk: Arc<dyn Disk>,
    pub(super) writer: BackendWriter<(), ()>,
}

impl Files {
    pub(super) fn new() -> Self {
        let folder = Folder::new();
        folder.found(&[1], small_segments());
        let faulty = FaultyDisk::new(folder.path()).unwrap();
        let disk: Arc<dyn Disk> = Arc::new(faulty.clone());
        let path = folder.dirs().backend();
        let backend = Backend::open(&disk, &path, bolt_options()).unwrap();
        let writer = BackendWriter::new(backend, Arc::clone(&disk), folder.dirs().snap());
        Self { folder, faulty, disk, writer }
    }

    pub(super) fn receive(&self, index: u64, image: &[u8]) {
        let dir = self.folder.dirs().snap();
        let mut file = IncomingDatabase::create(Arc::clone(&self.disk), &dir, index).unwrap();
        file.write(image).unwrap();
        file.finish(index).unwrap();
    }

    fn waiting(&self) -> Vec<u64> {
        let dir = self.folder.dirs().snap();
        [20, 40].into_iter().filter(|index| self.holds(&database_path(&dir, *index))).collect()
    }

    fn holds(&self, path: &Path) -> bool {
        self.disk.metadata(path).unwrap().is_some()
    }

    fn order(&mut self, order: Order<(), ()>) -> Result<(), BackendError> {
        self.writer.take(order, Instant::now());
        while self.writer.step()?.is_some() {}
        Ok(())
    }

    pub(super) fn applied(&self) -> u64 {
        self.writer.backend().read().consistent_index().unwrap().0
    }
}

#[test]
fn an_image_is_kept_until_the_backend_file_reaches_the_images_index() {
    let mut files = Files::new();
    files.receive(20, &image_at(20));
    files.receive(40, &image_at(40));
    let state = State::recover(files.writer.backend(), state_options()).unwrap();
    let own = SnapshotOrder::new(LogIndex(10), Term(1), state.members(), state.versions());
    let mut batch = Batch::new();
    batch.set_consistent_index(10, 1);
    files.order(Order::Commit { batch, then: vec![Then::Snapshot(own)] }).unwrap();
    assert_eq!((files.applied(), files.waiting()), (10, vec![20, 40]));
    files.order(Order::Install { index: LogIndex(20), completion: () }).unwrap();
    assert_eq!((files.applied(), files.waiting()), (20, vec![40]), "the second image waits");
    files.order(Order::Install { index: LogIndex(40), completion: () }).unwrap();
    assert_eq!((files.applied(), files.waiting()), (40, vec![]));
}

#[test]
fn an_image_that_does_not_match_its_snapshot_is_not_installed() {
    for (image, words) in [
        (vec![7; 20_000], "not a valid backend file"),
        (image_at(19), "does not match with snapshot"),
        (image_at(21), "does not match with snapshot"),
        // The image has no consistent index.
        (image_at(0), "does not match with snapshot"),
    ] {
        let mut files = Files::new();
        files.receive(20, &image);
        let error =
            files.order(Order::Install { index: LogIndex(20), completion: () }).unwrap_err();
        assert!(matches!(
            error,
            BackendError::Install(InstallError::Unfit { index: LogIndex(20), .. })
        ));
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!((files.applied(), files.waiting()), (0, vec![20]));
    }
}

#[test]
fn a_restarted_member_syncs_an_installed_image_before_it_changes_the_image() {
    let mut third = Scripted::start();
    third.receive_snapshot(40, 4);
    third.run(&[Turn::Consensus, Turn::Log, Turn::Consensus, Turn::StateMachine]);
    // The image is renamed, but the sync of its name fails, and the process ends.
    let disk = third.member.disk.clone();
    disk.inject(Fault::nth(Operation::SyncDir, 0, IO_ERROR).on("snap"));
    let draw = &mut SplitMix64::new(0);
    let mut turns = (0..10).map(|_| third.member.take_turn(Turn::Backend, &mut third.client, draw));
    assert!(turns.any(|turn| turn.is_err()), "the image is not installed");
    disk.end_process();
    third.member = Member::start(3, &third.folder, disk, small_segments()).unwrap();
    assert_eq!(third.member.applied(), LogIndex(40));
    third.receive(MessageKind::Append, |append| {
        (append.index, append.log_term, append.commit) = (LogIndex(40), Term(2), LogIndex(41));
        append.entries = vec![Entry { term: Term(2), index: LogIndex(41), ..Entry::default() }];
    });
    third.run(&[Turn::Consensus, Turn::Log, Turn::Consensus, Turn::StateMachine]);
    (0..10).for_each(|_| third.member.let_time_pass());
    third.run(&[Turn::StateMachine, Turn::Backend]);
    let written = |member: &Member| member.writer.backend().read().consistent_index().unwrap().0;
    assert_eq!(written(&third.member), 41);
    for seed in 0..4 {
        let folder = Folder::new();
        third.member.disk.crash(seed, folder.path()).unwrap();
        let disk = FaultyDisk::new(folder.path()).unwrap();
        let member = Member::start(3, &folder, disk, small_segments());
        assert_eq!(written(&member.unwrap_or_else(|error| panic!("seed {seed}: {error}"))), 41);
    }
}

/// A process can end after it has written the mark of a snapshot and before it has synced the log. The next process reads
/// the mark from the system's memory.
#[test]
fn a_restarted_member_syncs_the_log_before_it_installs_the_image_of_a_snapshot() {
    // Kills the process after this number of operations on the log, and the next process after this number of operations.
    // Then cuts the power. Returns the applied index after that, and whether the two processes were killed.
    let run = |operation_count, start_operation_count| {
        let mut third = Scripted::start();
        third.receive_snapshot(40, 4);
        third.run(&[Turn::Consensus]);
        let disk = third.member.disk.clone();
        let kill_after = |count| {
            _ = disk.take_faults_hit();
            disk.set_faults(Faults { kill_after: count, ..Faults::default() });
        };
        let start = || Member::start(3, &third.folder, disk.clone(), small_segments());
        kill_after(Some(operation_count));
        let logged = third.member.take_turn(Turn::Log, &mut third.client, &mut SplitMix64::new(0));
        disk.end_process();
        kill_after(Some(start_operation_count));
        let started = start();
        disk.end_process();
        kill_after(None);
        disk.cut_power(Surviving::None, &mut SplitMix64::new(0));
        let member = start().unwrap_or_else(|error| {
            panic!("{operation_count} operations, then {start_operation_count}: {error}")
        });
        (member.applied(), [logged.is_err(), started.is_err()])
    };
    let (mut installed_count, mut operation_count, mut start_operation_count) = (0, 0, 0);
    loop {
        let (applied, were_killed) = run(operation_count, start_operation_count);
        installed_count += usize::from(applied == LogIndex(40));
        start_operation_count += 1;
        match were_killed {
            [_, true] => {}
            [true, false] => (operation_count, start_operation_count) = (operation_count + 1, 0),
            [false, false] => break,
        }
    }
    assert!(installed_count > 0, "the image is installed in some cases");
}

/// An image becomes newer than its snapshot if the member commits to it after an installation that was never synced,
/// and a power cut then undoes the installation.
#[test]
fn an_image_newer_than_its_snapshot_is_installed_at_the_start_if_the_log_reaches_it() {
    for (image, words) in [
        (19, Err("does not match with snapshot")),
        (20, Ok(20)),
        (21, Ok(21)),
        (22, Err("the log has lost entries")),
    ] {
        let files = Files::new();
        files.receive(20, &image_at(image));
        let (dirs, disk) = (files.folder.dirs(), &files.disk);
        let begin = SnapshotMark::default();
        let (wal, _) = start::open_log(disk, &dirs, &begin, small_segments()).unwrap();
        let mut log = Log::new(wal, Arc::clone(disk), dirs.snap());
        log.append(&Persist {
            token: 1,
            snapshot: Some(leaders_snapshot(20, &[1])),
            entries: vec![Entry { term: Term(2), index: LogIndex(21), ..Entry::default() }],
            hard_state: Some(HardState { term: Term(2), vote: 0, commit: LogIndex(20) }),
        })
        .unwrap();
        log.sync().unwrap();
        log.close(None).unwrap();
        drop(files.writer);
        let open = || Backend::open(disk, &dirs.backend(), bolt_options());
        let started = start::recover(disk, &dirs, state_options(), open).and_then(|recovered| {
            let applied = LogIndex(recovered.state.applied().0);
            let (_, contents) = start::open_log(disk, &dirs, &recovered.mark(), small_segments())?;
            start::check_log(&**disk, &dirs, &contents, applied)?;
            Ok(applied.get())
        });
        match (started, words) {
            (Ok(applied), Ok(expected)) => assert_eq!(applied, expected),
            (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{error}"),
            (started, _) => panic!("image {image}: {started:?}"),
        }
    }
}

#[test]
fn a_wal_mark_is_requested_only_after_the_batch_and_the_snap_file_are_durable() {
    let mut files = Files::new();
    let state = State::recover(files.writer.backend(), state_options()).unwrap();
    let own = SnapshotOrder::new(LogIndex(10), Term(1), state.members(), state.versions());
    let mut batch = Batch::new();
    batch.set_consistent_index(10, 1);
    let then = vec![Then::Snapshot(own), Then::Complete(())];
    files.writer.take(Order::Commit { batch, then }, Instant::now());
    let file = files.folder.dirs().snap().join("0000000000000001-000000000000000a.snap");
    assert!(matches!(files.writer.step().unwrap(), Some(Report::Committed { .. })));
    assert!(!files.holds(&file));
    assert!(matches!(files.writer.step().unwrap(), Some(Report::SnapshotSaved(_))));
    assert!(files.holds(&file));
    assert!(matches!(files.writer.step().unwrap(), Some(Report::Complete(()))));
    assert!(files.writer.step().unwrap().is_none());
}

#[test]
fn an_append_is_acknowledged_only_after_the_log_is_synced() {
    let mut third = Scripted::start();
    third.receive(MessageKind::Append, |append| {
        (append.index, append.log_term, append.commit) = (LogIndex(3), Term(1), LogIndex(3));
        append.entries = vec![Entry { term: Term(2), index: LogIndex(4), ..Entry::default() }];
    });
    third.run(&[Turn::Consensus]);
    let acks = |third: &Scripted| {
        let is_ack = |message: &&Message| message.kind == MessageKind::AppendResponse;
        third.member.sent.iter().filter(is_ack).map(|ack| ack.index.get()).collect::<Vec<_>>()
    };
    assert_eq!(acks(&third), [0; 0], "an entry is acknowledged only when it is on disk");
    third.run(&[Turn::Log]);
    third.member.consensus.handle(Event::Tick);
    assert_eq!(after_crash(&third.member.disk, 0), (0, 4));
    third.run(&[Turn::Consensus]);
    assert_eq!(acks(&third), [4]);
}
