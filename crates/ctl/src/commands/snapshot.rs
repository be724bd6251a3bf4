//! `snapshot save`: saves a complete and consistent copy of a member's database to a file.
//!
//! The server sends the database, followed by its SHA-256 digest. The received file is complete if its length is a
//! multiple of the sector size plus the length of a digest, and sound if the digest matches the preceding bytes. The
//! snapshot is written under a temporary name and then renamed, so that a file with the given name is always complete
//! and identical to the data that the server sent.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::client::{Client, as_grpc_go};
use crate::command::{Command, group};
use crate::dated::{Pruned, dated, prune};
use crate::failure::{Failure, exit, status_text};
use crate::flags::Flag;
use crate::gotext::{duration, size};
use crate::progress::Progress;
use crate::session::Session;
use quorate_api::etcdserverpb::SnapshotRequest;
use sha2::{Digest as _, Sha256};

const EXAMPLE: &str = "  \
  # Save snapshot to a given file
  etcdctl snapshot save /backup/etcd-snapshot.db

  # Get snapshot from given address and save it to file
  etcdctl snapshot save --endpoints=127.0.0.1:3000 /backup/etcd-snapshot.db

  # Save snapshot to a file with the date in its name, and keep seven of them
  quorate ctl snapshot save --keep 7 /backup/etcd-snapshot.db";

pub(crate) const SNAPSHOT: Command = Command {
    usage: "snapshot <subcommand>",
    short: "Manages etcd node snapshots",
    example: EXAMPLE,
    group: Some(group::MAINTENANCE),
    children: &[&SAVE],
    ..Command::EMPTY
};

const SAVE: Command = Command {
    usage: "save <filename>",
    short: "Stores an etcd node backend snapshot to a given file",
    example: EXAMPLE,
    flags: &[Flag::uint(
        "keep",
        "0",
        "add the date to the file name, and keep only this many dated files (0 disables both)",
    )],
    run: Some(|session| Box::pin(save(session))),
    ..Command::EMPTY
};

const SECTOR_BYTES: u64 = 512;
const DIGEST_BYTES: usize = 32;

async fn save(session: &Session) -> Result<(), Failure> {
    let given = match (session.matches.path_arg(0), session.matches.args.len()) {
        (Some(path), 1) => path.to_owned(),
        _ => return Err(Failure::bad_args("snapshot save expects one argument <filename>")),
    };
    let keep = usize::try_from(session.matches.uint("keep")).unwrap_or(usize::MAX);
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let path = if keep == 0 { given.clone() } else { dated(&given, since_1970) };
    let endpoints = session.endpoints().await?;
    let client = session.prepare(endpoints.clone())?;
    let part = {
        let mut name = path.clone().into_os_string();
        name.push(".part");
        PathBuf::from(name)
    };
    // A large database takes a long time, so the timeout of short commands applies only if it was set explicitly.
    let limit = session.matches.changed("command-timeout").then(|| session.timeout());
    let fetching = fetch(session, (&client, &endpoints), &path, &part);
    let result = match limit {
        None => fetching.await,
        Some(limit) => match tokio::time::timeout(limit, fetching).await {
            Ok(result) => result,
            Err(_) => Err("context deadline exceeded".to_owned()),
        },
    };
    if result.is_err() {
        // An error is ignored, because the file may not exist.
        drop(fs::remove_file(&part));
    }
    let Saved { version, is_durable } =
        result.map_err(|text| Failure::new(exit::INTERRUPTED, text))?;
    session.print(&format!("Snapshot saved at {}\n", path.display()))?;
    if keep > 0 && is_durable {
        forget(session, &given, keep, &path)?;
    }
    if version.is_empty() {
        return Ok(());
    }
    session.print(&format!("Server version {version}\n"))
}

/// Removes older snapshots of this name that exceed the number to keep. The new snapshot `saved` must already be on
/// disk.
fn forget(session: &Session, path: &Path, keep: usize, saved: &Path) -> Result<(), Failure> {
    let Pruned { removed, later } = prune(path, keep, saved).map_err(|error| {
        let text =
            format!("the snapshot was saved, but older snapshots could not be removed: {error}");
        Failure::new(exit::INTERRUPTED, text)
    })?;
    for path in removed {
        session.log("info", "removed an older snapshot", &[("path", path.display().to_string())]);
    }
    for path in later {
        session.log(
            "warn",
            "an earlier snapshot has a later date than the saved one, so --keep treats it as newer: check the clock, and \
             remove or rename the file if its date is wrong",
            &[("path", path.display().to_string()), ("saved", saved.display().to_string())],
        );
    }
    Ok(())
}

/// A snapshot that was saved under its final name.
struct Saved {
    /// The server's storage version, which servers before 3.6 do not send.
    version: String,
    /// Whether the name is on disk.
    is_durable: bool,
}

/// Fetches the snapshot into `part` and renames it to `path`.
async fn fetch(
    session: &Session,
    (client, endpoints): (&Client, &[String]),
    path: &Path,
    part: &Path,
) -> Result<Saved, String> {
    let [endpoint] = endpoints else {
        let endpoints = endpoints.join(" ");
        return Err(format!(
            "snapshot must be requested to one selected node, not multiple [{endpoints}]"
        ));
    };
    client.log_in().await.map_err(|status| status_text(&status))?;
    let (shown, shown_part) = (path.display(), part.display());
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(part)
        .map_err(|error| format!("could not open {shown_part} ({error})"))?;
    session.log("info", "created temporary db file", &[("path", shown_part.to_string())]);
    let start = Instant::now();
    session.log("info", "fetching snapshot", &[("endpoint", endpoint.clone())]);
    let progress = Progress::begin(session);
    let (checked, version) = receive(client, &mut file, progress).await?;
    let len = checked.len;
    checked.verdict()?;
    file.sync_all().map_err(|error| format!("could not fsync snapshot: {error}"))?;
    session.log(
        "info",
        "fetched snapshot",
        &[
            ("endpoint", endpoint.clone()),
            ("size", size(len)),
            ("took", duration(start.elapsed())),
            ("etcd-version", version.clone()),
        ],
    );
    fs::rename(part, path)
        .map_err(|error| format!("could not rename {shown_part} to {shown} ({error})"))?;
    // The rename must be durable before an older snapshot is removed.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let is_durable = match File::open(parent.unwrap_or(Path::new("."))) {
        Ok(directory) => {
            directory
                .sync_all()
                .map_err(|error| format!("could not fsync the directory of {shown}: {error}"))?;
            true
        }
        // The user may write to the directory but not read it.
        Err(error) => {
            session.log(
                "warn",
                "cannot open the directory of the snapshot to fsync it: the file may be missing after a power \
                 failure, and older snapshots are not removed",
                &[("path", shown.to_string()), ("error", error.to_string())],
            );
            false
        }
    };
    session.log("info", "saved", &[("path", shown.to_string())]);
    Ok(Saved { version, is_durable })
}

/// Writes the received bytes. Returns a description of the problem, if there is one, and the storage version.
async fn receive(
    client: &Client,
    file: &mut File,
    mut progress: Progress<'_>,
) -> Result<(Checked, String), String> {
    let failed = |status| format!("could not write snapshot: {}", status_text(&as_grpc_go(status)));
    let channel = client.connect(None).await.map_err(failed)?.channel;
    let request = client.stream_request(SnapshotRequest {}).await;
    let request = request.map_err(|status| status_text(&status))?;
    let reply = client.maintenance(channel).snapshot(request).await;
    let mut stream = reply.map_err(|status| status_text(&as_grpc_go(status)))?.into_inner();
    let (mut checked, mut version) = (Checked::default(), String::new());
    while let Some(part) = stream.message().await.map_err(failed)? {
        file.write_all(&part.blob).map_err(|error| format!("could not write snapshot: {error}"))?;
        checked.add(&part.blob);
        progress.tell(|| {
            let whole = checked.len.saturating_add(part.remaining_bytes);
            format!("{} of {}", size(checked.len), size(whole))
        });
        if version.is_empty() {
            version = part.version;
        }
    }
    Ok((checked, version))
}

/// State of the digest check: the number of received bytes, the last of these bytes, which may be the digest, and the
/// digest of all earlier bytes.
#[derive(Default)]
struct Checked {
    len: u64,
    digest: Sha256,
    end: Vec<u8>,
}

impl Checked {
    fn add(&mut self, part: &[u8]) {
        self.len += part.len() as u64;
        self.end.extend_from_slice(part);
        let before_end = self.end.len().saturating_sub(DIGEST_BYTES);
        self.digest.update(&self.end[..before_end]);
        self.end.drain(..before_end);
    }

    /// Returns an error text if the received bytes are not a complete snapshot.
    fn verdict(self) -> Result<(), String> {
        let len = self.len;
        if len % SECTOR_BYTES != DIGEST_BYTES as u64 {
            return Err(format!("sha256 checksum not found [bytes: {len}]"));
        }
        if self.digest.finalize()[..] != self.end[..] {
            return Err(format!(
                "the snapshot is damaged: its sha256 checksum does not match [bytes: {len}]; save it again"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks bytes that arrive in parts of this length.
    fn verdict(bytes: &[u8], part_bytes: usize) -> Result<(), String> {
        let mut checked = Checked::default();
        bytes.chunks(part_bytes).for_each(|part| checked.add(part));
        checked.verdict()
    }

    #[test]
    fn a_snapshot_is_valid_only_with_a_matching_digest() {
        let database: Vec<u8> = (0..=255).cycle().take(1024).collect();
        let whole = [&database[..], &Sha256::digest(&database)].concat();
        for part_bytes in [1, 31, 33, 1024, 4096] {
            assert_eq!(verdict(&whole, part_bytes), Ok(()), "{part_bytes}");
            for at in [0, 1023, 1024, 1055] {
                let mut damaged = whole.clone();
                damaged[at] ^= 1;
                let refused = verdict(&damaged, part_bytes).unwrap_err();
                assert!(refused.starts_with("the snapshot is damaged"), "{refused}");
            }
        }
        for len in [0, 512, 1024, 1055] {
            let missing = format!("sha256 checksum not found [bytes: {len}]");
            assert_eq!(verdict(&whole[..len], 100), Err(missing));
        }
    }
}
