//! Access control when the headers of a call have arrived: checks the requirement of the method (`methods`).
//! When the message is decoded, `authorized` makes the same check again.
//!
//! The caller is stored in the request. If it is missing, authentication was off when the call arrived; it may
//! have been turned on since, so [`client_of`] reads the caller from the request's headers.
//!
//! A caller without a token is the user named in the connection's verified certificate, if
//! `--client-cert-auth` requires one. etcd's gateway sends its clients' calls with its own certificate and
//! marks them with a header; these calls, also when proxies forward them, have no user.

use std::sync::Arc;

use http::{Extensions, HeaderMap, Request};
use quorate_member::RequestError;
use quorate_member::access::{AccessControl, Client, Credentials};
use quorate_member::admission::LoginSource;

use super::asked::Asks;
use crate::methods::Needs;
use quorate_net::listen::ClientCertificate;
use quorate_telemetry::audit::CallAccount;
use quorate_telemetry::trace::CallTrace;

/// The metadata key that marks a call from a gateway.
const OF_GATEWAY: &str = "grpcgateway-accept";

/// The records of a call in traces and in the audit log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noted {
    /// The trace, if the call is traced.
    pub(crate) trace: Option<Arc<CallTrace>>,
    /// The audit record, if there is an audit log.
    pub(crate) account: Option<Arc<CallAccount>>,
}

impl Noted {
    /// Returns the client with these credentials and these records.
    pub(crate) fn of(self, credentials: Credentials) -> Client {
        Client {
            credentials,
            trace: self.trace,
            source: LoginSource::default(),
            account: self.account,
        }
    }
}

/// Checks the requirement of a method and stores the caller in the request.
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

/// Checks the requirement of a method as far as it does not depend on the message.
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

/// Returns the user in the connection's certificate, if the certificate identifies the caller.
pub(crate) fn named<'a>(headers: &HeaderMap, extensions: &'a Extensions) -> Option<&'a Arc<str>> {
    let certificate = extensions.get::<Arc<ClientCertificate>>()?;
    (!headers.contains_key(OF_GATEWAY)).then_some(&certificate.common_name)
}

/// Stores the caller in a request that is recorded but not checked.
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
