//! Sends the reports of the backend to the other machines.

use quorate_core::{Job, Report};
use quorate_node::Event;

use super::input::Input;
use super::{Out, Process, Told};

impl Process {
    pub(super) fn carry_report(&mut self, report: Report<Told, Told>) {
        match report {
            Report::Committed { committed, generation }
            | Report::Moved { committed, generation } => {
                self.jobs.push_back(Job::Committed { committed, generation });
            }
            Report::SnapshotSaved(mark) => self.inputs.push_back(Input::Mark(mark)),
            Report::Send { message, image } => self.out.push(Out::Image { message, image }),
            Report::Installed { .. } => self.is_installed = true,
            Report::Tell(told) => self.said.told.push(told),
            Report::Defragmented { told, .. } => self.said.told.extend(told),
            Report::Compacted(_) => self.out.push(Out::Seen("a compaction is durable")),
            Report::Superseded => {}
            Report::NoRoom(_) => self.note_room(true, "the backend file finds no room"),
            Report::RoomAgain => self.note_room(false, "there is room for the backend again"),
            Report::Ended => {}
        }
    }

    fn note_room(&mut self, is_short: bool, seen: &'static str) {
        self.inputs.push_back(Input::Event(Event::BackendRoom { is_short }));
        self.out.push(Out::Seen(seen));
    }
}
