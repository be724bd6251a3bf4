//! Renewing a lease, over one stream after another, for as long as it lives.

use std::time::Duration;

use quorate_api::etcdserverpb::{LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::client::{Client, Connection, told};
use crate::failure::Failure;

/// Pause before a lost stream is opened again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Renewals that are not sent yet: each waits for the answer to the one before.
const REQUESTS_MAX: usize = 1;

/// Renews a lease once.
pub(crate) async fn renew_once(client: &Client, id: i64) -> Result<LeaseKeepAliveResponse, Status> {
    Stream::open(client, id).await?.renew(client, id).await
}

/// Renews the lease three times in its life until it is gone: revoked, or out of reach for as long as it
/// lives. Until the first answer that is taken to be `first_life`. Each answer is `told`, and ends the renewals if
/// it cannot be.
pub(crate) async fn keep(
    client: &Client,
    id: i64,
    first_life: Duration,
    told: impl Fn(LeaseKeepAliveResponse) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut dies = Instant::now() + first_life;
    let mut stream: Option<Stream> = None;
    let mut has_warned = false;
    loop {
        let renewed = async {
            let mut open = match stream.take() {
                Some(open) => open,
                None => Stream::open(client, id).await?,
            };
            let reply = open.renew(client, id).await?;
            stream = Some(open);
            Ok::<_, Status>(reply)
        };
        match timeout_at(dies, renewed).await {
            Err(_) => return Ok(()),
            Ok(Ok(reply)) if reply.ttl <= 0 => return Ok(()),
            Ok(Ok(reply)) => {
                has_warned = false;
                let life = Duration::from_secs(u64::try_from(reply.ttl).unwrap_or_default());
                dies = Instant::now() + life;
                told(reply)?;
                sleep(life / 3).await;
            }
            Ok(Err(status)) => {
                // Once for each time that there is no way to the servers.
                if !std::mem::replace(&mut has_warned, true) {
                    client.warn(&status, 0);
                }
                sleep(RETRY_PAUSE).await;
            }
        }
    }
}

/// An open stream of renewals.
struct Stream {
    connection: Connection,
    requests: mpsc::Sender<LeaseKeepAliveRequest>,
    replies: tonic::Streaming<LeaseKeepAliveResponse>,
    /// Whether opening has sent the first renewal already.
    asked: bool,
}

impl Stream {
    /// Opens a stream and asks for the first renewal, without which a server may not answer at all.
    async fn open(client: &Client, id: i64) -> Result<Self, Status> {
        let connection = client.connect(None).await?;
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        // The channel is new, and its receiver right here.
        requests.try_send(LeaseKeepAliveRequest { id }).ok();
        let stream = client.stream_request(ReceiverStream::new(receiver)).await?;
        let opened = client.lease(connection.channel.clone()).lease_keep_alive(stream).await;
        match opened.map_err(told) {
            Ok(opened) => {
                Ok(Self { connection, requests, replies: opened.into_inner(), asked: true })
            }
            Err(status) => {
                client.leave(&connection, &status);
                Err(status)
            }
        }
    }

    /// Asks for a renewal. Where it fails the connection is given up.
    async fn renew(&mut self, client: &Client, id: i64) -> Result<LeaseKeepAliveResponse, Status> {
        let renewed = self.try_renew(id).await.map_err(told);
        renewed.inspect_err(|status| client.leave(&self.connection, status))
    }

    async fn try_renew(&mut self, id: i64) -> Result<LeaseKeepAliveResponse, Status> {
        if !std::mem::take(&mut self.asked) {
            let sent = self.requests.send(LeaseKeepAliveRequest { id }).await;
            sent.map_err(|_| Status::unavailable("the stream is closed"))?;
        }
        let reply = self.replies.message().await?;
        reply.ok_or_else(|| Status::unavailable("the server closed the stream"))
    }
}
