//! Creates the files of a new member of a new cluster from an existing backend file.
//!
//! The backend file keeps its content, except that the members of the new cluster replace the old members. The new log
//! is the log of a founding member that has applied its first entries, one for each founding member. As a result, all
//! members created from the same content and the same initial cluster have the same log entries.
//!
//! # Invariants
//!
//! * The member's directory appears under its final name in one step, complete and synced. A crash or an error never
//!   leaves a directory on which a member would start. After an error, the created files and directories are removed.
//! * The applied index of the backend file is the index of the last log entry, and a leader of a later term continues
//!   after this entry.
//!
//! # Not here
//!
//! The origin of the backend file: a snapshot (`snapshot restore`) or a member's directory (`recover`).

mod advertised;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use quorate_api::etcdserverpb::Metadata;
use quorate_cli::flags::Flag;
use quorate_config::{InitialMembers, Url, texts};
use quorate_core::bootstrap::check_supported;
use quorate_state::backend::{Backend, BackendView, Batch};
use quorate_state::members::{FOUNDING_TERM, Founders, V2Membership};
use quorate_state::schema::{Bucket, RecordKey, Revision, cluster, meta};
use quorate_state::versions::Version;
use quorate_storage::bolt::Options;
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::{Disk, DiskFile, OpenMode};
use quorate_storage::restored;
use quorate_storage::snap;
use quorate_storage::wal::{self, EntryRef, HardState, SnapshotMark, Wal};
use sha2::{Digest, Sha256};

use crate::failure::{Failure, RestoreError};
use crate::files;
use crate::session::Session;

pub(crate) const DATA_DIR: Flag = Flag::bytes("data-dir", "Path to the output data directory");
pub(crate) const WAL_DIR: Flag =
    Flag::bytes("wal-dir", "Path to the WAL directory (use --data-dir if none given)");
pub(crate) const INITIAL_CLUSTER: Flag = Flag::text(
    "initial-cluster",
    "default=http://localhost:2380",
    "Initial cluster configuration for restore bootstrap",
);
pub(crate) const INITIAL_CLUSTER_TOKEN: Flag = Flag::text(
    "initial-cluster-token",
    "etcd-cluster",
    "Initial cluster token for the etcd cluster during restore bootstrap",
);
pub(crate) const INITIAL_ADVERTISE_PEER_URLS: Flag = Flag::text(
    "initial-advertise-peer-urls",
    "http://localhost:2380",
    "List of this member's peer URLs to advertise to the rest of the cluster",
);
pub(crate) const NAME: Flag = Flag::text("name", "default", "Human-readable name for this member");
pub(crate) const BUMP_REVISION: Flag =
    Flag::uint("bump-revision", "0", "How much to increase the latest revision after restore");
pub(crate) const MARK_COMPACTED: Flag = Flag::bool(
    "mark-compacted",
    "Mark the latest revision after restore as the point of scheduled compaction \
     (required if --bump-revision > 0, disallowed otherwise)",
);

/// Permissions of created directories.
const DIR_MODE: u32 = 0o700;
/// Permissions of the backend file.
const FILE_MODE: u32 = 0o600;
/// Number of bytes copied at a time: small enough for a CPU cache, so that each piece is read from memory only once.
const PIECE_BYTES: usize = 64 << 10;
/// Name of a member's directory until it is complete.
const STAGING: &str = "restoring";
/// Entry kind of a membership change, as the log encodes it.
const CONF_CHANGE: u8 = 1;

/// The member to create, as described by the flags.
pub(crate) struct NewMember {
    dirs: DataDir,
    has_own_wal_dir: bool,
    founders: Founders,
    name: String,
    bump_revision: u64,
}

impl NewMember {
    /// Checks the flags, and checks that the target paths do not exist.
    pub(crate) fn prepare(session: &Session) -> Result<Self, Failure> {
        let member = Self::described(session)?;
        member.check_places(&*files::disk())?;
        Ok(member)
    }

    /// Reads the description of the new member from the flags, and checks it.
    pub(crate) fn described(session: &Session) -> Result<Self, Failure> {
        let matches = &session.matches;
        let bump_revision = matches.uint("bump-revision");
        if (bump_revision > 0) != matches.bool("mark-compacted") {
            let text = "--mark-compacted required if --revision-bump > 0";
            return Err(Failure::arguments(text));
        }
        Ok(Self::of_flags(session, bump_revision)?)
    }

    fn of_flags(session: &Session, bump_revision: u64) -> Result<Self, RestoreError> {
        let matches = &session.matches;
        let name = matches.text("name").to_owned();
        let urls = matches.text("initial-advertise-peer-urls").split(',').map(Url::parse);
        let mut advertised = urls.collect::<Result<Vec<_>, _>>()?;
        advertised.sort();
        let initial = InitialMembers::parse(matches.text("initial-cluster"))?;
        initial.check_holds(&name)?;
        advertised::check(&name, &advertised, &initial)?;
        initial.check_urls()?;
        let members = initial.iter().map(|(name, urls)| {
            (name, texts(urls).into_iter().map(str::to_owned).collect::<Vec<_>>())
        });
        let founders = Founders::new(members, matches.text("initial-cluster-token"));
        let default = PathBuf::from(format!("{name}.etcd"));
        let data_dir = matches.path("data-dir").unwrap_or(&default);
        let wal_dir = own_wal_dir(data_dir, matches.path("wal-dir"))?;
        Ok(Self {
            dirs: DataDir::new(data_dir, wal_dir),
            has_own_wal_dir: wal_dir.is_some(),
            founders,
            name,
            bump_revision,
        })
    }

    /// Refuses target paths that already exist, except for an empty data directory, so that nothing is overwritten.
    pub(crate) fn check_places(&self, disk: &dyn Disk) -> Result<(), RestoreError> {
        let root = self.dirs.root();
        let facts = disk.metadata(root).map_err(io_error("check whether it exists", root, 0))?;
        let is_free = facts.is_none() || disk.read_dir(root).is_ok_and(|names| names.is_empty());
        if !is_free {
            return Err(RestoreError::DataDir(root.to_path_buf()));
        }
        let wal = self.dirs.wal();
        let facts = disk.metadata(wal).map_err(io_error("check whether it exists", wal, 0))?;
        if facts.is_some() { Err(RestoreError::WalDir(wal.to_path_buf())) } else { Ok(()) }
    }

    /// Returns the target paths.
    pub(crate) const fn dirs(&self) -> &DataDir {
        &self.dirs
    }

    /// Returns the initial members of the new cluster.
    pub(crate) const fn founders(&self) -> &Founders {
        &self.founders
    }

    /// Returns the amount by which the newest revision is raised.
    pub(crate) const fn bump_revision(&self) -> u64 {
        self.bump_revision
    }

    /// Returns the target paths as fields of a log line.
    pub(crate) fn log_fields(&self) -> [(&'static str, String); 3] {
        [
            ("wal-dir", self.dirs.wal().display().to_string()),
            ("data-dir", self.dirs.root().display().to_string()),
            ("snap-dir", self.dirs.snap().display().to_string()),
        ]
    }

    /// Warns if the token leads to the same member ids as in a cluster that was founded without a token.
    pub(crate) fn warn_of_token(session: &Session) {
        let token = session.matches.text("initial-cluster-token");
        if token == INITIAL_CLUSTER_TOKEN.default {
            session.log(
                "warn",
                "the cluster token is the default, so the restored members may have the same ids as running members; \
                 specify a new --initial-cluster-token, and restore all members. To replace one member of a running \
                 cluster, do not restore it: remove it and add it again with an empty data directory",
                &[("initial-cluster-token", token.to_owned())],
            );
        }
    }

    /// Logs the members of the new cluster.
    pub(crate) fn log_founders(&self, session: &Session) {
        for member in self.founders.iter() {
            session.log(
                "info",
                "added member",
                &[
                    ("cluster-id", format!("{:x}", self.founders.cluster_id())),
                    ("added-peer-id", member.id.to_string()),
                    ("added-peer-peer-urls", member.peer_urls.join(",")),
                ],
            );
        }
    }

    /// Creates the member's files, including the backend file, which `bring` writes to the path passed to it. After an
    /// error, no files remain.
    pub(crate) fn make(
        &self,
        disk: &Arc<dyn Disk>,
        bring: impl FnOnce(&Path) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let root = self.dirs.root();
        let log = self.has_own_wal_dir.then(|| self.dirs.wal());
        let missing =
            [log, Some(root)].into_iter().flatten().flat_map(|path| missing(&**disk, path));
        let missing: Vec<PathBuf> = missing.collect();
        let staging = root.join(STAGING);
        let snap_dir = staging.join("snap");
        disk.create_dir_all(&snap_dir, DIR_MODE).map_err(io_error("create", &snap_dir, 0))?;
        let made = bring(&snap_dir.join("db")).and_then(|()| Ok(self.finish(disk, &staging)?));
        if made.is_err() {
            // An error during the removal is ignored, because no member uses this directory. At worst, the directory
            // blocks the next attempt.
            drop(disk.remove_dir_all(&staging));
            if let Some(log) = log {
                drop(wal::remove_unused(&**disk, log));
            }
            for dir in missing {
                drop(std::fs::remove_dir(dir));
            }
        }
        made
    }

    fn finish(&self, disk: &Arc<dyn Disk>, staging: &Path) -> Result<(), RestoreError> {
        let (root, snap_dir) = (self.dirs.root(), staging.join("snap"));
        let mark = self.write_backend(disk, &snap_dir.join("db"))?;
        restored::leave(&**disk, staging, &mark).map_err(io_error(
            "mark the directory as restored",
            staging,
            0,
        ))?;
        let inside = staging.join("wal");
        let wal_dir = if self.has_own_wal_dir { self.dirs.wal() } else { &inside };
        self.write_log(disk, wal_dir, &snap_dir)?;
        let sync = |dir: &Path| disk.sync_dir(dir).map_err(io_error("sync the directory", dir, 0));
        sync(&snap_dir)?;
        sync(staging)?;
        let member = self.dirs.member();
        disk.rename(staging, &member).map_err(io_error("rename", staging, 0))?;
        sync(root)?;
        let above = root.parent().filter(|above| !above.as_os_str().is_empty());
        sync(above.unwrap_or(Path::new(".")))
    }

    /// Replaces the old members with the new members, and stores the applied index and the origin of the content.
    /// Returns the mark that identifies this origin.
    fn write_backend(&self, disk: &Arc<dyn Disk>, database: &Path) -> Result<String, RestoreError> {
        let backend = Backend::open(disk, database, Options::default())?;
        let view = backend.read();
        let mut batch = Batch::new();
        let mark = content_mark(&view, self.bump_revision)?;
        batch.put(Bucket::Meta, meta::RESTORED, mark.clone());
        for bucket in [Bucket::Members, Bucket::MembersRemoved] {
            for (key, _) in view.entries(bucket)? {
                batch.delete(bucket, Bytes::copy_from_slice(&key));
            }
        }
        for member in self.founders.iter() {
            batch.put(Bucket::Members, member.id.to_string(), member.to_json());
        }
        let version = view.get(Bucket::Cluster, cluster::VERSION)?;
        let version = version.and_then(|text| Version::parse(&String::from_utf8_lossy(&text)));
        if version.is_some_and(|version| check_supported(version, None).is_err()) {
            // The version is that of the old cluster. The members of the new cluster agree on a version again.
            batch.delete(Bucket::Cluster, cluster::VERSION);
        }
        if self.bump_revision > 0 {
            bump(&view, self.bump_revision, &mut batch)?;
        }
        batch.set_consistent_index(self.founders.iter().len() as u64, FOUNDING_TERM);
        drop(view);
        backend.commit(&batch)?;
        Ok(mark)
    }

    /// Writes the log of a founding member that has applied its first entries, and the matching snapshot.
    fn write_log(
        &self,
        disk: &Arc<dyn Disk>,
        wal_dir: &Path,
        snap_dir: &Path,
    ) -> Result<(), RestoreError> {
        let own = self.founders.named(&self.name).expect("the flags name this member");
        let metadata =
            Metadata { node_id: Some(own.id.0), cluster_id: Some(self.founders.cluster_id()) };
        let mut wal = Wal::create(
            Arc::clone(disk),
            wal_dir,
            metadata.encode_to_vec().into(),
            wal::Options::default(),
        )?;
        let commit = self.founders.iter().len() as u64;
        let first = self.founders.iter().next().map_or(0, |member| member.id.0);
        let hard_state = HardState { term: FOUNDING_TERM, vote: first, commit };
        let changes: Vec<Bytes> = self.founders.conf_changes().collect();
        let entries = (1..).zip(&changes).map(|(index, data)| EntryRef {
            index,
            term: FOUNDING_TERM,
            kind: CONF_CHANGE,
            data,
        });
        wal.append(Some(&hard_state), entries)?;
        wal.sync()?;
        let members = self.founders.to_members();
        let conf_state: Bytes = members.conf_state().encode_to_vec().into();
        let tree = V2Membership { members, cluster_version: None };
        snap::save(
            &**disk,
            snap_dir,
            &snap::Snapshot {
                index: commit,
                term: FOUNDING_TERM,
                conf_state: conf_state.clone(),
                data: tree.to_json().into(),
            },
        )?;
        let mark =
            SnapshotMark { index: commit, term: FOUNDING_TERM, conf_state: Some(conf_state) };
        wal.save_snapshot(&mark)?;
        Ok(wal.close()?)
    }
}

/// Returns the WAL directory if it is outside the member's directory. A path that names the default WAL directory has no
/// effect. Other paths inside the member's directory, which is renamed when it is complete, are refused, and so are paths
/// that contain the data directory, because creating a log removes all other files in its directory.
fn own_wal_dir<'a>(
    data_dir: &Path,
    given: Option<&'a Path>,
) -> Result<Option<&'a Path>, RestoreError> {
    let Some(given) = given else { return Ok(None) };
    let (root, wal) = (resolved(data_dir), resolved(given));
    let (member, default) = (root.join("member"), root.join("member/wal"));
    if wal == default {
        return Ok(None);
    }
    if wal.starts_with(&member) || wal.starts_with(root.join(STAGING)) || root.starts_with(&wal) {
        return Err(RestoreError::WalPlace { given: given.to_path_buf(), default });
    }
    Ok(Some(given))
}

/// Returns the missing directories of a path, the deepest first.
fn missing<'a>(disk: &'a dyn Disk, path: &'a Path) -> impl Iterator<Item = PathBuf> + 'a {
    let is_missing =
        |path: &&Path| !path.as_os_str().is_empty() && matches!(disk.metadata(path), Ok(None));
    path.ancestors().take_while(is_missing).map(Path::to_path_buf)
}

/// Resolves symbolic links in the existing part of a path.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    for above in absolute.ancestors() {
        if let Ok(real) = above.canonicalize() {
            let rest = absolute.strip_prefix(above).unwrap_or(Path::new(""));
            return real.join(rest);
        }
    }
    absolute
}

/// Returns a mark that identifies the content of a backend file, ignoring its members and page layout. All members
/// restored from the same content with the same options have the same mark.
fn content_mark(view: &BackendView, bump_revision: u64) -> Result<String, RestoreError> {
    let mut digest = Sha256::new();
    let mut add = |bytes: &[u8]| {
        digest.update((bytes.len() as u64).to_be_bytes());
        digest.update(bytes);
    };
    for bucket in Bucket::ALL {
        if matches!(bucket, Bucket::Meta | Bucket::Members | Bucket::MembersRemoved) {
            continue;
        }
        add(bucket.name());
        view.scan(bucket, |key, value| {
            add(key);
            add(value);
            Ok(std::ops::ControlFlow::Continue(()))
        })?;
    }
    add(&bump_revision.to_be_bytes());
    let digest = digest.finalize();
    Ok(digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect())
}

/// Raises the newest revision and marks all earlier revisions as compacted. As a result, watchers and caches that have
/// seen revisions unknown to the new cluster receive an error, which says that these revisions have been compacted.
fn bump(view: &BackendView, by: u64, batch: &mut Batch) -> Result<(), RestoreError> {
    let mut newest = 1;
    view.scan(Bucket::Key, |key, _| {
        let record = RecordKey::decode(key).ok_or("the key is not a revision")?;
        newest = record.revision.main;
        Ok(std::ops::ControlFlow::Continue(()))
    })?;
    let raised = i64::try_from(by).ok().and_then(|by| newest.checked_add(by));
    let raised = raised.filter(|raised| *raised <= Revision::NUMBER_MAX);
    let revision = Revision::new(raised.ok_or(RestoreError::Bump { newest, by })?, 0);
    batch.put_record(RecordKey { revision, tombstone: false }, Bytes::new());
    let compacted = Bytes::copy_from_slice(&revision.encode());
    batch.put(Bucket::Meta, meta::SCHEDULED_COMPACTION, compacted);
    Ok(())
}

/// Copies the first `len` bytes of a file into a new file, syncs it, and passes each piece to a callback.
pub(crate) fn copy(
    disk: &dyn Disk,
    (source, source_path): (&dyn DiskFile, &Path),
    len: u64,
    target_path: &Path,
    mut show: impl FnMut(&[u8]),
) -> Result<(), RestoreError> {
    let from = |offset| io_error("read", source_path, offset);
    let to = |action, offset| io_error(action, target_path, offset);
    let target = disk.open(target_path, OpenMode::CreateNew(FILE_MODE)).map_err(to("create", 0))?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut at = 0;
    while at < len {
        let wanted = usize::try_from(len - at).unwrap_or(usize::MAX).min(piece.len());
        let piece = &mut piece[..wanted];
        source.read_exact_at(piece, at).map_err(from(at))?;
        show(piece);
        target.write_all_at(piece, at).map_err(to("write", at))?;
        at += wanted as u64;
    }
    target.sync_all().map_err(to("sync", len))
}

/// Converts the error of a system call, adding the failed operation and the file.
pub(crate) fn io_error(
    action: &'static str,
    path: &Path,
    offset: u64,
) -> impl FnOnce(io::Error) -> RestoreError {
    let path = path.to_path_buf();
    move |source| RestoreError::Io { action, path, offset, source }
}
