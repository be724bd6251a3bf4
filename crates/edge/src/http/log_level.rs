//! `PUT /config/local/log`: another log level while the member runs, as etcd up to 3.4 had it.
//!
//! The body is `{"Level":"DEBUG"}`; the answer has no body. Where authentication is on, the caller has to be an administrator, shown by
//! a token (`Authorization`) or by the name in the certificate of the connection. The level holds until the process ends: nothing is
//! written to the configuration.

use std::sync::Arc;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use quorate_member::access::{Gate, Remembered, Shown};
use quorate_net::listen::{ClientCertificate, Ends};
use quorate_telemetry::log::{self, Level};
use serde::Deserialize;

use crate::calls::status::status;
use crate::json_gateway::http_status;
use quorate_http_pages::reply::{self, Reply};
use quorate_http_pages::unread_body::read_short;

const PATH: &str = "/config/local/log";

/// Longest body that is read.
const BODY_BYTES_MAX: usize = 1024;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Wanted {
    #[serde(alias = "level")]
    level: String,
}

/// Whether a request is for this page. Every other method finds nothing here, as with etcd.
pub(crate) fn is_at<B>(request: &Request<B>) -> bool {
    request.method() == Method::PUT && request.uri().path() == PATH
}

/// Answers a request that is for this page.
pub(crate) async fn answer(gate: &Gate, request: Request<Incoming>) -> Reply {
    let (head, body) = request.into_parts();
    let certificate = head.extensions.get::<Arc<ClientCertificate>>();
    let shown = Shown::in_head(&head.headers).or_named(certificate.map(|one| &one.common_name));
    let remote = head.extensions.get::<Ends>().and_then(|ends| ends.remote);
    let body = read_short(body, BODY_BYTES_MAX).await;
    let shown = gate.read(shown, &Remembered::default()).await;
    // From here to the change nothing is waited for.
    if let Err(error) = gate.check_admin(&shown) {
        let refused = status(error);
        log::warn!(
            "refused to change the log level",
            "user" = gate.user_of(&shown),
            "remote-addr" = remote.map(|remote| remote.to_string()),
            "error" = refused.message()
        );
        return told(http_status(refused.code()), refused.message());
    }
    let Ok(Wanted { level: name }) = serde_json::from_slice(&body) else {
        return told(StatusCode::BAD_REQUEST, "Invalid json body");
    };
    let Some(level) = level(&name) else {
        return told(StatusCode::BAD_REQUEST, &format!("Invalid log level {name}"));
    };
    let report = || {
        log::warn!(
            "changed the log level",
            "level" = level.name(),
            "user" = gate.user_of(&shown),
            "remote-addr" = remote.map(|remote| remote.to_string())
        );
    };
    // At whichever of the two levels the line is written.
    if log::enabled(Level::Warn) {
        report();
        log::set_level(level);
    } else {
        log::set_level(level);
        report();
    }
    reply::empty(StatusCode::NO_CONTENT)
}

/// The level of this name: one of `--log-level`, or of etcd 3.4's.
fn level(name: &str) -> Option<Level> {
    let name = name.to_ascii_lowercase();
    match &*name {
        "trace" => Some(Level::Debug),
        "notice" => Some(Level::Info),
        "warning" => Some(Level::Warn),
        "critical" => Some(Level::Fatal),
        _ => Level::ALL.into_iter().find(|level| level.name() == name),
    }
}

/// An error as etcd's HTTP pages have it.
fn told(status: StatusCode, message: &str) -> Reply {
    let body = format!("{{\"message\":{}}}", reply::json(message));
    let mut answer = reply::typed("application/json", body);
    *answer.status_mut() = status;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_flag_and_of_older_etcd() {
        for (name, expected) in [
            ("DEBUG", Some(Level::Debug)),
            ("info", Some(Level::Info)),
            ("NOTICE", Some(Level::Info)),
            ("Warning", Some(Level::Warn)),
            ("warn", Some(Level::Warn)),
            ("CRITICAL", Some(Level::Fatal)),
            ("", None),
            ("loud", None),
        ] {
            assert_eq!(level(name), expected, "{name}");
        }
    }
}
