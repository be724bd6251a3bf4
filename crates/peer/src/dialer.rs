//! Connections to other members: parses their URLs and connects, with TLS if the URL requires it.
//!
//! `http` and `https` URLs name a host. `unix` and `unixs` URLs name a socket file, relative to the working
//! directory unless the path starts with a slash.

use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use quorate_telemetry::log;
use quorate_tls::{ConnectError, Connector, first_success, host_of_file, tls_reason};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, UnixStream, lookup_host};

const KEEPALIVE: Duration = Duration::from_secs(30);

/// The host header for requests to a socket file.
const LOCAL_HOST: &str = "localhost";

/// The target of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    place: Place,
    is_secured: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// `host:port`.
    Host(String),
    File(PathBuf),
}

impl Target {
    /// Parses a URL. Returns `None` if the URL is invalid.
    pub(crate) fn of(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let (is_secured, default_port) = match scheme {
            "http" => (false, Some("80")),
            "https" => (true, Some("443")),
            "unix" => (false, None),
            "unixs" => (true, None),
            _ => return None,
        };
        let place = match default_port {
            None if rest.is_empty() => return None,
            None => Place::File(PathBuf::from(rest)),
            Some(port) => {
                let authority = rest.split('/').next().unwrap_or(rest);
                let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
                let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
                let bare = host.trim_start_matches('[');
                if bare.is_empty() || bare.starts_with(':') && !host.starts_with('[') {
                    return None;
                }
                Place::Host(if has_port { host.to_owned() } else { format!("{host}:{port}") })
            }
        };
        Some(Self { place, is_secured })
    }

    /// Returns the host header for requests to this target.
    pub(crate) fn authority(&self) -> &str {
        match &self.place {
            Place::Host(authority) => authority,
            Place::File(_) => LOCAL_HOST,
        }
    }

    /// Returns the host name or address that a certificate of this target must contain.
    fn host(&self) -> Option<&str> {
        match &self.place {
            Place::Host(authority) => {
                Some(authority.rsplit_once(':').map_or(&**authority, |(host, _)| host))
            }
            Place::File(path) => host_of_file(path),
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.place {
            Place::Host(authority) => write!(f, "tcp {authority}"),
            Place::File(path) => write!(f, "unix {}", path.display()),
        }
    }
}

/// Returns the reason why an established connection failed. With TLS 1.3, a client learns only after its handshake
/// that the server has refused its certificate.
pub(crate) fn connection_reason(error: &(dyn Error + 'static)) -> String {
    tls_reason(error).unwrap_or_else(|| log::error_chain(error))
}

/// Settings for connections to other members.
#[derive(Clone, Debug, Default)]
pub struct Dialer {
    /// The TLS settings. Without them, URLs that require TLS are refused.
    pub tls: Option<Connector>,
    /// The local address of connections. With `None`, the system chooses one.
    pub from: Option<IpAddr>,
}

/// A connection to another member.
pub(crate) enum PeerStream {
    Tcp(TcpStream),
    Other(Pin<Box<dyn Other>>),
}

/// Any stream other than plain TCP.
pub(crate) trait Other: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Other for S {}

impl std::fmt::Debug for PeerStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerStream").finish_non_exhaustive()
    }
}

impl Dialer {
    /// Connects to a target. If `timeout` is given, a TCP connection is closed when sent data is not acknowledged for
    /// that long.
    pub(crate) async fn connect(
        &self,
        target: &Target,
        timeout: Option<Duration>,
    ) -> io::Result<PeerStream> {
        let reached = self.reach(target, timeout).await?;
        self.secure(target, reached).await
    }

    /// Like [`Self::connect`], but without the handshake of a target that requires TLS.
    pub(crate) async fn reach(
        &self,
        target: &Target,
        timeout: Option<Duration>,
    ) -> io::Result<PeerStream> {
        match &target.place {
            Place::Host(authority) => {
                let stream = self.connect_host(authority).await?;
                if timeout.is_some() {
                    socket2::SockRef::from(&stream).set_tcp_user_timeout(timeout)?;
                }
                Ok(PeerStream::Tcp(stream))
            }
            Place::File(path) => {
                let stream = UnixStream::connect(path).await?;
                Ok(PeerStream::Other(Box::pin(stream)))
            }
        }
    }

    /// Performs the handshake if the target requires TLS. The handshake has a time limit of its own.
    pub(crate) async fn secure(
        &self,
        target: &Target,
        reached: PeerStream,
    ) -> io::Result<PeerStream> {
        if !target.is_secured {
            return Ok(reached);
        }
        let tls = self.tls.as_ref().ok_or_else(|| {
            io::Error::other("tls: neither a certificate nor a trusted CA is configured")
        })?;
        let secured = tls.connect(target.host(), reached).await.map_err(|error| match error {
            ConnectError::Handshake(source) => source,
            ConnectError::Name(_) | ConnectError::Timeout => io::Error::other(error),
        })?;
        Ok(PeerStream::Other(Box::pin(secured)))
    }

    async fn connect_host(&self, authority: &str) -> io::Result<TcpStream> {
        let stream = connect_any(lookup_host(authority).await?, self.from).await?;
        stream.set_nodelay(true)?;
        let keepalive = socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
        socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        Ok(stream)
    }
}

/// Connects to the first of the addresses that accepts the connection, from the local address `from` if it is given. An
/// address that does not respond delays the attempt at the next address only briefly.
async fn connect_any(
    addresses: impl Iterator<Item = SocketAddr>,
    from: Option<IpAddr>,
) -> io::Result<TcpStream> {
    let is_reachable =
        |address: &SocketAddr| from.is_none_or(|from| from.is_ipv4() == address.is_ipv4());
    let attempts = addresses.filter(is_reachable).map(|address| connect_from(from, address));
    let connected = first_success(attempts).await;
    connected.unwrap_or_else(|| Err(io::ErrorKind::AddrNotAvailable.into()))
}

async fn connect_from(from: Option<IpAddr>, to: SocketAddr) -> io::Result<TcpStream> {
    let Some(from) = from else { return TcpStream::connect(to).await };
    let socket = if from.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.bind(SocketAddr::new(from, 0))?;
    socket.connect(to).await
}

macro_rules! forward {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            PeerStream::Tcp(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            PeerStream::Other(stream) => {
                let $stream = stream.as_mut();
                $call
            }
        }
    };
}

impl AsyncRead for PeerStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        forward!(self, stream => stream.poll_read(cx, buf))
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        forward!(self, stream => stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        forward!(self, stream => stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Other(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, stream => stream.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn peer_urls_are_parsed_into_hosts_and_socket_files() {
        let shown = |url: &str| {
            let target = Target::of(url)?;
            Some(format!("{target} {} {}", target.authority(), target.is_secured))
        };
        for (url, expected) in [
            ("http://a:2380", "tcp a:2380 a:2380 false"),
            ("http://[::1]:2380", "tcp [::1]:2380 [::1]:2380 false"),
            ("https://a", "tcp a:443 a:443 true"),
            ("https://[::1]/", "tcp [::1]:443 [::1]:443 true"),
            ("unix://sock", "unix sock localhost false"),
            ("unixs:///run/a:1", "unix /run/a:1 localhost true"),
        ] {
            assert_eq!(shown(url).as_deref(), Some(expected));
        }
        for url in ["", "a", "a:1", "ftp://a:1", "http://", "http://:1", "unix://"] {
            assert_eq!(shown(url), None, "{url}");
        }
    }

    #[tokio::test]
    async fn a_unix_socket_is_dialed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let target = Target::of(&format!("unix://{}", path.display())).unwrap();
        let mut stream = Dialer::default().connect(&target, None).await.unwrap();
        let (mut accepted, _) = listener.accept().await.unwrap();
        stream.write_all(b"x").await.unwrap();
        assert_eq!(accepted.read_u8().await.unwrap(), b'x');
    }

    #[tokio::test]
    async fn a_unixs_url_without_tls_settings_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let _listener = tokio::net::UnixListener::bind(&path).unwrap();
        let target = Target::of(&format!("unixs://{}", path.display())).unwrap();
        let refused = Dialer::default().connect(&target, None).await.unwrap_err();
        assert!(refused.to_string().starts_with("tls: neither"), "{refused}");
    }

    #[tokio::test]
    async fn a_connection_uses_the_configured_source_address() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let from = IpAddr::from([127, 0, 0, 2]);
        let dialer = Dialer { from: Some(from), ..Dialer::default() };
        let _stream = dialer.connect(&Target::of(&url).unwrap(), None).await.unwrap();
        assert_eq!(listener.accept().await.unwrap().1.ip(), from);
    }

    #[tokio::test]
    async fn an_address_that_does_not_respond_does_not_prevent_a_connection_to_the_next() {
        // The kernel ignores further connections to a listener whose queue is full.
        let full = TcpSocket::new_v4().unwrap();
        full.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let full = full.listen(1).unwrap();
        let silent = full.local_addr().unwrap();
        let _queued =
            [TcpStream::connect(silent).await.unwrap(), TcpStream::connect(silent).await.unwrap()];
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let working = listener.local_addr().unwrap();
        for from in [None, Some(Ipv4Addr::LOCALHOST.into())] {
            let connecting = connect_any([silent, working].into_iter(), from);
            let stream = tokio::time::timeout(Duration::from_secs(20), connecting).await;
            assert_eq!(stream.expect("the dialer waits").unwrap().peer_addr().unwrap(), working);
        }
    }
}
