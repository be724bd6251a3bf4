//! Limits on how slowly a client may read a response.
//!
//! A response that no client reads keeps its memory, and a client may leave many responses unread. A service therefore
//! attaches a [`ReadLimit`] to a response that uses much memory. The connection checks the limit at regular intervals
//! while the response waits for its client ([`Reading`]). If the client reads too slowly, an HTTP/2 connection resets
//! the response's stream, and an HTTP/1 connection is closed.
//!
//! A response with a deadline also ends while its client does not read ([`ResponseDeadline`]).
//!
//! # Not here
//!
//! The amounts and times, which the services choose.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// The interval at which a response that waits for its client is checked.
pub(super) const CHECKED_EVERY: Duration = Duration::from_secs(1);

/// Maximum number of periods for which one step of progress is sufficient.
const PERIODS_MAX: u32 = 8;

/// The minimum pace of a client: it reads at least `bytes` within each period of length `time`, on average over at most
/// [`PERIODS_MAX`] periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The number of bytes, at least 1.
    pub bytes: u64,
    /// The length of the period.
    pub time: Duration,
}

/// Determines the minimum pace of a client.
pub trait ReadPolicy: Send + Sync {
    /// Returns the pace that is required now. The result may depend on how much memory is in use.
    fn required_pace(&self) -> Pace;
}

impl ReadPolicy for Pace {
    fn required_pace(&self) -> Pace {
        *self
    }
}

/// A limit on how slowly a client may read a response. A service adds it to the extensions of the response.
#[derive(Clone)]
pub struct ReadLimit(pub Arc<dyn ReadPolicy>);

impl std::fmt::Debug for ReadLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ReadLimit").field(&self.0.required_pace()).finish()
    }
}

/// The time at which a streamed response ends, even if its client does not read. A service adds it to the extensions of
/// a response whose body consists only of its trailers from this time on. An HTTP/2 connection then sends the trailers
/// without waiting for room. An HTTP/1 connection ignores the deadline.
#[derive(Clone, Copy, Debug)]
pub struct ResponseDeadline(pub Instant);

/// The progress of a client with a response.
#[derive(Debug)]
pub(super) struct Reading {
    /// The time at which the client last made sufficient progress, and the bytes sent by then: of the response, and on
    /// its connection.
    since: Instant,
    sent: u64,
    sent_on_connection: u64,
    /// The number of periods for which this progress is sufficient. Progress becomes visible in large steps: only when
    /// the client grants a new window, or when a third of the kernel's buffer is free.
    periods: u32,
}

impl Reading {
    pub(super) fn new(sent: u64, sent_on_connection: u64) -> Self {
        Self { since: Instant::now(), sent, sent_on_connection, periods: 1 }
    }

    /// Returns whether the client reads more slowly than it must. `sent` counts the bytes sent of the response.
    /// `sent_on_connection` is `Some` if the response is delayed by the connection rather than by its own window. In
    /// this case, it is sufficient that the client reads other responses.
    pub(super) fn is_too_slow(
        &mut self,
        pace: Pace,
        sent: u64,
        sent_on_connection: Option<u64>,
    ) -> bool {
        let own = sent - self.sent;
        let all = sent_on_connection.map_or(0, |sent| sent.saturating_sub(self.sent_on_connection));
        if own.max(all) >= pace.bytes {
            let sent_on_connection = sent_on_connection.unwrap_or(self.sent_on_connection);
            let periods = (own.max(all) / pace.bytes).min(PERIODS_MAX.into());
            let periods = u32::try_from(periods).expect("the number is at most `PERIODS_MAX`");
            *self = Self { since: Instant::now(), sent, sent_on_connection, periods };
            return false;
        }
        self.since.elapsed() >= pace.time * self.periods
    }
}
