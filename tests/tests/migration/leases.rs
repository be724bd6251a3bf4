//! Leases with renewals, which must not expire, and leases without renewals, which must.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quorate_api::etcdserverpb as pb;
use quorate_tests::{TIMEOUT, eventually, eventually_ok, eventually_within, put_leased};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::directory::{Directory, PAUSE};
use crate::witness::Witness;

/// Number of renewed leases.
const KEPT: i64 = 3;
const FIRST_KEPT: i64 = 1000;
/// TTL of a renewed lease, in seconds. No change of leader takes this long.
const KEPT_TTL: i64 = 10;
const FIRST_LEFT: i64 = 2000;
/// TTL, in seconds, of a lease without renewals. It is the minimum with these flags.
const LEFT_TTL: i64 = 1;
/// Interval between two renewals.
const PACE: Duration = Duration::from_millis(250);
/// Timeout of a renewal, after which the client uses another member.
const SILENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Left {
    key: String,
    granted: Instant,
}

/// Leases of a test.
#[derive(Debug)]
pub(crate) struct Leases {
    directory: Directory,
    keepers: Vec<JoinHandle<()>>,
    renewals: Arc<Mutex<u64>>,
    left: Vec<Left>,
}

impl Leases {
    /// Grants the renewed leases with one key each, and renews them, each through a different member at first.
    pub(crate) async fn start(directory: &Directory) -> Self {
        let renewals = Arc::default();
        let mut keepers = Vec::new();
        for number in 0..KEPT {
            let turn = usize::try_from(number).unwrap();
            let client = directory.pick(turn).1;
            client.grant(FIRST_KEPT + number, KEPT_TTL).await;
            let request = put_leased(kept(number), "v", FIRST_KEPT + number);
            client.put(request).await.unwrap();
            let (directory, renewals) = (directory.clone(), Arc::clone(&renewals));
            keepers.push(tokio::spawn(async move {
                for turn in turn.. {
                    // The status that ends a stream does not matter, because the next stream continues the renewals.
                    drop(keep(FIRST_KEPT + number, &directory, turn, &renewals).await);
                    tokio::time::sleep(PAUSE).await;
                }
            }));
        }
        Self { directory: directory.clone(), keepers, renewals, left: Vec::new() }
    }

    /// Grants a lease without renewals through a given member, and attaches a key to it.
    pub(crate) async fn leave(&mut self, turn: usize) {
        let number = self.left.len();
        let id = FIRST_LEFT + i64::try_from(number).unwrap();
        let key = format!("left/{number}");
        let granted = Instant::now();
        eventually_ok(TIMEOUT, "a lease", async || {
            let (_, client) = self.directory.pick(turn);
            let request = pb::LeaseGrantRequest { id, ttl: LEFT_TTL };
            match client.lease_grant(request).await {
                // An earlier attempt may have succeeded without an answer.
                Err(status) if status.message() != "etcdserver: lease already exists" => {
                    Err(status)
                }
                _ => client.put(put_leased(&key, "v", id)).await.map(drop),
            }
        })
        .await;
        self.left.push(Left { key, granted });
    }

    /// Waits until a watcher has seen that all leases without renewals have expired, and checks that none expired
    /// early.
    pub(crate) async fn check_left(&self, witness: &Witness) {
        for Left { key, granted } in &self.left {
            let what = format!("the lease of {key} expires");
            let gone = eventually_within(TIMEOUT, &what, async || witness.deleted(key)).await;
            let lived = gone.duration_since(*granted);
            assert!(lived >= Duration::from_secs(LEFT_TTL.unsigned_abs()), "{key}: {lived:?}");
        }
    }

    /// Waits until the leases have been renewed several more times, and checks that all of them exist.
    pub(crate) async fn check_kept(&self) {
        const MORE: u64 = 6;
        let before = *self.renewals.lock().unwrap();
        eventually("the lease is renewed", async || {
            for keeper in &self.keepers {
                assert!(!keeper.is_finished(), "a lease was lost, see above");
            }
            (*self.renewals.lock().unwrap() >= before + MORE).then_some(())
        })
        .await;
    }

    /// Checks that a watcher has never seen a renewed lease end.
    pub(crate) fn check_never_expired(&self, witness: &Witness) {
        for number in 0..KEPT {
            assert_eq!(witness.deleted(&kept(number)), None, "renewed lease {number} expired");
        }
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        for keeper in &self.keepers {
            keeper.abort();
        }
    }
}

fn kept(number: i64) -> String {
    format!("kept/{number}")
}

/// Renews a lease over one stream until the stream ends.
async fn keep(
    id: i64,
    directory: &Directory,
    turn: usize,
    renewals: &Mutex<u64>,
) -> Result<(), Status> {
    let (number, client) = directory.pick(turn);
    let (requests, receiver) = mpsc::channel(1);
    let soon = async |answer: &mut tonic::Streaming<pb::LeaseKeepAliveResponse>| {
        let answer = tokio::time::timeout(SILENCE, answer.message()).await;
        answer.unwrap_or_else(|_| Err(Status::cancelled("silent")))
    };
    let renewal = || pb::LeaseKeepAliveRequest { id };
    requests.send(renewal()).await.expect("the receiving end of the channel is open");
    let mut stub = client.lease();
    let opened = stub.lease_keep_alive(client.signed(ReceiverStream::new(receiver)));
    let opened = tokio::time::timeout(SILENCE, opened).await;
    let mut stream = opened.map_err(|_| Status::cancelled("silent"))??.into_inner();
    while let Some(answer) = soon(&mut stream).await? {
        assert!(answer.ttl > 0, "m{number} reported that lease {id} does not exist");
        assert_eq!((answer.id, answer.ttl), (id, KEPT_TTL));
        *renewals.lock().unwrap() += 1;
        tokio::time::sleep(PACE).await;
        if requests.send(renewal()).await.is_err() {
            break;
        }
    }
    Ok(())
}
