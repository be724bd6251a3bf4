//! Notes: the core's log lines for operators.
//!
//! The core does no IO, so a log line is a value that the application collects with
//! [`Node::take_notes`](crate::Node::take_notes) and logs. Where etcd logs the same event, the text
//! is etcd's, because operators' runbooks and saved searches contain it. The core's behaviour never
//! depends on notes.

/// The severity of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NoteLevel {
    /// A detail for debugging this crate.
    Debug,
    /// A change of role, term or membership.
    Info,
    /// A problem that may need an operator's attention.
    Warn,
    /// A request that the core cannot carry out, or a state that should not occur.
    Error,
}

/// A log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The severity of the note.
    pub level: NoteLevel,
    /// Text of the log line.
    pub text: String,
}

/// Maximum number of uncollected notes that are kept.
const NOTES_MAX: usize = 1024;

/// Notes that the application has not collected yet.
#[derive(Debug)]
pub(crate) struct Notes {
    level_min: NoteLevel,
    kept: Vec<Note>,
}

impl Notes {
    pub(crate) fn new(level_min: NoteLevel) -> Self {
        Self { level_min, kept: Vec::new() }
    }

    /// Returns whether a note of `level` would be kept. If not, its text need not be formatted.
    pub(crate) fn keeps(&self, level: NoteLevel) -> bool {
        level >= self.level_min && self.kept.len() < NOTES_MAX
    }

    pub(crate) fn push(&mut self, level: NoteLevel, text: String) {
        self.kept.push(Note { level, text });
    }

    pub(crate) fn take(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.kept)
    }
}

/// Records a formatted note, unless its level is disabled or too many notes have not been
/// collected: `note!(self, Info, "..", ..)`.
macro_rules! note {
    ($raft:expr, $level:ident, $($format:tt)+) => {
        if $raft.notes.keeps($crate::note::NoteLevel::$level) {
            let text = format!($($format)+);
            $raft.notes.push($crate::note::NoteLevel::$level, text);
        }
    };
}

pub(crate) use note;
