//! The client of a request: its credentials, and the trace and audit records of its call.

use std::sync::Arc;

use quorate_telemetry::audit::CallAccount;
use quorate_telemetry::trace::{Attribute, CallTrace, Operation};

use super::credentials::Credentials;
use crate::admission::LoginSource;

/// The client of a request.
#[derive(Clone, Debug)]
pub struct Client {
    /// The credentials of the request.
    pub credentials: Credentials,
    /// The trace of the call, if the call is traced.
    pub trace: Option<Arc<CallTrace>>,
    /// The source of a login. For other calls, the default value.
    pub source: LoginSource,
    /// The audit record of the call, if there is an audit log.
    pub account: Option<Arc<CallAccount>>,
}

impl Client {
    /// Begins an operation in the trace of the call, if the call is traced. The operation ends when the result is
    /// dropped.
    #[must_use]
    pub fn operation(
        &self,
        name: &'static str,
        attributes: impl FnOnce() -> Vec<Attribute>,
    ) -> Option<Operation> {
        self.trace.as_ref().map(|trace| trace.operation(name, attributes()))
    }
}
