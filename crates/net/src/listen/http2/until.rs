//! Serves a connection until it ends, or until it is ordered to close.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};

use super::{Http2Service, Served, Server};

/// Serves a connection until it ends or `order` completes. The order is polled only when it or one of the connection's
/// timers has been woken. Polling it at each wake-up of the connection would cost more.
pub(in crate::listen) struct Until<'a, T, G: Http2Service, O> {
    pub(in crate::listen) server: &'a mut Server<T, G>,
    pub(in crate::listen) order: Pin<&'a mut O>,
}

/// The reason why [`Until`] has completed: the connection has ended, or the signal to close has arrived.
pub(in crate::listen) enum Ended<O> {
    Itself(Served),
    Ordered(O),
}

impl<T: AsyncRead + AsyncWrite + Unpin, G: Http2Service, O: Future> Future for Until<'_, T, G, O> {
    type Output = Ended<O::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { server, order } = &mut *self;
        server.ready.begin(cx.waker());
        loop {
            server.poll_woken();
            if server.is_control_woken {
                server.control.reset();
                let mut cx = Context::from_waker(&server.control_task);
                if let Poll::Ready(ordered) = order.as_mut().poll(&mut cx) {
                    return Poll::Ready(Ended::Ordered(ordered));
                }
            }
            if let Poll::Ready(served) = server.poll_served(cx) {
                return Poll::Ready(Ended::Itself(served));
            }
            if !server.is_control_woken {
                return Poll::Pending;
            }
        }
    }
}
