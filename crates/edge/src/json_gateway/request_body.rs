//! Request bodies: parses JSON as it arrives and converts it to messages.
//!
//! The received part of a value is buffered until the value is complete. As with gRPC messages (`calls::request_body`),
//! the buffer counts against a limit, the length of a value is limited, and the rest of a value must keep arriving.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Body as _;
use quorate_json::{Conversion, Values};
use quorate_net::listen::IncomingBody;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};
use tokio_stream::Stream;
use tonic::Status;

use crate::calls::status::status;
use quorate_grpc::framing::{HEAD_BYTES, fill_head};
use quorate_http_pages::unread_body::pass_over;
use quorate_net::pace::Pace;
use quorate_requests::RequestError;
use quorate_requests::admission::CallPermit;

/// The source of a request's bytes.
#[derive(Debug)]
pub(crate) enum RequestBytes {
    /// The body of an HTTP request.
    Http(IncomingBody),
    /// The lines received over a WebSocket, in pieces.
    Lines(mpsc::Receiver<Bytes>),
}

impl RequestBytes {
    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        match self {
            Self::Http(body) => Pin::new(body).poll_frame(cx).map(|frame| {
                frame.map(|frame| match frame {
                    Ok(frame) => Ok(frame.into_data().unwrap_or_default()),
                    Err(error) if error.is_malformed() => {
                        Err(Status::invalid_argument("malformed chunked encoding"))
                    }
                    Err(error) => Err(Status::cancelled(error.to_string())),
                })
            }),
            // A client that disconnects has not completed its request, so the request fails.
            Self::Lines(lines) => lines.poll_recv(cx).map(|line| {
                Some(line.ok_or_else(|| Status::cancelled("the client has disconnected")))
            }),
        }
    }

    /// Reads and discards a body.
    pub(super) async fn pass_over(self) {
        match self {
            Self::Http(body) => pass_over(body).await,
            // The lines can be dropped, because the WebSocket task reads and discards the rest of them.
            Self::Lines(_) => {}
        }
    }
}

/// The JSON values of a body.
pub(super) struct JsonBody {
    inner: RequestBytes,
    values: Values,
    permit: Arc<CallPermit>,
    /// Size of the headers, which are held together with the values.
    head_bytes: u64,
    bytes_max: usize,
    /// The deadline for the next bytes while the rest of a value is outstanding.
    pace: Option<(Pace, Pin<Box<Sleep>>)>,
    has_ended: bool,
}

impl fmt::Debug for JsonBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JsonBody").finish_non_exhaustive()
    }
}

impl JsonBody {
    pub(super) fn new(
        inner: RequestBytes,
        permit: Arc<CallPermit>,
        head_bytes: u64,
        bytes_max: usize,
    ) -> Self {
        let (values, pace, has_ended) = (Values::default(), None, false);
        Self { inner, values, permit, head_bytes, bytes_max, pace, has_ended }
    }

    /// Returns the next value. If a value is expected, its first byte must also arrive in time.
    fn poll_value(
        &mut self,
        cx: &mut Context<'_>,
        is_expected: bool,
    ) -> Poll<Option<Result<Bytes, Status>>> {
        loop {
            let refused =
                |error: quorate_json::SyntaxError| Status::invalid_argument(error.to_string());
            match self.values.next_value().map_err(refused) {
                Ok(None) if self.has_ended => {
                    return Poll::Ready(self.values.finish().map_err(refused).transpose());
                }
                Ok(None) => {}
                found => return Poll::Ready(found.transpose()),
            }
            let bytes = match self.inner.poll_bytes(cx) {
                Poll::Ready(bytes) => bytes,
                Poll::Pending => {
                    ready!(self.poll_stalled(cx, is_expected));
                    return Poll::Ready(Some(Err(status(RequestError::Timeout))));
                }
            };
            let taken = match bytes {
                None => {
                    self.has_ended = true;
                    Ok(())
                }
                Some(Ok(bytes)) => self.take(&bytes),
                Some(Err(gone)) => Err(gone),
            };
            if let Err(refused) = taken {
                return Poll::Ready(Some(Err(refused)));
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Status> {
        if let Some((pace, _)) = &mut self.pace {
            pace.received(bytes.len() as u64);
        }
        self.values.push(bytes);
        let held = self.values.waiting_bytes();
        if held > self.bytes_max {
            return Err(Status::resource_exhausted(format!(
                "grpc: received message larger than max ({held} vs. {})",
                self.bytes_max
            )));
        }
        self.hold(held)
    }

    fn hold(&self, bytes: usize) -> Result<(), Status> {
        let held = self.head_bytes + bytes as u64;
        self.permit.hold(held).map_err(|full| status(RequestError::from(full)))
    }

    /// Completes if the rest of a value does not keep arriving.
    fn poll_stalled(&mut self, cx: &mut Context<'_>, is_expected: bool) -> Poll<()> {
        if !is_expected && self.values.waiting_bytes() == 0 {
            self.pace = None;
            return Poll::Pending;
        }
        let (pace, timer) = self.pace.get_or_insert_with(|| {
            let pace = Pace::new(Instant::now());
            let timer = Box::pin(tokio::time::sleep_until(pace.period_end()));
            (pace, timer)
        });
        loop {
            ready!(timer.as_mut().poll(cx));
            if !pace.is_kept(Instant::now()) {
                return Poll::Ready(());
            }
            timer.as_mut().reset(pace.period_end());
        }
    }
}

/// Converts a value to a framed message.
fn to_message(json: &[u8], conversion: Conversion) -> Result<Bytes, Status> {
    let mut wire = Vec::with_capacity(HEAD_BYTES + json.len());
    wire.resize(HEAD_BYTES, 0);
    let refused = |refusal: quorate_json::Refusal| Status::invalid_argument(refusal.to_string());
    conversion.request(json, &mut wire).map_err(refused)?;
    fill_head(wire)
}

/// Reads the message of a call that has only one request message: the first value. The rest of the body is discarded,
/// and a body without values becomes an empty message.
pub(super) async fn read_message(
    mut body: JsonBody,
    conversion: Conversion,
) -> Result<Bytes, Status> {
    let read = read_first(&mut body, conversion).await;
    if !body.has_ended {
        body.inner.pass_over().await;
    }
    read
}

async fn read_first(body: &mut JsonBody, conversion: Conversion) -> Result<Bytes, Status> {
    match poll_fn(|cx| body.poll_value(cx, true)).await.transpose()? {
        None => fill_head(vec![0; HEAD_BYTES]),
        Some(json) => {
            // The JSON and the message are both in memory while the JSON is converted to the message.
            body.hold(2 * json.len())?;
            to_message(&json, conversion)
        }
    }
}

/// The framed messages of a call with a request stream.
#[derive(Debug)]
pub(super) struct JsonMessages {
    body: JsonBody,
    conversion: Conversion,
    has_failed: bool,
}

impl JsonMessages {
    pub(super) const fn new(body: JsonBody, conversion: Conversion) -> Self {
        Self { body, conversion, has_failed: false }
    }
}

impl Stream for JsonMessages {
    type Item = Result<Bytes, Status>;

    /// Returns the next message. The stream ends after a failure.
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_failed {
            return Poll::Ready(None);
        }
        let value = ready!(self.body.poll_value(cx, false));
        let message = value.map(|json| json.and_then(|json| to_message(&json, self.conversion)));
        self.has_failed = matches!(message, Some(Err(_)));
        Poll::Ready(message)
    }
}
