//! WebSockets for the JSON gateway: each connection carries one call, and each message contains one line of JSON.
//! WebSockets serve clients that cannot send a streaming body, mainly browsers.
//!
//! ```text
//!  HTTP/1 ── handshake ── 101 ──► session:  frames ──► messages ──► the body of a call ──► gateway
//!                                           frames ◄── one text frame per line ◄───────────┘
//! ```
//!
//! Each message from the client, text or binary, becomes a line of the request body. Each line of the response becomes
//! a text message. The call ends when the client disconnects, and the connection ends with the call.
//!
//! # Invariants
//!
//! * No data is read from the client while [`UNREAD_PIECES_MAX`] pieces are waiting for the call, and the call's
//!   response is not read while a frame is waiting to be sent to the client. Flow control therefore works in both
//!   directions. The gateway limits the length of a message.
//! * The connection counts against the limit on connections until it is closed.
//!
//! # Not here
//!
//! The call and its permissions (`json_gateway`), hosts and origins (`http`), the protocol upgrade (`net::listen`).
//! WebSocket extensions are not supported. The server sends no pings, because TCP keep-alive detects lost clients, as
//! in etcd.

mod frame;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod handshake;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Response;
use http_body::Body;
use http_body_util::BodyExt as _;
use quorate_net::listen::{Duplex, TakenOver};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::mpsc;

use frame::{Decoder, Event, Kind, Violation, put_head};
pub(crate) use handshake::{Unfit, accept, forwarded, is_wanted};

/// Maximum number of received pieces that the call has not read. Each piece is at most [`PIECE_BYTES`] long.
const UNREAD_PIECES_MAX: usize = 2;

/// Maximum number of bytes in one read from the connection.
const PIECE_BYTES: usize = 4 << 10;

/// Maximum number of unsent ping replies.
const PONGS_MAX: usize = 1;

/// Maximum time to wait for the client to close the connection after the close frame was sent.
const CLOSING_WITHIN: Duration = Duration::from_secs(2);

/// Maximum number of bytes read and discarded while waiting for the client to close the connection.
const CLOSING_BYTES_MAX: usize = 16 << 20;

/// The reason why a connection ends, which its close frame reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The call has been answered.
    Answered,
    /// The client closed the connection, with this code if it sent one.
    ByClient(Option<u16>),
    /// The client disconnected without a close frame.
    Gone,
    /// The member is stopping.
    Stopping,
    /// The client violated the protocol.
    Violated(Violation),
}

impl End {
    /// Returns the payload of the close frame: a code and a reason.
    fn payload(self) -> Vec<u8> {
        let (code, reason): (u16, String) = match self {
            Self::Gone | Self::ByClient(None) => return Vec::new(),
            Self::ByClient(Some(code)) => (code, String::new()),
            Self::Answered => (1000, String::new()),
            Self::Stopping => (1001, String::new()),
            Self::Violated(violation) => (1002, violation.to_string()),
        };
        [&code.to_be_bytes()[..], reason.as_bytes()].concat()
    }
}

/// The lines of a request body, in pieces. The channel stays open until the call is dropped.
pub(crate) type Lines = mpsc::Receiver<Bytes>;

/// Makes one call with the data received on a connection and sends the response.
pub(crate) async fn serve<B, F>(
    connection: TakenOver,
    call: impl FnOnce(Lines) -> F,
) -> io::Result<()>
where
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes, Error = Infallible> + Unpin,
{
    let TakenOver { io, read_ahead, mut stop } = connection;
    let (mut read, write) = tokio::io::split(io);
    let (lines, of_call) = mpsc::channel(UNREAD_PIECES_MAX);
    let (pongs, to_send) = mpsc::channel(PONGS_MAX);
    let has_said = AtomicBool::new(false);
    let input = Input { has_said: &has_said, bytes: BytesMut::from(read_ahead), lines, pongs };
    let mut sender = Sender { write, pongs: to_send, is_within_frame: false };
    let end = {
        let mut reading = std::pin::pin!(input.read(&mut read));
        let mut answering = std::pin::pin!(sender.answer(call(of_call)));
        let mut is_stopping = false;
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop), if !is_stopping => is_stopping = true,
                end = reading.as_mut() => break end,
                end = answering.as_mut() => {
                    break match end {
                        End::Answered if is_stopping => End::Stopping,
                        end => end,
                    };
                }
            }
            // While the member is stopping, a call that has received data is still completed. The service of a
            // streaming call ends the stream when it receives the stop signal.
            if is_stopping && !has_said.load(Ordering::Relaxed) {
                break End::Stopping;
            }
        }
    };
    let closing = sender.close(read, end);
    // A client that does not close the connection in time is disconnected.
    tokio::time::timeout(CLOSING_WITHIN, closing).await.unwrap_or(Ok(()))
}

/// The reading half of the connection.
struct Input<'a> {
    /// Whether the client has sent any data.
    has_said: &'a AtomicBool,
    bytes: BytesMut,
    lines: mpsc::Sender<Bytes>,
    pongs: mpsc::Sender<Bytes>,
}

impl Input<'_> {
    async fn read(mut self, read: &mut ReadHalf<Box<dyn Duplex>>) -> End {
        let mut decoder = Decoder::default();
        loop {
            match decoder.next(&mut self.bytes) {
                Ok(Some(Event::Data(data))) => self.pass(data).await,
                Ok(Some(Event::End)) => self.pass(Bytes::from_static(b"\n")).await,
                // If the sender has ended, no pong is needed.
                Ok(Some(Event::Ping(payload))) => drop(self.pongs.send(payload).await),
                Ok(Some(Event::Close(code))) => return End::ByClient(code),
                Err(violation) => return End::Violated(violation),
                Ok(None) => {
                    self.bytes.reserve(PIECE_BYTES);
                    match read.read_buf(&mut self.bytes).await {
                        Ok(0) | Err(_) => return End::Gone,
                        Ok(_) => {}
                    }
                }
            }
        }
    }

    /// Passes data to the call's body. The data is discarded if the call has dropped its body.
    async fn pass(&self, piece: Bytes) {
        self.has_said.store(true, Ordering::Relaxed);
        drop(self.lines.send(piece).await);
    }
}

/// The writing half of the connection.
struct Sender {
    write: WriteHalf<Box<dyn Duplex>>,
    /// Payloads of the pings to be answered.
    pongs: mpsc::Receiver<Bytes>,
    /// Whether only part of a frame has been sent, so that no other frame may follow yet.
    is_within_frame: bool,
}

impl Sender {
    /// Sends the call's response, one message per line, and answers pings in between.
    async fn answer<B>(&mut self, call: impl Future<Output = Response<B>>) -> End
    where
        B: Body<Data = Bytes, Error = Infallible> + Unpin,
    {
        let mut call = std::pin::pin!(call);
        let mut body = None;
        loop {
            let next = async {
                if body.is_none() {
                    body = Some(call.as_mut().await.into_body());
                }
                body.as_mut().expect("the response has a body").frame().await
            };
            let sent = tokio::select! {
                frame = next => match frame {
                    None => return End::Answered,
                    Some(Ok(frame)) => self.send_lines(frame.into_data().unwrap_or_default()).await,
                    Some(Err(never)) => match never {},
                },
                Some(payload) = self.pongs.recv() => self.send(Kind::Pong, &payload).await,
            };
            if sent.is_err() {
                return End::Gone;
            }
        }
    }

    async fn send_lines(&mut self, lines: Bytes) -> io::Result<()> {
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            self.send(Kind::Text, line).await?;
        }
        Ok(())
    }

    async fn send(&mut self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        let mut head = Vec::new();
        put_head(kind, payload.len(), &mut head);
        self.is_within_frame = true;
        self.write.write_all(&head).await?;
        self.write.write_all(payload).await?;
        self.is_within_frame = false;
        Ok(())
    }

    /// Sends the close frame, then reads and discards the client's data until the client closes the connection or
    /// `CLOSING_BYTES_MAX` bytes have been read. Closing with unread data would reset the connection, and the client
    /// would lose the close frame.
    async fn close(mut self, mut read: ReadHalf<Box<dyn Duplex>>, end: End) -> io::Result<()> {
        if end == End::Gone {
            return Ok(());
        }
        if !self.is_within_frame {
            self.send(Kind::Close, &end.payload()).await?;
        }
        self.write.shutdown().await?;
        let (mut passed, mut piece) = (0, [0; 1024]);
        while passed < CLOSING_BYTES_MAX {
            match read.read(&mut piece).await? {
                0 => break,
                count => passed += count,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
