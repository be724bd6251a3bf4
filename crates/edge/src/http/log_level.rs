//! `PUT /config/local/log`: changes the log level of a running member, as in etcd up to 3.4.
//!
//! The body is `{"Level":"DEBUG"}`; the response has no body. If authentication is on, the caller must be an
//! administrator, identified by a token (`Authorization`) or by the name in the connection's certificate. The changed
//! level is not saved and applies until the process ends.

use std::sync::Arc;

use http::{Method, Request, StatusCode};
use quorate_net::listen::IncomingBody;
use quorate_net::listen::{ClientCertificate, Ends};
use quorate_requests::access::{AccessControl, Credentials, Remembered};
use quorate_telemetry::log::{self, Level};
use serde::Deserialize;

use crate::calls::status::status;
use crate::json_gateway::http_status;
use quorate_http_pages::reply::{self, Reply};
use quorate_http_pages::unread_body::read_short;

const PATH: &str = "/config/local/log";

/// Maximum number of bytes read from a body.
const BODY_BYTES_MAX: usize = 1024;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Wanted {
    #[serde(alias = "level")]
    level: String,
}

/// Returns whether a request is for this endpoint. Requests with other methods are answered with "not found", as in
/// etcd.
pub(crate) fn is_at<B>(request: &Request<B>) -> bool {
    request.method() == Method::PUT && request.uri().path() == PATH
}

/// Answers a request for this endpoint.
pub(crate) async fn answer(
    access_control: &AccessControl,
    request: Request<IncomingBody>,
) -> Reply {
    let (head, body) = request.into_parts();
    let certificate = head.extensions.get::<Arc<ClientCertificate>>();
    let credentials =
        Credentials::in_head(&head.headers).or_named(certificate.map(|one| &one.common_name));
    let remote = head.extensions.get::<Ends>().and_then(|ends| ends.remote);
    let body = read_short(body, BODY_BYTES_MAX).await;
    let credentials = access_control.read(credentials, &Remembered::default()).await;
    // There must be no await between this check and the change of the level, so that the caller cannot lose the
    // permission in between.
    if let Err(error) = access_control.check_admin(&credentials) {
        let refused = status(error);
        log::warn!(
            "refused to change the log level",
            "user" = access_control.user_of(&credentials),
            "remote-addr" = remote.map(|remote| remote.to_string()),
            "error" = refused.message()
        );
        return error_reply(http_status(refused.code()), refused.message());
    }
    let Ok(Wanted { level: name }) = serde_json::from_slice(&body) else {
        return error_reply(StatusCode::BAD_REQUEST, "Invalid json body");
    };
    let Some(level) = level(&name) else {
        return error_reply(StatusCode::BAD_REQUEST, &format!("Invalid log level {name}"));
    };
    let report = || {
        log::warn!(
            "changed the log level",
            "level" = level.name(),
            "user" = access_control.user_of(&credentials),
            "remote-addr" = remote.map(|remote| remote.to_string())
        );
    };
    // If the old level includes warnings, the line is logged before the change. Otherwise it is logged after the
    // change, and appears if the new level includes warnings.
    if log::enabled(Level::Warn) {
        report();
        log::set_level(level);
    } else {
        log::set_level(level);
        report();
    }
    reply::empty(StatusCode::NO_CONTENT)
}

/// Returns the level with this name. The names of `--log-level` and of etcd 3.4 are accepted.
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

/// Returns an error in the format of etcd's HTTP endpoints.
fn error_reply(status: StatusCode, message: &str) -> Reply {
    let body = format!("{{\"message\":{}}}", reply::json(message));
    let mut answer = reply::typed("application/json", body);
    *answer.status_mut() = status;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_level_names_of_the_flag_and_of_older_etcd_versions_are_accepted() {
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
