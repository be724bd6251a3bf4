//! Listening sockets: TCP ports and Unix sockets, in plaintext or with TLS.
//!
//! # Invariants
//!
//! * The file of a Unix socket is removed with its listener. An existing socket file with that name, usually left over
//!   from an earlier process, is removed before binding. If the name belongs to any other file, that file stays and
//!   binding fails.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
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
    /// Binds the address. Connections wait in the kernel's queue until they are accepted.
    pub fn bind(address: SocketAddr, reuse: Reuse) -> io::Result<Self> {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(address),
            socket2::Type::STREAM,
            None,
        )?;
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
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok().map(|address| address.ip()),
            Self::Unix(_) => None,
        }
    }

    /// Returns the addresses of both ends.
    pub(super) fn ends(&self) -> Ends {
        let canonical =
            |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        match self {
            Self::Tcp(stream) => Ends {
                local: stream.local_addr().ok().map(canonical),
                remote: stream.peer_addr().ok().map(canonical),
            },
            Self::Unix(_) => Ends::default(),
        }
    }
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
        let address = self.peer_addr().ok()?;
        Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
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
