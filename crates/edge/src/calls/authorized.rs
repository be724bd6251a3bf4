//! Authorization of decoded requests, immediately before they are executed.
//!
//! A call is authorized twice: when its headers arrive (`access::admit`), so that a refused caller does not have to
//! send a message, and here, when its message is decoded. The client controls how much time passes in between. During
//! this time, the client's user may be deleted, or authentication may be enabled.
//!
//! # Invariant
//!
//! A service receives a request only as [`Authorized`], which only [`authorize`] and [`authorize_message`] create.
//!
//! # Not here
//!
//! The requirements of methods (`methods`, `guarded`). Request streams, whose services (`watch`, `keep_alive`) check
//! each new watcher and each renewal. Requests whose permissions depend on the message (`Needs::Message`), which their
//! services check. Requests that are checked when they are applied (`Needs::Judged`).

use quorate_requests::access::{AccessControl, Client};
use tonic::metadata::MetadataMap;
use tonic::{Request, Status};

use super::access::{self, client_of};
use super::asked::Asks;
use super::request_body;
use super::status::status;
use crate::methods::Needs;

/// A decoded request whose caller is authorized to make it.
#[derive(Debug)]
pub(crate) struct Authorized<T> {
    client: Client,
    metadata: MetadataMap,
    message: T,
}

impl<T> Authorized<T> {
    pub(crate) const fn metadata(&self) -> &MetadataMap {
        &self.metadata
    }

    /// Returns the caller and the message.
    pub(crate) fn into_parts(self) -> (Client, T) {
        (self.client, self.message)
    }
}

/// Authorizes the caller of a decoded request. A compressed message is counted at its decoded size.
pub(crate) fn authorize<T: Asks + prost::Message>(
    access_control: &AccessControl,
    needs: Needs,
    request: Request<T>,
) -> Result<Authorized<T>, Status> {
    let client = client_of(&request);
    access::check(access_control, needs, &client.credentials).map_err(status)?;
    let (metadata, message) = request_body::take_in(request)?;
    Ok(Authorized { client, metadata, message })
}

/// Authorizes the caller of a message that was received uncompressed. The service receives no metadata.
pub(crate) fn authorize_message<T>(
    access_control: &AccessControl,
    needs: Needs,
    client: Client,
    message: T,
) -> Result<Authorized<T>, Status> {
    access::check(access_control, needs, &client.credentials).map_err(status)?;
    Ok(Authorized { client, metadata: MetadataMap::new(), message })
}
