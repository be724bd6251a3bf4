//! The errors of the API: a stable code by which the page distinguishes errors, the HTTP status, and texts for the
//! user.
//!
//! # Guarantees
//!
//! * The text of a refusal by the cluster is the cluster's own text, unless the refusal requests a login. It never
//!   contains a token or a password.

use quorate_api::code;
use quorate_client::failure::status_text;
use serde_json::{Map, Value, json};
use tonic::{Code, Status};

/// The kinds of errors, each with its own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    BadRequest,
    RefusedHost,
    RefusedOrigin,
    MissingHeader,
    LoginRequired,
    TokenExpired,
    LoginFailed,
    AuthenticationOff,
    AuthenticationChanged,
    PlaintextLogin,
    PlaintextMember,
    PermissionDenied,
    ReadOnly,
    NotFound,
    Changed,
    Compacted,
    FutureRevision,
    TooLarge,
    Busy,
    Cluster,
    Unavailable,
    Timeout,
}

impl Kind {
    /// Returns the code and the HTTP status.
    const fn code(self) -> (&'static str, u16) {
        match self {
            Self::BadRequest => ("bad_request", 400),
            Self::RefusedHost => ("refused_host", 403),
            Self::RefusedOrigin => ("refused_origin", 403),
            Self::MissingHeader => ("missing_header", 403),
            Self::LoginRequired => ("login_required", 401),
            Self::TokenExpired => ("token_expired", 401),
            Self::LoginFailed => ("login_failed", 401),
            Self::AuthenticationOff => ("authentication_off", 403),
            Self::AuthenticationChanged => ("authentication_changed", 403),
            Self::PlaintextLogin => ("plaintext_login", 403),
            Self::PlaintextMember => ("plaintext_member", 403),
            Self::PermissionDenied => ("permission_denied", 403),
            Self::ReadOnly => ("read_only", 403),
            Self::NotFound => ("not_found", 404),
            Self::Changed => ("changed", 409),
            Self::Compacted => ("compacted", 410),
            Self::FutureRevision => ("future_revision", 400),
            Self::TooLarge => ("too_large", 413),
            Self::Busy => ("busy", 429),
            Self::Cluster => ("cluster", 502),
            Self::Unavailable => ("unavailable", 503),
            Self::Timeout => ("timeout", 504),
        }
    }
}

/// An error of the API.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    grpc: Option<&'static str>,
    advice: Option<String>,
    /// An additional field of the error.
    detail: Option<(&'static str, Value)>,
}

impl Refusal {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), grpc: None, advice: None, detail: None }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Kind::BadRequest, message)
    }

    pub(crate) fn advising(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }

    pub(crate) fn with(self, name: &'static str, value: Value) -> Self {
        Self { detail: Some((name, value)), ..self }
    }

    pub(crate) fn no_answer() -> Self {
        Self::new(Kind::Timeout, "the cluster did not respond in time")
    }

    pub(crate) fn login_required() -> Self {
        Self::new(Kind::LoginRequired, "authentication is on in this cluster: log in first")
    }

    /// Returns the refusal for a failed call. If a call without a login is refused because of its token, the refusal
    /// requests a login.
    pub(crate) fn of(status: &Status, is_logged_in: bool) -> Self {
        let message = status.message();
        let kind = match message {
            "etcdserver: invalid auth token" | "etcdserver: revision of auth store is old"
                if is_logged_in =>
            {
                Kind::TokenExpired
            }
            "etcdserver: invalid auth token"
            | "etcdserver: revision of auth store is old"
            | "etcdserver: user name is empty" => return Self::login_required(),
            "etcdserver: authentication failed, invalid user ID or password" => Kind::LoginFailed,
            "etcdserver: mvcc: required revision has been compacted" => Kind::Compacted,
            "etcdserver: mvcc: required revision is a future revision" => Kind::FutureRevision,
            _ => match status.code() {
                Code::PermissionDenied => Kind::PermissionDenied,
                Code::NotFound => Kind::NotFound,
                Code::Unauthenticated => Kind::TokenExpired,
                Code::DeadlineExceeded => Kind::Timeout,
                Code::Unavailable => Kind::Unavailable,
                Code::ResourceExhausted if message.contains("larger than max") => Kind::TooLarge,
                _ => Kind::Cluster,
            },
        };
        let advice = match kind {
            Kind::PermissionDenied => Some("The logged-in user does not have permission for this."),
            Kind::TokenExpired => Some("Log in again."),
            _ => None,
        };
        Self {
            kind,
            message: status_text(status),
            grpc: Some(code::name(status.code())),
            advice: advice.map(str::to_owned),
            detail: None,
        }
    }

    /// Returns the error as one string.
    pub(crate) fn text(&self) -> String {
        match &self.advice {
            Some(advice) => format!("{}. {advice}", self.message),
            None => self.message.clone(),
        }
    }

    /// Returns the HTTP status.
    pub(crate) const fn http_status(&self) -> u16 {
        self.kind.code().1
    }

    /// Returns the error as JSON.
    pub(crate) fn json(&self) -> Value {
        let mut error = Map::new();
        error.insert("code".to_owned(), self.kind.code().0.into());
        error.insert("message".to_owned(), self.message.clone().into());
        error.insert("grpc".to_owned(), json!(self.grpc));
        error.insert("advice".to_owned(), json!(self.advice));
        if let Some((name, value)) = &self.detail {
            error.insert((*name).to_owned(), value.clone());
        }
        Value::Object(error)
    }
}

/// Returns the size of a message that was refused because of its size.
pub(crate) fn refused_size(refusal: &Refusal) -> Option<u64> {
    let (_, rest) = refusal.message.split_once("larger than max (")?;
    rest.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(code: Code, message: &str, is_logged_in: bool) -> Kind {
        Refusal::of(&Status::new(code, message), is_logged_in).kind
    }

    #[test]
    fn refusals_by_the_cluster_are_mapped_to_error_kinds() {
        let invalid = "etcdserver: invalid auth token";
        assert_eq!(kind(Code::Unauthenticated, invalid, true), Kind::TokenExpired);
        assert_eq!(kind(Code::Unauthenticated, invalid, false), Kind::LoginRequired);
        let denied = "etcdserver: permission denied";
        assert_eq!(kind(Code::PermissionDenied, denied, true), Kind::PermissionDenied);
        assert_eq!(kind(Code::Unavailable, "etcdserver: no leader", true), Kind::Unavailable);
        assert_eq!(kind(Code::InvalidArgument, "etcdserver: x", true), Kind::Cluster);
    }

    #[test]
    fn an_error_contains_the_text_and_the_grpc_code_from_the_cluster() {
        let status = Status::new(Code::PermissionDenied, "etcdserver: permission denied");
        let error = Refusal::of(&status, true).json();
        assert_eq!(error["code"], "permission_denied");
        assert_eq!(error["message"], "etcdserver: permission denied");
        assert_eq!(error["grpc"], "PermissionDenied");
        let changed = Refusal::new(Kind::Changed, "changed").with("current", Value::Null).json();
        assert!(changed.as_object().unwrap().contains_key("current"));
    }

    #[test]
    fn the_size_of_a_refused_message_is_read_from_its_error() {
        let text = "grpc: received message larger than max (104857689 vs. 16777216)";
        let refusal = Refusal::of(&Status::resource_exhausted(text), true);
        assert_eq!((refusal.kind, refused_size(&refusal)), (Kind::TooLarge, Some(104_857_689)));
        assert_eq!(refused_size(&Refusal::no_answer()), None);
    }
}
