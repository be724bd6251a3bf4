//! Authorization of decoded requests, immediately before they act.
//!
//! A call is authorized twice. When its head arrives (`access::admit`), so that a caller who is refused need not send a
//! message; and here, when its message has been decoded. The client decides how much time passes in between, and
//! meanwhile its user may have been deleted or authentication enabled.
//!
//! # Invariant
//!
//! A service receives a request only as [`Authorized`], and [`authorize`] is the only way to make one.
//!
//! # Not here
//!
//! Which method needs what (`methods`, `guarded`). Streams of the client's (`watch`, `keep_alive`), which ask the gate for
//! each of their messages. Requests whose rights depend on the message (`Needs::Message`): their services ask the gate.
//! Requests that the log judges (`Needs::Judged`).

use quorate_member::access::{Client, Gate};
use tonic::metadata::MetadataMap;
use tonic::{Request, Status};

use super::access::{self, client_of};
use super::asked::Asks;
use super::request_body;
use super::status::status;
use crate::methods::Needs;

/// A decoded request whose caller was authorized when it was decoded.
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

    /// The caller and the message. The rest of the request is dropped.
    pub(crate) fn into_parts(self) -> (Client, T) {
        (self.client, self.message)
    }
}

/// Authorizes the caller of a decoded request. A message that arrived compressed is counted at its full size.
pub(crate) fn authorize<T: Asks + prost::Message>(
    gate: &Gate,
    needs: Needs,
    request: Request<T>,
) -> Result<Authorized<T>, Status> {
    let client = client_of(&request);
    access::check(gate, needs, &client.shown).map_err(status)?;
    let (metadata, message) = request_body::take_in(request)?;
    Ok(Authorized { client, metadata, message })
}
