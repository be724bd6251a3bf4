//! Tests WebSocket connections, each with one call.

use http_body_util::{Full, StreamBody};
use tokio::io::DuplexStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;

use super::*;

/// Returns a frame from a client with an all-zero mask.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_head(Kind::Text, payload.len(), &mut out);
    out[0] = first;
    out[1] |= 0x80;
    out.extend([0; 4]);
    out.extend_from_slice(payload);
    out
}

struct Client {
    io: DuplexStream,
    stop: watch::Sender<bool>,
    session: JoinHandle<io::Result<()>>,
}

impl Client {
    fn of<B, F>(ahead: Vec<u8>, call: impl FnOnce(Lines) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error = Infallible> + Unpin + Send + 'static,
    {
        let (io, far) = tokio::io::duplex(1 << 10);
        let (stop, stopping) = watch::channel(false);
        let connection = TakenOver { io: Box::new(far), read_ahead: ahead.into(), stop: stopping };
        Self { io, stop, session: tokio::spawn(serve(connection, call)) }
    }

    async fn send_frame(&mut self, first: u8, payload: &[u8]) {
        self.io.write_all(&frame(first, payload)).await.unwrap();
    }

    /// Returns the first byte and the payload of the next frame.
    async fn receive_frame(&mut self) -> (u8, Vec<u8>) {
        let [first, short] = self.read().await;
        let len = match short {
            126 => usize::from(u16::from_be_bytes(self.read().await)),
            127 => usize::try_from(u64::from_be_bytes(self.read().await)).unwrap(),
            short => usize::from(short),
        };
        let mut payload = vec![0; len];
        self.io.read_exact(&mut payload).await.unwrap();
        (first, payload)
    }

    async fn read<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.io.read_exact(&mut bytes).await.unwrap();
        bytes
    }

    /// Expects a close frame with this code, followed by the end of the connection.
    async fn ends_with(mut self, code: u16) {
        let (first, payload) = self.receive_frame().await;
        assert_eq!((first, &payload[..2]), (0x88, &code.to_be_bytes()[..]));
        assert_eq!(self.io.read(&mut [0]).await.unwrap(), 0);
        drop(self.io);
        self.session.await.unwrap().unwrap();
    }
}

/// Reads one line and returns it as the response.
async fn echo_once(mut lines: Lines) -> Response<Full<Bytes>> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        line.extend_from_slice(&lines.recv().await.unwrap());
    }
    Response::new(Full::from(line))
}

/// Echoes each received piece until the client disconnects.
async fn echo(
    mut lines: Lines,
) -> Response<StreamBody<ReceiverStream<Result<http_body::Frame<Bytes>, Infallible>>>> {
    let (pieces, body) = mpsc::channel(1);
    tokio::spawn(async move {
        while let Some(line) = lines.recv().await {
            if pieces.send(Ok(http_body::Frame::data(line))).await.is_err() {
                return;
            }
        }
    });
    Response::new(StreamBody::new(ReceiverStream::new(body)))
}

#[tokio::test]
async fn request_messages_become_lines_and_response_lines_become_messages() {
    let mut client = Client::of(frame(0x01, b"{\"a\""), echo_once);
    client.send_frame(0x89, b"between").await;
    assert_eq!(client.receive_frame().await, (0x8a, b"between".to_vec()));
    client.send_frame(0x80, b":1}").await;
    assert_eq!(client.receive_frame().await, (0x81, b"{\"a\":1}".to_vec()));
    client.ends_with(1000).await;
}

#[tokio::test]
async fn a_close_frame_is_answered_with_the_same_code() {
    let mut client = Client::of(Vec::new(), echo);
    client.send_frame(0x81, b"x").await;
    assert_eq!(client.receive_frame().await, (0x81, b"x".to_vec()));
    client.send_frame(0x88, &4001_u16.to_be_bytes()).await;
    client.ends_with(4001).await;
}

#[tokio::test]
async fn a_protocol_violation_is_reported_in_the_close_frame() {
    let mut client = Client::of(Vec::new(), echo);
    client.io.write_all(&[0x81, 0x01, b'x']).await.unwrap();
    client.ends_with(1002).await;
}

#[tokio::test]
async fn a_disconnect_ends_the_call() {
    let (ended, is_over) = tokio::sync::oneshot::channel::<()>();
    let client = Client::of(Vec::new(), async move |_lines| {
        let _held = ended;
        std::future::pending::<Response<Full<Bytes>>>().await
    });
    drop(client.io);
    client.session.await.unwrap().unwrap();
    assert!(is_over.await.is_err(), "the call has been dropped");
}

#[tokio::test]
async fn shutdown_closes_idle_connections_and_waits_for_requests() {
    let idle = Client::of(Vec::new(), echo_once);
    idle.stop.send_replace(true);
    idle.ends_with(1001).await;
    let (answer, to_answer) = tokio::sync::oneshot::channel::<()>();
    let mut asking = Client::of(Vec::new(), async move |lines| {
        let answered = echo_once(lines).await;
        to_answer.await.unwrap();
        answered
    });
    asking.send_frame(0x89, b"").await;
    assert_eq!(asking.receive_frame().await.0, 0x8a);
    asking.send_frame(0x81, b"x").await;
    asking.send_frame(0x89, b"").await;
    assert_eq!(asking.receive_frame().await.0, 0x8a, "the data before the ping has been read");
    asking.stop.send_replace(true);
    answer.send(()).unwrap();
    assert_eq!(asking.receive_frame().await, (0x81, b"x".to_vec()));
    asking.ends_with(1001).await;
}

#[tokio::test(start_paused = true)]
async fn the_socket_is_not_read_while_the_call_reads_no_requests() {
    let (give, given) = tokio::sync::oneshot::channel();
    let mut client = Client::of(Vec::new(), async move |lines: Lines| {
        assert!(give.send(lines).is_ok());
        std::future::pending::<Response<Full<Bytes>>>().await
    });
    let mut lines: Lines = given.await.unwrap();
    let payload = vec![b'x'; PIECE_BYTES * 8];
    let message = frame(0x82, &payload);
    let mut written = 0;
    // Writes until the socket buffers and the queue of unread pieces are full.
    while let Ok(count) =
        tokio::time::timeout(Duration::from_millis(100), client.io.write(&message[written..])).await
    {
        written += count.unwrap();
        if written == message.len() {
            break;
        }
    }
    assert!(written < message.len(), "the socket accepted the whole message");
    let (mut near, mut taken) = (client.io, 0);
    let rest = message[written..].to_vec();
    let writing = tokio::spawn(async move {
        near.write_all(&rest).await.unwrap();
        near
    });
    while taken < payload.len() {
        taken += lines.recv().await.unwrap().len();
    }
    assert_eq!(lines.recv().await.unwrap(), "\n");
    drop(writing.await.unwrap());
    client.session.await.unwrap().unwrap();
}
