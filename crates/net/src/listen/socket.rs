//! Listening sockets: TCP ports and Unix sockets, in plaintext or with TLS.
//!
//! # Invariants
//!
//! * The file of a Unix socket is removed with its listener. An existing socket file with that name, usually left over
//!   from an earlier process, is removed before binding. If the name belongs to any other file, that file stays and
//!   binding fails.
//! * A listener on an unspecified address (`0.0.0.0` or `[::]`) accepts connections of both address families, unless the
//!   machine has no IPv6. Go's listeners do the same.
//! * Addresses of connections are reported in their plain form, so an IPv4 address never looks like `::ffff:10.0.0.1`.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_tls::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Maximum length of the kernel's queue of connections that have not been accepted yet.
const BACKLOG: i32 = 4096;

/// Idle time after which TCP starts to probe a connection.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// The first byte of a TLS handshake.
const TLS_HANDSHAKE: u8 = 0x16;

/// The address-sharing options set by flags, in addition to the options that are always set.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reuse {
    /// Whether other sockets may listen on the same port.
    pub port: bool,
}

/// How connections are encrypted.
#[derive(Clone, Debug)]
pub enum Security {
    /// Plaintext only.
    Plain,
    /// TLS only.
    Tls(Acceptor),
    /// Plaintext or TLS, detected for each connection.
    Both(Acceptor),
}

/// A bound listener and the encryption of its connections.
#[derive(Debug)]
pub struct Listener {
    pub(super) socket: Socket,
    pub(super) security: Security,
}

/// The listening socket.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(std::net::TcpListener, SocketAddr),
    Unix(std::os::unix::net::UnixListener, SocketFile),
}

/// The file of a Unix socket. Dropping this removes the file.
#[derive(Debug)]
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // An error is ignored, because the file may already have been removed.
        drop(std::fs::remove_file(&self.0));
    }
}

impl Listener {
    /// Returns the address to bind for `HOST:PORT`. An empty host means all addresses. As in Go, any host may be in
    /// brackets. Of several addresses, an IPv4 address is preferred, because clients dial `localhost` over IPv4 by default.
    pub fn resolve(authority: &str) -> io::Result<SocketAddr> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "invalid socket address");
        let (host, port) = authority.rsplit_once(':').ok_or_else(invalid)?;
        let port: u16 = port.parse().map_err(|_| invalid())?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Ok((Ipv4Addr::UNSPECIFIED, port).into());
        }
        let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
        let preferred = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
        preferred.copied().ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// Binds the address. Connections wait in the kernel's queue until they are accepted.
    pub fn bind(address: SocketAddr, reuse: Reuse) -> io::Result<Self> {
        if address.ip().is_unspecified() {
            let both_families = SocketAddr::from((Ipv6Addr::UNSPECIFIED, address.port()));
            match Self::bind_exactly(both_families, reuse) {
                // The machine may have no IPv6. If there is another reason, binding the IPv4 address fails as well.
                Err(error) if address.is_ipv4() && error.kind() != io::ErrorKind::AddrInUse => {}
                bound => return bound,
            }
        }
        Self::bind_exactly(address, reuse)
    }

    fn bind_exactly(address: SocketAddr, reuse: Reuse) -> io::Result<Self> {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(address),
            socket2::Type::STREAM,
            None,
        )?;
        if address.is_ipv6() {
            // The system's default depends on the machine (`net.ipv6.bindv6only`).
            socket.set_only_v6(false)?;
        }
        // Go sets this for every listener, so that a restart does not have to wait for old connections in TIME_WAIT.
        socket.set_reuse_address(true)?;
        if reuse.port {
            socket.set_reuse_port(true)?;
        }
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let socket = std::net::TcpListener::from(socket);
        let address = socket.local_addr()?;
        Ok(Self { socket: Socket::Tcp(socket, address), security: Security::Plain })
    }

    /// Binds a Unix socket.
    pub fn bind_file(path: &Path) -> io::Result<Self> {
        let is_socket = |found: &std::fs::Metadata| found.file_type().is_socket();
        if std::fs::symlink_metadata(path).as_ref().is_ok_and(is_socket) {
            std::fs::remove_file(path)?;
        }
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
        socket.bind(&socket2::SockAddr::unix(path)?)?;
        let file = SocketFile(path.to_owned());
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let socket = std::os::unix::net::UnixListener::from(std::os::fd::OwnedFd::from(socket));
        Ok(Self { socket: Socket::Unix(socket, file), security: Security::Plain })
    }

    /// Sets how connections are encrypted.
    #[must_use]
    pub fn secured(self, security: Security) -> Self {
        Self { security, ..self }
    }

    /// Closes connections whose peer does not acknowledge sent data for the length of the timeout.
    pub fn set_user_timeout(&self, timeout: Duration) -> io::Result<()> {
        match &self.socket {
            // Accepted connections inherit the option from the listening socket.
            Socket::Tcp(socket, _) => {
                socket2::SockRef::from(socket).set_tcp_user_timeout(Some(timeout))
            }
            // A local peer cannot become unreachable without closing the connection.
            Socket::Unix(..) => Ok(()),
        }
    }

    /// Returns the bound address, with the port chosen by the system if the configured port was 0; `None` for a Unix
    /// socket.
    pub const fn address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Tcp(_, address) => Some(*address),
            Socket::Unix(..) => None,
        }
    }

    /// Returns whether connections may be in plaintext.
    pub const fn is_plain(&self) -> bool {
        matches!(self.security, Security::Plain | Security::Both(_))
    }

    /// Returns whether connections may use TLS.
    pub const fn is_secured(&self) -> bool {
        matches!(self.security, Security::Tls(_) | Security::Both(_))
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.socket {
            Socket::Tcp(_, address) => address.fmt(f),
            Socket::Unix(_, file) => file.0.display().fmt(f),
        }
    }
}

/// A listening socket registered with the runtime.
pub(super) enum Source {
    Tcp(TcpListener),
    Unix(UnixListener, #[expect(dead_code, reason = "removes the file when dropped")] SocketFile),
}

/// The addresses of a connection, if it has any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// The local address of the connection.
    pub local: Option<SocketAddr>,
    /// The remote address of the connection.
    pub remote: Option<SocketAddr>,
}

/// An accepted connection.
pub(super) enum Arrived {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl Arrived {
    /// Returns the remote host's address, if there is one.
    pub(super) fn host(&self) -> Option<IpAddr> {
        self.ends().remote.map(|address| address.ip())
    }

    /// Returns the addresses of both ends.
    pub(super) fn ends(&self) -> Ends {
        match self {
            Self::Tcp(stream) => Ends {
                local: stream.local_addr().ok().map(canonical),
                remote: stream.peer_addr().ok().map(canonical),
            },
            Self::Unix(_) => Ends::default(),
        }
    }
}

/// Returns the plain form of an IPv4 address that a socket for both families reports as an IPv6 address.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl Source {
    pub(super) fn new(socket: Socket) -> io::Result<Self> {
        Ok(match socket {
            Socket::Tcp(socket, _) => Self::Tcp(TcpListener::from_std(socket)?),
            Socket::Unix(socket, file) => Self::Unix(UnixListener::from_std(socket)?, file),
        })
    }

    pub(super) async fn accept(&self) -> io::Result<Arrived> {
        match self {
            Self::Tcp(listener) => Ok(Arrived::Tcp(listener.accept().await?.0.into_std()?)),
            Self::Unix(listener, _) => Ok(Arrived::Unix(listener.accept().await?.0.into_std()?)),
        }
    }
}

/// A stream that can carry HTTP.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// Any stream except a plain TCP connection with HTTP/2, which is used directly because its reads and writes are too
/// frequent for dynamic dispatch.
pub(super) type OtherStream = Box<dyn Stream>;

/// The socket of a connection before any data is read.
pub(super) trait Wire: Stream {
    /// Returns the remote address, if there is one.
    fn origin(&self) -> Option<SocketAddr>;

    /// Waits for the first byte, and returns whether it starts a TLS handshake. The byte stays in the socket.
    async fn begins_tls(&self) -> io::Result<bool>;
}

impl Wire for TcpStream {
    fn origin(&self) -> Option<SocketAddr> {
        self.peer_addr().ok().map(canonical)
    }

    async fn begins_tls(&self) -> io::Result<bool> {
        let mut first = [0];
        Ok(self.peek(&mut first).await? > 0 && first[0] == TLS_HANDSHAKE)
    }
}

impl Wire for UnixStream {
    fn origin(&self) -> Option<SocketAddr> {
        None
    }

    async fn begins_tls(&self) -> io::Result<bool> {
        let look = || {
            let mut first = [std::mem::MaybeUninit::new(0)];
            let flags = rustix::net::RecvFlags::PEEK;
            let (found, _) = rustix::net::recv(self, &mut first, flags)?;
            Ok(found.0.first() == Some(&TLS_HANDSHAKE))
        };
        self.async_io(Interest::READABLE, look).await
    }
}

/// Registers an accepted TCP connection with the runtime.
pub(super) fn take_tcp(stream: std::net::TcpStream) -> io::Result<TcpStream> {
    let stream = TcpStream::from_std(stream)?;
    stream.set_nodelay(true)?;
    socket2::SockRef::from(&stream)
        .set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(KEEPALIVE))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Binds the address to listen on and accepts a connection to each of the hosts. Returns the remote addresses.
    async fn accept_from(address: &str, hosts: &[IpAddr]) -> Vec<Option<IpAddr>> {
        let address = Listener::resolve(address).unwrap();
        let listener = Listener::bind(address, Reuse::default()).unwrap();
        let port = listener.address().unwrap().port();
        let source = Source::new(listener.socket).unwrap();
        let mut remotes = Vec::new();
        for host in hosts {
            let _dialed = TcpStream::connect((*host, port)).await.unwrap();
            let accepted = source.accept().await.unwrap();
            assert_eq!(accepted.ends().local, Some((*host, port).into()));
            remotes.push(accepted.host());
        }
        remotes
    }

    fn has_ipv6() -> bool {
        std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
    }

    #[tokio::test]
    async fn a_listener_on_all_addresses_accepts_connections_of_both_families() {
        let mut hosts = vec![Ipv4Addr::LOCALHOST.into()];
        if has_ipv6() {
            hosts.push(Ipv6Addr::LOCALHOST.into());
        }
        let remotes: Vec<_> = hosts.iter().copied().map(Some).collect();
        for address in ["0.0.0.0:0", "[0.0.0.0]:0", ":0"] {
            assert_eq!(accept_from(address, &hosts).await, remotes, "{address}");
        }
        if has_ipv6() {
            assert_eq!(accept_from("[::]:0", &hosts).await, remotes);
        }
    }

    #[test]
    fn a_port_in_use_on_one_ipv4_address_cannot_be_bound_on_all_addresses() {
        let other = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = (Ipv4Addr::UNSPECIFIED, other.local_addr().unwrap().port()).into();
        let refused = Listener::bind(address, Reuse::default()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn an_address_to_bind_may_be_in_brackets_and_may_lack_a_host() {
        for (authority, expected) in [
            ("10.0.0.1:1", "10.0.0.1:1"),
            ("[10.0.0.1]:1", "10.0.0.1:1"),
            ("[::1]:1", "[::1]:1"),
            ("localhost:1", "127.0.0.1:1"),
            (":1", "0.0.0.0:1"),
        ] {
            assert_eq!(Listener::resolve(authority).unwrap().to_string(), expected);
        }
        for invalid in ["10.0.0.1", "10.0.0.1:", "10.0.0.1:65536", "[::1]"] {
            let refused = Listener::resolve(invalid).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{invalid}");
        }
    }
}
