//! A complete unary call of the KV service, handled without the HTTP library's request and response types.
//!
//! # Not here
//!
//! The checks that every call must pass (`router`).

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response as HttpResponse;
use prost::Name;
use quorate_api::codec;
use quorate_grpc::ending::answer;
use quorate_grpc::framing::framed;
use quorate_grpc::methods::Kind;
use quorate_grpc::observed::{Observed, Observer as _};
use quorate_grpc::wording::in_grpc_gos_words;
use quorate_net::listen::{WholeAnswer, WholeCall};
use quorate_requests::RequestError;
use quorate_requests::access::{AccessControl, Client};
use tonic::body::Body;
use tonic::{Code, Response, Status};

use super::authorized::{Authorized, authorize_message};
use super::large_reply;
use super::observe::CallStats;
use super::status::status;
use crate::methods::Needs;

/// The error of a call that one of the common checks has refused, and the call's statistics.
pub(crate) type Refused = (Status, CallStats);

/// The statistics of a call. Dropping this value before the response records the call as cancelled.
struct Counted(Option<CallStats>);

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(mut stats) = self.0.take() {
            stats.ended(Code::Cancelled, "");
        }
    }
}

/// Decodes the message, carries out the call, and encodes its response.
pub(crate) async fn answer_whole<M, R, F>(
    stats: CallStats,
    timeout: Option<Duration>,
    ((access_control, needs), client, message): ((Arc<AccessControl>, Needs), Client, Bytes),
    method: impl FnOnce(Authorized<M>) -> F,
) -> WholeAnswer<Observed<CallStats>>
where
    M: prost::Message + Name + Default + 'static,
    R: prost::Message,
    F: Future<Output = Result<Response<R>, Status>>,
{
    let mut counted = Counted(Some(stats));
    let authorized = codec::decode::<M>(message)
        .and_then(|message| authorize_message(&access_control, needs, client, message));
    let result = match authorized {
        Err(status) => Err(status),
        Ok(request) => {
            let call = method(request);
            match timeout {
                None => call.await,
                Some(timeout) => within(timeout, call).await,
            }
        }
    };
    let mut stats = counted.0.take().expect("the statistics are taken only once");
    match result {
        Ok(mut response) => {
            stats.responded(Code::Ok);
            let extensions = response.extensions_mut();
            if extensions.is_empty() {
                let part = framed(response.get_ref());
                stats.passed(&part);
                stats.ended(Code::Ok, "");
                return Ok(part);
            }
            let body = large_reply::body_of(extensions, Body::empty());
            let mut answer = answer(body);
            *answer.extensions_mut() = std::mem::take(extensions);
            Err(observed(answer, stats))
        }
        Err(status) => Err(refused_with(in_grpc_gos_words(status, Kind::Unary), stats)),
    }
}

async fn within<R>(
    timeout: Duration,
    call: impl Future<Output = Result<Response<R>, Status>>,
) -> Result<Response<R>, Status> {
    let mut call = pin!(call);
    // Most calls complete at the first poll, and need no timer.
    let early = std::future::poll_fn(|cx| std::task::Poll::Ready(call.as_mut().poll(cx))).await;
    if let std::task::Poll::Ready(result) = early {
        return result;
    }
    match tokio::time::timeout(timeout, call).await {
        Ok(result) => result,
        Err(_) => Err(status(RequestError::DeadlineExceeded)),
    }
}

fn refused_with(status: Status, mut stats: CallStats) -> HttpResponse<Observed<CallStats>> {
    stats.responded(status.code());
    observed(status.into_http(), stats)
}

fn observed(response: HttpResponse<Body>, stats: CallStats) -> HttpResponse<Observed<CallStats>> {
    let (mut head, body) = response.into_parts();
    let body = Observed::new(&mut head.headers, body, Some(stats));
    HttpResponse::from_parts(head, body)
}

/// Returns the response to a call that one of the common checks has refused.
pub(crate) fn refused((refusal, stats): Refused) -> WholeCall<Observed<CallStats>> {
    Box::pin(std::future::ready(Err(refused_with(refusal, stats))))
}
