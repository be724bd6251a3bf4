//! Where connections come from: a TCP port or a socket's file, and how they are secured.
//!
//! # Invariants
//!
//! * A socket's file is gone when its listener is. One that an earlier process has left is taken away before; anything
//!   else of that name stays, and the listener does not come to be.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_tls::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Connections that the kernel lets wait.
const BACKLOG: i32 = 4096;

/// Between two signs of life that the kernel asks an idle connection for.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// What a handshake of TLS begins with.
const TLS_HANDSHAKE: u8 = 0x16;

/// Which sharing of addresses the flags ask for, beyond what is always set.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reuse {
    /// Whether other sockets may listen on the same port.
    pub port: bool,
}

/// Whether what is said on connections is encrypted.
#[derive(Clone, Debug)]
pub enum Security {
    /// It is not.
    Plain,
    /// It is.
    Tls(Acceptor),
    /// As each connection begins.
    Both(Acceptor),
}

/// A bound listener.
#[derive(Debug)]
pub struct Listener {
    pub(super) socket: Socket,
    pub(super) security: Security,
}

/// What is listened on.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(std::net::TcpListener, SocketAddr),
    Unix(std::os::unix::net::UnixListener, SocketFile),
}

/// Removes its file when dropped.
#[derive(Debug)]
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Whoever has taken it away already has done the same.
        drop(std::fs::remove_file(&self.0));
    }
}

impl Listener {
    /// Binds the address; nobody is accepted yet, but the kernel lets them wait.
    pub fn bind(address: SocketAddr, reuse: Reuse) -> io::Result<Self> {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(address),
            socket2::Type::STREAM,
            None,
        )?;
        // As Go does for every listener: a restart must not wait for old connections to fade.
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

    /// The same for a socket's file.
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

    /// Secures the connections.
    #[must_use]
    pub fn secured(self, security: Security) -> Self {
        Self { security, ..self }
    }

    /// Gives connections up whose other end takes nothing of what was sent for so long.
    pub fn give_up_after(&self, patience: Duration) -> io::Result<()> {
        match &self.socket {
            // Accepted connections have it from the listening socket.
            Socket::Tcp(socket, _) => {
                socket2::SockRef::from(socket).set_tcp_user_timeout(Some(patience))
            }
            // Whoever is on this machine is there or not.
            Socket::Unix(..) => Ok(()),
        }
    }

    /// The bound address, with the port the system chose if none was asked for; `None` for a socket's file.
    pub const fn address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Tcp(_, address) => Some(*address),
            Socket::Unix(..) => None,
        }
    }

    /// Whether connections may be plain.
    pub const fn is_plain(&self) -> bool {
        matches!(self.security, Security::Plain | Security::Both(_))
    }

    /// Whether connections may speak TLS.
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

/// A listener at work.
pub(super) enum Source {
    Tcp(TcpListener),
    Unix(UnixListener, #[expect(dead_code, reason = "the file goes when it does")] SocketFile),
}

/// Where a connection goes and comes from, as far as these are addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// This side.
    pub local: Option<SocketAddr>,
    /// The other.
    pub remote: Option<SocketAddr>,
}

/// A connection as it comes.
pub(super) enum Arrived {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl Arrived {
    /// Where it comes from, if that is a host.
    pub(super) fn host(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok().map(|address| address.ip()),
            Self::Unix(_) => None,
        }
    }

    /// Between whom it is.
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

/// What HTTP can be spoken on.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// Any but a plain TCP connection, whose reads and writes are too many to be looked up each time.
pub(super) type OtherStream = Box<dyn Stream>;

/// A connection's socket, before anything was said.
pub(super) trait Wire: Stream {
    /// Where it comes from, if that is a host.
    fn origin(&self) -> Option<SocketAddr>;

    /// Whether TLS begins, once anything does; nothing is taken out.
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

/// Takes over a TCP connection.
pub(super) fn take_tcp(stream: std::net::TcpStream) -> io::Result<TcpStream> {
    let stream = TcpStream::from_std(stream)?;
    stream.set_nodelay(true)?;
    socket2::SockRef::from(&stream)
        .set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(KEEPALIVE))?;
    Ok(stream)
}
