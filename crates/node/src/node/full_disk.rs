//! Executes the steps of [`crate::full_disk_watch`] when the disk has no space for the backend file.

use quorate_raft::{Message, MessageKind, Note, NoteLevel};

use super::Node;
use crate::effect::Effect;
use crate::full_disk_watch::Step;

impl Node {
    /// If this member leads and its disk has no space for the backend file, transfers leadership. If no voter accepts,
    /// refuses writes.
    pub(super) fn watch_room(&mut self) {
        let leads = self.full_disk_watch.is_short() && self.raft.is_leader();
        let status = leads.then(|| self.raft.status());
        let step = self.full_disk_watch.tick(status.as_ref(), self.raft.transferee());
        let (level, text) = match step {
            None => return,
            Some(Step::HandOver(to)) => {
                self.raft.transfer_leader(to);
                let text = format!(
                    "transferring leadership to member {to:x}, because this member's disk has no space for the \
                     backend file"
                );
                (NoteLevel::Warn, text)
            }
            Some(Step::RefuseWrites) => {
                self.effects.push_back(Effect::RefuseWrites(true));
                let text = "this member's disk has no space for the backend file, and no other member can lead; \
                            raising the NOSPACE alarm: writes are refused until the disk has space";
                (NoteLevel::Warn, text.to_owned())
            }
            Some(Step::TakeWrites) => {
                self.effects.push_back(Effect::RefuseWrites(false));
                let text = "this member has disk space for the backend file again, or is no longer the leader; \
                            disarming its NOSPACE alarm";
                (NoteLevel::Info, text.to_owned())
            }
        };
        self.notes.push(Note { level, text });
    }

    /// Declines leadership if the backend file has no disk space, because this member would have to
    /// transfer it again.
    pub(super) fn declines(&mut self, message: &Message) -> bool {
        let is_declined =
            message.kind == MessageKind::TimeoutNow && self.full_disk_watch.is_short();
        if is_declined {
            let text = format!(
                "not accepting leadership from member {:x}: this member's disk has no space for the backend file",
                message.from
            );
            self.notes.push(Note { level: NoteLevel::Warn, text });
        }
        is_declined
    }
}
