//! What an operator should not do, and does: a directory wiped and started again as if nothing had been, put back from
//! another day, the whole of it or the log alone; the log's folder lost; files damaged; a process started twice. That
//! a directory is given to another member is in `exchange`.
//!
//! What no cluster could survive is not done: memory is only lost where all other voters have it, and follow one
//! leader.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use quorate_core::bootstrap::Cluster;
use quorate_raft::{LogIndex, Role};
use quorate_storage::disk::{Disk as _, Faults, FaultyDisk, OpenMode};

use super::super::{Event, World};
use crate::clock::{MILLI, SECOND};
use crate::member::boot::{Others, boot};

/// Nobody answers.
struct Alone;

impl Others for Alone {
    fn clusters(&self, _: &[String]) -> Vec<Cluster> {
        Vec::new()
    }
}

/// What is done to the files of a member that does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tampering {
    Wipe,
    /// The directory of another day.
    PutBack,
    /// The log of another day, beside the backend file of today.
    PutBackLog,
    LoseLog,
    /// A bit flips where nothing can be torn.
    Rot,
    /// A bit flips in a record of the log's last file.
    RotInLog,
}

const TAMPERINGS: [Tampering; 6] = [
    Tampering::Wipe,
    Tampering::PutBack,
    Tampering::PutBackLog,
    Tampering::LoseLog,
    Tampering::Rot,
    Tampering::RotInLog,
];

impl World {
    /// Does something that should not have been done.
    pub(super) fn make_mistake(&mut self) {
        let at = self.draw.position(self.hosts.len());
        if self.hosts[at].process.is_none() || self.hosts[at].exchanged_with.is_some() {
            return;
        }
        match self.draw.below(9) {
            0 => self.start_twice(at),
            2 => self.exchange_directories(at),
            1 => self.hosts[at].yesterday = Some(self.hosts[at].disk.copy()),
            _ => {
                let tampering = TAMPERINGS[self.draw.position(TAMPERINGS.len())];
                self.stop_process(at);
                if self.may_lose(at) {
                    self.tamper(at, tampering);
                }
                self.queue.put(self.now + 20 * MILLI, Event::Start(at));
            }
        }
    }

    fn start_twice(&mut self, at: usize) {
        self.seen.note("a process is started twice");
        let (disk, flags) = (self.hosts[at].disk.clone(), self.hosts[at].flags.clone());
        let seed = self.draw.next_u64();
        let booted = boot(&disk, &flags, &Alone, (seed, self.now));
        if let Ok((booted, _)) = booted {
            let id = booted.id();
            self.judge.object(|| format!("h{at}: {id:x} starts beside the one that runs"));
        }
        self.after_step(at, Ok(()));
    }

    /// Whether the memory of a member that does not run may be lost: all other voters have all that is committed, and
    /// follow one leader in one term, so that it does not matter what this one had promised.
    fn may_lose(&self, at: usize) -> bool {
        let Some(row) = self.row_of(at).filter(|row| row.id.0 == self.hosts[at].id) else {
            return false;
        };
        let (at_work, count) = self.voters_at_work();
        let others = if row.is_learner { count } else { count - 1 };
        if others < 2 || at_work.len() < others || !self.network.is_whole() {
            return false;
        }
        let processes: Vec<_> =
            at_work.iter().filter_map(|at| self.hosts[*at].process.as_deref()).collect();
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
        }) && at_work.iter().all(|at| self.hosts[*at].paused_until <= self.now)
    }

    fn tamper(&mut self, at: usize, tampering: Tampering) {
        let id = self.hosts[at].id;
        self.hosts[at].disk.set_faults(Faults::default());
        let is_done = match tampering {
            Tampering::Wipe => {
                self.hosts[at].disk.wipe();
                true
            }
            Tampering::PutBack | Tampering::PutBackLog => self.put_back(at, tampering),
            Tampering::LoseLog => {
                self.seen.note("the log's folder is lost");
                self.hosts[at].disk.remove_dir_all(Self::dirs().wal()).is_ok()
            }
            Tampering::Rot => self.rot(at),
            Tampering::RotInLog => self.rot_in_log(at),
        };
        if !is_done {
            return;
        }
        self.tell(|| format!("h{at} is started again after this: {tampering:?}"));
        self.hosts[at].is_tampered = true;
        self.hosts[at].forget();
        self.judge.forget_votes(id);
        if self.one_in(2) {
            // Nobody tells it what it was.
            self.network.isolate(at);
            let until = self.now + 100 * MILLI + self.draw.below(SECOND);
            self.queue.put(until, Event::Mend);
        }
    }

    fn put_back(&mut self, at: usize, tampering: Tampering) -> bool {
        let host = &mut self.hosts[at];
        let Some(yesterday) = host.yesterday.take() else {
            host.yesterday = Some(host.disk.copy());
            return false;
        };
        if tampering == Tampering::PutBack {
            host.disk.replace_with(&yesterday);
            self.seen.note("an old directory is put back");
            return true;
        }
        let dirs = Self::dirs();
        let copied = copy_dir(&yesterday, &host.disk, dirs.wal());
        self.seen.note("an old log is put back");
        copied.is_ok()
    }

    fn files(&self, at: usize, dir: &Path, suffix: &str) -> Vec<PathBuf> {
        let names = self.hosts[at].disk.read_dir(dir).unwrap_or_default();
        let names = names.into_iter().filter(|name| name.to_string_lossy().ends_with(suffix));
        names.map(|name| dir.join(name)).collect()
    }

    /// Flips a bit in a file with checksums that is not the log's last one: what is at the end of that may be torn
    /// without anybody's fault, and cannot be told from it.
    fn rot(&mut self, at: usize) -> bool {
        let dirs = Self::dirs();
        let mut files = self.files(at, dirs.wal(), ".wal");
        files.pop();
        files.extend(self.files(at, &dirs.snap(), ".snap"));
        if files.is_empty() {
            return false;
        }
        let path = &files[self.draw.position(files.len())];
        let facts = self.hosts[at].disk.metadata(path).ok().flatten();
        let len = facts.map_or(0, |facts| facts.len).max(1);
        self.flip_one_of(at, path, 0..len)
    }

    /// Flips a bit in what a record of the log's last file says, which others follow.
    fn rot_in_log(&mut self, at: usize) -> bool {
        let Some(path) = self.files(at, Self::dirs().wal(), ".wal").pop() else { return false };
        let Ok(bytes) = read(&self.hosts[at].disk, &path) else { return false };
        let mut said = said(&bytes);
        said.pop();
        if said.is_empty() {
            return false;
        }
        let range = said.swap_remove(self.draw.position(said.len()));
        self.seen.note("a bit flips in the log");
        self.hosts[at].is_damaged = true;
        self.flip_one_of(at, &path, range)
    }

    fn flip_one_of(&mut self, at: usize, path: &Path, range: Range<u64>) -> bool {
        let offset = range.start + self.draw.below(range.end - range.start);
        let bit = u32::try_from(self.draw.below(8)).unwrap_or(0);
        self.tell(|| format!("h{at}: a bit of {} flips at {offset}", path.display()));
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

/// Puts a folder of one disk in the place of another's.
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
    to.sync_dir(dir.parent().expect("the log's folder lies in another"))
}

/// Bytes before each record: its length, and in the highest byte what it was filled up with.
const LENGTH_BYTES: usize = 8;

/// Bytes at a record's beginning that its checksum does not cover, with some to spare.
const UNCOVERED: usize = 16;

/// Where in a file of the log the checksummed parts of its records are, as far as records follow each other.
fn said(bytes: &[u8]) -> Vec<Range<u64>> {
    let (mut ranges, mut at) = (Vec::new(), 0);
    while let Some(field) = bytes.get(at..at + LENGTH_BYTES) {
        let field = i64::from_le_bytes(field.try_into().expect("it is that long"));
        let padding = if field < 0 { (field >> 56) & 7 } else { 0 };
        let Ok(len) = usize::try_from(field & ((1 << 56) - 1)) else { break };
        let start = at + LENGTH_BYTES;
        at = start + len + usize::try_from(padding).unwrap_or(0);
        if len == 0 || at > bytes.len() {
            break;
        }
        if len > UNCOVERED {
            ranges.push((start + UNCOVERED) as u64..(start + len) as u64);
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_records_say_is_found_between_lengths_and_padding() {
        let record = |len: usize| {
            let padding = (8 - len % 8) % 8;
            let field = len as u64 | if padding == 0 { 0 } else { (0x80 | padding as u64) << 56 };
            [&field.to_le_bytes()[..], &vec![1; len], &vec![0; padding]].concat()
        };
        let bytes = [record(30), record(4), record(24), vec![0; 64]].concat();
        assert_eq!(said(&bytes), [24..38, 80..88]);
    }
}
