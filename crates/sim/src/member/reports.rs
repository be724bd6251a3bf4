//! Sends the reports of the backend to the other components.

use quorate_core::{Job, Report};
use quorate_node::Event;
use quorate_raft::LogIndex;

use super::input::Input;
use super::{Completion, Out, Process};

impl Process {
    pub(super) fn handle_report(&mut self, report: Report<Completion, Completion>) {
        match report {
            Report::Committed { committed, generation }
            | Report::Moved { committed, generation } => {
                self.jobs.push_back(Job::Committed { committed, generation });
            }
            Report::SnapshotSaved(mark) => {
                self.saved_snapshot = LogIndex(mark.index);
                self.inputs.push_back(Input::Mark(mark));
            }
            Report::Send { message, image } => self.out.push(Out::Image { message, image }),
            Report::Installed { .. } => self.is_installed = true,
            Report::Complete(completion) => self.outputs.completed.push(completion),
            Report::Defragmented { completions, .. } => self.outputs.completed.extend(completions),
            Report::Compacted(_) => self.out.push(Out::RareState("a compaction is durable")),
            Report::Superseded => {}
            Report::NoRoom(_) => self.note_room(true, "there is no room for the backend"),
            Report::RoomAgain => self.note_room(false, "there is room for the backend again"),
            Report::Ended => {}
        }
    }

    fn note_room(&mut self, is_short: bool, rare_state: &'static str) {
        self.inputs.push_back(Input::Event(Event::BackendSpace { is_short }));
        self.out.push(Out::RareState(rare_state));
    }
}
