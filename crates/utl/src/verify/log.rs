//! `verify`'s checks of the log: its chain of records is unbroken, and no entry is missing.

use std::path::Path;

use prost::Message;
use quorate_api::etcdserverpb::Metadata;
use quorate_storage::disk::Disk;
use quorate_storage::wal::inspect::{Content, visit};
use quorate_storage::wal::{self, SnapshotMark, WalError};

use super::findings::Findings;
use crate::dump::identity;

const PART: &str = "log";

/// Values read from the log.
#[derive(Debug, Default)]
pub(super) struct LogFacts {
    /// Member id, if the log contains it.
    pub(super) member: Option<u64>,
    /// Index of the first entry in the log.
    pub(super) first_index: Option<u64>,
    /// Index of the last entry or snapshot mark.
    pub(super) last_index: u64,
    /// Commit index of the log.
    pub(super) commit: u64,
    marks: Vec<SnapshotMark>,
    entry_count: u64,
    term: u64,
    /// Index of the last entry before the first gap, and index of the first entry after it.
    hole: Option<(u64, u64)>,
    metadata: Vec<u8>,
}

impl LogFacts {
    /// Returns the newest committed snapshot mark. A starting member reads the log from this mark on.
    pub(super) fn newest_mark(&self) -> Option<&SnapshotMark> {
        self.marks.iter().rfind(|mark| mark.index <= self.commit)
    }

    /// Returns the committed snapshot marks.
    pub(super) fn committed_marks(&self) -> Vec<SnapshotMark> {
        self.marks.iter().filter(|mark| mark.index <= self.commit).cloned().collect()
    }

    fn take(&mut self, content: Content<'_>) {
        match content {
            Content::Checksum(_) => {}
            Content::Metadata(metadata) => metadata.clone_into(&mut self.metadata),
            Content::Entry(entry) => {
                if self.first_index.is_none() {
                    self.first_index = Some(entry.index);
                } else if entry.index > self.last_index.saturating_add(1) && self.hole.is_none() {
                    self.hole = Some((self.last_index, entry.index));
                }
                // The index may decrease, because an entry at or before the last index replaces entries that a former
                // leader could not commit.
                self.last_index = entry.index;
                self.entry_count += 1;
            }
            Content::State(state) => (self.commit, self.term) = (state.commit, state.term),
            Content::Mark(mark) => {
                self.last_index = self.last_index.max(mark.index);
                self.marks.push(mark);
            }
        }
    }
}

/// Reads the whole log. Returns `None` if it cannot be read.
pub(super) fn examine(disk: &dyn Disk, dir: &Path, findings: &mut Findings) -> Option<LogFacts> {
    let mut facts = LogFacts::default();
    let visited = visit(disk, dir, |_, content| -> Result<(), WalError> {
        facts.take(content);
        Ok(())
    });
    let ending = match visited {
        Ok(ending) => ending,
        Err(error) => {
            findings.damaged(PART, error.to_string());
            return None;
        }
    };
    facts.member = Metadata::decode(&facts.metadata[..]).ok().and_then(|metadata| metadata.node_id);
    let segments = wal::list(disk, dir).map_or(0, |listing| listing.segments.len());
    findings.sound(PART, identity(&facts.metadata));
    findings.sound(
        PART,
        format!(
            "{segments} segments, {} entries up to index {}, commit index {}, term {}",
            facts.entry_count, facts.last_index, facts.commit, facts.term
        ),
    );
    if ending.is_torn {
        let (path, offset) = (ending.path.display(), ending.offset);
        findings.notable(
            PART,
            format!(
                "{path}: the record at offset {offset} is incomplete; a starting member truncates the log there"
            ),
        );
    }
    if let Some((before, behind)) = facts.hole {
        findings.damaged(
            PART,
            format!("entry {before} is followed by entry {behind}: entries are missing"),
        );
    }
    if facts.commit > facts.last_index {
        let (commit, last) = (facts.commit, facts.last_index);
        findings
            .damaged(PART, format!("entry {commit} is committed, but the last entry is {last}"));
    }
    Some(facts)
}
