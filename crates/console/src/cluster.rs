//! Calls to the cluster, each made as the user who requested it.
//!
//! The console has connections, but no user of its own: every call carries the token of the caller, and a call without
//! a login carries no token. If the console has a client certificate, the certificate may name a user of the cluster. A
//! call without a login then carries an invalid token ([`ANONYMOUS`]). Without this token, a cluster whose
//! authentication is enabled would treat the call as a call of the certificate's user. While authentication is off, the
//! cluster ignores tokens.
//!
//! # Bound
//!
//! * A response is at most [`RECEIVE_BYTES_MAX`] bytes long. A larger response is refused before it is read.
//! * Every call except a stream has a time limit.

use std::net::{IpAddr, UdpSocket};
use std::rc::Rc;
use std::time::Duration;

use prost::Message;
use quorate_api::etcdserverpb::{Member, MemberListRequest, RangeRequest, RangeResponse};
use quorate_client::credentials::{Credentials, Token, token};
use quorate_client::failure::Failure;
use quorate_client::transport::Transport;
use quorate_client::{Client, Limits, Logger, Repeat, Timeouts};
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use crate::refusal::{Kind, Refusal};

/// Maximum length of a response, in bytes.
pub(crate) const RECEIVE_BYTES_MAX: usize = 16 << 20;

/// Time limits of read-only calls and of calls that change the cluster.
const READ_TIME_MAX: Duration = Duration::from_secs(10);
const CHANGE_TIME_MAX: Duration = Duration::from_secs(30);

/// Maximum number of attempts for a read-only call, and the pause between two attempts.
const READ_ATTEMPTS: usize = 3;
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The token of a call that must not be made as the user in the console's certificate.
const ANONYMOUS: &str = "console.anonymous";

/// The settings with which the console connects to its cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The endpoints of the cluster.
    pub endpoints: Vec<String>,
    /// The TLS settings of connections to the endpoints.
    pub transport: Transport,
    /// The time limits of connections.
    pub timeouts: Timeouts,
}

impl Cluster {
    /// Returns a client for these endpoints, without a user.
    pub(crate) fn connect(&self, endpoints: Vec<String>) -> Result<Client, Failure> {
        let limits = Limits::new(0, RECEIVE_BYTES_MAX)?;
        let anonymous = Rc::new(Credentials::None);
        let logger = Logger::default();
        let client =
            Client::new(endpoints, &self.transport, anonymous, self.timeouts, limits, logger);
        Ok(client?.failing_fast())
    }

    /// Returns whether the console's connections have access that other users of the machine lack, because they use a
    /// certificate, or a socket that the file system protects.
    pub(crate) fn lends_access(&self) -> bool {
        let is_socket = |endpoint: &String| endpoint.starts_with("unix");
        !self.transport.cert.is_empty() || self.endpoints.iter().any(is_socket)
    }

    /// Returns whether a password would leave this machine in plaintext.
    pub(crate) fn sends_plaintext(&self) -> bool {
        self.endpoints.iter().any(|endpoint| {
            let (scheme, rest) = endpoint.split_once("://").unwrap_or(("", endpoint));
            match scheme {
                "https" | "unix" | "unixs" => false,
                "" if self.transport.is_asked_for() => false,
                _ => !is_own_host(rest.split('/').next().unwrap_or(rest)),
            }
        })
    }

    /// Returns the token for a call: the caller's token or, without a login, [`ANONYMOUS`] if the console has a client
    /// certificate.
    pub(crate) fn token_of(&self, caller: Option<Token>) -> Option<Token> {
        let needs_one = caller.is_none() && !self.transport.cert.is_empty();
        if needs_one { token(ANONYMOUS) } else { caller }
    }
}

/// Returns whether the host in an authority (a host with a port) is this machine. The only accepted name is
/// `localhost`. Any other name is resolved again for each connection, and may then resolve to another machine.
fn is_own_host(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    };
    if host.is_empty() || host.eq_ignore_ascii_case("localhost") {
        return true;
    }
    // The system allows a socket to be bound only to the machine's own addresses.
    host.parse::<IpAddr>()
        .is_ok_and(|address| address.is_loopback() || UdpSocket::bind((address, 0)).is_ok())
}

/// A caller, with or without a user, that uses the console's connections.
pub(crate) struct Caller {
    pub(crate) client: Client,
    pub(crate) is_logged_in: bool,
}

impl Caller {
    pub(crate) fn refusal(&self, status: &Status) -> Refusal {
        Refusal::of(status, self.is_logged_in)
    }

    /// Makes a read-only call. If the connection to the member is lost, the call is repeated on another member.
    pub(crate) async fn read<M, R>(
        &self,
        message: M,
        make: impl AsyncFn(Channel, Request<M>) -> Result<Response<R>, Status>,
    ) -> Result<R, Refusal>
    where
        M: Clone + Message,
    {
        let asking = async {
            let mut attempts = 1;
            loop {
                let asked =
                    Box::pin(self.client.call(None, Repeat::Safe, message.clone(), &make)).await;
                match asked {
                    Err(status) if is_lost(&status) && attempts < READ_ATTEMPTS => {
                        attempts += 1;
                        sleep(RETRY_PAUSE).await;
                    }
                    asked => return asked.map_err(|status| self.refusal(&status)),
                }
            }
        };
        timeout(READ_TIME_MAX, asking).await.unwrap_or_else(|_| Err(Refusal::no_answer()))
    }

    /// Makes a call that changes the cluster. Such a call is never repeated.
    pub(crate) async fn change<M, R>(
        &self,
        message: M,
        make: impl AsyncFn(Channel, Request<M>) -> Result<Response<R>, Status>,
    ) -> Result<R, Refusal>
    where
        M: Clone + Message,
    {
        self.change_within(CHANGE_TIME_MAX, message, make).await
    }

    /// Makes a call that changes the cluster, with this time limit.
    pub(crate) async fn change_within<M, R>(
        &self,
        time_limit: Duration,
        message: M,
        make: impl AsyncFn(Channel, Request<M>) -> Result<Response<R>, Status>,
    ) -> Result<R, Refusal>
    where
        M: Clone + Message,
    {
        let asking = Box::pin(self.client.call(None, Repeat::Never, message, make));
        match timeout(time_limit, asking).await {
            Ok(asked) => asked.map_err(|status| self.refusal(&status)),
            Err(_) => Err(Refusal::new(
                Kind::Timeout,
                "the cluster did not respond in time; the change may still take effect",
            )),
        }
    }

    pub(crate) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Refusal> {
        self.read(request, async |channel, request| self.client.kv(channel).range(request).await)
            .await
    }

    pub(crate) async fn members(&self) -> Result<Vec<Member>, Refusal> {
        let list = async |channel, request| self.client.cluster(channel).member_list(request).await;
        Ok(self.read(MemberListRequest { linearizable: false }, list).await?.members)
    }
}

/// Returns whether a call failed because of its connection. Such a call may succeed on another member.
fn is_lost(status: &Status) -> bool {
    status.code() == Code::Unavailable && !status.message().starts_with("etcdserver: ")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a cluster without endpoints, with this value for all timeouts.
    pub(crate) fn cluster(timeout: Duration) -> Cluster {
        let timeouts =
            Timeouts { dial_timeout: timeout, keepalive_time: timeout, keepalive_timeout: timeout };
        Cluster { endpoints: Vec::new(), transport: Transport::default(), timeouts }
    }

    #[test]
    fn an_anonymous_call_is_never_made_as_the_user_in_the_consoles_certificate() {
        let plain = cluster(Duration::from_secs(1));
        assert!(plain.token_of(None).is_none());
        let transport = Transport { cert: "/c".to_owned(), ..Transport::default() };
        let named = Cluster { transport, ..plain };
        assert_eq!(named.token_of(None).unwrap(), ANONYMOUS);
        let own = token("own");
        assert_eq!(named.token_of(own.clone()), own);
    }

    #[test]
    fn only_connections_without_tls_to_other_machines_send_passwords_in_plaintext() {
        let of = |endpoint: &str, transport: &Transport| {
            let endpoints = vec!["https://a:1".to_owned(), endpoint.to_owned()];
            Cluster { endpoints, transport: transport.clone(), ..cluster(Duration::from_secs(1)) }
                .sends_plaintext()
        };
        let plain = Transport::default();
        for own in [
            "127.0.0.1:2379",
            "http://localhost:2379",
            "http://[::1]:2379/",
            "http://[::1]",
            ":2379",
            "unix:///run/etcd",
            "https://10.0.0.1:2379",
        ] {
            assert!(!of(own, &plain), "{own}");
        }
        for other in [
            "192.0.2.1:2379",
            "http://192.0.2.1:2379",
            "http://[2001:db8::1]:2379",
            "http://etcd:2379",
            "http://localhost.example:2379",
        ] {
            assert!(of(other, &plain), "{other}");
        }
        let secured = Transport { cacert: "/c".to_owned(), ..Transport::default() };
        assert!(!of("192.0.2.1:2379", &secured));
        assert!(of("http://192.0.2.1:2379", &secured));
    }
}
