//! One member's state with its file, and the commands that concern the member as a whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use quorate_state::apply::StateOptions;
use quorate_state::apply::{self, Applied, EntryMeta, Notice, Refusal, Request, Response, State};
use quorate_state::backend::Backend;
use quorate_state::units::Millis;
use quorate_state::watch::WatchStream;
use quorate_storage::bolt::Options;
use quorate_storage::disk::{Disk, RealDisk};
use quorate_test_support::script::Command;

/// The term of every entry.
const TERM: u64 = 2;

/// A member's state with its file and its clock.
pub(crate) struct Member {
    /// The directory of the file, which is deleted with the member.
    _folder: tempfile::TempDir,
    backend: Backend,
    pub(crate) state: State,
    pub(crate) options: StateOptions,
    index: u64,
    pub(crate) now: Millis,
    /// The file size against which the quota is checked, in bytes.
    file_bytes: u64,
    pub(crate) streams: BTreeMap<String, WatchStream>,
}

impl Member {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let mut file = Options::default();
        file.no_sync = true;
        let backend = Backend::open(&disk, &folder.path().join("db"), file).unwrap();
        let options = StateOptions { learner_count_max: 1, ..StateOptions::default() };
        Self {
            _folder: folder,
            backend,
            state: State::new(options),
            options,
            index: 0,
            now: Millis(0),
            file_bytes: 0,
            streams: BTreeMap::new(),
        }
    }

    /// Runs a command of a script and returns its output.
    pub(crate) fn run(&mut self, command: &Command) -> String {
        let name = command.name.as_str();
        self.keyspace(name, command)
            .or_else(|| self.watching(name, command))
            .or_else(|| self.leases(name, command))
            .or_else(|| self.cluster(name, command))
            .or_else(|| self.itself(name, command))
            .unwrap_or_else(|| panic!("unknown command {name}"))
    }

    /// Runs a command that concerns the member as a whole.
    fn itself(&mut self, name: &str, command: &Command) -> Option<String> {
        Some(match name {
            // start quota=1000 learners=2 checkpoints min-ttl=1 watch-queue=2: starts a new member
            // with these options
            "start" => self.start(command),
            // advance 10: moves the clock by 10 seconds
            "advance" => {
                self.now = self.now.plus_secs(number(command, 0));
                done()
            }
            // file-bytes 1000: sets the file size against which the quota is checked
            "file-bytes" => {
                self.file_bytes = number(command, 0);
                done()
            }
            // commit: writes the collected changes to the file
            "commit" => {
                let batch = self.state.take_batch();
                let committed = self.backend.commit(&batch).unwrap();
                self.state.store_mut().committed(committed);
                format!("the file is at entry {}", self.index)
            }
            // crash: rebuilds the state from the file, which loses uncommitted changes and watchers
            "crash" => {
                self.streams.clear();
                self.state = State::recover(&self.backend, self.options).unwrap();
                self.index = self.state.applied().0;
                format!("entry {}, revision {}", self.index, self.revision())
            }
            _ => return None,
        })
    }

    fn start(&mut self, command: &Command) -> String {
        let options = &mut self.options;
        options.quota_bytes = command.value("quota").unwrap_or(options.quota_bytes);
        options.learner_count_max = command.value("learners").unwrap_or(options.learner_count_max);
        options.lessor.checkpoints = command.has("checkpoints");
        let least = options.lessor.ttl_secs_min;
        options.lessor.ttl_secs_min = command.value("min-ttl").unwrap_or(least);
        let queue = &mut options.watch.queue;
        queue.count_max = command.value("watch-queue").unwrap_or(queue.count_max);
        self.state = State::new(*options);
        done()
    }

    pub(crate) fn revision(&self) -> i64 {
        self.state.store().current_revision()
    }

    /// Returns the position and context of the next entry.
    pub(crate) fn next_entry(&mut self) -> EntryMeta {
        self.index += 1;
        EntryMeta {
            index: self.index,
            term: TERM,
            now: self.now,
            file_bytes: self.file_bytes,
            reply_wanted: true,
        }
    }

    /// Applies an entry and publishes the state. Returns the text of the outcome, and of the notice
    /// for the server if there is one.
    pub(crate) fn apply(
        &mut self,
        command: apply::Command,
        show: impl FnOnce(Response) -> String,
    ) -> String {
        let request = Request { id: 1, username: String::new(), auth_revision: 0, command };
        let entry = self.next_entry();
        let Applied { outcome, notice, .. } = self.state.apply(entry, request).unwrap();
        self.state.publish();
        let mut text = match outcome {
            None => "applied before".to_owned(),
            Some(Err(refusal)) => refused(refusal),
            Some(Ok(response)) => show(response),
        };
        match notice {
            // Every compaction has this notice, so it is not shown.
            None | Some(Notice::Compaction(_)) => {}
            Some(notice) => text += &format!("\nnotice: {notice:?}"),
        }
        text
    }
}

pub(crate) fn done() -> String {
    "ok".to_owned()
}

pub(crate) fn refused(refusal: Refusal) -> String {
    format!("refused: {refusal}")
}

/// Returns the positional argument at a position of the command, if there is one.
pub(crate) fn word(command: &Command, position: usize) -> Option<&str> {
    command.plain().nth(position)
}

/// Returns the positional argument at a position as a number.
pub(crate) fn number<T: std::str::FromStr>(command: &Command, position: usize) -> T {
    let word =
        word(command, position).unwrap_or_else(|| panic!("{}: expected a number", command.name));
    word.parse().unwrap_or_else(|_| panic!("{}: {word} is not a number", command.name))
}

/// Parses a key or value: `\0` is the zero byte, `""` is empty, and `x*5` is x repeated five times.
pub(crate) fn bytes(text: Option<&str>) -> Bytes {
    match text.unwrap_or_default() {
        "\"\"" => Bytes::new(),
        "\\0" => Bytes::from_static(&[0]),
        text => match text.split_once('*') {
            Some((part, times)) => part.repeat(times.parse().unwrap()).into(),
            None => Bytes::copy_from_slice(text.as_bytes()),
        },
    }
}

/// Returns the bytes as text, shortened to fit on a line.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    if text.len() > 20 { format!("{}..({} bytes)", &text[..1], bytes.len()) } else { text.into() }
}
