//! Rate-limited log lines about messages that the consensus core refuses.
//!
//! A faulty peer may send many invalid messages. The first refusal is logged. After that, at most
//! one line is logged every [`REFUSAL_NOTE_TICKS`] ticks, with the number of refusals that were not
//! logged in between.

use quorate_raft::{Note, NoteLevel};

use crate::limits::REFUSAL_NOTE_TICKS;

/// The source of a refused message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Another member.
    Peer,
    /// This member's own storage.
    Own,
}

/// Limits the rate of log lines about refused messages.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Number of ticks until the next line is allowed.
    ticks_left: u64,
    left_out: u64,
}

impl Refusals {
    /// Advances one tick.
    pub(crate) const fn tick(&mut self) {
        self.ticks_left = self.ticks_left.saturating_sub(1);
    }

    /// Returns a log line about a message that was refused for `reason`, if a line is allowed now.
    pub(crate) fn note(&mut self, level: NoteLevel, source: Source, reason: &str) -> Option<Note> {
        if self.ticks_left > 0 {
            self.left_out += 1;
            return None;
        }
        self.ticks_left = REFUSAL_NOTE_TICKS;
        let more = match std::mem::take(&mut self.left_out) {
            0 => String::new(),
            count => format!(" ({count} more since the last line)"),
        };
        let what = match source {
            Source::Peer => "a message from a peer",
            Source::Own => "a report from this member's own storage",
        };
        Some(Note { level, text: format!("refused {what}: {reason}{more}") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_refusals_are_logged_at_most_once_per_interval() {
        let mut refusals = Refusals::default();
        let text = |refusals: &mut Refusals| {
            refusals.note(NoteLevel::Warn, Source::Peer, "nonsense").map(|note| note.text)
        };
        let first = text(&mut refusals);
        assert_eq!(first.as_deref(), Some("refused a message from a peer: nonsense"));
        for _ in 0..REFUSAL_NOTE_TICKS {
            assert_eq!(text(&mut refusals), None);
            refusals.tick();
        }
        let later = text(&mut refusals).unwrap();
        assert!(later.ends_with(&format!("({REFUSAL_NOTE_TICKS} more since the last line)")));
    }
}
