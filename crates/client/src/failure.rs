//! The failure of a command: a message on standard error and an exit code.

use quorate_api::code;
use tonic::{Code, Status};

/// The exit codes that scripts rely on.
pub mod exit {
    /// The cluster refused the request, or an error occurred that has no exit code of its own.
    pub const ERROR: u8 = 1;
    /// No connection could be established.
    pub const BAD_CONNECTION: u8 = 2;
    /// Standard input is malformed.
    pub const INVALID_INPUT: u8 = 3;
    /// The value of an option is not supported.
    pub const BAD_FEATURE: u8 = 4;
    /// A signal ended the command.
    pub const INTERRUPTED: u8 = 5;
    /// The command line is invalid.
    pub const BAD_ARGS: u8 = 128;
}

/// The failure of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code of the command.
    pub code: u8,
    /// The text after `Error: `; `None` if it is already printed.
    pub message: Option<String>,
}

impl Failure {
    /// Creates a failure with this exit code.
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: Some(message.into()) }
    }

    /// Creates a failure with the general exit code.
    pub fn error(message: impl Into<String>) -> Self {
        Self::new(exit::ERROR, message)
    }

    /// Creates a failure for an invalid command line.
    pub fn bad_args(message: impl Into<String>) -> Self {
        Self::new(exit::BAD_ARGS, message)
    }

    /// Creates a failure whose reason has already been printed.
    #[must_use]
    pub const fn silent(code: u8) -> Self {
        Self { code, message: None }
    }
}

/// A failed call ends a command with code 1, unless the command handles it.
impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::error(status_text(&status))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::error(error.to_string())
    }
}

/// Returns the text of a failed call, as in etcd's tools. For a timeout or a cancellation, the text is that of Go's
/// contexts. For a refusal by the server, it is only the message. Otherwise, it includes the gRPC code.
#[must_use]
pub fn status_text(status: &Status) -> String {
    let message = status.message();
    match status.code() {
        Code::DeadlineExceeded => "context deadline exceeded".to_owned(),
        Code::Cancelled => "context canceled".to_owned(),
        _ if message.starts_with("etcdserver: ") => message.to_owned(),
        other => format!("rpc error: code = {} desc = {message}", code::name(other)),
    }
}

/// Rewords an operating system error like Go: without its number and starting in lower case.
#[must_use]
pub fn system_text(reason: &str) -> String {
    let words = reason.split_once(" (os error").map_or(reason, |(words, _)| words);
    let mut letters = words.chars();
    match letters.next() {
        Some(first) if letters.clone().next().is_some_and(char::is_lowercase) => {
            first.to_lowercase().chain(letters).collect()
        }
        Some(_) | None => words.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_texts_match_etcdctl() {
        let text = |code, message: &str| status_text(&Status::new(code, message));
        let compacted = "etcdserver: mvcc: required revision has been compacted";
        assert_eq!(text(Code::OutOfRange, compacted), compacted);
        assert_eq!(text(Code::DeadlineExceeded, "any"), "context deadline exceeded");
        assert_eq!(
            text(Code::Unimplemented, "unknown service"),
            "rpc error: code = Unimplemented desc = unknown service"
        );
    }
}
