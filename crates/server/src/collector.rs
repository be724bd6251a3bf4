//! Exports spans to a collector: OTLP over gRPC, configured by the distributed tracing flags.
//!
//! A separate thread sends the queued spans in batches, so the member never waits for the collector. If the collector
//! is unreachable or refuses a batch, the spans are dropped. Dropped spans are counted, and logged at most once per
//! [`LOSS_LOG_INTERVAL`]. When the member stops, the remaining spans are sent for at most [`FINISH_TIME_MAX`].
//!
//! # Not here
//!
//! The sampling of calls, the spans themselves, and the bound on the queue (`telemetry::trace`).

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use quorate_config::Tracing;
use quorate_telemetry::log;
use quorate_telemetry::metrics::Metrics;
use quorate_telemetry::threads;
use quorate_telemetry::throttle::LogThrottle;
use quorate_telemetry::trace::{Batch, Resource, Sampling, Tracer, refused_spans};
use quorate_tls::{ChannelConnector, Place};
use tokio::sync::oneshot;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

/// The collector's gRPC method.
const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// Interval between two checks of the queue.
const SEND_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum time for the collector to answer a batch.
const SEND_TIME_MAX: Duration = Duration::from_secs(10);

/// Maximum number of attempts to send a batch. After that, the batch is dropped.
const SENDS_MAX: u32 = 4;

/// Pause before the first retry. It doubles with each retry.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Maximum time for sending spans after the member has stopped.
const FINISH_TIME_MAX: Duration = Duration::from_secs(2);

/// Minimum time between two log lines about dropped spans.
const LOSS_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CollectorError {
    #[error("--distributed-tracing-address {address:?} is not a valid address: {source}")]
    Address { address: String, source: tonic::transport::Error },
    #[error("failed to start the span exporter thread: {0}")]
    Thread(#[source] std::io::Error),
}

/// The span exporter with its thread.
#[derive(Debug)]
pub(crate) struct Collector {
    tracer: Arc<Tracer>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Collector {
    /// Starts the exporter, if tracing is enabled.
    pub(crate) fn start(
        tracing: &Tracing,
        metrics: &Metrics,
    ) -> Result<Option<Self>, CollectorError> {
        if !tracing.enabled {
            return Ok(None);
        }
        let Tracing { address, service_name, instance_id, .. } = tracing;
        let (place, authority) = place(address);
        let endpoint = Endpoint::from_shared(format!("http://{authority}"))
            .map_err(|source| CollectorError::Address { address: address.clone(), source })?
            .user_agent(concat!("quorate/", env!("CARGO_PKG_VERSION")))
            .map_err(|source| CollectorError::Address { address: address.clone(), source })?;
        let resource = Resource::new(service_name, instance_id);
        let sampling = Sampling::per_million(tracing.per_million());
        let tracer = Arc::new(Tracer::new(sampling, resource, metrics.tracing.clone()));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(CollectorError::Thread)?;
        let (stop, stopping) = oneshot::channel();
        let losses = LogThrottle::every(LOSS_LOG_INTERVAL);
        let sender = Sender { tracer: Arc::clone(&tracer), address: address.clone(), losses };
        let run = move || {
            runtime.block_on(async {
                let connector = ChannelConnector::new(place, None);
                sender.run(&endpoint.connect_with_connector_lazy(connector), stopping).await;
            });
        };
        let thread = threads::spawn(std::thread::Builder::new().name("spans".to_owned()), run);
        let thread = thread.map_err(CollectorError::Thread)?;
        log::info!(
            "distributed tracing setup enabled",
            "address" = address,
            "service-name" = service_name,
            "service-instance-id" = instance_id,
            "sampling-rate" = tracing.sampling_rate
        );
        Ok(Some(Self { tracer, stop, thread }))
    }

    /// Returns the tracer whose spans are exported.
    pub(crate) fn tracer(&self) -> Arc<Tracer> {
        Arc::clone(&self.tracer)
    }

    /// Waits until all spans are sent or [`FINISH_TIME_MAX`] has passed.
    pub(crate) fn finish(self) {
        // Dropping the sender stops the thread. A panic of the thread has already been logged.
        drop(self.stop);
        drop(self.thread.join());
    }
}

/// Returns the host or the socket file to which the address refers, and the host name in requests.
fn place(address: &str) -> (Place, &str) {
    match address.strip_prefix("unix:") {
        Some(path) => (Place::File(path.strip_prefix("//").unwrap_or(path).into()), "localhost"),
        None => (Place::Host(address.to_owned()), address),
    }
}

/// Sends the spans. Runs on the exporter's thread.
struct Sender {
    tracer: Arc<Tracer>,
    address: String,
    losses: LogThrottle,
}

impl Sender {
    async fn run(&self, channel: &Channel, mut stopping: oneshot::Receiver<()>) {
        let mut held = None;
        loop {
            tokio::select! {
                () = self.send_waiting(channel, &mut held) => {}
                _ = &mut stopping => break,
            }
            tokio::select! {
                () = tokio::time::sleep(SEND_INTERVAL) => {}
                _ = &mut stopping => break,
            }
        }
        let rest = self.send_waiting(channel, &mut held);
        if tokio::time::timeout(FINISH_TIME_MAX, rest).await.is_err() {
            let mut rest = held.take().or_else(|| self.tracer.take_batch());
            while let Some(batch) = rest {
                self.tracer.note_given_up(batch);
                rest = self.tracer.take_batch();
            }
            self.log_losses("the member stopped before all spans were sent");
        }
    }

    /// Sends the queued spans. If the future is dropped, `held` contains the batch that was being sent.
    async fn send_waiting<'a>(&'a self, channel: &Channel, held: &mut Option<Batch<'a>>) {
        let dropped_before = self.tracer.dropped_count();
        loop {
            if held.is_none() {
                *held = self.tracer.take_batch();
            }
            let Some(batch) = held.as_ref() else { break };
            let outcome = send_with_retries(channel, batch).await;
            let Some(batch) = held.take() else { break };
            match outcome {
                Ok(refused) => self.tracer.note_sent(batch, refused),
                Err(status) => {
                    self.tracer.note_given_up(batch);
                    self.log_losses(status.message());
                }
            }
        }
        if self.tracer.dropped_count() > dropped_before {
            self.log_losses("spans are queued faster than they are sent");
        }
    }

    fn log_losses(&self, reason: &str) {
        if self.losses.admits().is_some() {
            log::warn!(
                "tracing spans are lost; check that the collector is reachable and fast enough",
                "address" = self.address,
                "reason" = reason,
                "lost-so-far" = self.tracer.dropped_count()
            );
        }
    }
}

/// Sends a batch, and retries where OTLP allows it. Returns the number of refused spans.
async fn send_with_retries(channel: &Channel, batch: &Batch<'_>) -> Result<u64, Status> {
    let mut pause = RETRY_PAUSE;
    for _ in 1..SENDS_MAX {
        match send(channel, batch).await {
            Err(status) if is_retryable(&status) => tokio::time::sleep(pause).await,
            outcome => return outcome,
        }
        pause *= 2;
    }
    send(channel, batch).await
}

/// Returns whether OTLP allows a retry after this status.
fn is_retryable(status: &Status) -> bool {
    use tonic::Code::{
        Aborted, Cancelled, DataLoss, DeadlineExceeded, OutOfRange, ResourceExhausted, Unavailable,
    };
    matches!(
        status.code(),
        Aborted
            | Cancelled
            | DataLoss
            | DeadlineExceeded
            | OutOfRange
            | ResourceExhausted
            | Unavailable
    )
}

async fn send(channel: &Channel, batch: &Batch<'_>) -> Result<u64, Status> {
    let mut grpc = Grpc::new(channel.clone());
    let request = Request::new(Bytes::copy_from_slice(batch.request()));
    let sending = async {
        let unready =
            |error: tonic::transport::Error| Status::unavailable(log::error_chain(&error));
        grpc.ready().await.map_err(unready)?;
        grpc.unary(request, PathAndQuery::from_static(EXPORT), Encoded).await
    };
    let answer = tokio::time::timeout(SEND_TIME_MAX, sending).await;
    let answer = answer.unwrap_or_else(|_| {
        Err(Status::deadline_exceeded("the collector did not respond in time"))
    })?;
    Ok(refused_spans(answer.get_ref()))
}

/// A codec for messages that are already encoded.
#[derive(Clone, Copy, Debug, Default)]
struct Encoded;

impl Codec for Encoded {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buf.put(item);
        Ok(())
    }
}

impl Decoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buf.copy_to_bytes(buf.remaining())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_address_is_parsed_as_a_host_or_a_socket() {
        assert!(matches!(place("a:1"), (Place::Host(host), "a:1") if host == "a:1"));
        for text in ["unix:/run/c", "unix:///run/c"] {
            let (place, authority) = place(text);
            assert!(matches!(place, Place::File(path) if path == *"/run/c"), "{text}");
            assert_eq!(authority, "localhost");
        }
    }
}
