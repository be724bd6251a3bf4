//! Clients that write continuously and record the answers.
//!
//! Every value is written by only one request, so each event of a watcher identifies its request. Without an answer,
//! the outcome of a request is unknown. An answer is a promise that the changes in it are durable. [`Load::check`]
//! compares these promises with a watcher's events.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::response_op::Response;
use quorate_tests::{
    Client, TIMEOUT, compare, delete, eventually_ok, put, put_op, txn, txn_when, write_op,
};
use tokio::task::JoinSet;
use tonic::Status;

use crate::directory::{Directory, PAUSE};
use crate::witness::Sighting;

/// Number of concurrent writers.
const WRITERS: usize = 6;
/// Number of keys per writer.
const KEYS: usize = 5;
/// Timeout of a writer's request.
const WRITER_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two requests of a writer, because the load should be steady rather than maximal.
const PACE: Duration = Duration::from_millis(8);
/// Number of requests for which a member is skipped after a failure.
const DETOUR: usize = 20;
/// Number of concurrent requests when the store is filled quickly.
const BURST: usize = 64;

/// A key and its new value, which is `None` if the key was deleted.
type Change = (Vec<u8>, Option<Vec<u8>>);

#[derive(Debug, Default)]
struct Journal {
    /// Number of keys to which a request tried to write each value.
    attempted: HashMap<Vec<u8>, usize>,
    /// Acknowledged changes by revision, in key order.
    acknowledged: BTreeMap<i64, Vec<Change>>,
    /// Number of requests answered by each member.
    answered: BTreeMap<usize, usize>,
    filled: usize,
}

impl Journal {
    fn acknowledge(&mut self, member: usize, revision: i64, mut changes: Vec<Change>) {
        *self.answered.entry(member).or_default() += 1;
        if changes.is_empty() {
            return;
        }
        changes.sort();
        let earlier = self.acknowledged.insert(revision, changes);
        assert_eq!(earlier, None, "two requests have revision {revision}");
    }
}

/// The writers and their records.
#[derive(Debug)]
pub(crate) struct Load {
    journal: Arc<Mutex<Journal>>,
    ended: Arc<AtomicBool>,
    writers: JoinSet<()>,
}

impl Load {
    /// Starts the writers, which use the members in a [`Directory`].
    pub(crate) fn start(directory: &Directory) -> Self {
        let load = Self { journal: Arc::default(), ended: Arc::default(), writers: JoinSet::new() };
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            let journal = Arc::clone(&load.journal);
            let (directory, ended) = (directory.clone(), Arc::clone(&load.ended));
            writers.spawn(async move { write(writer, &directory, &journal, &ended).await });
        }
        Self { writers, ..load }
    }

    /// Waits until each of these members has executed several more requests.
    pub(crate) async fn pass_through(&self, members: &[usize]) {
        const MORE: usize = 5;
        let answered = || self.journal.lock().unwrap().answered.clone();
        let before = answered();
        eventually_ok(TIMEOUT, "writes through every member are acknowledged", async || {
            let now = answered();
            let more = |member: &usize| {
                let count = |answered: &BTreeMap<usize, usize>| {
                    answered.get(member).copied().unwrap_or_default()
                };
                count(&now) >= count(&before) + MORE
            };
            if members.iter().all(more) { Ok(()) } else { Err((before.clone(), now)) }
        })
        .await;
    }

    /// Writes many keys through one member as fast as possible. Some writes may fail.
    pub(crate) async fn fill(&self, member: usize, client: &Client, count: usize) {
        let first = {
            let mut journal = self.journal.lock().unwrap();
            journal.filled += count;
            journal.filled - count
        };
        let mut tasks = JoinSet::new();
        for lane in 0..BURST {
            let (client, journal) = (client.clone(), Arc::clone(&self.journal));
            tasks.spawn(async move {
                for number in (first..first + count).skip(lane).step_by(BURST) {
                    let value = format!("filling {number}").into_bytes();
                    let key = format!("fill/{}", number % 500);
                    let step = Step { value, request: Request::Put(vec![key]) };
                    // A failed write only means that there is less data.
                    drop(carry_out(step, member, &client, &journal).await);
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    }

    /// Stops the writers, and waits until they have ended.
    pub(crate) async fn end(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        while let Some(ended) = self.writers.join_next().await {
            ended.unwrap();
        }
    }

    /// Compares all promises with the events of a watcher. Each acknowledged change must be present, complete and at
    /// its revision. A change without an answer must be present completely or not at all, and at most once.
    pub(crate) fn check(&self, sightings: &[Sighting]) -> usize {
        let journal = self.journal.lock().unwrap();
        let mut seen: BTreeMap<i64, Vec<Change>> = BTreeMap::new();
        for one in sightings {
            let change = (one.key().to_vec(), one.value().map(<[u8]>::to_vec));
            seen.entry(one.revision()).or_default().push(change);
        }
        for (revision, changes) in &journal.acknowledged {
            let mut found = seen.get(revision).cloned().unwrap_or_default();
            found.sort();
            assert_eq!(
                found, *changes,
                "revision {revision} differs from the acknowledged changes"
            );
        }
        let mut revisions: HashMap<&[u8], i64> = HashMap::new();
        for (revision, changes) in &seen {
            let mut parts: HashMap<&[u8], usize> = HashMap::new();
            for (key, value) in changes {
                if let (true, Some(value)) = (is_of_load(key), value) {
                    *parts.entry(value).or_default() += 1;
                }
            }
            for (value, count) in parts {
                let shown = String::from_utf8_lossy(value);
                let attempted = journal.attempted.get(value);
                assert_eq!(attempted, Some(&count), "{shown:?} is incomplete or was never written");
                let earlier = revisions.insert(value, *revision);
                assert_eq!(earlier, None, "{shown:?} was executed again at revision {revision}");
            }
        }
        journal.acknowledged.len()
    }
}

fn is_of_load(key: &[u8]) -> bool {
    key.starts_with(b"load/") || key.starts_with(b"fill/")
}

/// Runs one writer, which uses its own member while that member answers.
async fn write(writer: usize, directory: &Directory, journal: &Mutex<Journal>, ended: &AtomicBool) {
    let (mut detour, mut turn) = (0_usize, writer);
    for number in 0.. {
        if ended.load(Ordering::Relaxed) {
            return;
        }
        if detour == 0 {
            turn = writer;
        }
        detour = detour.saturating_sub(1);
        let (member, client) = directory.pick(turn);
        let step = Step::of(writer, number);
        match carry_out(step, member, &client, journal).await {
            Ok(()) => tokio::time::sleep(PACE).await,
            Err(_) => {
                (detour, turn) = (DETOUR, turn + 1);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// A request and the value that it writes.
#[derive(Debug)]
struct Step {
    value: Vec<u8>,
    request: Request,
}

#[derive(Debug)]
enum Request {
    /// Writes one key with a put, or several with a transaction.
    Put(Vec<String>),
    Delete(String),
    /// Deletes one key and writes another if the first exists, in a transaction.
    Move {
        from: String,
        to: String,
    },
}

impl Step {
    fn of(writer: usize, number: usize) -> Self {
        let key = |offset: usize| format!("load/{writer}/{}", (number + offset) % KEYS);
        let request = match number % 10 {
            7 => Request::Put(vec![key(0), key(1), key(2)]),
            8 => Request::Delete(key(0)),
            9 => Request::Move { from: key(2), to: key(3) },
            _ => Request::Put(vec![key(0)]),
        };
        Self { value: format!("{number} of {writer}").into_bytes(), request }
    }

    /// Returns the number of keys that the request writes.
    const fn writes(&self) -> usize {
        match &self.request {
            Request::Put(keys) => keys.len(),
            Request::Delete(_) => 0,
            Request::Move { .. } => 1,
        }
    }
}

async fn carry_out(
    step: Step,
    member: usize,
    client: &Client,
    journal: &Mutex<Journal>,
) -> Result<(), Status> {
    if step.writes() > 0 {
        journal.lock().unwrap().attempted.insert(step.value.clone(), step.writes());
    }
    let answer = tokio::time::timeout(WRITER_TIMEOUT, ask(step, client)).await;
    let (header, changes) =
        answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no response")))?;
    let revision = header.expect("an answer has a header").revision;
    journal.lock().unwrap().acknowledge(member, revision, changes);
    Ok(())
}

/// Sends the request. Returns the changes in the answer.
async fn ask(
    step: Step,
    client: &Client,
) -> Result<(Option<pb::ResponseHeader>, Vec<Change>), Status> {
    use quorate_api::etcdserverpb::compare::{CompareResult, TargetUnion};
    let Step { value, request } = step;
    let written = |key: String| (key.into_bytes(), Some(value.clone()));
    let deleted = |key: String, count: i64| (count > 0).then(|| (key.into_bytes(), None));
    match request {
        Request::Put(keys) => {
            let header = match &keys[..] {
                [key] => client.put(put(key, &value)).await?.header,
                _ => {
                    let puts = keys.iter().map(|key| put_op(key, &value)).collect();
                    client.txn(txn(puts)).await?.header
                }
            };
            Ok((header, keys.into_iter().map(written).collect()))
        }
        Request::Delete(key) => {
            let answer = client.delete_range(delete(&key, "")).await?;
            Ok((answer.header, deleted(key, answer.deleted).into_iter().collect()))
        }
        Request::Move { from, to } => {
            let there = compare(&from, CompareResult::Greater, TargetUnion::Version(0));
            let operations = vec![write_op(delete(&from, "")), put_op(&to, &value)];
            let answer = client.txn(txn_when(vec![there], operations, vec![])).await?;
            if !answer.succeeded {
                return Ok((answer.header, Vec::new()));
            }
            let Some(Response::ResponseDeleteRange(first)) = &answer.responses[0].response else {
                panic!("this is not the response to a deletion: {answer:?}");
            };
            let gone = deleted(from, first.deleted);
            Ok((answer.header, gone.into_iter().chain([written(to)]).collect()))
        }
    }
}
