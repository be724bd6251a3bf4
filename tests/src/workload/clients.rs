//! A client that sends one operation after another and records each with its outcome.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::compare::{CompareResult, TargetUnion};
use quorate_api::etcdserverpb::response_op::Response;
use quorate_api::record::KeyValue;
use tonic::{Code, Status};

use super::{Fact, KEYS, Shared};
use crate::linear::{Action, Answer, Operation, Value};
use crate::{Client, Random, compare, delete, get_op, key, put, put_op, txn_when};

/// Properties of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits {
    /// Whether the client only reads.
    only_reads: bool,
    /// Time for which the client waits for an answer.
    timeout: Duration,
    /// Maximum pause between two operations, in milliseconds.
    pause: u64,
}

impl Traits {
    /// Traits of a client that sends all operations, with a short timeout after which it uses another member.
    pub(super) const ANY: Self =
        Self { only_reads: false, timeout: Duration::from_millis(1_000), pause: 10 };
    /// Traits of a client that only reads, and whose timeout is longer than the pause of a member.
    pub(super) const PATIENT_READER: Self =
        Self { only_reads: true, timeout: Duration::from_secs(8), pause: 5 };
}

/// Last observation of a key: its value and its revision.
type Known = Option<(Value, i64)>;

/// Result of a request: the answer, the observed fact about a revision, and the current value if it is known.
type ClientAnswer = (Answer, Option<Fact>, Option<Known>);

pub(super) struct Worker {
    shared: Arc<Shared>,
    number: usize,
    clients: Vec<Client>,
    random: Random,
    traits: Traits,
    known: BTreeMap<String, Known>,
}

impl Worker {
    pub(super) fn new(
        shared: &Arc<Shared>,
        number: usize,
        clients: Vec<Client>,
        random: Random,
        traits: Traits,
    ) -> Self {
        let shared = Arc::clone(shared);
        Self { shared, number, clients, random, traits, known: BTreeMap::new() }
    }

    pub(super) async fn run(mut self) {
        while !self.shared.stopped() {
            self.step().await;
            // The clients pause because the test needs concurrency rather than many operations.
            tokio::time::sleep(self.random.millis_below(self.traits.pause)).await;
        }
    }

    async fn step(&mut self) {
        let key = format!("{}{}", self.shared.prefix, self.random.below(KEYS));
        let action = self.choose(&key);
        let choice = self.random.below(self.clients.len() as u64);
        let client =
            self.clients[usize::try_from(choice).expect("the number of clients is small")].clone();
        let by_revision = self.random.below(2) == 0;
        let since = self.known.get(&key).copied().flatten().filter(|_| by_revision);
        let called = self.shared.now();
        let asked = ask(&client, &key, action, since.map(|(_, revision)| revision));
        let answered = tokio::time::timeout(self.traits.timeout, asked).await;
        let returned = self.shared.now();
        let answered = answered.unwrap_or_else(|_| Err(Status::deadline_exceeded("no response")));
        self.write_down(key, action, (called, returned), answered);
    }

    fn choose(&mut self, key: &str) -> Action {
        let chance = if self.traits.only_reads { 0 } else { self.random.below(20) };
        match chance {
            0..7 => Action::Read,
            7..12 => Action::Write(self.shared.next_value()),
            12..18 => {
                let known = self.known.get(key).copied().flatten();
                let expected = known.map(|(value, _)| value);
                Action::Swap { expected, new: self.shared.next_value() }
            }
            _ => Action::Delete,
        }
    }

    fn write_down(
        &mut self,
        key: String,
        action: Action,
        (called, returned): (u64, u64),
        answered: Result<ClientAnswer, Status>,
    ) {
        let mut record = self.shared.record.lock().unwrap();
        let answer = match answered {
            Ok((answer, fact, known)) => {
                record.facts.extend(fact);
                match known {
                    Some(known) => self.known.insert(key.clone(), known),
                    None => self.known.remove(&key),
                };
                if action != Action::Read && answer == Answer::Done || action == Action::Delete {
                    self.shared.acknowledged.fetch_add(1, Ordering::Relaxed);
                }
                Some((returned, answer))
            }
            Err(status) => {
                assert_ne!(status.code(), Code::DataLoss, "{status:?}");
                let text = format!("{:?}: {}", status.code(), status.message());
                *record.failures.entry(text).or_default() += 1;
                // The expected value may be wrong. If it were kept, all further swaps of the key could fail.
                self.known.remove(&key);
                if action == Action::Read || was_refused(&status) {
                    return;
                }
                None
            }
        };
        let client = self.number;
        record.operations.push(&key, Operation { client, action, called, answer });
    }
}

/// Returns whether the request was never sent because the connection was refused.
fn was_refused(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return error.kind() == std::io::ErrorKind::ConnectionRefused;
        }
        source = error.source();
    }
    false
}

/// Sends an action. A swap with an expected value compares the mod revision of that value, which is equivalent because
/// no value is stored twice.
async fn ask(
    client: &Client,
    name: &str,
    action: Action,
    since: Option<i64>,
) -> Result<ClientAnswer, Status> {
    let key_name = name.to_owned();
    match action {
        Action::Read => {
            let answer = client.range(key(name)).await?;
            Ok(found(key_name, answer.kvs.first(), revision_of(answer.header.as_ref())))
        }
        Action::Write(value) => {
            let answer = client.put(put(name, value.to_string())).await?;
            Ok(stored(key_name, value, revision_of(answer.header.as_ref())))
        }
        Action::Swap { expected, new } => {
            let operand = match (expected, since) {
                (Some(_), Some(revision)) => TargetUnion::ModRevision(revision),
                (Some(value), None) => TargetUnion::Value(crate::bytes(value.to_string())),
                (None, _) => TargetUnion::ModRevision(0),
            };
            let condition = compare(name, CompareResult::Equal, operand);
            let success = vec![put_op(name, new.to_string())];
            let answer = client.txn(txn_when(vec![condition], success, vec![get_op(name)])).await?;
            let revision = revision_of(answer.header.as_ref());
            if answer.succeeded {
                return Ok(stored(key_name, new, revision));
            }
            match answer.responses.into_iter().next().and_then(|response| response.response) {
                Some(Response::ResponseRange(answer)) => {
                    Ok(found(key_name, answer.kvs.first(), revision))
                }
                other => panic!("unexpected response to a read in a transaction: {other:?}"),
            }
        }
        Action::Delete => {
            let request = pb::DeleteRangeRequest { prev_kv: true, ..delete(name, "") };
            let answer = client.delete_range(request).await?;
            let revision = revision_of(answer.header.as_ref());
            let previous = answer.prev_kvs.first().map(value_of);
            let fact = previous.map(|_| Fact::Deleted { key: key_name, revision });
            Ok((Answer::Found(previous), fact, Some(None)))
        }
    }
}

fn stored(key: String, value: Value, revision: i64) -> ClientAnswer {
    let fact = Fact::Stored { key, value, revision };
    (Answer::Done, Some(fact), Some(Some((value, revision))))
}

fn found(key: String, record: Option<&KeyValue>, revision: i64) -> ClientAnswer {
    let found = record.map(|record| (value_of(record), record.fields().mod_revision));
    let fact = Fact::Found { key, found, revision };
    (Answer::Found(found.map(|(value, _)| value)), Some(fact), Some(found))
}

fn revision_of(header: Option<&pb::ResponseHeader>) -> i64 {
    header.expect("every answer has a header").revision
}

fn value_of(record: &KeyValue) -> Value {
    let text = String::from_utf8_lossy(record.value());
    text.parse().unwrap_or_else(|_| panic!("found a value that no client has written: {text:?}"))
}
