//! Prints entries, messages and pending work in the format of the scripts.

use std::fmt::Write as _;

use quorate_raft::{
    AnyConfChange, ConfChangeKind, ConfChangeV2, ConfState, Entry, EntryKind, HardState,
    LOCAL_APPEND, LOCAL_APPLY, LogIndex, MemberId, Message, NONE, Ready, Snapshot,
};

/// Describes a `Ready`. Work for storage threads appears twice: as entries and snapshots, and among the messages.
pub(crate) fn ready(ready: &Ready) -> String {
    let work = |to| ready.messages.iter().find(move |message| message.to == to);
    let (append, apply) = (work(LOCAL_APPEND), work(LOCAL_APPLY));
    let written = append.map_or(&ready.entries, |work| &work.entries);
    let applied = apply.map_or(&ready.committed_entries, |work| &work.entries);
    let installed = append.map_or(ready.snapshot.as_ref(), |work| work.snapshot.as_deref());
    let mut out = String::new();
    if let Some(soft_state) = ready.soft_state {
        writeln!(out, "Lead:{} State:State{:?}", soft_state.leader, soft_state.role).unwrap();
    }
    if let Some(state) = ready.hard_state.filter(|state| !state.is_empty()) {
        writeln!(out, "HardState {}", hard_state(state)).unwrap();
    }
    if !ready.read_states.is_empty() {
        let states = ready.read_states.iter();
        let states = states.map(|state| {
            let context: Vec<_> = state.context.iter().map(ToString::to_string).collect();
            format!("{{{} [{}]}}", state.index, context.join(" "))
        });
        writeln!(out, "ReadStates [{}]", states.collect::<Vec<_>>().join(" ")).unwrap();
    }
    if !written.is_empty() {
        write!(out, "Entries:\n{}", entries(written)).unwrap();
    }
    if let Some(image) = installed {
        writeln!(out, "Snapshot {}", snapshot(image)).unwrap();
    }
    if !applied.is_empty() {
        write!(out, "CommittedEntries:\n{}", entries(applied)).unwrap();
    }
    if !ready.messages.is_empty() {
        writeln!(out, "Messages:").unwrap();
        for sent in &ready.messages {
            writeln!(out, "{}", message(sent)).unwrap();
        }
    }
    if out.is_empty() {
        return "<empty Ready>".to_owned();
    }
    format!("Ready MustSync={}:\n{out}", ready.must_sync)
}

fn hard_state(state: HardState) -> String {
    let vote = if state.vote == NONE { String::new() } else { format!(" Vote:{}", state.vote) };
    format!("Term:{}{vote} Commit:{}", state.term, state.commit)
}

fn snapshot(snapshot: &Snapshot) -> String {
    let metadata = &snapshot.metadata;
    let state = conf_state(&metadata.conf_state);
    format!("Index:{} Term:{} ConfState:{state}", metadata.index, metadata.term)
}

fn conf_state(state: &ConfState) -> String {
    let list = |ids: &[MemberId]| {
        let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
        ids.join(" ")
    };
    format!(
        "Voters:[{}] VotersOutgoing:[{}] Learners:[{}] LearnersNext:[{}] AutoLeave:{}",
        list(&state.voters),
        list(&state.voters_outgoing),
        list(&state.learners),
        list(&state.learners_next),
        state.auto_leave
    )
}

pub(crate) fn message(message: &Message) -> String {
    indented_message("", message)
}

fn indented_message(indent: &str, m: &Message) -> String {
    let (from, to) = (target(m.from), target(m.to));
    let mut out =
        format!("{indent}{from}->{to} {} Term:{} Log:{}/{}", m.kind, m.term, m.log_term, m.index);
    if m.reject {
        write!(out, " Rejected (Hint: {})", m.reject_hint).unwrap();
    }
    if m.commit != LogIndex(0) {
        write!(out, " Commit:{}", m.commit).unwrap();
    }
    if m.vote != NONE {
        write!(out, " Vote:{}", m.vote).unwrap();
    }
    if let [single] = m.entries.as_slice() {
        write!(out, " Entries:[{}]", entry(single)).unwrap();
    } else if !m.entries.is_empty() {
        out.push_str(" Entries:[");
        for item in &m.entries {
            write!(out, "\n{indent}  {}", entry(item)).unwrap();
        }
        write!(out, "\n{indent}]").unwrap();
    }
    if let Some(image) = m.snapshot.as_ref().filter(|image| !image.is_empty()) {
        write!(out, "\n{indent}  Snapshot: {}", snapshot(image)).unwrap();
    }
    if !m.responses.is_empty() {
        out.push_str(" Responses:[");
        for response in &m.responses {
            write!(out, "\n{}", indented_message(&format!("{indent}  "), response)).unwrap();
        }
        write!(out, "\n{indent}]").unwrap();
    }
    out
}

fn target(id: MemberId) -> String {
    match id {
        NONE => "None".to_owned(),
        LOCAL_APPEND => "AppendThread".to_owned(),
        LOCAL_APPLY => "ApplyThread".to_owned(),
        id => format!("{id:x}"),
    }
}

pub(crate) fn entries(entries: &[Entry]) -> String {
    entries.iter().map(|item| entry(item) + "\n").collect()
}

fn entry(entry: &Entry) -> String {
    let content = match AnyConfChange::from_entry(entry) {
        Ok(None) => format!("{:?}", String::from_utf8_lossy(&entry.data)),
        Ok(Some(change)) => changes(&change.into()),
        Err(error) => error.to_string(),
    };
    let space = if content.is_empty() { "" } else { " " };
    let kind = match entry.kind {
        EntryKind::Normal => "EntryNormal",
        EntryKind::ConfChange => "EntryConfChange",
        EntryKind::ConfChangeV2 => "EntryConfChangeV2",
    };
    format!("{}/{} {kind}{space}{content}", entry.term, entry.index)
}

fn changes(change: &ConfChangeV2) -> String {
    let letter = |kind| match kind {
        ConfChangeKind::AddNode => 'v',
        ConfChangeKind::AddLearnerNode => 'l',
        ConfChangeKind::RemoveNode => 'r',
        ConfChangeKind::UpdateNode => 'u',
    };
    let steps = change.changes.iter().map(|s| format!("{}{}", letter(s.kind), s.node_id));
    steps.collect::<Vec<_>>().join(" ")
}
