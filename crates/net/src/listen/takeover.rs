//! A connection that leaves HTTP/1 for another protocol, as a request asked for (`Upgrade`).
//!
//! A service that agrees answers with 101 and leaves behind what is to be done with the connection ([`Takeover`]). When
//! the answer has been sent, the connection's own task does it: place, share of the address and all that ends
//! with the connection stay taken until then.
//!
//! # Not here
//!
//! Which protocols there are (`edge`), and HTTP/2, which has no such way.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

/// Bytes in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection that was HTTP/1's.
pub struct TakenOver {
    /// What was written leaves whenever whoever has it waits.
    pub io: Box<dyn Duplex>,
    /// What was read from it already.
    pub read_ahead: Bytes,
    /// When this says so, it is to end.
    pub stop: watch::Receiver<bool>,
}

impl fmt::Debug for TakenOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TakenOver").field("read_ahead", &self.read_ahead).finish_non_exhaustive()
    }
}

type Ending = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;
type Session = Box<dyn FnOnce(TakenOver) -> Ending + Send>;

/// An extension of requests of HTTP/1, by which a service takes the connection over.
#[derive(Clone, Default)]
pub struct Takeover(Arc<Mutex<Option<Session>>>);

impl fmt::Debug for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Takeover").field(&self.0.lock().is_some()).finish()
    }
}

impl Takeover {
    /// Has this done with the connection once the answer has been sent, which has to be 101.
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
