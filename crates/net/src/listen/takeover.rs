//! Switches a connection from HTTP/1 to another protocol, as requested with `Upgrade`.
//!
//! A service that accepts the upgrade answers with 101 and registers a function for the connection ([`Takeover`]).
//! After the response has been sent, the connection's own task runs the function. The connection's permits are held
//! until the function returns.
//!
//! # Not here
//!
//! The protocols (`edge`), and HTTP/2, which has no upgrades.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

/// A stream for reading and writing.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection that has left HTTP/1.
pub struct TakenOver {
    /// The stream. Written data is sent at the end of each poll of the task.
    pub io: Box<dyn Duplex>,
    /// Data already read from the connection.
    pub read_ahead: Bytes,
    /// Becomes true when the connection must end.
    pub stop: watch::Receiver<bool>,
}

impl fmt::Debug for TakenOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TakenOver").field("read_ahead", &self.read_ahead).finish_non_exhaustive()
    }
}

type Ending = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;
type Session = Box<dyn FnOnce(TakenOver) -> Ending + Send>;

/// A request extension by which a service takes over an HTTP/1 connection.
#[derive(Clone, Default)]
pub struct Takeover(Arc<Mutex<Option<Session>>>);

impl fmt::Debug for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Takeover").field(&self.0.lock().is_some()).finish()
    }
}

impl Takeover {
    /// Registers the function to run after the response, which must be 101, has been sent.
    pub fn begin<F>(&self, session: impl FnOnce(TakenOver) -> F + Send + 'static)
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        *self.0.lock() = Some(Box::new(|taken| Box::pin(session(taken))));
    }

    pub(super) fn take(&self) -> Option<Session> {
        self.0.lock().take()
    }
}
