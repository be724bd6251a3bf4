//! The standard gRPC health service: one service, named by the empty string, that serves from the start.

use quorate_api::healthpb::health_check_response::ServingStatus;
use quorate_api::healthpb::health_server::Health;
use quorate_api::healthpb::{
    HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse,
};
use tokio_stream::StreamExt;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

/// The service.
#[derive(Debug)]
pub(crate) struct HealthService;

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl Health for HealthService {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if request.get_ref().service.is_empty() {
            Ok(Response::new(answer(ServingStatus::Serving)))
        } else {
            Err(Status::not_found("unknown service"))
        }
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<BoxStream<HealthCheckResponse>>, Status> {
        let known = request.get_ref().service.is_empty();
        let status = if known { ServingStatus::Serving } else { ServingStatus::ServiceUnknown };
        // Nothing ever changes it, so the stream stays open without a further word.
        let stream = tokio_stream::once(Ok(answer(status))).chain(tokio_stream::pending());
        Ok(Response::new(Box::pin(stream)))
    }

    async fn list(
        &self,
        _: Request<HealthListRequest>,
    ) -> Result<Response<HealthListResponse>, Status> {
        let statuses = [(String::new(), answer(ServingStatus::Serving))].into();
        Ok(Response::new(HealthListResponse { statuses }))
    }
}
