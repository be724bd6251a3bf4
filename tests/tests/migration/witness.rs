//! Watchers that resume after every interruption, and the events that they have received.
//!
//! A witness watches the whole store from one revision on. When its stream ends, it opens another stream at the
//! revision after its last event, as client libraries do. Every revision arrives in one piece, so a duplicate, late or
//! reordered event is detected at once. A missing event is detected by comparing several witnesses.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::watch_request::RequestUnion;
use quorate_api::mvccpb::Event;
use quorate_api::mvccpb::event::EventType;
use quorate_tests::{TIMEOUT, bytes, eventually_ok};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::directory::{Directory, PAUSE};

/// Time for which a roaming witness stays with a silent member.
const SILENCE: Duration = Duration::from_secs(1);

/// An event and the time of its arrival.
#[derive(Clone, Debug)]
pub(crate) struct Sighting {
    pub(crate) at: Instant,
    pub(crate) event: Event,
}

impl Sighting {
    pub(crate) fn revision(&self) -> i64 {
        self.event.kv.as_ref().expect("an event has a record").fields().mod_revision
    }

    pub(crate) fn key(&self) -> &[u8] {
        self.event.kv.as_ref().expect("an event has a record").key()
    }

    /// Returns the new value, or `None` if the key was deleted.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        match self.event.r#type() {
            EventType::Put => self.event.kv.as_ref().map(|record| record.value()),
            EventType::Delete => None,
        }
    }
}

#[derive(Debug)]
struct Log {
    /// First revision that has not arrived yet.
    next: i64,
    sightings: Vec<Sighting>,
}

/// A watcher of the whole store.
#[derive(Debug)]
pub(crate) struct Witness {
    name: String,
    start: i64,
    log: Arc<Mutex<Log>>,
    task: JoinHandle<()>,
}

impl Witness {
    /// Watches through one member only, even while it is silent.
    pub(crate) fn at(member: Directory, start: i64) -> Self {
        let name = format!("the watcher at m{}", member.pick(0).0);
        Self::begin(name, member, None, start)
    }

    /// Watches through one member after another.
    pub(crate) fn roaming(members: Directory, start: i64) -> Self {
        Self::begin("the roaming watcher".to_owned(), members, Some(SILENCE), start)
    }

    fn begin(name: String, directory: Directory, timeout: Option<Duration>, start: i64) -> Self {
        let log = Arc::new(Mutex::new(Log { next: start, sightings: Vec::new() }));
        let written = Arc::clone(&log);
        let task = tokio::spawn(async move {
            for turn in 0.. {
                // The status that ends a stream does not matter, because the next stream resumes after the last event.
                drop(follow(&directory, turn, timeout, &written).await);
                tokio::time::sleep(PAUSE).await;
            }
        });
        Self { name, start, log, task }
    }

    /// Returns the next expected revision.
    pub(crate) fn next(&self) -> i64 {
        self.log.lock().unwrap().next
    }

    /// Waits until the witness has received a revision, which must contain an event.
    pub(crate) async fn reach(&self, revision: i64) {
        let what = format!("{} sees revision {revision}", self.name);
        eventually_ok(TIMEOUT, &what, async || {
            assert!(!self.task.is_finished(), "{} saw an impossible event, see above", self.name);
            let next = self.next();
            if next > revision { Ok(()) } else { Err(next) }
        })
        .await;
    }

    /// Returns the events that the witness has received, oldest first.
    pub(crate) fn sightings(&self) -> Vec<Sighting> {
        self.log.lock().unwrap().sightings.clone()
    }

    /// Returns the time at which a key was deleted, if that event has arrived.
    pub(crate) fn deleted(&self, key: &str) -> Option<Instant> {
        let log = self.log.lock().unwrap();
        let mut latest = log.sightings.iter().rev();
        let found = latest.find(|one| one.key() == key.as_bytes() && one.value().is_none());
        found.map(|one| one.at)
    }

    /// Checks that this witness received the same events as another witness, from its own start to a revision that both
    /// have reached.
    pub(crate) fn check_against(&self, other: &Self, through: i64) {
        let common = |witness: &Self| {
            let inside = |one: &Sighting| (self.start..=through).contains(&one.revision());
            let sightings = witness.sightings().into_iter().filter(inside);
            sightings.map(|one| one.event).collect::<Vec<_>>()
        };
        let (own, others) = (common(self), common(other));
        for (one, another) in own.iter().zip(&others) {
            assert_eq!(
                one, another,
                "an event of {} differs from the event of {}",
                self.name, other.name
            );
        }
        let last = (own.last(), others.last());
        assert_eq!(
            own.len(),
            others.len(),
            "{} and {} have different numbers of events, and their last events are {last:?}",
            self.name,
            other.name
        );
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Watches through one member until the stream ends.
async fn follow(
    directory: &Directory,
    turn: usize,
    timeout: Option<Duration>,
    log: &Mutex<Log>,
) -> Result<(), Status> {
    let (number, client) = directory.pick(turn);
    let (requests, receiver) = mpsc::channel(1);
    let start_revision = log.lock().unwrap().next;
    let create =
        pb::WatchCreateRequest { range_end: bytes([0]), start_revision, ..Default::default() };
    let create = pb::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    requests.send(create).await.expect("the receiving end of the channel is open");
    let mut stub = client.watch();
    let opened = stub.watch(client.signed(ReceiverStream::new(receiver)));
    let mut stream = unless_silent(timeout, opened).await?.into_inner();
    while let Some(response) = unless_silent(timeout, stream.message()).await? {
        assert_eq!(
            response.compact_revision, 0,
            "m{number} compacted events that were not yet received"
        );
        if response.canceled {
            return Ok(());
        }
        write_down(&mut log.lock().unwrap(), response.events, number);
    }
    drop(requests);
    Ok(())
}

/// Stops waiting after a timeout, if there is one.
async fn unless_silent<T>(
    timeout: Option<Duration>,
    answer: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    match timeout {
        Some(timeout) => tokio::time::timeout(timeout, answer)
            .await
            .unwrap_or_else(|_| Err(Status::cancelled("silent"))),
        None => answer.await,
    }
}

fn write_down(log: &mut Log, events: Vec<Event>, member: usize) {
    let at = Instant::now();
    let Log { next, sightings } = log;
    let mut newest = *next - 1;
    for event in events {
        let sighting = Sighting { at, event };
        let revision = sighting.revision();
        assert!(
            revision >= *next && revision >= newest,
            "m{member} sent revision {revision} after {newest}, expected at least {next}"
        );
        newest = revision;
        sightings.push(sighting);
    }
    *next = newest + 1;
}
