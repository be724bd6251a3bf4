//! The client of the discovery cluster, which reads, writes and watches a few keys over gRPC.
//!
//! Endpoints are tried in turn: after a failure the next call uses the next endpoint. Every failed call may be retried,
//! because reads have no side effects and the only write always writes the same value.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use quorate_api::etcdserverpb::auth_client::AuthClient;
use quorate_api::etcdserverpb::kv_client::KvClient;
use quorate_api::etcdserverpb::watch_client::WatchClient;
use quorate_api::etcdserverpb::watch_request::RequestUnion;
use quorate_api::etcdserverpb::{
    AuthenticateRequest, PutRequest, RangeRequest, WatchCreateRequest, WatchRequest,
};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use super::Registered;
use quorate_config::Discovery;
use quorate_tls::{
    Allowed, ChannelConnector, Connector, ConnectorSettings, Pair, Place, Protocols, ServerCheck,
    SetupError, Trust,
};

/// The host name in requests over a Unix socket.
const LOCAL_HOST: &str = "localhost";

/// The error that a login returns if authentication is disabled in the discovery cluster.
const AUTH_NOT_ENABLED: &str = "etcdserver: authentication is not enabled";

/// Why a request to the discovery cluster failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegistryError {
    #[error("{endpoint}: {reason}")]
    Dial { endpoint: String, reason: String },
    #[error("no endpoints available")]
    NoEndpoint,
    #[error("{}", .0.message())]
    Refused(#[from] Box<Status>),
}

impl From<Status> for RegistryError {
    fn from(status: Status) -> Self {
        Self::Refused(Box::new(status))
    }
}

/// Access to the keys in which founders register.
pub(super) trait Registry {
    /// Returns the value of a key.
    fn get(&mut self, key: &str) -> impl Future<Output = Result<Option<Bytes>, RegistryError>>;

    /// Returns the keys with a prefix, and the revision at which they were read.
    fn list(
        &mut self,
        prefix: &str,
    ) -> impl Future<Output = Result<(Vec<Registered>, i64), RegistryError>>;

    /// Writes a key.
    fn put(&mut self, key: &str, value: &str) -> impl Future<Output = Result<(), RegistryError>>;

    /// Waits until a key with the prefix changes at `revision` or later.
    fn wait_for_change(
        &mut self,
        prefix: &str,
        revision: i64,
    ) -> impl Future<Output = Result<(), RegistryError>>;
}

/// A registry in a discovery cluster, which runs etcd or Quorate.
pub(super) struct EtcdRegistry<'a> {
    config: &'a Discovery,
    /// The current connection, with its token after a login.
    current: Option<Session>,
    /// The endpoint to try next.
    next: usize,
}

#[derive(Clone)]
struct Session {
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
}

impl Session {
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }
}

impl<'a> EtcdRegistry<'a> {
    pub(super) const fn new(config: &'a Discovery) -> Self {
        Self { config, current: None, next: 0 }
    }

    /// Makes one call, within the request timeout if one is set.
    async fn call<T>(
        &mut self,
        timeout: Option<Duration>,
        make: impl AsyncFnOnce(Session) -> Result<T, Status>,
    ) -> Result<T, RegistryError> {
        let session = self.session().await?;
        let made = match timeout {
            None => make(session).await,
            Some(timeout) => tokio::time::timeout(timeout, make(session))
                .await
                .unwrap_or_else(|_| Err(Status::deadline_exceeded("context deadline exceeded"))),
        };
        Ok(made.inspect_err(|_| self.current = None)?)
    }

    fn request_timeout(&self) -> Option<Duration> {
        self.config.request_timeout.positive()
    }

    async fn session(&mut self) -> Result<Session, RegistryError> {
        if let Some(session) = &self.current {
            return Ok(session.clone());
        }
        let mut failure = RegistryError::NoEndpoint;
        let count = self.config.endpoints.len();
        for _ in 0..count {
            let endpoint = &self.config.endpoints[self.next % count];
            self.next = (self.next + 1) % count;
            match self.connect(endpoint).await {
                Ok(session) => {
                    self.current = Some(session.clone());
                    return Ok(session);
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    async fn connect(&self, endpoint: &str) -> Result<Session, RegistryError> {
        let failed = |reason: String| RegistryError::Dial { endpoint: endpoint.to_owned(), reason };
        let place = place(endpoint).map_err(failed)?;
        let authority = match &place {
            Place::Host(authority) => authority.clone(),
            Place::File(_) => LOCAL_HOST.to_owned(),
        };
        let tls = self.tls(endpoint).map_err(|error| failed(error.to_string()))?;
        let mut target = Endpoint::from_shared(format!("http://{authority}"))
            .map_err(|error| failed(error.to_string()))?;
        if let Some(interval) = self.config.keepalive_time.positive() {
            target = target
                .http2_keep_alive_interval(interval)
                .keep_alive_timeout(self.config.keepalive_timeout.positive().unwrap_or(interval))
                .keep_alive_while_idle(true);
        }
        let connector = ChannelConnector::new(place, tls);
        let timeout = self.config.dial_timeout.positive().unwrap_or(Duration::MAX);
        let channel = tokio::time::timeout(timeout, target.connect_with_connector(connector))
            .await
            .map_err(|_| failed("i/o timeout".to_owned()))?
            .map_err(|error| failed(quorate_telemetry::log::error_chain(&error)))?;
        let token = self.log_in(channel.clone()).await?;
        Ok(Session { channel, token })
    }

    /// Returns the TLS settings for an endpoint, if it uses TLS.
    fn tls(&self, endpoint: &str) -> Result<Option<Connector>, SetupError> {
        let Discovery { cert, key, cacert, .. } = self.config;
        if !self.config.is_secured(endpoint) {
            return Ok(None);
        }
        let trust = match cacert.as_str() {
            "" => Trust::System,
            path => Trust::File(path.into()),
        };
        let is_shown = !cert.is_empty() || !key.is_empty();
        Connector::new(ConnectorSettings {
            pair: is_shown.then(|| Pair::new(cert, key)),
            protocols: Protocols::default(),
            check: ServerCheck::by(trust, self.config.insecure_skip_tls_verify),
            allowed: Allowed::All,
            http2: true,
            server_name: None,
        })
        .map(Some)
    }

    async fn log_in(
        &self,
        channel: Channel,
    ) -> Result<Option<MetadataValue<Ascii>>, RegistryError> {
        let Some((name, password)) = self.config.login() else { return Ok(None) };
        let mut request = Request::new(AuthenticateRequest { name, password });
        if let Some(timeout) = self.request_timeout() {
            request.set_timeout(timeout);
        }
        match AuthClient::new(channel).authenticate(request).await {
            Ok(reply) => {
                let token = reply.into_inner().token.try_into();
                let unreadable = |_| Status::internal("the token is not a valid header value");
                Ok(Some(token.map_err(unreadable)?))
            }
            Err(status) if status.message() == AUTH_NOT_ENABLED => Ok(None),
            Err(status) => Err(status.into()),
        }
    }

    async fn range(
        &mut self,
        request: RangeRequest,
    ) -> Result<(Vec<Registered>, i64), RegistryError> {
        let reply = self
            .call(self.request_timeout(), async |session| {
                let request = session.request(request);
                KvClient::new(session.channel).range(request).await
            })
            .await?
            .into_inner();
        let found = reply.kvs.iter().map(|record| {
            let fields = record.fields();
            Registered {
                create_revision: fields.create_revision,
                key: Bytes::copy_from_slice(fields.key),
                urls: String::from_utf8_lossy(fields.value).trim().to_owned(),
            }
        });
        Ok((found.collect(), reply.header.map_or(0, |header| header.revision)))
    }
}

impl Registry for EtcdRegistry<'_> {
    async fn get(&mut self, key: &str) -> Result<Option<Bytes>, RegistryError> {
        let key = Bytes::copy_from_slice(key.as_bytes());
        let (found, _) = self.range(RangeRequest { key, ..RangeRequest::default() }).await?;
        Ok(found.into_iter().next().map(|found| found.urls.into()))
    }

    async fn list(&mut self, prefix: &str) -> Result<(Vec<Registered>, i64), RegistryError> {
        let (key, range_end) = range_of(prefix);
        self.range(RangeRequest { key, range_end, ..RangeRequest::default() }).await
    }

    async fn put(&mut self, key: &str, value: &str) -> Result<(), RegistryError> {
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        let message = PutRequest { key: bytes(key), value: bytes(value), ..PutRequest::default() };
        self.call(self.request_timeout(), async |session| {
            let request = session.request(message);
            KvClient::new(session.channel).put(request).await
        })
        .await?;
        Ok(())
    }

    async fn wait_for_change(&mut self, prefix: &str, revision: i64) -> Result<(), RegistryError> {
        let (key, range_end) = range_of(prefix);
        let create = WatchCreateRequest {
            key,
            range_end,
            start_revision: revision,
            ..WatchCreateRequest::default()
        };
        self.call(None, async |session| {
            let (sender, receiver) = tokio::sync::mpsc::channel(1);
            let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
            drop(sender.send(create).await);
            let requests = tokio_stream::wrappers::ReceiverStream::new(receiver);
            let mut request = session.request(requests);
            // With this header, a member that loses its leader ends the watch. Otherwise it would keep the watch open
            // without sending events.
            request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
            let mut replies = WatchClient::new(session.channel).watch(request).await?.into_inner();
            loop {
                match replies.message().await? {
                    // If the watch was cancelled because of a compaction or a lost leader, the next lookup returns the
                    // current state.
                    Some(reply) if !reply.events.is_empty() || reply.canceled => return Ok(()),
                    Some(_) => {}
                    None => return Err(Status::unavailable("the watch has ended")),
                }
            }
        })
        .await
    }
}

/// Returns the address of an endpoint.
fn place(endpoint: &str) -> Result<Place, String> {
    match endpoint.split_once("://") {
        None => Ok(Place::Host(endpoint.to_owned())),
        Some(("http" | "https", authority)) => {
            Ok(Place::Host(authority.trim_end_matches('/').to_owned()))
        }
        Some(("unix" | "unixs", path)) => Ok(Place::File(path.into())),
        Some((scheme, _)) => Err(format!("unknown scheme {scheme}")),
    }
}

/// Returns the range of all keys with a prefix. The prefix must end with a letter.
fn range_of(prefix: &str) -> (Bytes, Bytes) {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    (Bytes::copy_from_slice(prefix.as_bytes()), end.into())
}
