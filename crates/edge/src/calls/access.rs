//! The gate as calls pass it when their head has arrived: what the table says of a method, and what is left to the
//! services. When the message has been decoded, `authorized` checks the same again.
//!
//! The caller is left beside the request ([`client_of`]). Where nothing is found, authentication was off when the
//! call came: then it is the head of the request that tells, should it be on by now.
//!
//! Who shows no token is who the verified certificate of his connection names, where `--client-cert-auth` asks for one.
//! etcd's gateway speaks for others with a certificate that is not theirs, and says so in the head: its calls, as
//! proxies pass them on, are nobody's.

use std::sync::Arc;

use http::{Extensions, HeaderMap, Request};
use quorate_member::RequestError;
use quorate_member::access::{Client, Gate, Shown};
use quorate_member::admission::Source;

use super::asked::Asks;
use crate::methods::Needs;
use quorate_net::listen::ClientCertificate;
use quorate_telemetry::audit::CallAccount;
use quorate_telemetry::trace::CallTrace;

/// The metadata key by which a call shows that a gateway makes it for a client.
const OF_GATEWAY: &str = "grpcgateway-accept";

/// What spans and the audit log record of a call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noted {
    /// If it is followed.
    pub(crate) trace: Option<Arc<CallTrace>>,
    /// If there is an audit log.
    pub(crate) account: Option<Arc<CallAccount>>,
}

impl Noted {
    /// The call of who shows this.
    pub(crate) fn of(self, shown: Shown) -> Client {
        Client { shown, trace: self.trace, source: Source::default(), account: self.account }
    }
}

/// Checks what a method needs, and leaves who asks beside the request.
pub(crate) fn admit<B>(
    gate: &Gate,
    needs: Needs,
    request: &mut Request<B>,
    client: Client,
) -> Result<(), RequestError> {
    if let Some(account) = &client.account {
        account.note_user(gate.user_of(&client.shown));
    }
    check(gate, needs, &client.shown)?;
    request.extensions_mut().insert(client);
    Ok(())
}

/// Checks what a method needs, as far as its line in the table says.
pub(crate) fn check(gate: &Gate, needs: Needs, shown: &Shown) -> Result<(), RequestError> {
    match needs {
        Needs::Nothing | Needs::Judged | Needs::Message => Ok(()),
        Needs::User => gate.check_user(shown),
        Needs::Admin => gate.check_admin(shown),
    }
}

/// Whom the certificate of its connection makes the sender of a call, if anybody.
pub(crate) fn named<'a>(headers: &HeaderMap, extensions: &'a Extensions) -> Option<&'a Arc<str>> {
    let certificate = extensions.get::<Arc<ClientCertificate>>()?;
    (!headers.contains_key(OF_GATEWAY)).then_some(&certificate.common_name)
}

/// Leaves who asks beside a request of which nothing is checked, and something told.
pub(crate) fn leave<B>(request: &mut Request<B>, noted: Noted) {
    let shown = in_head(request.headers(), request.extensions());
    request.extensions_mut().insert(noted.of(shown));
}

/// The client that sent a request. What the request asks for is noted for the audit log.
pub(crate) fn client_of<T: Asks>(request: &tonic::Request<T>) -> Client {
    let client = found(request.extensions(), request.metadata().as_ref());
    if let Some(account) = &client.account {
        request.get_ref().note(account);
    }
    client
}

/// Who began a stream, by the head of its request.
pub(crate) fn client_by(head: &http::request::Parts) -> Client {
    found(&head.extensions, &head.headers)
}

fn found(extensions: &Extensions, headers: &HeaderMap) -> Client {
    let known = extensions.get::<Client>().cloned();
    let client = known.unwrap_or_else(|| Noted::default().of(in_head(headers, extensions)));
    match extensions.get::<Source>() {
        Some(source) => Client { source: *source, ..client },
        None => client,
    }
}

fn in_head(headers: &HeaderMap, extensions: &Extensions) -> Shown {
    Shown::in_head(headers).or_named(named(headers, extensions))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_gateway_is_not_who_its_certificate_says() {
        let certificate = ClientCertificate::new("root", Vec::new());
        let (mut headers, mut extensions) = (HeaderMap::new(), Extensions::new());
        assert!(named(&headers, &extensions).is_none());
        extensions.insert(Arc::new(certificate));
        assert_eq!(&**named(&headers, &extensions).unwrap(), "root");
        assert!(matches!(found(&extensions, &headers).shown, Shown::Named(_)));
        headers.insert("grpcgateway-accept", HeaderValue::from_static("*/*"));
        assert!(matches!(found(&extensions, &headers).shown, Shown::Nothing));
    }
}
