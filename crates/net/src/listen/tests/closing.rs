//! Tests of HTTP/2 connections that are asked to close because another connection needs their permit.

use http_body_util::Full;
use tokio::io::DuplexStream;

use super::*;
use crate::listen::requests::AnswerBody;

const DATA: u8 = 0;
const REPLY_BYTES: usize = 300 << 10;
const WIRE_BYTES: usize = 16 << 10;
const PING: u8 = 6;
const ACK: u8 = 1;

/// A service with a large reply in a single piece. The server accepts the whole piece immediately, so the request ends
/// while the client is still receiving the reply.
#[derive(Clone, Default)]
struct Replying(Requests);

impl Service<Request<IncomingBody>> for Replying {
    type Response = Response<AnswerBody<Full<Bytes>>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn call(&self, _: Request<IncomingBody>) -> Self::Future {
        let reply = Full::new(Bytes::from_static(&[7; REPLY_BYTES]));
        std::future::ready(Ok(Response::new(AnswerBody::new(reply, self.0.begin()))))
    }
}

impl Http2Service for Replying {
    fn for_connection(&self, _: Ends) -> Self {
        self.clone()
    }

    fn activity(&self) -> Activity {
        let (begun, under_way) = (self.0.begun(), self.0.under_way());
        Activity { begun, under_way, ..Activity::default() }
    }
}

/// Returns the client's end of a connection with a request in progress, and the permits. The connection holds the only
/// permit, and another connection waits for it.
async fn request(limits: ConnectionLimits) -> (DuplexStream, Arc<ConnectionPermits>) {
    let permits = Arc::clone(&limits.permits);
    let permit = permits.try_take().unwrap();
    let (mut client, server) = tokio::io::duplex(WIRE_BYTES);
    let (stopper, stop) = watch::channel(false);
    tokio::spawn(async move {
        let _stopper = stopper;
        drop(serve_http2(server, Vec::new(), Replying::default(), limits, stop).await);
        drop(permit);
    });
    let waiting = Arc::clone(&permits);
    tokio::spawn(async move { drop(waiting.take().await) });
    client.write_all(HTTP2_PREFACE).await.unwrap();
    client.write_all(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]).await.unwrap();
    client.write_all(&[0, 0, 3, HEADERS, 5, 0, 0, 0, 1, 0x83, 0x86, 0x84]).await.unwrap();
    (client, permits)
}

/// Grants large windows on the connection and on the stream, so that the whole reply may be sent.
async fn grant_windows(client: &mut DuplexStream) {
    for stream in [0, 1] {
        client.write_all(&[0, 0, 4, WINDOW_UPDATE, 0, 0, 0, 0, stream]).await.unwrap();
        client.write_all(&(1_u32 << 30).to_be_bytes()).await.unwrap();
    }
}

/// Returns the number of reply bytes in these frames.
fn reply_bytes(mut frames: &[u8]) -> usize {
    let mut total = 0;
    while let Some(([high, middle, low, kind, ..], rest)) = frames.split_first_chunk::<9>() {
        let len = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
        total += if *kind == DATA { len.min(rest.len()) } else { 0 };
        frames = rest.get(len..).unwrap_or_default();
    }
    total
}

#[tokio::test(start_paused = true)]
async fn a_slow_client_receives_its_whole_reply() {
    let limits = ConnectionLimits { timeouts: ConnectionTimeouts::FOR_CLIENTS, ..limits(1) };
    let (mut client, permits) = request(limits).await;
    grant_windows(&mut client).await;
    let mut read = Vec::new();
    let mut piece = [0; WIRE_BYTES / 2];
    loop {
        // Each read takes half of the timeout. With paused time, the clock advances when all tasks are idle.
        tokio::time::sleep(ConnectionTimeouts::FOR_CLIENTS.head / 2).await;
        let count = client.read(&mut piece).await.unwrap();
        if count == 0 {
            break;
        }
        read.extend_from_slice(&piece[..count]);
    }
    assert_eq!(reply_bytes(&read), REPLY_BYTES);
    assert_eq!(permits.load().closed_idle, 1, "the connection was asked to close");
}

/// Reads frames and answers pings until the server closes the connection.
async fn answer_pings(client: &mut DuplexStream) {
    let mut head = [0; 9];
    while client.read_exact(&mut head).await.is_ok() {
        let [high, middle, low, kind, flags, ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
        client.read_exact(&mut payload).await.unwrap();
        if kind == PING && flags & ACK == 0 {
            client.write_all(&[0, 0, 8, PING, ACK, 0, 0, 0, 0]).await.unwrap();
            client.write_all(&payload).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_closing_connection_whose_client_only_answers_pings_is_aborted() {
    let timeouts = ConnectionTimeouts::FOR_CLIENTS;
    let keepalive = Some((timeouts.head / 4, timeouts.head));
    let (mut client, permits) =
        request(ConnectionLimits { timeouts, keepalive, ..limits(1) }).await;
    // The client grants no window, so the rest of the reply cannot be sent.
    let ended = tokio::time::timeout(timeouts.head * 10, answer_pings(&mut client));
    ended.await.expect("the connection ends");
    assert_eq!(permits.load().closed_idle, 1, "the connection was asked to close");
}
