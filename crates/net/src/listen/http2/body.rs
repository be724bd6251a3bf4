//! The body of a request on an HTTP/2 stream.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;

use super::ready::SlotWaker;

/// The number of read bytes at which the connection is woken to enlarge the client's windows.
const READ_BYTES_WAKE: usize = 16 << 10;

/// The part of a body that has arrived but has not been read, shared by the connection and the body. All of it is in
/// one buffer, so that a client that sends tiny frames uses no more memory than the windows allow.
#[derive(Debug)]
pub(super) struct Inbox {
    unread: BytesMut,
    state: State,
    reader: Option<Waker>,
    /// The number of bytes that were read but not yet returned to the client's windows.
    read: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Ended,
    /// The client has reset the stream, or the connection has ended.
    Lost,
    /// The service has dropped the body.
    Dropped,
}

/// The sending side, which the connection holds.
#[derive(Debug)]
pub(super) struct Delivery(Arc<Mutex<Inbox>>);

/// The body of a request.
#[derive(Debug)]
pub struct StreamBody {
    inbox: Option<Arc<Mutex<Inbox>>>,
    slot: Option<Arc<SlotWaker>>,
}

/// Creates a body for the request in this slot.
pub(super) fn open(slot: &Arc<SlotWaker>) -> (Delivery, StreamBody) {
    let inbox = Inbox { unread: BytesMut::new(), state: State::Open, reader: None, read: 0 };
    let inbox = Arc::new(Mutex::new(inbox));
    let body = StreamBody { inbox: Some(Arc::clone(&inbox)), slot: Some(Arc::clone(slot)) };
    (Delivery(inbox), body)
}

impl Delivery {
    /// Adds the next part. Returns false if the service has dropped the body.
    pub(super) fn push(&self, data: &[u8], ends: bool) -> bool {
        let mut inbox = self.0.lock();
        if inbox.state == State::Dropped {
            return false;
        }
        inbox.unread.extend_from_slice(data);
        if ends {
            inbox.state = State::Ended;
        }
        inbox.wake();
        true
    }

    /// Ends the body.
    pub(super) fn end(&self) {
        let mut inbox = self.0.lock();
        if inbox.state == State::Open {
            inbox.state = State::Ended;
            inbox.wake();
        }
    }

    /// Returns the number of bytes read since the last call.
    pub(super) fn take_read(&self) -> usize {
        std::mem::take(&mut self.0.lock().read)
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let mut inbox = self.0.lock();
        if inbox.state == State::Open {
            inbox.state = State::Lost;
            inbox.wake();
        }
    }
}

impl Delivery {
    /// Returns the number of unread bytes, plus the number of bytes read since the last call to [`Self::take_read`].
    pub(super) fn outstanding(&self) -> usize {
        let inbox = self.0.lock();
        inbox.unread.len() + inbox.read
    }
}

impl Inbox {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

impl StreamBody {
    /// A body without data.
    pub(super) const EMPTY: Self = Self { inbox: None, slot: None };
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = Lost;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(shared) = &self.inbox else { return Poll::Ready(None) };
        let mut inbox = shared.lock();
        if !inbox.unread.is_empty() {
            let part = inbox.unread.split().freeze();
            let before = inbox.read;
            inbox.read += part.len();
            if before < READ_BYTES_WAKE
                && inbox.read >= READ_BYTES_WAKE
                && let Some(slot) = &self.slot
            {
                slot.wake_by_ref();
            }
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        match inbox.state {
            State::Ended => Poll::Ready(None),
            State::Lost | State::Dropped => Poll::Ready(Some(Err(Lost))),
            State::Open => {
                if !inbox.reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
                    inbox.reader = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inbox.as_ref().is_none_or(|inbox| {
            let inbox = inbox.lock();
            inbox.state == State::Ended && inbox.unread.is_empty()
        })
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        let Some(inbox) = &self.inbox else { return };
        let mut inbox = inbox.lock();
        inbox.read += std::mem::take(&mut inbox.unread).len();
        let is_due = inbox.read > 0;
        inbox.state = State::Dropped;
        drop(inbox);
        if is_due && let Some(slot) = &self.slot {
            slot.wake_by_ref();
        }
    }
}

/// The client has reset the stream or disconnected.
#[derive(Clone, Copy, Debug)]
pub struct Lost;

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the client has cancelled the request")
    }
}

impl Error for Lost {}

#[cfg(test)]
mod tests {
    use super::super::ready::Ready;
    use super::*;

    #[test]
    fn tiny_parts_of_a_body_use_no_more_memory_than_the_window() {
        const WINDOW: usize = 1 << 16;
        let slot = SlotWaker::new(&Arc::<Ready>::default(), 0);
        let (delivery, mut body) = open(&slot);
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..3 {
            for _ in 0..WINDOW {
                assert!(delivery.push(b"x", false));
            }
            assert_eq!(delivery.outstanding(), WINDOW);
            assert!(delivery.0.lock().unread.capacity() <= 2 * WINDOW);
            let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut cx) else {
                panic!("the body did not return the received parts");
            };
            assert_eq!(
                frame.into_data().unwrap().len(),
                WINDOW,
                "one frame must contain all parts"
            );
            assert!(Pin::new(&mut body).poll_frame(&mut cx).is_pending());
            assert_eq!(delivery.take_read(), WINDOW);
        }
    }

    #[test]
    fn a_body_that_ends_with_trailers_ends_after_its_data() {
        let slot = SlotWaker::new(&Arc::<Ready>::default(), 0);
        let (delivery, mut body) = open(&slot);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(delivery.push(b"x", false));
        delivery.end();
        assert!(matches!(Pin::new(&mut body).poll_frame(&mut cx), Poll::Ready(Some(Ok(_)))));
        assert!(body.is_end_stream());
        assert!(matches!(Pin::new(&mut body).poll_frame(&mut cx), Poll::Ready(None)));
    }
}
