//! A group of nodes, the messages between them and the work of their storage threads.
//!
//! All events, including the nodes' notes, are written to one output in order.

use quorate_raft::{
    AnyConfChange, ConfState, Entry, HardState, LogIndex, MemberId, MemoryStorage, Message,
    MessageKind, Node, NoteLevel, Ready, Snapshot, Storage, StorageError, Term, is_local_target,
};

use crate::describe;
use quorate_test_support::script::{Command, Interpreter};

pub(crate) fn interpreter() -> Interpreter {
    let mut environment = Environment::default();
    Box::new(move |command: &Command| environment.run(command))
}

/// The amount of output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verbosity {
    #[default]
    Debug,
    Info,
    Warn,
    Error,
    Fatal,
    /// Only errors: even the output of commands is suppressed.
    None,
}

/// A node's storage: the log, and a state machine snapshot that is updated after every entry.
#[derive(Debug)]
pub(crate) struct NodeStorage {
    pub(crate) log: MemoryStorage,
    pub(crate) history: Vec<Snapshot>,
}

impl Storage for NodeStorage {
    fn initial_state(&self) -> (HardState, ConfState) {
        self.log.initial_state()
    }

    fn entries(
        &self,
        lo: LogIndex,
        hi: LogIndex,
        bytes_max: u64,
    ) -> Result<Vec<Entry>, StorageError> {
        self.log.entries(lo, hi, bytes_max)
    }

    fn term(&self, index: LogIndex) -> Result<Term, StorageError> {
        self.log.term(index)
    }

    fn first_index(&self) -> LogIndex {
        self.log.first_index()
    }

    fn last_index(&self) -> LogIndex {
        self.log.last_index()
    }

    fn snapshot(&self) -> Result<Snapshot, StorageError> {
        Ok(self.latest().clone())
    }
}

impl NodeStorage {
    fn latest(&self) -> &Snapshot {
        self.history.last().expect("a node starts with a snapshot, which may be empty")
    }
}

/// A node and the work queues of its threads.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) node: Node<NodeStorage>,
    pub(crate) append_work: Vec<Message>,
    pub(crate) apply_work: Vec<Message>,
}

/// A group. Node `n` is at position `n - 1`.
#[derive(Debug, Default)]
pub(crate) struct Environment {
    pub(crate) members: Vec<Member>,
    pub(crate) in_flight: Vec<Message>,
    pub(crate) verbosity: Verbosity,
    output: String,
    indent: usize,
}

impl Environment {
    fn run(&mut self, command: &Command) -> String {
        self.output.clear();
        if let Err(error) = self.dispatch(command) {
            // Errors are printed at every level.
            self.output.push_str(&error);
        }
        if self.output.is_empty() { "ok".to_owned() } else { std::mem::take(&mut self.output) }
    }

    /// Writes lines with the current indentation.
    pub(crate) fn print(&mut self, text: &str) {
        if self.verbosity == Verbosity::None {
            return;
        }
        for line in text.lines() {
            self.output.push_str(&"  ".repeat(self.indent));
            self.output.push_str(line);
            self.output.push('\n');
        }
    }

    /// Runs `action` and indents all its output.
    pub(crate) fn indented<T>(&mut self, action: impl FnOnce(&mut Self) -> T) -> T {
        self.indent += 1;
        let result = action(self);
        self.indent -= 1;
        result
    }

    /// Runs `action` on a node and prints the notes that the node records.
    pub(crate) fn with_node<T>(
        &mut self,
        id: MemberId,
        action: impl FnOnce(&mut Node<NodeStorage>) -> T,
    ) -> T {
        let node = &mut self.member(id).node;
        let result = action(node);
        for note in node.take_notes() {
            let (level, name) = match note.level {
                NoteLevel::Debug => (Verbosity::Debug, "DEBUG"),
                NoteLevel::Info => (Verbosity::Info, "INFO"),
                NoteLevel::Warn => (Verbosity::Warn, "WARN"),
                NoteLevel::Error => (Verbosity::Error, "ERROR"),
            };
            if self.verbosity <= level {
                self.print(&format!("{name} {}", note.text));
            }
        }
        result
    }

    pub(crate) fn member(&mut self, id: MemberId) -> &mut Member {
        let position = usize::try_from(id).unwrap() - 1;
        self.members.get_mut(position).unwrap_or_else(|| panic!("there is no node {id}"))
    }

    fn is_async(&mut self, id: MemberId) -> bool {
        self.member(id).node.config().async_storage_writes
    }

    /// Takes a node's pending work and does it, or queues it for the node's threads.
    pub(crate) fn process_ready(&mut self, id: MemberId) -> Result<(), String> {
        let ready = self.with_node(id, Node::ready);
        self.print(&describe::ready(&ready));
        let is_async = self.is_async(id);
        let Ready { hard_state, entries, snapshot, committed_entries, messages, .. } = ready;
        if !is_async {
            self.write(id, hard_state.unwrap_or_default(), entries, snapshot)?;
            self.apply(id, committed_entries)?;
        }
        for message in messages {
            assert!(
                is_async || !is_local_target(message.to),
                "only a node with storage threads sends them messages"
            );
            match message.kind {
                MessageKind::StorageAppend => self.member(id).append_work.push(message),
                MessageKind::StorageApply => self.member(id).apply_work.push(message),
                _ => self.in_flight.push(message),
            }
        }
        if !is_async {
            self.with_node(id, Node::advance);
        }
        Ok(())
    }

    /// Does the first piece of work that is queued for a node's log thread.
    pub(crate) fn process_append_thread(&mut self, id: MemberId) -> Result<(), String> {
        if self.member(id).append_work.is_empty() {
            self.print("no append work to perform");
            return Ok(());
        }
        let mut work = self.member(id).append_work.remove(0);
        let responses = std::mem::take(&mut work.responses);
        self.print(&format!("Processing:\n{}", describe::message(&work)));
        let state = HardState { term: work.term, vote: work.vote, commit: work.commit };
        self.write(id, state, work.entries, work.snapshot.map(|snapshot| *snapshot))?;
        self.respond(responses);
        Ok(())
    }

    /// Does the first piece of work that is queued for a node's state machine thread.
    pub(crate) fn process_apply_thread(&mut self, id: MemberId) -> Result<(), String> {
        if self.member(id).apply_work.is_empty() {
            self.print("no apply work to perform");
            return Ok(());
        }
        let mut work = self.member(id).apply_work.remove(0);
        let responses = std::mem::take(&mut work.responses);
        self.print(&format!("Processing:\n{}", describe::message(&work)));
        self.apply(id, work.entries)?;
        self.respond(responses);
        Ok(())
    }

    fn respond(&mut self, responses: Vec<Message>) {
        self.print("Responses:");
        for response in &responses {
            self.print(&describe::message(response));
        }
        self.in_flight.extend(responses);
    }

    fn write(
        &mut self,
        id: MemberId,
        state: HardState,
        entries: Vec<Entry>,
        snapshot: Option<Snapshot>,
    ) -> Result<(), String> {
        let log = &mut self.member(id).node.storage_mut().log;
        if !state.is_empty() {
            log.set_hard_state(state);
        }
        let Some(snapshot) = snapshot else {
            log.append(entries);
            return Ok(());
        };
        if !entries.is_empty() {
            return Err("can't apply snapshot and entries at the same time".to_owned());
        }
        log.apply_snapshot(snapshot).map_err(|error| error.to_string())
    }

    /// Applies entries: the state machine appends them to its data.
    fn apply(&mut self, id: MemberId, entries: Vec<Entry>) -> Result<(), String> {
        for entry in entries {
            let change = AnyConfChange::from_entry(&entry).map_err(|error| error.to_string())?;
            let mut conf_state = None;
            let update = match change {
                None => entry.data.clone(),
                Some(change) => {
                    let (AnyConfChange::V1(quorate_raft::ConfChange { context, .. })
                    | AnyConfChange::V2(quorate_raft::ConfChangeV2 { context, .. })) = &change;
                    let context = context.clone();
                    let applied = self.with_node(id, |node| node.apply_conf_change(change));
                    conf_state = Some(applied.map_err(|error| error.to_string())?);
                    context
                }
            };
            let storage = self.member(id).node.storage_mut();
            let mut snapshot = storage.latest().clone();
            snapshot.data = [snapshot.data.as_ref(), &update].concat().into();
            snapshot.metadata.index = entry.index;
            snapshot.metadata.term = entry.term;
            if let Some(conf_state) = conf_state {
                snapshot.metadata.conf_state = conf_state;
            }
            storage.history.push(snapshot);
        }
        Ok(())
    }
}
