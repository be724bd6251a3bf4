//! Logs the cause of a connection problem that made a call fail. The error that the call returns does not contain this
//! cause.
//!
//! A call that timed out has no cause of its own, so the last connection error is logged as the likely cause. Errors
//! that the server returned are printed without a warning.

use quorate_tls::split_scheme;
use serde_json::Value;
use tonic::{Code, Status};

use super::{Client, Logger};
use crate::failure::status_text;

/// A log line about a failed call.
#[derive(Debug)]
pub struct Warning {
    /// The position in the source code, as in etcd's logs.
    pub caller: &'static str,
    /// The message of the line.
    pub message: &'static str,
    /// The fields and their values.
    pub fields: Vec<(&'static str, Value)>,
}

impl Client {
    /// Logs that a call failed because of a connection problem. `attempt` is the number of attempts.
    pub fn warn(&self, status: &Status, attempt: u64) {
        if is_refusal(status) {
            return;
        }
        let first = self.targets.first().map_or("", |target| &*target.text);
        let (_, authority) = split_scheme(first);
        let fields = vec![
            ("target", format!("etcd-endpoints://{:p}/{authority}", self.targets.as_ptr()).into()),
            ("attempt", attempt.into()),
            ("error", self.reason(status).into()),
        ];
        let caller = concat!("ctl/client/warning.rs:", line!());
        (self.logger.warn)(&Warning {
            caller,
            message: "retrying of unary invoker failed",
            fields,
        });
    }

    /// Disables warnings, for callers that report failures elsewhere.
    #[must_use]
    pub fn without_warnings(mut self) -> Self {
        self.logger.warn = Logger::default().warn;
        self
    }

    /// Returns the failure together with its likely cause.
    fn reason(&self, status: &Status) -> String {
        if status.code() != Code::DeadlineExceeded {
            return status_text(status);
        }
        let state = self.state.borrow();
        let detail = match &state.trouble {
            Some(trouble) => format!("latest balancer error: last connection error: {trouble}"),
            None if state.count == 0 => {
                "received context error while waiting for new LB policy update: context deadline exceeded".to_owned()
            }
            None => "context deadline exceeded".to_owned(),
        };
        format!("rpc error: code = DeadlineExceeded desc = {detail}")
    }
}

/// Returns whether the status was returned by a server.
fn is_refusal(status: &Status) -> bool {
    let is_ours = status.code() == Code::DeadlineExceeded
        || (status.code() == Code::Unavailable && !status.message().starts_with("etcdserver: "));
    !is_ours
}
