//! Leader changes without an election timeout, when a disk stalls or the leader's process ends.

use quorate_raft::{MemberId, NONE, Note, NoteLevel};

use super::Node;
use crate::disk_watch::{Change, successor_with_disk};

impl Node {
    /// Campaigns without waiting for the election timeout if the leader's process has ended.
    /// Without pre-votes, the report is ignored, because a mistaken member would depose its leader.
    pub(super) fn handle_gone(&mut self, peer: MemberId) {
        if !self.raft.config().pre_vote || peer != self.leadership.leader {
            return;
        }
        let voters = &self.raft.configuration().voters.incoming.0;
        if self.succession.begin(self.raft.id(), self.leadership, voters) {
            let text = format!(
                "the addresses of leader {peer:x} refuse connections: its process has probably ended"
            );
            self.notes.push(Note { level: NoteLevel::Info, text });
            self.raft.forget_leader();
        }
    }

    /// Logs when the disk stalls and when it recovers.
    pub(super) fn watch_disk(&mut self) {
        let (level, text) = match self.disk_watch.look(self.persistence.write_age()) {
            None => return,
            Some(Change::Stalled) => {
                let text = "a write to the write-ahead log has taken longer than an election timeout; \
                            this member does not campaign until the log can be written again";
                (NoteLevel::Warn, text)
            }
            Some(Change::Recovered) => {
                self.heir = None;
                (
                    NoteLevel::Info,
                    "the write-ahead log can be written again; this member takes part in elections again",
                )
            }
        };
        self.notes.push(Note { level, text: text.to_owned() });
    }

    /// Makes a leader whose disk is stalled transfer leadership as soon as the other members can elect a
    /// leader. The core aborts a transfer after an election timeout, and this leader then starts another
    /// transfer. Between two transfers, the leader must not accept proposals: it would send them to its followers as
    /// appends, and a follower that receives appends does not campaign.
    pub(super) fn hand_over(&mut self) {
        if !self.raft.is_leader() {
            self.heir = None;
        } else if self.raft.transferee() == NONE {
            if self.heir.is_none() {
                // Without an entry that only the others have written, nothing shows that their disks work.
                let stuck = self.persistence.oldest_write_end();
                self.heir = stuck.and_then(|stuck| successor_with_disk(&self.raft.status(), stuck));
                let note = |heir| {
                    let text = format!(
                        "transferring leadership to member {heir:x}, because this member cannot write its write-ahead log"
                    );
                    Note { level: NoteLevel::Warn, text }
                };
                self.notes.extend(self.heir.map(note));
            }
            if let Some(heir) = self.heir {
                self.raft.transfer_leader(heir);
            }
        }
    }
}
