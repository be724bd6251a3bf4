//! HTTP connections to peers.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use crate::body::BoxError;
use crate::contact::Contact;
use crate::dialer::{PeerStream, Target, connection_reason};
use crate::handshake::{CLUSTER_ID, Mismatch};
use crate::local::Local;
use quorate_gotext::quote::go_dial_reason;
use quorate_telemetry::log;
use quorate_tls::tls_reason;

/// Maximum length of a response. Peers answer with a single line.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Why a peer cannot be reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("{url:?}: peer URLs must have the scheme http, https, unix or unixs")]
    Url { url: String },
    #[error("{}", tls_reason(source).unwrap_or_else(|| go_dial_reason(target, source)))]
    Connect { target: Target, source: io::Error },
    #[error("dial {target}: i/o timeout")]
    Timeout { target: Target },
    #[error("{}", connection_reason(.0))]
    Http(#[from] hyper::Error),
}

impl DialError {
    /// Returns whether the host refused the connection.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Connect { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused)
    }
}

/// Why a request to a peer failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PostError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("{}", connection_reason(.0))]
    Http(#[from] hyper::Error),
    #[error("{}", log::error_chain(&**.0))]
    Answer(BoxError),
    #[error("i/o timeout")]
    Timeout,
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    #[error("the member has been permanently removed from the cluster")]
    Removed,
    #[error("peer {peer} failed to find local node {local}")]
    NotFound { peer: String, local: String },
    #[error("unhandled error {0:?} when precondition failed")]
    Precondition(String),
    #[error("unexpected http status {0}")]
    Status(StatusCode),
}

/// Parses a peer URL. Fails if the URL is invalid or has an unsupported scheme.
pub(crate) fn target(url: &str) -> Result<Target, DialError> {
    Target::of(url).ok_or_else(|| DialError::Url { url: url.to_owned() })
}

/// Connects to a URL. Returns the connection and the host header for requests over it. The dial timeout does not include
/// the TLS handshake, because a busy peer accepts a connection at once but may take long to begin the handshake.
pub(crate) async fn connect(
    local: &Local,
    url: &str,
    timeout: Option<Duration>,
) -> Result<(PeerStream, String), DialError> {
    let target = target(url)?;
    let reaching = local.dialer.reach(&target, timeout);
    let connected = match tokio::time::timeout(local.dial_timeout, reaching).await {
        Ok(Ok(reached)) => local.dialer.secure(&target, reached).await,
        Ok(Err(source)) => Err(source),
        Err(_) => return Err(DialError::Timeout { target }),
    };
    match connected {
        Ok(stream) => Ok((stream, target.authority().to_owned())),
        Err(source) => Err(DialError::Connect { target, source }),
    }
}

/// A connection that is used for consecutive requests. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Channel<B> {
    sender: http1::SendRequest<B>,
    authority: String,
    url: String,
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static> Channel<B> {
    /// Opens a connection. The connection is closed if sent data is not acknowledged within `timeout`.
    pub(crate) async fn open(
        local: &Local,
        url: &str,
        timeout: Duration,
    ) -> Result<Self, DialError> {
        let (stream, authority) = connect(local, url, Some(timeout)).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        local.runtime.spawn(async move {
            // The caller that waits for the response also receives connection errors, so this task ignores them.
            drop(connection.await);
        });
        Ok(Self { sender, authority, url: url.to_owned() })
    }

    /// Returns whether the connection is open and was made to this URL.
    pub(crate) fn is_open_to(&self, url: &str) -> bool {
        self.url == url && !self.sender.is_closed()
    }

    /// Sends a request whose URI is a path, and waits for the head of the response.
    pub(crate) async fn send(
        &mut self,
        mut request: Request<B>,
    ) -> Result<Response<Incoming>, hyper::Error> {
        if let Ok(host) = self.authority.parse() {
            request.headers_mut().insert(header::HOST, host);
        }
        self.sender.ready().await?;
        self.sender.send_request(request).await
    }
}

/// Reads a short response to its end.
pub(crate) async fn read_answer(body: Incoming) -> Result<String, PostError> {
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(PostError::Answer)?;
    Ok(String::from_utf8_lossy(&body.to_bytes()).trim_end_matches('\n').to_owned())
}

/// Logs that another member's state has a different origin from this member's, and returns the error.
pub(crate) fn other_origin(local: &Local, contact: &Contact, mismatch: Mismatch) -> PostError {
    if contact.notices.refusals.admits().is_some() {
        log::error!(
            "this member and a peer were not restored from the same snapshot; messages between them are \
             refused",
            "local-member-id" = local.introduction.member,
            "remote-peer-id" = contact.name,
            "advice" = "restore all members of a cluster from the same snapshot, or none of them; \
                        to replace a single member, use `member remove` and `member add`, and start \
                        with an empty data directory"
        );
    }
    mismatch.into()
}

/// Returns the error for a response with an error status. All kinds of requests use this function.
pub(crate) fn refusal(
    local: &Local,
    contact: &Contact,
    status: StatusCode,
    headers: &HeaderMap,
    text: &str,
) -> PostError {
    match status {
        StatusCode::PRECONDITION_FAILED if text == Mismatch::Version.to_string() => {
            if contact.notices.refusals.admits().is_some() {
                log::warn!(
                    "request sent was ignored by remote peer due to server version incompatibility",
                    "local-member-id" = local.introduction.member,
                    "remote-peer-id" = contact.name,
                    "error" = text
                );
            }
            Mismatch::Version.into()
        }
        StatusCode::PRECONDITION_FAILED if text == Mismatch::Cluster.to_string() => {
            let cluster = headers.get(CLUSTER_ID).and_then(|id| id.to_str().ok()).unwrap_or("");
            if contact.notices.refusals.admits().is_some() {
                log::warn!(
                    "request sent was ignored by remote peer due to cluster ID mismatch",
                    "remote-peer-id" = contact.name,
                    "remote-peer-cluster-id" = cluster,
                    "local-member-id" = local.introduction.member,
                    "local-member-cluster-id" = local.introduction.cluster,
                    "error" = text
                );
            }
            Mismatch::Cluster.into()
        }
        StatusCode::PRECONDITION_FAILED if text == Mismatch::Origin.to_string() => {
            other_origin(local, contact, Mismatch::Origin)
        }
        StatusCode::PRECONDITION_FAILED => PostError::Precondition(text.to_owned()),
        StatusCode::FORBIDDEN | StatusCode::GONE => {
            // This report stops the member.
            local.consensus.report_removal();
            PostError::Removed
        }
        status => PostError::Status(status),
    }
}
