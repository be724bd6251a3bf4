//! A client that asks for something: who it is, and what is told of that.

use std::sync::Arc;

use quorate_telemetry::audit::CallAccount;
use quorate_telemetry::trace::{Attribute, CallTrace, Operation};

use super::credentials::Credentials;
use crate::requests::admission::LoginSource;

/// See the module.
#[derive(Clone, Debug)]
pub struct Client {
    /// What it shows of who it is.
    pub credentials: Credentials,
    /// The call, if it is followed.
    pub trace: Option<Arc<CallTrace>>,
    /// Where a login comes from. Other calls do not say.
    pub source: LoginSource,
    /// What is noted of the call for the audit log, if there is one.
    pub account: Option<Arc<CallAccount>>,
}

impl Client {
    /// Begins an operation of this client's, if its call is followed. It lasts until it is dropped.
    #[must_use]
    pub fn operation(
        &self,
        name: &'static str,
        told: impl FnOnce() -> Vec<Attribute>,
    ) -> Option<Operation> {
        self.trace.as_ref().map(|trace| trace.operation(name, told()))
    }
}
