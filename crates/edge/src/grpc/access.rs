//! The gate as calls pass it: what the table says of a method, and what is left to the services.
//!
//! A service finds who asks beside the request ([`shown`]). Where nothing is found, authentication was off when the
//! call came: then it is the head of the request that tells, should it be on by now.

use http::{Extensions, Request};
use quorate_member::RequestError;
use quorate_member::access::{Gate, Shown};

use crate::methods::Needs;

/// Checks what a method needs, and leaves who asks beside the request.
pub(super) fn admit<B>(
    gate: &Gate,
    needs: Needs,
    request: &mut Request<B>,
    shown: Shown,
) -> Result<(), RequestError> {
    match needs {
        Needs::Nothing | Needs::Judged | Needs::Message => {}
        Needs::User => gate.check_user(&shown)?,
        Needs::Admin => gate.check_admin(&shown)?,
    }
    request.extensions_mut().insert(shown);
    Ok(())
}

/// Who sent a request.
pub(super) fn shown<T>(request: &tonic::Request<T>) -> Shown {
    found(request.extensions()).unwrap_or_else(|| Shown::in_head(request.metadata().as_ref()))
}

/// Who began a stream, by the head of its request.
pub(super) fn shown_by(head: &http::request::Parts) -> Shown {
    found(&head.extensions).unwrap_or_else(|| Shown::in_head(&head.headers))
}

fn found(extensions: &Extensions) -> Option<Shown> {
    extensions.get::<Shown>().cloned()
}
