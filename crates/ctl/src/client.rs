//! The way to the servers: which endpoint answers, how long to wait, and in what words a failure is told.
//!
//! A short command is tried at one endpoint after another until one takes the connection or the time is
//! up. Once a request has been sent it is never sent again, except reads, which change nothing.
//!
//! # Not here
//!
//! TLS and authentication.

use std::cell::RefCell;
use std::error::Error;
use std::time::Duration;

use quorate_api::etcdserverpb::cluster_client::ClusterClient;
use quorate_api::etcdserverpb::kv_client::KvClient;
use quorate_api::etcdserverpb::lease_client::LeaseClient;
use quorate_api::etcdserverpb::maintenance_client::MaintenanceClient;
use quorate_api::etcdserverpb::watch_client::WatchClient;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use crate::failure::{Failure, exit};

const SEND_BYTES_MAX: usize = 2 << 20;
const RECEIVE_BYTES_MAX: usize = i32::MAX as usize;
/// Servers close connections that ping more often than every five seconds, so the default interval, which
/// is shorter, is taken for this one, as etcd's client library takes it.
const KEEPALIVE_MIN: Duration = Duration::from_secs(10);
/// Pause before all endpoints are tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Largest messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    send_bytes: usize,
    receive_bytes: usize,
}

impl Limits {
    /// Zero means the default.
    pub(crate) fn new(send_bytes: usize, receive_bytes: usize) -> Result<Self, Failure> {
        if receive_bytes > 0 && receive_bytes < send_bytes {
            let text = format!(
                "gRPC message recv limit ({receive_bytes} bytes) must be greater than send limit ({send_bytes} bytes)"
            );
            return Err(Failure::new(exit::BAD_CONNECTION, text));
        }
        let or = |given, default| if given == 0 { default } else { given };
        Ok(Self {
            send_bytes: or(send_bytes, SEND_BYTES_MAX),
            receive_bytes: or(receive_bytes, RECEIVE_BYTES_MAX),
        })
    }
}

/// Whether a call may be made again after it has failed on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It only reads.
    Safe,
    /// It may have happened.
    Never,
}

/// A client of one cluster.
#[derive(Debug)]
pub(crate) struct Client {
    targets: Vec<Target>,
    limits: Limits,
    /// The connection in use, and whose it is.
    current: RefCell<Option<(usize, Channel)>>,
}

#[derive(Debug)]
struct Target {
    endpoint: Endpoint,
    dial_timeout: Duration,
}

impl Client {
    /// Prepares a client; nothing is sent before the first call.
    pub(crate) fn new(
        endpoints: Vec<String>,
        dial_timeout: Duration,
        keepalive_time: Duration,
        keepalive_timeout: Duration,
        limits: Limits,
    ) -> Result<Self, Failure> {
        let targets = endpoints.into_iter().map(|text| {
            let mut endpoint = Endpoint::from_shared(uri(&text)?)
                .map_err(|error| Failure::bad_args(format!("bad endpoint {text}: {error}")))?
                .user_agent(concat!("quorate-ctl/", env!("CARGO_PKG_VERSION")))
                .map_err(|error| Failure::bad_args(error.to_string()))?
                .tcp_nodelay(true);
            if !keepalive_time.is_zero() {
                endpoint = endpoint
                    .http2_keep_alive_interval(keepalive_time.max(KEEPALIVE_MIN))
                    .keep_alive_timeout(keepalive_timeout);
            }
            Ok(Target { endpoint, dial_timeout })
        });
        let targets = targets.collect::<Result<Vec<_>, Failure>>()?;
        Ok(Self { targets, limits, current: RefCell::new(None) })
    }

    pub(crate) fn kv(&self, channel: Channel) -> KvClient<Channel> {
        KvClient::new(channel)
            .max_decoding_message_size(self.limits.receive_bytes)
            .max_encoding_message_size(self.limits.send_bytes)
    }

    pub(crate) fn watch(&self, channel: Channel) -> WatchClient<Channel> {
        WatchClient::new(channel).max_decoding_message_size(self.limits.receive_bytes)
    }

    pub(crate) fn lease(&self, channel: Channel) -> LeaseClient<Channel> {
        LeaseClient::new(channel).max_decoding_message_size(self.limits.receive_bytes)
    }

    pub(crate) fn cluster(&self, channel: Channel) -> ClusterClient<Channel> {
        ClusterClient::new(channel).max_decoding_message_size(self.limits.receive_bytes)
    }

    pub(crate) fn maintenance(&self, channel: Channel) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(channel).max_decoding_message_size(self.limits.receive_bytes)
    }

    /// Makes a call. With a `timeout` it looks for an endpoint that long; without, it asks each once.
    pub(crate) async fn call<Message, Reply>(
        &self,
        timeout: Option<Duration>,
        repeat: Repeat,
        message: Message,
        make: impl AsyncFn(Channel, Request<Message>) -> Result<Response<Reply>, Status>,
    ) -> Result<Reply, Status>
    where
        Message: Clone,
    {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let attempts = async {
            loop {
                let channel = self.connect(deadline).await?;
                let mut request = Request::new(message.clone());
                if let Some(deadline) = deadline {
                    request.set_timeout(deadline.duration_since(Instant::now()));
                }
                match make(channel, request).await.map_err(lost) {
                    Ok(reply) => return Ok(reply.into_inner()),
                    Err(status) if status.code() == Code::Unavailable => {
                        self.leave();
                        if repeat == Repeat::Never || deadline.is_none() {
                            return Err(status);
                        }
                        sleep(RETRY_PAUSE).await;
                    }
                    Err(status) => return Err(too_large(status)),
                }
            }
        };
        match deadline {
            None => attempts.await,
            Some(deadline) => timeout_at(deadline, attempts)
                .await
                .unwrap_or_else(|_| Err(Status::deadline_exceeded("context deadline exceeded"))),
        }
    }

    /// A connection to an endpoint that takes one. Without a `deadline` each endpoint is tried once.
    pub(crate) async fn connect(&self, deadline: Option<Instant>) -> Result<Channel, Status> {
        if let Some((_, channel)) = &*self.current.borrow() {
            return Ok(channel.clone());
        }
        loop {
            let mut reason = "no endpoints available".to_owned();
            for (index, target) in self.targets.iter().enumerate() {
                match target.connect().await {
                    Ok(channel) => {
                        *self.current.borrow_mut() = Some((index, channel.clone()));
                        return Ok(channel);
                    }
                    Err(error) => reason = error,
                }
            }
            if deadline.is_none() {
                return Err(Status::unavailable(reason));
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    /// Gives up the connection in use; the next call looks for another.
    pub(crate) fn leave(&self) {
        self.current.borrow_mut().take();
    }
}

impl Target {
    async fn connect(&self) -> Result<Channel, String> {
        let dialing = tokio::time::timeout(self.dial_timeout, self.endpoint.connect());
        let reason = match dialing.await {
            Ok(Ok(channel)) => return Ok(channel),
            Ok(Err(error)) => innermost(&error),
            Err(_) => "i/o timeout".to_owned(),
        };
        let address = self.endpoint.uri().authority().map_or("", |authority| authority.as_str());
        Err(format!(
            "connection error: desc = \"transport: Error while dialing: dial tcp {address}: {reason}\""
        ))
    }
}

fn innermost(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// Makes the URI of what etcd takes for an endpoint.
fn uri(endpoint: &str) -> Result<String, Failure> {
    match endpoint.split_once("://") {
        Some(("http" | "unix", _)) => Ok(endpoint.to_owned()),
        Some(("https" | "unixs", _)) => {
            Err(Failure::bad_args(format!("TLS is not supported: {endpoint}")))
        }
        Some((scheme, _)) => Err(Failure::bad_args(format!("unknown scheme {scheme}: {endpoint}"))),
        None => Ok(format!("http://{endpoint}")),
    }
}

/// A connection that broke under a call is told as what it is rather than as something unknown.
pub(crate) fn lost(status: Status) -> Status {
    if status.code() == Code::Unknown
        && let Some(error) =
            status.source().and_then(|source| source.downcast_ref::<tonic::transport::Error>())
    {
        return Status::unavailable(format!("connection error: desc = \"{}\"", innermost(error)));
    }
    status
}

/// A request over the send limit never leaves; it is told as grpc-go tells it.
fn too_large(status: Status) -> Status {
    let message = status.message();
    let found = message.strip_prefix("Error, encoded message length too large: found ");
    match found.and_then(|rest| rest.split_once(" bytes, the limit is: ")) {
        Some((len, limit)) => {
            let limit = limit.trim_end_matches(" bytes");
            let text = format!("trying to send message larger than max ({len} vs. {limit})");
            Status::resource_exhausted(text)
        }
        None => status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_uris() {
        assert_eq!(uri("a:1").unwrap(), "http://a:1");
        assert_eq!(uri("http://a:1").unwrap(), "http://a:1");
        assert_eq!(uri("unix:///tmp/s").unwrap(), "unix:///tmp/s");
        assert_eq!(uri("https://a:1").unwrap_err().code, exit::BAD_ARGS);
        assert_eq!(uri("ftp://a:1").unwrap_err().code, exit::BAD_ARGS);
    }

    #[test]
    fn limits_have_defaults_and_an_order() {
        let default = Limits::new(0, 0).unwrap();
        assert_eq!((default.send_bytes, default.receive_bytes), (2_097_152, 2_147_483_647));
        assert_eq!(Limits::new(10, 5).unwrap_err().code, exit::BAD_CONNECTION);
    }

    #[test]
    fn a_request_over_the_limit_is_told_as_grpc_tells_it() {
        let text =
            "Error, encoded message length too large: found 30 bytes, the limit is: 20 bytes";
        let status = too_large(Status::out_of_range(text));
        assert_eq!(status.message(), "trying to send message larger than max (30 vs. 20)");
        assert_eq!(status.code(), Code::ResourceExhausted);
    }
}
