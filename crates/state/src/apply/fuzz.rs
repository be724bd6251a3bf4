//! Fuzz target: log entries as protobuf bytes.
//!
//! Two states apply the same entries and must stay equal. The first state builds responses. The
//! second is sometimes rebuilt from its file, and deletes compacted records at different times. A
//! simple model computes the expected responses of puts, deletions, ranges and transactions.

mod model;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use quorate_api::deep_txn::STACK_BYTES;
use quorate_api::etcdserverpb as pb;
use quorate_api::record::KeyValue;
use quorate_storage::bolt::Options;
use quorate_storage::disk::{Disk, RealDisk};

use self::model::Model;
use super::{
    Command, EntryMeta, Request, Response, State, StateOptions, check_delete_range, check_put,
    check_range, check_txn,
};
use crate::backend::Backend;
use crate::units::Millis;

/// First byte of a step that applies an entry. The entry's length in two bytes and the entry follow. Any first byte
/// other than `RESTART` and `CLEAR` begins such a step, too.
#[cfg(test)]
const ENTRY: u8 = 0;
/// First byte of a step that rebuilds the second state from its file.
const RESTART: u8 = 1;
/// First byte of a step that deletes some compacted records.
const CLEAR: u8 = 2;

/// The maximum number of operations in a transaction.
const TXN_OPS_MAX: usize = 128;

/// Inputs of up to this many bytes are too short to overflow an ordinary stack by deep nesting, so they run on the
/// current thread. A separate thread would slow down the fuzzer.
const SHALLOW_BYTES_MAX: usize = 400;

/// Runs the steps in `data` on a stack that is large enough for the deepest transactions.
pub fn entries(folder: &Path, data: &[u8]) {
    if data.len() <= SHALLOW_BYTES_MAX {
        return run(folder, data);
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let ran =
            thread.spawn_scoped(scope, || run(folder, data)).expect("a thread can be started");
        if let Err(panic) = ran.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn run(folder: &Path, data: &[u8]) {
    let mut pair = Pair::new();
    let mut rest = data;
    while let Some((&step, tail)) = rest.split_first() {
        rest = match (step, tail) {
            (RESTART, _) => {
                pair.restart(folder);
                tail
            }
            (CLEAR, _) => {
                pair.clear_garbage();
                tail
            }
            (_, [low, high, tail @ ..]) => {
                let len = usize::from(u16::from_le_bytes([*low, *high])).min(tail.len());
                let (entry, tail) = tail.split_at(len);
                // An entry that cannot be applied stops a member, so the run ends here.
                match pair.apply(Bytes::copy_from_slice(entry)) {
                    Applied::Whole => tail,
                    Applied::Not => break,
                    Applied::Stopped => return,
                }
            }
            (_, _) => break,
        };
    }
    pair.compare();
    if pair.backend.is_some() {
        pair.restart(folder);
    }
}

/// The result of applying an entry.
enum Applied {
    /// The entry was executed or refused.
    Whole,
    /// The entry could not be decoded as a request.
    Not,
    /// A member would stop at this entry, so neither state can be used further.
    Stopped,
}

/// The two states, and the model of the first state.
struct Pair {
    first: State,
    second: State,
    backend: Option<Backend>,
    model: Model,
    index: u64,
}

impl Pair {
    fn new() -> Self {
        let [first, second] = [(); 2]
            .map(|()| State::new(StateOptions { learner_count_max: 1, ..Default::default() }));
        Self { first, second, backend: None, model: Model::new(), index: 0 }
    }

    /// Applies an entry to both states.
    fn apply(&mut self, data: Bytes) -> Applied {
        let Ok(request) = Request::decode(data) else { return Applied::Not };
        self.index += 1;
        let meta = |reply_wanted| EntryMeta {
            index: self.index,
            term: 2,
            now: Millis(self.index),
            file_bytes: 0,
            reply_wanted,
        };
        let command = request.command.clone();
        let before = self.first.store().current_revision();
        let applied = self.first.apply(meta(true), request.clone());
        let other = self.second.apply(meta(false), request);
        let (Ok(applied), Ok(other)) = (&applied, &other) else {
            assert!(applied.is_err(), "only one of two states applied an entry: {other:?}");
            assert!(other.is_err(), "only one of two states applied an entry: {applied:?}");
            return Applied::Stopped;
        };
        self.first.publish();
        let outcome = applied.outcome.as_ref().expect("an entry is applied once");
        if !matches!(command, Command::Range(_)) {
            let other = other.outcome.as_ref().expect("an entry is applied once");
            assert_eq!(outcome.as_ref().err(), other.as_ref().err());
        }
        assert_eq!(applied.notice, other.notice);
        match outcome {
            Ok(response) if is_proposed(&command) => self.model.check(&command, response),
            // Quorate does not propose this command, but another implementation may.
            Ok(_) => self.model.adopt(self.first.store().current_revision(), all(&self.first)),
            Err(_) => assert_eq!(self.first.store().current_revision(), before),
        }
        assert_eq!(self.first.store().current_revision(), self.model.revision());
        Applied::Whole
    }

    fn clear_garbage(&mut self) {
        self.first.compaction_step(3);
        self.first.publish();
        while self.second.compaction_step(100).more {}
    }

    /// Commits the batch of the second state and rebuilds the state from the file.
    fn restart(&mut self, folder: &Path) {
        let backend = self.backend.get_or_insert_with(|| {
            let disk: Arc<dyn Disk> = Arc::new(RealDisk);
            let path = folder.join("db");
            // Removes the file that the previous input left behind.
            drop(RealDisk.remove_file(&path));
            let mut options = Options::default();
            (options.no_sync, options.growth_bytes, options.map_bytes_min) =
                (true, 64 << 10, 1 << 20);
            Backend::open(&disk, &path, options).expect("a new file can be opened")
        });
        let batch = self.second.take_batch();
        backend.commit(&batch).expect("a batch can be committed");
        let options = StateOptions { learner_count_max: 1, ..StateOptions::default() };
        let recovered = State::recover(backend, options);
        self.second = recovered.expect("a state can be recovered from its own file");
        self.compare();
    }

    /// Asserts that all replicated data of both states is equal.
    fn compare(&mut self) {
        self.first.publish();
        self.second.publish();
        assert_eq!(self.first.applied().0, self.index);
        assert_eq!(self.second.applied().0, self.index);
        assert_eq!(self.first.facts(), self.second.facts());
        let (first, second) = (self.first.published(), self.second.published());
        assert_eq!(all(&self.first), all(&self.second));
        let hash =
            |view: &crate::mvcc::View| view.hash_kv(0).expect("the newest revision can be hashed");
        assert_eq!(hash(&first.view()), hash(&second.view()));
        let ids = first.leases.list();
        assert_eq!(ids, second.leases.list());
        for id in ids {
            assert_eq!(first.leases.keys(id), second.leases.keys(id));
        }
        assert_eq!(all(&self.first), self.model.records());
    }
}

/// Returns every live record of a state.
fn all(state: &State) -> Vec<KeyValue> {
    let key = Bytes::from_static(&[0]);
    let request = pb::RangeRequest { range_end: key.clone(), key, ..Default::default() };
    match state.range(&request) {
        Ok(Ok(Response::Range(range))) => range.kvs,
        other => panic!("the newest revision cannot be read: {other:?}"),
    }
}

/// Returns whether a Quorate member would have proposed the command.
fn is_proposed(command: &Command) -> bool {
    match command {
        Command::Range(request) => check_range(request).is_ok(),
        Command::Put(request) => check_put(request).is_ok(),
        Command::DeleteRange(request) => check_delete_range(request).is_ok(),
        Command::Txn(request) => check_txn(request, TXN_OPS_MAX).is_ok(),
        Command::Compaction(_)
        | Command::LeaseGrant(_)
        | Command::LeaseRevoke(_)
        | Command::LeaseCheckpoint(_)
        | Command::Alarm(_)
        | Command::Auth(_)
        | Command::Cluster(_)
        | Command::Nothing => true,
    }
}

#[cfg(test)]
mod tests;
