//! The warning that goes before the end of a call that failed on its way: the end alone does not say why.
//!
//! A call that was given up because its time was over has no reason of its own; what the last try to connect met is
//! the likely one. An error that the server has returned is printed as it is, without a warning.

use serde_json::Value;
use tonic::{Code, Status};

use super::{Client, Voice};
use crate::failure::status_text;

/// What is logged of a call.
#[derive(Debug)]
pub struct Warning {
    /// The place in the program, as in etcd's logs.
    pub caller: &'static str,
    /// The text.
    pub message: &'static str,
    /// The fields and their values.
    pub fields: Vec<(&'static str, Value)>,
}

impl Client {
    /// Warns of a call that failed on its way, after so many tries.
    pub fn warn(&self, status: &Status, attempt: u64) {
        if is_refusal(status) {
            return;
        }
        let first = self.targets.first().map_or("", |target| &*target.text);
        let authority = first.split_once("://").map_or(first, |(_, rest)| rest);
        let fields = vec![
            (
                "target",
                format!("etcd-endpoints://{:p}/{authority}", &raw const self.targets).into(),
            ),
            ("attempt", attempt.into()),
            ("error", self.reason(status).into()),
        ];
        let caller = concat!("ctl/client/warning.rs:", line!());
        (self.voice.warn)(&Warning { caller, message: "retrying of unary invoker failed", fields });
    }

    /// Disables warnings, for callers that show failures in another place.
    #[must_use]
    pub fn unwarning(mut self) -> Self {
        self.voice.warn = Voice::default().warn;
        self
    }

    /// The failure, with what is known of its cause.
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

/// Whether a server has said why.
fn is_refusal(status: &Status) -> bool {
    let is_ours = status.code() == Code::DeadlineExceeded
        || (status.code() == Code::Unavailable && !status.message().starts_with("etcdserver: "));
    !is_ours
}
