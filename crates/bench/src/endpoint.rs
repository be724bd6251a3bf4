//! Addresses of servers and connections to them: TCP or a Unix socket, with or without TLS.
//!
//! Connections without TLS use the socket directly. TLS connections go through a boxed stream, whose cost is negligible
//! compared to encryption.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::str::FromStr;
use std::task::{Context, Poll, ready};

use quorate_tls::{
    Allowed, ChannelConnector, ChannelStream, Connector, ConnectorSettings, Pair, Place, Protocols,
    ServerCheck, Trust, authority_of_file, split_scheme,
};
use tokio::io::{Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::error::BenchError;

/// The address of a server on the command line: `host:port` or a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    place: Place,
    /// Whether the scheme requires TLS; `None` if TLS files decide, as for `unix` and for addresses without a scheme.
    is_secured: Option<bool>,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (scheme, rest) = split_scheme(text);
        let (is_secured, is_file) = match scheme {
            "" => (None, false),
            "http" => (Some(false), false),
            "https" => (Some(true), false),
            "unix" => (None, true),
            "unixs" => (Some(true), true),
            _ => {
                return Err(
                    "the scheme of an endpoint must be http, https, unix or unixs".to_owned()
                );
            }
        };
        if is_file && !rest.is_empty() {
            return Ok(Self { place: Place::File(PathBuf::from(rest)), is_secured });
        }
        let authority = rest.trim_end_matches('/');
        if is_file || authority.contains('/') || !authority.contains(':') {
            return Err("an endpoint must be host:port, a URL, or the path of a socket".to_owned());
        }
        Ok(Self { place: Place::Host(authority.to_owned()), is_secured })
    }
}

/// The TLS settings of connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Security {
    pub(crate) cacert: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) trusts_all: bool,
}

impl Security {
    /// Returns the endpoints for these addresses. A `unix` address, or an address without a scheme, uses TLS if TLS files
    /// are given, as in etcd's clients.
    pub(crate) fn endpoints(&self, addresses: &[Address]) -> Result<Vec<Endpoint>, BenchError> {
        let is_asked_for = self.cacert.is_some() || self.cert.is_some() || self.key.is_some();
        let is_secured = |address: &Address| address.is_secured.unwrap_or(is_asked_for);
        let connector = if addresses.iter().any(is_secured) {
            Some(self.connector().map_err(BenchError::Usage)?)
        } else {
            None
        };
        let endpoint = |address: &Address| Endpoint {
            place: address.place.clone(),
            tls: connector.clone().filter(|_| is_secured(address)),
        };
        Ok(addresses.iter().map(endpoint).collect())
    }

    fn connector(&self) -> Result<Connector, String> {
        let pair = match (&self.cert, &self.key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some(Pair::new(cert, key)),
            (Some(_), None) | (None, Some(_)) => {
                return Err("--cert and --key must be given together".to_owned());
            }
        };
        let trust = self.cacert.clone().map_or(Trust::System, Trust::File);
        Connector::new(ConnectorSettings {
            pair,
            protocols: Protocols::default(),
            check: ServerCheck::by(trust, self.trusts_all),
            allowed: Allowed::All,
            http2: true,
            server_name: None,
        })
        .map_err(|error| error.to_string())
    }
}

/// The address of a server, and the TLS settings for connecting to it.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    place: Place,
    tls: Option<Connector>,
}

impl Endpoint {
    /// Returns the host name for requests.
    pub(crate) fn authority(&self) -> &str {
        match &self.place {
            Place::Host(authority) => authority,
            Place::File(path) => authority_of_file(path),
        }
    }

    /// Returns whether the connection uses TLS.
    pub(crate) const fn is_secured(&self) -> bool {
        self.tls.is_some()
    }

    /// Opens a connection on the current runtime.
    pub(crate) async fn dial(&self) -> io::Result<Socket> {
        match (&self.place, &self.tls) {
            (Place::Host(authority), None) => {
                let socket = TcpStream::connect(authority).await?;
                socket.set_nodelay(true)?;
                Ok(Socket::Plain(socket))
            }
            (place, tls) => {
                let connector = ChannelConnector::new(place.clone(), tls.clone());
                Ok(Socket::Other(connector.connect().await?))
            }
        }
    }
}

/// An open connection, below HTTP/2.
pub(crate) enum Socket {
    Plain(TcpStream),
    Other(ChannelStream),
}

/// The result of one round of writing and reading.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Round {
    pub(crate) written: usize,
    pub(crate) read: usize,
    /// Whether the server has closed the connection.
    pub(crate) is_closed: bool,
}

impl Socket {
    /// Writes as much of `output` as the socket accepts, waits until the socket is readable or writable, and reads
    /// once. If the future is dropped, `round` still reports exactly the data written and read.
    pub(crate) async fn exchange(
        &mut self,
        output: &[u8],
        input: &mut [u8],
        round: &mut Round,
    ) -> io::Result<()> {
        match self {
            Self::Plain(socket) => exchange_plain(socket, output, input, round).await,
            Self::Other(stream) => {
                std::future::poll_fn(|cx| exchange_other(stream.as_mut(), cx, output, input, round))
                    .await
            }
        }
    }
}

async fn exchange_plain(
    socket: &TcpStream,
    output: &[u8],
    input: &mut [u8],
    round: &mut Round,
) -> io::Result<()> {
    write_plain(socket, output, round)?;
    let interest = if round.written == output.len() {
        Interest::READABLE
    } else {
        Interest::READABLE | Interest::WRITABLE
    };
    socket.ready(interest).await?;
    match socket.try_read(input) {
        Ok(0) => round.is_closed = true,
        Ok(count) => round.read = count,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

fn write_plain(socket: &TcpStream, output: &[u8], round: &mut Round) -> io::Result<()> {
    while round.written < output.len() {
        match socket.try_write(&output[round.written..]) {
            Ok(count) => round.written += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn exchange_other(
    mut stream: Pin<&mut dyn quorate_tls::ChannelIo>,
    cx: &mut Context<'_>,
    output: &[u8],
    input: &mut [u8],
    round: &mut Round,
) -> Poll<io::Result<()>> {
    while round.written < output.len() {
        match stream.as_mut().poll_write(cx, &output[round.written..]) {
            Poll::Ready(count) => round.written += count?,
            Poll::Pending => break,
        }
    }
    // A pending flush is not awaited, because the next round continues it.
    if let Poll::Ready(flushed) = stream.as_mut().poll_flush(cx) {
        flushed?;
    }
    let mut buffer = ReadBuf::new(input);
    ready!(stream.as_mut().poll_read(cx, &mut buffer))?;
    round.read = buffer.filled().len();
    round.is_closed = round.read == 0;
    Poll::Ready(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str, security: &Security) -> Endpoint {
        security.endpoints(&[text.parse().unwrap()]).unwrap().remove(0)
    }

    #[test]
    fn an_address_determines_the_host_and_the_use_of_tls() {
        let open = Security { trusts_all: true, ..Security::default() };
        for (text, authority, is_secured) in [
            ("[::1]:2379", "[::1]:2379", false),
            ("http://a:1/", "a:1", false),
            ("https://a:1", "a:1", true),
            ("unix:///tmp/s", "s", false),
            ("unixs://s:1", "s:1", true),
            ("unix:s:1", "s:1", false),
            ("unixs:/tmp/s", "s", true),
        ] {
            let endpoint = endpoint(text, &open);
            assert_eq!((endpoint.authority(), endpoint.is_secured()), (authority, is_secured));
        }
        for text in ["ftp://a:1", "localhost", "unix://", "unix:", "http://a:1/b"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn sockets_and_addresses_without_a_scheme_use_tls_if_tls_files_are_given() {
        let missing = || Some(PathBuf::from("/nonexistent"));
        let security = Security { cacert: missing(), ..Security::default() };
        let address = |text: &str| text.parse::<Address>().unwrap();
        assert!(security.endpoints(&[address("a:1")]).is_err());
        assert!(security.endpoints(&[address("http://a:1")]).is_ok());
        assert!(security.endpoints(&[address("unix:/tmp/s")]).is_err());
        let half = Security { cert: missing(), trusts_all: true, ..Security::default() };
        assert!(half.endpoints(&[address("a:1")]).unwrap_err().to_string().contains("--key"));
    }
}
