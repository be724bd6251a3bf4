//! The standard gRPC health service. It reports on one service, whose name is empty and whose status is "serving" from
//! startup.
//!
//! With the feature gate `StopGRPCServiceOnDefrag`, it reports "not serving" during defragmentation, so that load
//! balancers use other members. Requests are still answered.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use quorate_api::healthpb::health_check_response::ServingStatus;
use quorate_api::healthpb::health_server::Health;
use quorate_api::healthpb::{
    HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse,
};
use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use quorate_requests::{DataStore, ServerHandles, StreamEnds};

/// The health service.
#[derive(Debug)]
pub(crate) struct HealthService {
    store: Arc<dyn DataStore>,
    streams: Arc<StreamEnds>,
}

impl HealthService {
    pub(crate) fn new(handles: &ServerHandles) -> Self {
        Self { store: Arc::clone(&handles.store), streams: Arc::clone(&handles.streams) }
    }

    fn status(&self) -> HealthCheckResponse {
        answer(serving_status(*self.store.serving().borrow()))
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

const fn serving_status(serving: bool) -> ServingStatus {
    if serving { ServingStatus::Serving } else { ServingStatus::NotServing }
}

#[tonic::async_trait]
impl Health for HealthService {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if request.get_ref().service.is_empty() {
            Ok(Response::new(self.status()))
        } else {
            Err(Status::not_found("unknown service"))
        }
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<BoxStream<HealthCheckResponse>>, Status> {
        if request.get_ref().service.is_empty() {
            let statuses = Statuses { next: next_status(self.store.serving(), None) };
            let end = self.streams.wait(false);
            return Ok(Response::new(Box::pin(crate::calls::streams::until(statuses, end))));
        }
        // Services are never added, so the stream stays open without further messages.
        let unknown = tokio_stream::once(Ok(answer(ServingStatus::ServiceUnknown)));
        let statuses = unknown.chain(tokio_stream::pending());
        Ok(Response::new(Box::pin(crate::calls::streams::until(
            statuses,
            self.streams.wait(false),
        ))))
    }

    async fn list(
        &self,
        _: Request<HealthListRequest>,
    ) -> Result<Response<HealthListResponse>, Status> {
        let statuses = [(String::new(), self.status())].into();
        Ok(Response::new(HealthListResponse { statuses }))
    }
}

type NextStatus = Pin<Box<dyn Future<Output = (bool, watch::Receiver<bool>)> + Send>>;

/// Waits until the status differs from the last status sent, and returns whether the member is serving.
fn next_status(mut serving: watch::Receiver<bool>, sent: Option<bool>) -> NextStatus {
    Box::pin(async move {
        let now = serving.wait_for(|now| Some(*now) != sent).await.map(|now| *now);
        match now {
            Ok(now) => (now, serving),
            // The member is shutting down, which also closes the connection.
            Err(_) => std::future::pending().await,
        }
    })
}

/// A stream of the current status and all later changes.
struct Statuses {
    next: NextStatus,
}

impl Stream for Statuses {
    type Item = Result<HealthCheckResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let (now, serving) = ready!(self.next.as_mut().poll(cx));
        self.next = next_status(serving, Some(now));
        Poll::Ready(Some(Ok(answer(serving_status(now)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_health_watch_sends_the_status_and_every_change() {
        let (sender, receiver) = watch::channel(true);
        let mut statuses = Statuses { next: next_status(receiver, None) };
        let mut sent = async || statuses.next().await.unwrap().unwrap();
        assert_eq!(sent().await, answer(ServingStatus::Serving));
        sender.send_replace(true);
        sender.send_replace(false);
        assert_eq!(sent().await, answer(ServingStatus::NotServing));
        sender.send_replace(true);
        assert_eq!(sent().await, answer(ServingStatus::Serving));
    }
}
