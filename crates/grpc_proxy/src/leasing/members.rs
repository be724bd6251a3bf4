//! The proxy's own requests to members, in the same namespace as its clients' requests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use prost::{Message, Name};
use quorate_api::deep_txn;
use quorate_api::etcdserverpb::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, TxnRequest, TxnResponse,
};
use quorate_grpc::methods;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::clock;
use crate::framing;
use crate::namespace::Namespace;
use crate::relay;
use crate::upstream::{Upstream, receive_error};

/// Maximum duration of one of the proxy's own requests.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// The connections over which the proxy sends its own requests to members.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    pub(super) upstream: Arc<Upstream>,
    pub(super) namespace: Option<Namespace>,
}

impl Members {
    /// Sends one of the proxy's own requests, with a timeout.
    pub(super) async fn ask<M: Message, R: Message + Name + Default + 'static>(
        &self,
        path: &str,
        request: &M,
    ) -> Result<R, Status> {
        in_time(self.ask_for(path, HeaderMap::new(), request.encode_to_vec().into())).await
    }

    /// Renews a lease once and returns its TTL.
    pub(super) async fn keep_alive(&self, id: i64) -> Result<i64, Status> {
        let request = LeaseKeepAliveRequest { id }.encode_to_vec().into();
        let path = "/etcdserverpb.Lease/LeaseKeepAlive";
        let asking = async {
            let body = framing::whole(request);
            let answer = self.upstream.open(path, &HeaderMap::new(), body).await?;
            let mut messages = framing::replies(answer, self.upstream.limits.receive_bytes)?;
            let message = messages.message().await.map_err(receive_error)?;
            let message = message.ok_or_else(|| Status::unavailable("the stream has ended"))?;
            let answer: LeaseKeepAliveResponse = framing::decode(message)?;
            Ok(answer.ttl)
        };
        in_time(asking).await
    }

    async fn ask_for<R: Message + Name + Default + 'static>(
        &self,
        path: &str,
        headers: HeaderMap,
        message: Bytes,
    ) -> Result<R, Status> {
        let answer = relay::ask(&self.upstream, methods::named(path), headers, message).await?;
        framing::decode(answer)
    }
}

/// The store in which keys are owned: the members, or a model of them in tests.
pub(crate) trait Store: Send + Sync + 'static {
    /// Runs a transaction for the caller identified by these headers.
    fn txn(
        &self,
        headers: HeaderMap,
        request: TxnRequest,
    ) -> impl Future<Output = Result<TxnResponse, Status>> + Send;

    /// Returns the time of the clock for lease deadlines.
    fn now(&self) -> Duration;
}

impl Store for Members {
    async fn txn(
        &self,
        headers: HeaderMap,
        mut request: TxnRequest,
    ) -> Result<TxnResponse, Status> {
        if let Some(namespace) = &self.namespace {
            namespace.txn(&mut request)?;
        }
        let mut answer: TxnResponse = self
            .ask_for("/etcdserverpb.KV/Txn", headers, deep_txn::encode(&request).into())
            .await?;
        if let Some(namespace) = &self.namespace {
            namespace.strip_txn(&mut answer);
        }
        Ok(answer)
    }

    fn now(&self) -> Duration {
        clock::now()
    }
}

/// Applies the timeout for the proxy's own requests.
pub(super) async fn in_time<T>(
    asking: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let answered = timeout(ANSWER_TIME_MAX, asking).await;
    answered.unwrap_or_else(|_| Err(Status::deadline_exceeded("context deadline exceeded")))
}

/// Returns whether a request that failed with this status certainly had no effect.
pub(super) fn is_refusal(status: &Status) -> bool {
    match status.code() {
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Unauthenticated => true,
        // Two errors with this code can follow a performed write: the error for a response longer than this proxy
        // accepts, and a member's error when the write has exceeded the member's quota.
        Code::ResourceExhausted => false,
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => false,
    }
}
