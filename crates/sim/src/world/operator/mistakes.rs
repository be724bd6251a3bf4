//! Mistakes of the operator: a directory is wiped; a directory, or only its log, is restored from an old copy; the log
//! directory is lost; files are damaged; a process is started twice. The exchange of directories is in `exchange`.
//!
//! The operator does not make mistakes that no cluster can survive. A member loses its state only while all other
//! voters have all committed entries and follow the same leader.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use quorate_core::bootstrap::Cluster;
use quorate_raft::{LogIndex, Role};
use quorate_storage::disk::{Disk as _, Faults, FaultyDisk, OpenMode};

use super::super::{Event, World};
use crate::clock::{MILLI, SECOND};
use crate::member::boot::{OtherMembers, boot};

/// Simulates the case in which no other member answers.
struct NoOtherMembers;

impl OtherMembers for NoOtherMembers {
    fn clusters(&self, _: &[String]) -> Vec<Cluster> {
        Vec::new()
    }
}

/// A change to the files of a member that is not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tampering {
    Wipe,
    /// The directory is restored from an old copy.
    RestoreCopy,
    /// Only the log is restored from an old copy. The current backend file stays.
    RestoreLog,
    LoseLog,
    /// A bit flips in a file that cannot have a torn end.
    FlipBit,
    /// A bit flips in a record of the last segment.
    FlipBitInLog,
}

const TAMPERINGS: [Tampering; 6] = [
    Tampering::Wipe,
    Tampering::RestoreCopy,
    Tampering::RestoreLog,
    Tampering::LoseLog,
    Tampering::FlipBit,
    Tampering::FlipBitInLog,
];

impl World {
    /// Makes a random mistake.
    pub(super) fn make_mistake(&mut self) {
        let at = self.rng.position(self.hosts.len());
        if self.hosts[at].process.is_none() || self.hosts[at].exchanged_with.is_some() {
            return;
        }
        match self.rng.below(9) {
            0 => self.start_twice(at),
            2 => self.exchange_directories(at),
            1 => self.hosts[at].old_copy = Some(self.hosts[at].disk.copy()),
            _ => {
                let tampering = TAMPERINGS[self.rng.position(TAMPERINGS.len())];
                self.stop_process(at);
                if self.may_lose_memory(at) {
                    self.tamper(at, tampering);
                }
                self.queue.push(self.now + 20 * MILLI, Event::Start(at));
            }
        }
    }

    fn start_twice(&mut self, at: usize) {
        self.rare_states.note("a process is started twice");
        let (disk, flags) = (self.hosts[at].disk.clone(), self.hosts[at].flags.clone());
        let seed = self.rng.next_u64();
        let booted = boot(&disk, &flags, &NoOtherMembers, (seed, self.now));
        if let Ok((booted, _)) = booted {
            let id = booted.id();
            self.judge.fail(|| format!("h{at} starts a second process of {id:x}"));
        }
        self.after_step(at, Ok(()));
    }

    /// Returns whether a stopped member may lose its state, because all other voters have all committed entries and
    /// follow the same leader in the same term, so that the member's promises are not needed.
    fn may_lose_memory(&self, at: usize) -> bool {
        let Some(row) = self.row_of(at).filter(|row| row.id.0 == self.hosts[at].id) else {
            return false;
        };
        let (running, count) = self.running_voters();
        let others = if row.is_learner { count } else { count - 1 };
        if others < 2 || running.len() < others || !self.network.is_whole() {
            return false;
        }
        let processes: Vec<_> =
            running.iter().filter_map(|at| self.hosts[*at].process.as_deref()).collect();
        let Some(leader) = processes.iter().find(|one| one.leadership().role == Role::Leader)
        else {
            return false;
        };
        let status = leader.status();
        let term = leader.leadership().term;
        processes.iter().all(|one| {
            let progress = status.progress.get(&one.id);
            let index = progress.map_or(LogIndex::ZERO, |progress| progress.match_index);
            let follows = one.leadership().term == term && one.leadership().leader == leader.id;
            follows && index >= self.judge.committed() && index >= leader.committed()
        }) && running.iter().all(|at| self.hosts[*at].paused_until <= self.now)
    }

    fn tamper(&mut self, at: usize, tampering: Tampering) {
        let id = self.hosts[at].id;
        self.hosts[at].disk.set_faults(Faults::default());
        let is_done = match tampering {
            Tampering::Wipe => {
                self.hosts[at].disk.wipe();
                true
            }
            Tampering::RestoreCopy | Tampering::RestoreLog => self.restore_copy(at, tampering),
            Tampering::LoseLog => {
                self.rare_states.note("the log directory is lost");
                self.hosts[at].disk.remove_dir_all(Self::dirs().wal()).is_ok()
            }
            Tampering::FlipBit => self.flip_bit(at),
            Tampering::FlipBitInLog => self.flip_bit_in_log(at),
        };
        if !is_done {
            return;
        }
        self.log(|| format!("h{at}: {tampering:?}"));
        self.hosts[at].is_tampered = true;
        self.hosts[at].forget_promises();
        self.judge.forget_votes(id);
        if self.one_in(2) {
            // The member is isolated, so that no other member can inform it of its former state.
            self.network.isolate(at);
            let until = self.now + 100 * MILLI + self.rng.below(SECOND);
            self.queue.push(until, Event::RestoreLinks);
        }
    }

    fn restore_copy(&mut self, at: usize, tampering: Tampering) -> bool {
        let host = &mut self.hosts[at];
        let Some(old_copy) = host.old_copy.take() else {
            host.old_copy = Some(host.disk.copy());
            return false;
        };
        if tampering == Tampering::RestoreCopy {
            host.disk.replace_with(&old_copy);
            self.rare_states.note("an old directory is restored");
            return true;
        }
        let dirs = Self::dirs();
        let copied = copy_dir(&old_copy, &host.disk, dirs.wal());
        self.rare_states.note("an old log is restored");
        copied.is_ok()
    }

    fn files(&self, at: usize, dir: &Path, suffix: &str) -> Vec<PathBuf> {
        let names = self.hosts[at].disk.read_dir(dir).unwrap_or_default();
        let names = names.into_iter().filter(|name| name.to_string_lossy().ends_with(suffix));
        names.map(|name| dir.join(name)).collect()
    }

    /// Flips a bit in a snapshot file or in a segment other than the last segment. Damage at the end of the last
    /// segment cannot be distinguished from a torn write.
    fn flip_bit(&mut self, at: usize) -> bool {
        let dirs = Self::dirs();
        let mut files = self.files(at, dirs.wal(), ".wal");
        files.pop();
        files.extend(self.files(at, &dirs.snap(), ".snap"));
        if files.is_empty() {
            return false;
        }
        let path = &files[self.rng.position(files.len())];
        let facts = self.hosts[at].disk.metadata(path).ok().flatten();
        let len = facts.map_or(0, |facts| facts.len).max(1);
        self.flip_bit_in_range(at, path, 0..len)
    }

    /// Flips a bit in a record of the last segment that is followed by another record.
    fn flip_bit_in_log(&mut self, at: usize) -> bool {
        let Some(path) = self.files(at, Self::dirs().wal(), ".wal").pop() else { return false };
        let Ok(bytes) = read(&self.hosts[at].disk, &path) else { return false };
        let mut checksummed_ranges = checksummed_ranges(&bytes);
        checksummed_ranges.pop();
        if checksummed_ranges.is_empty() {
            return false;
        }
        let range = checksummed_ranges.swap_remove(self.rng.position(checksummed_ranges.len()));
        self.rare_states.note("a bit flips in the log");
        self.hosts[at].is_damaged = true;
        self.flip_bit_in_range(at, &path, range)
    }

    fn flip_bit_in_range(&mut self, at: usize, path: &Path, range: Range<u64>) -> bool {
        let offset = range.start + self.rng.below(range.end - range.start);
        let bit = u32::try_from(self.rng.below(8)).unwrap_or(0);
        self.log(|| format!("h{at}: a bit of {} flips at {offset}", path.display()));
        self.hosts[at].disk.rot(path, offset, bit)
    }
}

fn read(disk: &FaultyDisk, path: &Path) -> io::Result<Vec<u8>> {
    let file = disk.open(path, OpenMode::Read)?;
    let mut bytes = vec![0; usize::try_from(file.len()?).map_err(io::Error::other)?];
    let count = file.read_at(&mut bytes, 0)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Replaces a directory of a disk with the same directory from another disk.
fn copy_dir(from: &FaultyDisk, to: &FaultyDisk, dir: &Path) -> io::Result<()> {
    to.remove_dir_all(dir)?;
    to.create_dir_all(dir, 0o700)?;
    for name in from.read_dir(dir)? {
        let path = dir.join(name);
        let file = to.open(&path, OpenMode::CreateNew(0o600))?;
        file.write_all_at(&read(from, &path)?, 0)?;
        file.sync_all()?;
    }
    to.sync_dir(dir)?;
    to.sync_dir(dir.parent().expect("the log directory has a parent"))
}

/// The number of bytes before each record. These bytes contain the record's length and, in the highest byte, its
/// padding.
const LENGTH_BYTES: usize = 8;

/// An upper bound on the number of bytes at the beginning of a record that are not covered by the record's checksum.
const UNCOVERED_BYTES: usize = 16;

/// Returns the ranges of a segment that are covered by the checksums of its records, up to the first incomplete record.
fn checksummed_ranges(bytes: &[u8]) -> Vec<Range<u64>> {
    let (mut ranges, mut at) = (Vec::new(), 0);
    while let Some(field) = bytes.get(at..at + LENGTH_BYTES) {
        let field = i64::from_le_bytes(field.try_into().expect("the slice has 8 bytes"));
        let padding = if field < 0 { (field >> 56) & 7 } else { 0 };
        let Ok(len) = usize::try_from(field & ((1 << 56) - 1)) else { break };
        let start = at + LENGTH_BYTES;
        at = start + len + usize::try_from(padding).unwrap_or(0);
        if len == 0 || at > bytes.len() {
            break;
        }
        if len > UNCOVERED_BYTES {
            ranges.push((start + UNCOVERED_BYTES) as u64..(start + len) as u64);
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksummed_ranges_exclude_lengths_and_padding() {
        let record = |len: usize| {
            let padding = (8 - len % 8) % 8;
            let field = len as u64 | if padding == 0 { 0 } else { (0x80 | padding as u64) << 56 };
            [&field.to_le_bytes()[..], &vec![1; len], &vec![0; padding]].concat()
        };
        let bytes = [record(30), record(4), record(24), vec![0; 64]].concat();
        assert_eq!(checksummed_ranges(&bytes), [24..38, 80..88]);
    }
}
