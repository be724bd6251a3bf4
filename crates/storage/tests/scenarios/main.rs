//! Golden scripts in `testdata/log` about the write-ahead log and damage to it.
//!
//! A script starts without a log. It creates one, damages its files as power cuts, failing media and operators do, and
//! opens the log again. `UPDATE=1` rewrites the expected output.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use quorate_storage::disk::{Disk, RealDisk};
use quorate_storage::wal::{
    self, Contents, Entry, HardState, Options, SnapshotMark, Wal, WalError, inspect,
};
use quorate_test_support::script::{Command, Interpreter, run_own};

/// The segment size, in bytes. A few entries fill a segment.
const SEGMENT_BYTES: u64 = 4096;

/// A log and its directory.
struct Log {
    folder: tempfile::TempDir,
    /// The log, if it is open.
    wal: Option<Wal>,
    /// The records found when the log was last read without damage.
    records: Vec<Record>,
}

/// A record, its name in scripts, and its position.
#[derive(Clone)]
struct Record {
    name: String,
    segment: PathBuf,
    /// The offset of the record's first byte.
    start: u64,
    /// The offset of the next record.
    end: u64,
}

impl Log {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), wal: None, records: Vec::new() }
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("wal")
    }

    fn run(&mut self, command: &Command) -> String {
        let text = match command.name.as_str() {
            // create: creates the log of a new member
            "create" => {
                let metadata = Bytes::from_static(b"\x08\x2a\x10\x2b");
                self.wal = Some(Wal::create(disk(), &self.dir(), metadata, options()).unwrap());
                "ok".to_owned()
            }
            // save 1 2 term=1 vote=2 commit=1 bytes=900: saves entries, and a hard state if a vote is given
            "save" => self.save(command),
            // mark 5 term=1: records that a snapshot exists
            "mark" => {
                let (index, term) = (number(command, 0), command.value("term").unwrap());
                let conf_state = Some(Bytes::from_static(b"\x08\x2a\x28\x00"));
                let mark = SnapshotMark { index, term, conf_state };
                self.wal.as_mut().unwrap().save_snapshot(&mark).unwrap();
                "ok".to_owned()
            }
            // close: closes the log
            "close" => {
                self.wal.take().unwrap().close().unwrap();
                "ok".to_owned()
            }
            // open from=5 term=1: opens the log after a snapshot
            "open" => self.open(command),
            // marks: prints the snapshots from which a member may start
            "marks" => self.marks(),
            // show: prints all records
            "show" => {
                let records = self.records();
                let place = |record: &Record| segment_number(&record.segment);
                let lines = records.iter().map(|r| format!("{}: {}", place(r), r.name));
                lines.collect::<Vec<_>>().join("\n")
            }
            // cut (entry,3) keep=20: truncates the file 20 bytes after the start of the record
            "cut" => {
                let (record, keep) = self.damaged(command);
                let file = OpenOptions::new().write(true).open(&record.segment).unwrap();
                file.set_len(record.start + keep).unwrap();
                "ok".to_owned()
            }
            // zero (entry,3) keep=20: zeroes the record except its first 20 bytes
            "zero" => {
                let (record, keep) = self.damaged(command);
                let zeros = vec![0; usize::try_from(record.end - record.start - keep).unwrap()];
                write_at(&record.segment, &zeros, record.start + keep);
                "ok".to_owned()
            }
            // rot (entry,3) keep=20: changes the byte after the first 20 bytes of the record
            "rot" => {
                let (record, keep) = self.damaged(command);
                let mut bytes = fs::read(&record.segment).unwrap();
                bytes[usize::try_from(record.start + keep).unwrap()] ^= 0x5a;
                fs::write(&record.segment, bytes).unwrap();
                "ok".to_owned()
            }
            // lose-segment 1: removes a segment
            "lose-segment" => {
                let names = wal::list(&RealDisk, &self.dir()).unwrap().segments;
                let name = names.iter().find(|name| name.sequence == number(command, 0)).unwrap();
                fs::remove_file(self.dir().join(name.file_name())).unwrap();
                "ok".to_owned()
            }
            name => panic!("unknown command {name}"),
        };
        text.replace(&format!("{}/", self.folder.path().display()), "")
    }

    fn save(&mut self, command: &Command) -> String {
        let term = command.value("term").unwrap();
        let size = command.value("bytes").unwrap_or(4);
        let data = Bytes::from(vec![b'x'; size]);
        let entries: Vec<Entry> = command
            .plain()
            .map(|index| Entry { index: index.parse().unwrap(), term, kind: 0, data: data.clone() })
            .collect();
        let vote = command.value("vote");
        let commit = command.value("commit").unwrap_or(0);
        let state = vote.map(|vote| HardState { term, vote, commit });
        let saved = self.wal.as_mut().unwrap().save(state.as_ref(), &entries).unwrap();
        let synced = if saved.synced { "synced" } else { "not synced" };
        match saved.new_segment {
            Some(path) => format!("{synced}, continues in segment {}", segment_number(&path)),
            None => synced.to_owned(),
        }
    }

    fn open(&mut self, command: &Command) -> String {
        let start = SnapshotMark {
            index: command.value("from").unwrap_or(0),
            term: command.value("term").unwrap_or(0),
            conf_state: None,
        };
        match Wal::open(disk(), &self.dir(), &start, options()) {
            Ok((wal, contents)) => {
                self.wal = Some(wal);
                contents_text(&contents)
            }
            Err(error) => error_text(&error),
        }
    }

    fn marks(&self) -> String {
        match wal::snapshot_marks(&RealDisk, &self.dir()) {
            Ok(marks) => {
                let marks: Vec<String> = marks
                    .iter()
                    .map(|mark| format!("{} of term {}", mark.index, mark.term))
                    .collect();
                marks.join(", ")
            }
            Err(error) => error_text(&error),
        }
    }

    /// Returns all records of the log if it can be read, or the records found when it was last read without damage.
    fn records(&mut self) -> Vec<Record> {
        let mut records: Vec<Record> = Vec::new();
        let ending = inspect::visit(&RealDisk, &self.dir(), |place, content| {
            let name = match content {
                inspect::Content::Checksum(_) => "checksum".to_owned(),
                inspect::Content::Metadata(_) => "metadata".to_owned(),
                inspect::Content::Entry(entry) => {
                    format!("entry {} of term {}", entry.index, entry.term)
                }
                inspect::Content::State(state) => {
                    format!("term {}, vote {}, commit {}", state.term, state.vote, state.commit)
                }
                inspect::Content::Mark(mark) => {
                    format!("mark {} of term {}", mark.index, mark.term)
                }
            };
            if let Some(last) = records.last_mut().filter(|last| last.segment == place.path) {
                last.end = place.offset;
            }
            let (segment, start) = (place.path.to_owned(), place.offset);
            let end = fs::metadata(&segment).unwrap().len();
            records.push(Record { name, segment, start, end });
            Ok::<(), WalError>(())
        });
        if let Ok(ending) = ending {
            records.last_mut().unwrap().end = ending.offset;
            self.records = records;
        }
        self.records.clone()
    }

    /// Returns the record that a command damages, and how many of its bytes are kept.
    fn damaged(&mut self, command: &Command) -> (Record, u64) {
        let name = command.plain().next().unwrap().replace(['(', ')'], "").replace(',', " ");
        let found = self.records().into_iter().rfind(|record| record.name.starts_with(&name));
        let record = found.unwrap_or_else(|| panic!("there is no record {name}"));
        (record, command.value("keep").unwrap())
    }
}

fn disk() -> Arc<dyn Disk> {
    Arc::new(RealDisk)
}

fn options() -> Options {
    Options {
        segment_bytes: SEGMENT_BYTES,
        sync: false,
        zero_step_bytes: 1024,
        zero_lead_bytes: 1024,
        ..Options::default()
    }
}

fn number(command: &Command, position: usize) -> u64 {
    command.plain().nth(position).unwrap().parse().unwrap()
}

fn write_at(path: &Path, bytes: &[u8], offset: u64) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

/// Returns the sequence number of a segment.
fn segment_number(path: &Path) -> u64 {
    wal::SegmentName::parse(path.file_name().unwrap().to_str().unwrap()).unwrap().sequence
}

fn contents_text(contents: &Contents) -> String {
    let HardState { term, vote, commit } = contents.hard_state;
    let entries: Vec<String> = contents
        .entries
        .iter()
        .map(|entry| format!("{} of term {}", entry.index, entry.term))
        .collect();
    let mut text = format!("term {term}, vote {vote}, commit {commit}");
    text += &format!(
        "\nentries: {}",
        if entries.is_empty() { "none".into() } else { entries.join(", ") }
    );
    if contents.metadata.is_none() {
        text += "\nthe member's identity is missing";
    }
    if !contents.start_marked {
        text += "\nthe log has no mark for the snapshot";
    }
    if let Some(repair) = &contents.repaired {
        let backup = repair.backup.as_ref().map(|path| segment_number(&path.with_extension("")));
        text +=
            &format!("\ncut off at {} of segment {}", repair.offset, segment_number(&repair.path));
        text += if backup.is_some() { ", a copy is kept" } else { ", no copy" };
    }
    text
}

/// Formats an error without checksums, which mean nothing to a reader.
fn error_text(error: &WalError) -> String {
    let error = error.to_string();
    match error.split_once("expected: ") {
        Some((before, after)) => {
            let (_, place) = after.split_once(": in file").unwrap();
            format!("{before}in file{place}")
        }
        None => error,
    }
}

#[test]
fn log_scenarios_produce_the_expected_output() {
    run_own(env!("CARGO_MANIFEST_DIR"), "log", || -> Interpreter {
        let mut log = Log::new();
        Box::new(move |command| log.run(command))
    });
}
