//! Access control when the headers of a call arrive: checks that the caller meets the requirement of the method
//! (`methods`). `authorized` repeats the check when the message is decoded.
//!
//! The caller is stored in the request. If no caller is stored, the method has no requirement, or authentication was
//! off when the call arrived. Because authentication may have been turned on since, [`client_of`] then reads the caller
//! from the request's headers.
//!
//! A caller without a token is identified as the user named in the connection's verified certificate, if
//! `--client-cert-auth` requires certificates. etcd's gateway forwards its clients' calls over a connection with its
//! own certificate, and marks them with a header. A call with this header has no user unless it has a token, even if a
//! proxy forwards it.

use std::sync::Arc;

use http::{Extensions, HeaderMap, Request};
use quorate_requests::RequestError;
use quorate_requests::access::{AccessControl, Client, Credentials};
use quorate_requests::admission::LoginSource;

use super::asked::Asks;
use crate::methods::Needs;
use quorate_net::listen::ClientCertificate;
use quorate_telemetry::audit::CallAccount;
use quorate_telemetry::trace::CallTrace;

/// The metadata key that marks a call as sent by a gateway.
const OF_GATEWAY: &str = "grpcgateway-accept";

/// Trace and audit record of a call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noted {
    /// The trace, if the call is traced.
    pub(crate) trace: Option<Arc<CallTrace>>,
    /// The audit record, if there is an audit log.
    pub(crate) account: Option<Arc<CallAccount>>,
}

impl Noted {
    /// Returns a client with the given credentials and with this trace and audit record.
    pub(crate) fn of(self, credentials: Credentials) -> Client {
        Client {
            credentials,
            trace: self.trace,
            source: LoginSource::default(),
            account: self.account,
        }
    }
}

/// Checks that the caller meets the requirement of a method, and stores the caller in the request.
pub(crate) fn admit<B>(
    access_control: &AccessControl,
    needs: Needs,
    request: &mut Request<B>,
    client: Client,
) -> Result<(), RequestError> {
    if let Some(account) = &client.account {
        account.note_user(access_control.user_of(&client.credentials));
    }
    check(access_control, needs, &client.credentials)?;
    request.extensions_mut().insert(client);
    Ok(())
}

/// Checks that the caller meets the requirement of a method, unless the requirement depends on the message.
pub(crate) fn check(
    access_control: &AccessControl,
    needs: Needs,
    credentials: &Credentials,
) -> Result<(), RequestError> {
    match needs {
        Needs::Nothing | Needs::Judged | Needs::Message => Ok(()),
        Needs::User => access_control.check_user(credentials),
        Needs::Admin => access_control.check_admin(credentials),
    }
}

/// Returns the user named in the connection's certificate, if that user is the caller.
pub(crate) fn named<'a>(headers: &HeaderMap, extensions: &'a Extensions) -> Option<&'a Arc<str>> {
    named_by(headers, extensions.get::<Arc<ClientCertificate>>())
}

/// Returns the user named in a connection's certificate, if the certificate identifies the caller.
pub(crate) fn named_by<'a>(
    headers: &HeaderMap,
    certificate: Option<&'a Arc<ClientCertificate>>,
) -> Option<&'a Arc<str>> {
    let certificate = certificate?;
    (!is_of_gateway(headers)).then_some(&certificate.common_name)
}

/// Returns whether a gateway sent this call on behalf of one of its clients.
pub(crate) fn is_of_gateway(headers: &HeaderMap) -> bool {
    headers.contains_key(OF_GATEWAY)
}

/// Stores the caller in a request that is traced or audited but needs no check.
pub(crate) fn leave<B>(request: &mut Request<B>, noted: Noted) {
    let credentials = in_head(request.headers(), request.extensions());
    request.extensions_mut().insert(noted.of(credentials));
}

/// Returns the client that sent a request, and adds the request to its audit record.
pub(crate) fn client_of<T: Asks>(request: &tonic::Request<T>) -> Client {
    let client = found(request.extensions(), request.metadata().as_ref());
    if let Some(account) = &client.account {
        request.get_ref().note(account);
    }
    client
}

/// Returns the client that opened a stream, from the headers of its request.
pub(crate) fn client_by(head: &http::request::Parts) -> Client {
    found(&head.extensions, &head.headers)
}

fn found(extensions: &Extensions, headers: &HeaderMap) -> Client {
    let known = extensions.get::<Client>().cloned();
    let client = known.unwrap_or_else(|| Noted::default().of(in_head(headers, extensions)));
    match extensions.get::<LoginSource>() {
        Some(source) => Client { source: *source, ..client },
        None => client,
    }
}

fn in_head(headers: &HeaderMap, extensions: &Extensions) -> Credentials {
    Credentials::in_head(headers).or_named(named(headers, extensions))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_gateways_certificate_does_not_identify_the_caller() {
        let certificate = ClientCertificate::new("root", Vec::new());
        let (mut headers, mut extensions) = (HeaderMap::new(), Extensions::new());
        assert!(named(&headers, &extensions).is_none());
        extensions.insert(Arc::new(certificate));
        assert_eq!(&**named(&headers, &extensions).unwrap(), "root");
        assert!(matches!(found(&extensions, &headers).credentials, Credentials::Named(_)));
        headers.insert("grpcgateway-accept", HeaderValue::from_static("*/*"));
        assert!(matches!(found(&extensions, &headers).credentials, Credentials::Nothing));
    }
}
