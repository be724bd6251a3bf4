//! Checks clients' requests before they are executed, and determines the user of each write.
//!
//! Permissions are checked when the write is executed (`state::apply`). While authentication is enabled, a client
//! without credentials, or with an invalid token, is refused before its request reaches the data store, so that the
//! request occupies no space in the log. A write that reads ranges is also checked for permission before it occupies
//! memory for its lists.

use std::sync::Arc;

use bytes::Bytes;
use quorate_api::etcdserverpb::{InternalRaftRequest, TxnRequest};
use quorate_core::request::{Ask, Course, Ready, Step};
use quorate_net::runtime::blocking;
use quorate_state::apply::{AuthRefusal, Permission, Refusal, Response, check_overlap};
use quorate_telemetry::metrics::RequestKind;

use crate::access::{AccessControl, Client};
use crate::data_store::{DataStore, Write};
use crate::error::RequestError;
use crate::server_info::ServerInfo;

/// Maximum number of operations in a transaction whose operations are compared with each other on a connection thread.
/// Comparing this many operations takes less than a millisecond.
const COMPARED_INLINE_MAX: usize = 1_024;

/// Checks clients' requests and passes writes to the data store.
#[derive(Debug)]
pub struct Writer {
    info: Arc<ServerInfo>,
    access_control: Arc<AccessControl>,
    store: Arc<dyn DataStore>,
}

impl Writer {
    pub(crate) fn new(
        info: &Arc<ServerInfo>,
        access_control: &Arc<AccessControl>,
        store: &Arc<dyn DataStore>,
    ) -> Self {
        let (info, access_control) = (Arc::clone(info), Arc::clone(access_control));
        Self { info, access_control, store: Arc::clone(store) }
    }

    /// Checks a client's write or read before it is executed.
    pub async fn prepare(&self, client: &Client, ask: Ask<'_>) -> Result<Ready, RequestError> {
        let mut course = Course::new(self.info.limits().txn_ops_max);
        loop {
            match course.step(ask)? {
                Step::Credentials => self.check_credentials(client).await?,
                Step::Quota { cost } => self.check_room(client, cost).await?,
                Step::Compare { operation_count } => {
                    if let Ask::Txn(txn) = ask {
                        compare(txn, operation_count).await?;
                    }
                }
                Step::Ready(ready) => return Ok(ready),
            }
        }
    }

    /// Executes a client's request and waits for its outcome.
    pub async fn write_for(
        &self,
        client: &Client,
        request: InternalRaftRequest,
        kind: RequestKind,
    ) -> Result<Response, RequestError> {
        self.write(client, request, kind, None).await
    }

    /// Like [`Writer::write_for`], but also sets `kept` to the encoded request, for the log line about a slow request.
    pub async fn write_and_keep(
        &self,
        client: &Client,
        request: InternalRaftRequest,
        kind: RequestKind,
        kept: &mut Bytes,
    ) -> Result<Response, RequestError> {
        self.write(client, request, kind, Some(kept)).await
    }

    async fn write(
        &self,
        client: &Client,
        request: InternalRaftRequest,
        kind: RequestKind,
        kept: Option<&mut Bytes>,
    ) -> Result<Response, RequestError> {
        self.store.check_load(kind)?;
        if needs_user(kind) {
            self.check_credentials(client).await?;
        }
        let user = self.access_control.user_for_write(&client.credentials)?;
        let write = Write { request, kind, user, trace: client.trace.as_ref() };
        if self.store.check_write(&write).await.is_err() {
            self.store.read_barrier().await?;
            self.store.check_write(&write).await?;
        }
        self.store.write(write, kept).await
    }

    /// Refuses a client without credentials if authentication is enabled.
    async fn check_credentials(&self, client: &Client) -> Result<(), RequestError> {
        self.check_permission(client, |may| may.check_user()).await
    }

    /// Refuses a client that lacks a permission, if authentication is enabled. Intended for a write that occupies
    /// resources before it is proposed. The permissions that count are checked when the write is applied.
    ///
    /// Another server may have granted the permission or disabled authentication a moment ago, so before the client is
    /// refused, the check is repeated after a read barrier.
    pub async fn check_permission(
        &self,
        client: &Client,
        check: impl Fn(Permission<'_>) -> Result<(), AuthRefusal>,
    ) -> Result<(), RequestError> {
        if self.access_control.check(&client.credentials, &check).is_ok() {
            return Ok(());
        }
        self.store.read_barrier().await?;
        self.access_control.check(&client.credentials, &check)
    }

    /// Refuses a client's write that exceeds the quota, and raises the alarm. The client's credentials are checked
    /// first, because the alarm is a write.
    async fn check_room(&self, client: &Client, cost: u64) -> Result<(), RequestError> {
        if self.store.has_room(cost) {
            return Ok(());
        }
        self.check_credentials(client).await?;
        self.store.raise_no_space().await;
        Err(RequestError::Refused(Refusal::NoSpace))
    }
}

/// Checks that no two operations of a transaction conflict. Large transactions are checked on a blocking thread.
async fn compare(txn: &TxnRequest, operation_count: usize) -> Result<(), RequestError> {
    if operation_count <= COMPARED_INLINE_MAX {
        return Ok(check_overlap(txn)?);
    }
    let txn = txn.clone();
    Ok(blocking(move || check_overlap(&txn)).await?)
}

/// Returns whether requests of this kind are refused without credentials.
const fn needs_user(kind: RequestKind) -> bool {
    !matches!(kind, RequestKind::Authenticate)
}
