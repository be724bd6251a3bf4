//! Receives bodies in pieces, and buffers the messages in them.
//!
//! # Bounds
//!
//! Each piece of a body must arrive within the read timeout, and enough bytes in each period (`quorate_net::pace`). Only
//! the time that the reader waits for the sender counts. At most [`LARGE_BODIES_MAX`] messages longer than
//! [`SMALL_BODY_BYTES`] are buffered at the same time. After the first [`SLOW_TIME_MAX`], such a message must arrive
//! at [`BYTES_PER_SECOND_MIN`] on average. A further large message waits for a permit, for at most [`PERMIT_WAIT_MAX`].

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body;
use quorate_net::listen::IncomingBody;
use quorate_net::pace::Pace;
use quorate_telemetry::log;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::frame::FRAME_BYTES_MAX;

/// Maximum length of a message that is buffered without a permit.
pub(crate) const SMALL_BODY_BYTES: usize = 64 << 10;

/// Maximum number of longer messages that are buffered at the same time.
pub(crate) const LARGE_BODIES_MAX: usize = 4;

/// Throughput of the slowest supported link, in bytes per second.
pub(crate) const BYTES_PER_SECOND_MIN: u64 = 1 << 20;

/// Time for which a large message may arrive more slowly than [`BYTES_PER_SECOND_MIN`]. A sender gives up earlier.
const SLOW_TIME_MAX: Duration = Duration::from_secs(20);

/// Maximum time for which a large message waits for a permit. A sender gives up earlier.
const PERMIT_WAIT_MAX: Duration = Duration::from_secs(20);

/// Maximum time for which pieces are gathered before they are returned.
const GATHER_TIME_MAX: Duration = Duration::from_secs(1);

/// Why a body cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("{0}")]
    Http(String),
    #[error("read tcp: i/o timeout")]
    TooSlow,
    #[error("unexpected EOF")]
    Ended,
    #[error("rafthttp: error limit exceeded")]
    TooLong,
    #[error("too many large messages are being received")]
    TooMany,
}

/// A body that is being received.
pub(crate) struct BodyReader<B = IncomingBody> {
    body: B,
    /// Received data that is not consumed yet.
    rest: Bytes,
    timeout: Duration,
    started: Instant,
    /// Time for which the reader has waited for the sender.
    waited: Duration,
    pace: Pace,
}

impl<B: Body<Data = Bytes, Error: std::error::Error + 'static> + Unpin> BodyReader<B> {
    /// Wraps a body that may pause for up to `timeout`.
    pub(crate) fn new(body: B, timeout: Duration) -> Self {
        let started = Instant::now();
        let (rest, waited, pace) = (Bytes::new(), Duration::ZERO, Pace::new(started));
        Self { body, rest, timeout, started, waited, pace }
    }

    /// Returns the next piece, or `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        if !self.rest.is_empty() {
            return Ok(Some(std::mem::take(&mut self.rest)));
        }
        loop {
            if !self.pace.is_kept(self.started + self.waited) {
                return Err(BodyError::TooSlow);
            }
            let asked = Instant::now();
            let frame = tokio::time::timeout(self.timeout, self.body.frame()).await;
            self.waited += asked.elapsed();
            let Some(frame) = frame.map_err(|_| BodyError::TooSlow)? else { return Ok(None) };
            let frame = frame.map_err(|error| BodyError::Http(log::error_chain(&error)))?;
            let Ok(piece) = frame.into_data() else { continue };
            self.pace.received(piece.len() as u64);
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
    }

    /// Buffers the rest of the body.
    pub(crate) async fn buffer_all(&mut self, permits: &Semaphore) -> Result<Bytes, BodyError> {
        self.buffer(None, permits).await
    }

    /// Buffers the next `count` bytes.
    pub(crate) async fn buffer_exactly(
        &mut self,
        count: usize,
        permits: &Semaphore,
    ) -> Result<Bytes, BodyError> {
        self.buffer(Some(count), permits).await
    }

    async fn buffer(
        &mut self,
        count: Option<usize>,
        permits: &Semaphore,
    ) -> Result<Bytes, BodyError> {
        // The message is copied into a buffer of its own, so that a retained entry keeps only its own message in memory.
        let mut buffered = BytesMut::new();
        let (mut permit, waited_before) = (None, self.waited);
        while count.is_none_or(|count| buffered.len() < count) {
            let Some(mut piece) = self.next().await? else {
                if count.is_some() {
                    return Err(BodyError::Ended);
                }
                break;
            };
            if let Some(count) = count {
                self.rest = piece.split_off(piece.len().min(count - buffered.len()));
            }
            buffered.extend_from_slice(&piece);
            let bytes = buffered.len() as u64;
            if bytes > FRAME_BYTES_MAX {
                return Err(BodyError::TooLong);
            }
            if buffered.len() <= SMALL_BODY_BYTES {
                continue;
            }
            let time_max = SLOW_TIME_MAX + Duration::from_secs(bytes / BYTES_PER_SECOND_MIN);
            if self.waited - waited_before > time_max {
                return Err(BodyError::TooSlow);
            }
            if permit.is_none() {
                let acquired = tokio::time::timeout(PERMIT_WAIT_MAX, permits.acquire()).await;
                let acquired = acquired.map_err(|_| BodyError::TooMany)?;
                permit = Some(acquired.expect("the semaphore is never closed"));
            }
        }
        Ok(buffered.freeze())
    }

    /// Returns at least `bytes_min` bytes in pieces, or fewer if they take longer than [`GATHER_TIME_MAX`]. Returns fewer
    /// at the end of the body, and an empty list after it.
    pub(crate) async fn gather(&mut self, bytes_min: usize) -> Result<Vec<Bytes>, BodyError> {
        let (mut pieces, mut bytes, started) = (Vec::new(), 0, Instant::now());
        while bytes < bytes_min
            && (pieces.is_empty() || started.elapsed() < GATHER_TIME_MAX)
            && let Some(piece) = self.next().await?
        {
            bytes += piece.len();
            pieces.push(piece);
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, ready};

    use hyper::body::Frame;
    use tokio::time::{Sleep, sleep};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A body that first delivers `first` bytes at once, and then `each` bytes per second, `rest` times.
    struct Trickle {
        first: usize,
        each: usize,
        rest: usize,
        next: Option<Pin<Box<Sleep>>>,
    }

    impl Body for Trickle {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let this = &mut *self;
            let bytes = match &mut this.next {
                None => this.first,
                Some(_) if this.rest == 0 => return Poll::Ready(None),
                Some(next) => {
                    ready!(next.as_mut().poll(cx));
                    this.rest -= 1;
                    this.each
                }
            };
            this.next = Some(Box::pin(sleep(SECOND)));
            Poll::Ready(Some(Ok(Frame::data(vec![7; bytes].into()))))
        }
    }

    async fn read(
        (first, each, rest): (usize, usize, usize),
        permits: &Semaphore,
    ) -> Result<usize, BodyError> {
        let body = Trickle { first, each, rest, next: None };
        let buffered = BodyReader::new(body, SECOND * 5).buffer_all(permits).await;
        buffered.map(|message| message.len())
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_is_refused_and_its_permit_released() {
        let (permits, large) = (Semaphore::new(1), SMALL_BODY_BYTES + 1);
        for body in [(1, 1, 100), (large, 1, 100), (large, 4_000, 100)] {
            let begin = Instant::now();
            assert_eq!(read(body, &permits).await, Err(BodyError::TooSlow), "{body:?}");
            let taken = begin.elapsed();
            assert!(taken <= SLOW_TIME_MAX * 2, "{taken:?}");
        }
        assert_eq!(permits.available_permits(), 1);
        assert_eq!(read((large, 4_000, 15), &permits).await, Ok(large + 15 * 4_000));
        assert_eq!(read((1, 4_000, 15), &permits).await, Ok(1 + 15 * 4_000));
        let at_full_speed = (1, 1 << 20, 64);
        assert_eq!(read(at_full_speed, &permits).await, Ok((64 << 20) + 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_body_does_not_wait_indefinitely_for_a_permit() {
        let permits = Semaphore::new(0);
        let begin = Instant::now();
        assert_eq!(read((SMALL_BODY_BYTES + 1, 1, 1), &permits).await, Err(BodyError::TooMany));
        assert_eq!(begin.elapsed(), PERMIT_WAIT_MAX);
        assert_eq!(read((SMALL_BODY_BYTES, 0, 1), &permits).await, Ok(SMALL_BODY_BYTES));
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_that_the_reader_needs_does_not_count_against_the_sender() {
        let body = Trickle { first: 10, each: 10, rest: 3, next: None };
        let mut reader = BodyReader::new(body, SECOND * 5);
        let mut bytes = 0;
        while let Some(piece) = reader.next().await.unwrap() {
            bytes += piece.len();
            sleep(SECOND * 60).await;
        }
        assert_eq!(bytes, 40);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_is_gathered_in_small_pieces() {
        let body = Trickle { first: 10, each: 10, rest: 3, next: None };
        let mut reader = BodyReader::new(body, SECOND * 5);
        let mut counts = Vec::new();
        loop {
            let pieces = reader.gather(1 << 20).await.unwrap();
            if pieces.is_empty() {
                break;
            }
            counts.push(pieces.concat().len());
        }
        assert_eq!(counts.iter().sum::<usize>(), 40);
        assert!(counts.iter().all(|count| *count <= 20), "{counts:?}");
    }

    /// Returns how many seconds it takes to read this many bodies, which all start at the same time and take ten
    /// seconds each.
    async fn time_of(count: usize) -> u64 {
        let permits = Arc::new(Semaphore::new(LARGE_BODIES_MAX));
        let begin = Instant::now();
        let mut reading = tokio::task::JoinSet::new();
        for _ in 0..count {
            let permits = Arc::clone(&permits);
            reading.spawn(async move {
                read((SMALL_BODY_BYTES + 1, 4_000, 10), &permits).await.unwrap()
            });
        }
        let read = reading.join_all().await;
        assert!(read.into_iter().all(|bytes| bytes == SMALL_BODY_BYTES + 1 + 10 * 4_000));
        begin.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn large_bodies_beyond_the_bound_wait_for_a_permit() {
        assert_eq!(time_of(LARGE_BODIES_MAX).await, 10);
        // The first piece of the additional body has already arrived when the body receives its permit.
        assert_eq!(time_of(LARGE_BODIES_MAX + 1).await, 19);
    }
}
