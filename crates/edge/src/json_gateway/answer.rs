//! Converts the messages of a call's response to JSON.
//!
//! The response to a unary call is one value. A response stream becomes one value per line, each under `result`. If the
//! stream ends with an error, the last line contains the error under `error`. An error consists of its code and text.
//! The HTTP status of the response corresponds to this code, unless part of the response has already been sent.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use quorate_json::{Conversion, put_text};
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::calls::large_reply::{COUNTED_BYTES_MIN, hold, read_limit};
use crate::calls::observe::CallStats;
use crate::calls::status::status;
use quorate_grpc::ending::CONTENT_TYPE as GRPC;
use quorate_grpc::framing::{HEAD_BYTES, message_len};
use quorate_grpc::observed::Observed;
use quorate_net::listen::{Pace, ReadLimit, ReadPolicy};
use quorate_requests::RequestError;
use quorate_requests::admission::{Bound, OwnedPermit};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The header from which clients of etcd's JSON gateway detect that the call was answered.
const METADATA_CONTENT_TYPE: HeaderName = HeaderName::from_static("grpc-metadata-content-type");

/// Estimated memory that a message and its JSON occupy together, as a multiple of the message size.
const JSON_FACTOR: u64 = 3;

/// Time after which a client that does not read is disconnected, if its stream has reached its deadline. The time is
/// short, because the client itself no longer waits for the stream.
pub(super) const UNREAD_TIME_MAX_AFTER_DEADLINE: Duration = Duration::from_secs(1);

/// The messages of a call's response.
pub(super) struct Messages {
    body: Observed<CallStats>,
    /// Received bytes of the next message.
    waiting: BytesMut,
    /// Status of a call that ended before its first message.
    ended: Option<Status>,
}

impl Messages {
    pub(super) fn of(response: Response<Observed<CallStats>>) -> Self {
        let (head, body) = response.into_parts();
        let ended = Status::from_header_map(&head.headers);
        Self { body, waiting: BytesMut::new(), ended }
    }

    /// Returns the length of the next message including its prefix, or `None` while the prefix is incomplete.
    fn next_len(&self) -> Option<usize> {
        let (head, _) = self.waiting.split_first_chunk::<HEAD_BYTES>()?;
        HEAD_BYTES.checked_add(message_len(head))
    }

    /// Reads until `wanted` bytes of the next message have arrived. Returns false if the call has ended
    /// successfully.
    fn poll_bytes(&mut self, wanted: usize, cx: &mut Context<'_>) -> Poll<Result<bool, Status>> {
        if let Some(ended) = self.ended.take() {
            return Poll::Ready(if ended.code() == Code::Ok { Ok(false) } else { Err(ended) });
        }
        while self.waiting.len() < wanted {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)).transpose()? else {
                return Poll::Ready(Ok(false));
            };
            match frame.into_data() {
                Ok(bytes) => {
                    let missing = wanted.saturating_sub(self.waiting.len());
                    self.waiting.reserve(missing.max(bytes.len()));
                    self.waiting.extend_from_slice(&bytes);
                }
                Err(frame) => {
                    let ended = frame.trailers_ref().and_then(Status::from_header_map);
                    return Poll::Ready(match ended {
                        Some(status) if status.code() != Code::Ok => Err(status),
                        Some(_) | None => Ok(false),
                    });
                }
            }
        }
        Poll::Ready(Ok(true))
    }

    /// Returns the next message, or `None` after the last one.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        if !ready!(self.poll_bytes(HEAD_BYTES, cx))? {
            return Poll::Ready(Ok(None));
        }
        let len = self.next_len().expect("the length prefix has arrived");
        if !ready!(self.poll_bytes(len, cx))? {
            return Poll::Ready(Err(Status::internal(
                "the response ended in the middle of a message",
            )));
        }
        let mut message = self.waiting.split_to(len).freeze();
        message.advance(HEAD_BYTES);
        Poll::Ready(Ok(Some(message)))
    }
}

/// Returns the response to a unary call. If the limit on replies stays reached for the timeout, the call fails, unless
/// it may have written (`may_write`) and must therefore not be repeated.
pub(super) async fn unary(
    mut messages: Messages,
    conversion: Conversion,
    may_write: bool,
    (replies, timeout): (&Arc<Bound>, Duration),
) -> Result<Response<AnswerBody>, Status> {
    if !poll_fn(|cx| messages.poll_bytes(HEAD_BYTES, cx)).await? {
        return Err(Status::internal("the response to a unary call has no message"));
    }
    let len = messages.next_len().expect("the length prefix has arrived");
    let mut permit = if len < COUNTED_BYTES_MIN {
        None
    } else {
        let bytes = JSON_FACTOR * len as u64;
        let permit = Bound::take_within(replies, bytes, timeout).await;
        let permit = if may_write {
            permit.unwrap_or_else(|_| Bound::take_regardless(replies, bytes))
        } else {
            permit.map_err(|full| status(RequestError::from(full)))?
        };
        Some(permit)
    };
    let message = poll_fn(|cx| messages.poll_next(cx)).await?.unwrap_or_default();
    // The next read returns an error if the call has failed.
    poll_fn(|cx| messages.poll_next(cx)).await?;
    let mut json = Vec::with_capacity(message.len() * 2);
    convert(conversion, &message, &mut json)?;
    if let Some(permit) = &mut permit {
        permit.resize(json.capacity() as u64);
    }
    let mut answer = json_answer(StatusCode::OK, json, permit);
    answer.headers_mut().insert(METADATA_CONTENT_TYPE, GRPC);
    Ok(answer)
}

fn convert(conversion: Conversion, message: &[u8], json: &mut Vec<u8>) -> Result<(), Status> {
    conversion.response(message, json).map_err(|error| Status::internal(error.to_string()))
}

/// Returns the response to a call with a response stream. The HTTP head is sent together with the first message.
pub(super) async fn stream(mut messages: Messages, conversion: Conversion) -> Response<AnswerBody> {
    match poll_fn(|cx| messages.poll_next(cx)).await {
        Ok(None) => Response::new(AnswerBody::whole(Full::default())),
        Err(status) => json_answer(http_status(status.code()), error_line(&status), None),
        Ok(Some(first)) => {
            let first = line(conversion, &first);
            let lines = Lines { messages, conversion, first: Some(first), has_ended: false };
            let mut answer = Response::new(AnswerBody(Form::Lines(Box::new(lines))));
            answer.headers_mut().insert(CONTENT_TYPE, JSON);
            answer.headers_mut().insert(METADATA_CONTENT_TYPE, GRPC);
            answer
        }
    }
}

/// Returns the read limit of a stream with this deadline. A connection does not poll the body of a response that its
/// client does not read, so the stream would otherwise stay open after its deadline.
pub(super) fn read_until(deadline: Instant) -> ReadLimit {
    ReadLimit(Arc::new(ReadUntil(deadline)))
}

/// Limits how long a client may stop reading, but only after this deadline.
struct ReadUntil(Instant);

impl ReadPolicy for ReadUntil {
    fn required_pace(&self) -> Pace {
        /// A time that is longer than any connection lasts.
        const UNLIMITED: Duration = Duration::from_secs(1 << 32);
        let is_over = Instant::now() >= self.0;
        Pace { bytes: 1, time: if is_over { UNREAD_TIME_MAX_AFTER_DEADLINE } else { UNLIMITED } }
    }
}

/// Returns the response to a failed request.
pub(super) fn refusal(status: &Status) -> Response<AnswerBody> {
    let mut json = Vec::new();
    put_error(status, &mut json);
    let mut answer = json_answer(http_status(status.code()), json, None);
    if status.code() == Code::Unauthenticated
        && let Ok(why) = HeaderValue::from_str(status.message())
    {
        answer.headers_mut().insert(WWW_AUTHENTICATE, why);
    }
    answer
}

fn json_answer(
    code: StatusCode,
    json: Vec<u8>,
    permit: Option<OwnedPermit>,
) -> Response<AnswerBody> {
    let limit = permit.as_ref().map(|permit| read_limit(permit.bound()));
    let json = match permit {
        Some(permit) => hold(json.into(), permit),
        None => json.into(),
    };
    let mut answer = Response::new(AnswerBody::whole(Full::new(json)));
    if let Some(limit) = limit {
        answer.extensions_mut().insert(limit);
    }
    *answer.status_mut() = code;
    answer.headers_mut().insert(CONTENT_TYPE, JSON);
    answer
}

fn put_error(status: &Status, json: &mut Vec<u8>) {
    json.extend_from_slice(
        format!("{{\"code\":{},\"message\":", i32::from(status.code())).as_bytes(),
    );
    put_text(status.message(), json);
    json.push(b'}');
}

fn error_line(status: &Status) -> Vec<u8> {
    let mut line = b"{\"error\":".to_vec();
    put_error(status, &mut line);
    line.extend_from_slice(b"}\n");
    line
}

/// Returns the line for one message of a stream.
fn line(conversion: Conversion, message: &[u8]) -> Result<Bytes, Status> {
    let mut line = b"{\"result\":".to_vec();
    convert(conversion, message, &mut line)?;
    line.extend_from_slice(b"}\n");
    Ok(line.into())
}

/// Returns the HTTP status for a gRPC code.
pub(crate) fn http_status(code: Code) -> StatusCode {
    /// nginx's non-standard status for a request cancelled by the client.
    const CLIENT_CLOSED_REQUEST: u16 = 499;
    match code {
        Code::Ok => StatusCode::OK,
        Code::Cancelled => {
            StatusCode::from_u16(CLIENT_CLOSED_REQUEST).expect("statuses have three digits")
        }
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => {
            StatusCode::BAD_REQUEST
        }
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
    }
}

/// The body of a response.
#[expect(
    missing_debug_implementations,
    reason = "a response in progress has no useful debug output"
)]
pub struct AnswerBody(Form);

enum Form {
    /// A complete body.
    Whole(Full<Bytes>),
    /// A stream of lines, one for each message.
    Lines(Box<Lines>),
}

impl AnswerBody {
    /// Creates a body whose bytes are already complete.
    pub(crate) const fn whole(body: Full<Bytes>) -> Self {
        Self(Form::Whole(body))
    }
}

/// The lines of a response stream.
struct Lines {
    messages: Messages,
    conversion: Conversion,
    first: Option<Result<Bytes, Status>>,
    has_ended: bool,
}

impl Lines {
    fn poll_line(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let next = match self.first.take() {
            Some(first) => first.map(Some),
            None => match ready!(self.messages.poll_next(cx)) {
                Ok(Some(message)) => line(self.conversion, &message).map(Some),
                Ok(None) => Ok(None),
                Err(status) => Err(status),
            },
        };
        self.has_ended = !matches!(next, Ok(Some(_)));
        Poll::Ready(match next {
            Ok(line) => line,
            Err(status) => Some(error_line(&status).into()),
        })
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut self.0 {
            Form::Whole(body) => Pin::new(body).poll_frame(cx),
            Form::Lines(lines) => {
                lines.poll_line(cx).map(|line| line.map(|line| Ok(Frame::data(line))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Form::Whole(body) => body.is_end_stream(),
            Form::Lines(lines) => lines.has_ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Form::Whole(body) => body.size_hint(),
            Form::Lines(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use quorate_api::etcdserverpb::StatusResponse;
    use quorate_grpc::framing::framed;

    use super::*;

    #[tokio::test]
    async fn a_call_that_may_have_written_succeeds_although_the_limit_on_replies_is_reached() {
        let replies = Arc::new(Bound::new(1));
        let _used = Bound::take_owned(&replies, 1).unwrap();
        let reply = StatusResponse {
            errors: vec!["x".repeat(COUNTED_BYTES_MIN)],
            ..StatusResponse::default()
        };
        let answer = |may_write| {
            let body = tonic::body::Body::new(Full::new(framed(&reply)));
            let body = Observed::new(&mut http::HeaderMap::new(), body, None);
            let conversion = Conversion::of("etcdserverpb.Maintenance", "Status").unwrap();
            let bound = (&replies, Duration::from_millis(1));
            unary(Messages::of(Response::new(body)), conversion, may_write, bound)
        };
        assert_eq!(answer(false).await.err().unwrap().code(), Code::Unknown);
        let answer = answer(true).await.unwrap();
        assert!(replies.used() > COUNTED_BYTES_MIN as u64);
        let json = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(json.len() > COUNTED_BYTES_MIN);
        drop(json);
        assert_eq!(replies.used(), 1);
    }
}
