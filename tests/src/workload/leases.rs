//! A lease that is kept alive through everything, and one that is not.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quorate_api::etcdserverpb as pb;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::Shared;
use crate::{Client, Cluster, Endpoints, PATIENCE, Random, eventually_ok, put_leased};

/// Seconds that the kept lease lasts without being kept.
const KEPT: u32 = 10;
/// The same for the other one.
const LEFT: u32 = 2;
/// A leader that has lost its office may renew leases until it knows, and clocks are not exact.
const SLACK: Duration = Duration::from_secs(3);

/// The leases of a load.
#[derive(Debug)]
pub(super) struct Leases {
    kept: i64,
    left: i64,
    state: Arc<Mutex<State>>,
    task: JoinSet<()>,
}

#[derive(Debug, Default)]
struct State {
    /// When the last request was sent that renewed the lease.
    renewed: Option<Instant>,
}

impl State {
    /// True when the lease must be alive still.
    fn is_due(&self) -> bool {
        let lasts = Duration::from_secs(KEPT.into()) - SLACK;
        self.renewed.is_some_and(|renewed| renewed.elapsed() < lasts)
    }
}

fn name(shared: &Shared, which: &str) -> String {
    format!("{}lease/{which}", shared.prefix)
}

impl Leases {
    pub(super) fn start(cluster: &Cluster, shared: &Arc<Shared>, random: &mut Random) -> Self {
        let id = i64::try_from(random.below(1 << 40)).expect("small") + 1;
        let state = Arc::new(Mutex::new(State::default()));
        let mut task = JoinSet::new();
        task.spawn_local(keep(cluster.everyone(), Arc::clone(shared), id, Arc::clone(&state)));
        Self { kept: id, left: id + 1, state, task }
    }

    pub(super) async fn check(mut self, cluster: &Cluster, shared: &Shared) {
        while let Some(ended) = self.task.join_next().await {
            ended.unwrap();
        }
        let everyone = cluster.everyone();
        let due = || self.state.lock().unwrap().is_due();
        let ask = async |id: i64| {
            let request = pb::LeaseTimeToLiveRequest { id, keys: true };
            let ask = async |client: Client| client.lease_time_to_live(request).await;
            everyone.ask("the time of a lease", ask).await
        };
        let read = async |which: &str| {
            let request = crate::key(name(shared, which));
            let read = async |client: Client| client.range(request.clone()).await;
            everyone.ask("the key of a lease", read).await.count
        };
        let (answer, count) = (ask(self.kept).await, read("kept").await);
        assert!(
            answer.ttl > 0 && answer.keys.len() == 1 && count == 1 || !due(),
            "a lease that was kept alive is gone, or its key: {answer:?}"
        );
        eventually_ok(PATIENCE, "a lease that nobody keeps to expire", async || {
            let (answer, count) = (ask(self.left).await, read("left").await);
            if answer.ttl == -1 && count == 0 { Ok(()) } else { Err((answer, count)) }
        })
        .await;
    }
}

async fn keep(everyone: Endpoints, shared: Arc<Shared>, id: i64, state: Arc<Mutex<State>>) {
    for (id, ttl, which) in [(id, KEPT, "kept"), (id + 1, LEFT, "left")] {
        let grant = pb::LeaseGrantRequest { id, ttl: ttl.into() };
        let granted = async |client: Client| match client.lease_grant(grant).await {
            // An earlier attempt was not in vain after all.
            Err(status) if status.code() == Code::FailedPrecondition => Ok(()),
            answer => answer.map(drop),
        };
        everyone.ask("a lease", granted).await;
        let write = put_leased(name(&shared, which), format!("under {id}"), id);
        let written = async |client: Client| match client.put(write.clone()).await {
            // It may have expired in the meantime, which is what is expected of it.
            Err(status) if status.code() == Code::NotFound && which == "left" => Ok(()),
            answer => answer.map(drop),
        };
        everyone.ask("a key under a lease", written).await;
    }
    while !shared.stopped() {
        let sent = Instant::now();
        // Without an answer there is nothing to be said.
        if let Ok(ttl) = everyone.try_ask(async |client| renew(&client, id).await).await {
            let mut state = state.lock().unwrap();
            assert!(ttl > 0 || !state.is_due(), "a lease that was kept alive is gone");
            if ttl > 0 {
                state.renewed = Some(sent);
            }
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// Renews a lease once, and returns for how long.
async fn renew(client: &Client, id: i64) -> Result<i64, Status> {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    let request = pb::LeaseKeepAliveRequest { id };
    sender.send(request).await.expect("the receiver is here");
    let mut stub = client.lease();
    let mut stream = stub.lease_keep_alive(ReceiverStream::new(receiver)).await?.into_inner();
    let answer = stream.message().await?;
    Ok(answer.ok_or_else(|| Status::unavailable("the stream ended"))?.ttl)
}
