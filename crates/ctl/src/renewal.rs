//! Renews a lease until it ends, opening a new stream whenever a stream is lost.

use std::time::Duration;

use quorate_api::etcdserverpb::{LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::client::{Client, Connection, as_grpc_go};
use crate::failure::Failure;

/// Pause before a lost stream is reopened.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Capacity of the request queue. A capacity of one is enough, because each renewal is sent only after the response to
/// the previous renewal.
const REQUESTS_MAX: usize = 1;

/// Renews a lease once.
pub(crate) async fn renew_once(client: &Client, id: i64) -> Result<LeaseKeepAliveResponse, Status> {
    Stream::open(client, id).await?.renew(client, id).await
}

/// Renews the lease every third of its TTL until it is revoked or the server has been unreachable for a full TTL. Until
/// the first response, the TTL is assumed to be `first_life`. Each response is passed to `on_response`. An error from
/// `on_response` ends the renewals.
pub(crate) async fn keep(
    client: &Client,
    id: i64,
    first_life: Duration,
    on_response: impl Fn(LeaseKeepAliveResponse) -> Result<(), Failure>,
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
                on_response(reply)?;
                sleep(life / 3).await;
            }
            Ok(Err(status)) => {
                // Warn only once in each period without a connection.
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
    /// Whether opening the stream has already sent the first renewal.
    asked: bool,
}

impl Stream {
    /// Opens a stream and sends the first renewal, because a server may not answer the call until it receives a
    /// request.
    async fn open(client: &Client, id: i64) -> Result<Self, Status> {
        let connection = client.connect(None).await?;
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        // The channel is new and its receiver exists, so sending cannot fail.
        requests.try_send(LeaseKeepAliveRequest { id }).ok();
        let stream = client.stream_request(ReceiverStream::new(receiver)).await?;
        let opened = client.lease(connection.channel.clone()).lease_keep_alive(stream).await;
        match opened.map_err(as_grpc_go) {
            Ok(opened) => {
                Ok(Self { connection, requests, replies: opened.into_inner(), asked: true })
            }
            Err(status) => {
                client.leave(&connection, &status);
                Err(status)
            }
        }
    }

    /// Sends a renewal and waits for the response. Closes the connection on an error.
    async fn renew(&mut self, client: &Client, id: i64) -> Result<LeaseKeepAliveResponse, Status> {
        let renewed = self.try_renew(id).await.map_err(as_grpc_go);
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
