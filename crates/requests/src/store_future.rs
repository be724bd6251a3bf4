//! The result of a data store operation, which is often available immediately.
//!
//! The data store is a trait object, so the types of its futures are not known at compile time. An operation that
//! completes without waiting, such as a read from memory, returns [`StoreFuture::Ready`] and allocates no memory.
//! Writes always wait, and return a separate type, [`WriteFuture`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use stackfuture::StackFuture;

/// Size of a future that waits for the outcome of a write, in bytes. Compilation fails if a future is larger.
const WRITE_BYTES: usize = 192;

/// The future of a write, which always waits. It is stored inline, because a heap allocation would make a put slower by
/// 2 %.
pub type WriteFuture<'a, T> = StackFuture<'a, T, WRITE_BYTES>;

/// A future of the data store.
pub enum StoreFuture<'a, T> {
    /// The operation is complete. `None` once the result has been taken.
    Ready(Option<T>),
    /// The operation may have to wait. The contained future computes the result.
    Pending(Pin<Box<dyn Future<Output = T> + Send + 'a>>),
}

impl<'a, T> StoreFuture<'a, T> {
    /// Returns a future that is complete.
    pub const fn ready(result: T) -> Self {
        Self::Ready(Some(result))
    }

    /// Returns a future that may have to wait.
    pub fn pending(operation: impl Future<Output = T> + Send + 'a) -> Self {
        Self::Pending(Box::pin(operation))
    }
}

impl<T> fmt::Debug for StoreFuture<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready(_) => "Ready",
            Self::Pending(_) => "Pending",
        })
    }
}

impl<T: Unpin> Future for StoreFuture<'_, T> {
    type Output = T;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match &mut *self {
            Self::Ready(result) => {
                Poll::Ready(result.take().expect("a completed future is polled only once"))
            }
            Self::Pending(operation) => operation.as_mut().poll(cx),
        }
    }
}
