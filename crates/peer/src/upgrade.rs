//! A connection to a server's peer port that switches from HTTP to another protocol.
//!
//! # Not here
//!
//! The protocol, and the proof that the other side may use it.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;

use crate::call::CallError;
use crate::dialer::{Dialer, Target};

/// Why a connection could not be upgraded.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// The connection failed, or the server does not speak HTTP.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The server refused to switch to the protocol.
    #[error("{url}: the server responded with {status}")]
    Refused {
        /// The URL of the request.
        url: String,
        /// The status of the response.
        status: StatusCode,
    },
}

/// Connects to a peer URL and switches to `protocol`. The connection is closed if sent data is not acknowledged for
/// `silence_max`.
///
/// # Errors
///
/// The server cannot be reached within `timeout`, or does not support the protocol.
pub async fn upgrade(
    (base, path): (&str, &str),
    protocol: &'static str,
    dialer: &Dialer,
    (timeout, silence_max): (Duration, Duration),
) -> Result<TokioIo<Upgraded>, UpgradeError> {
    let url = format!("{base}{path}");
    let target = Target::of(base).ok_or_else(|| CallError::Url(url.clone()))?;
    let connecting = async {
        let dial = |error| CallError::dial(&url, &target, &error);
        let http = |error| CallError::http(&url, &error);
        let stream = dialer.connect(&target, Some(silence_max)).await.map_err(dial)?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(http)?;
        // Connection errors are returned to the reader of the upgraded connection.
        tokio::spawn(async move { drop(connection.with_upgrades().await) });
        let request = Request::get(path)
            .header(header::HOST, target.authority())
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, protocol)
            .body(Full::<Bytes>::default())
            .map_err(|_| CallError::Url(url.clone()))?;
        let answer = sender.send_request(request).await.map_err(http)?;
        let status = answer.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            return Err(UpgradeError::Refused { url: url.clone(), status });
        }
        Ok(TokioIo::new(hyper::upgrade::on(answer).await.map_err(http)?))
    };
    match tokio::time::timeout(timeout, connecting).await {
        Ok(upgraded) => upgraded,
        Err(_) => Err(CallError::Deadline { url: url.clone() }.into()),
    }
}
