//! A pool of connections to peers' HTTP ports, which are kept between calls for what is asked often: a follower passes
//! on every renewal of a lease, and a connection for each would use up the ports of the host.
//!
//! A call takes a connection that nobody uses, or opens one, and gives it back when the answer is complete.
//! One that the peer has closed meanwhile is replaced and the call made again, so this is for calls that may
//! be made twice.
//!
//! # Bound
//!
//! [`IDLE_MAX`] connections to one address wait for a call, none for longer than [`IDLE_TIME_MAX`]; those in use
//! are as many as there are calls.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use parking_lot::Mutex;

/// Connections to one address that wait for a call.
const IDLE_MAX: usize = 32;

/// How long one waits.
const IDLE_TIME_MAX: Duration = Duration::from_secs(30);

/// A connection that its task drives; it ends when this is dropped.
pub(crate) type Sender = SendRequest<Full<Bytes>>;

/// See the module.
#[derive(Debug, Default)]
pub struct ConnectionPool {
    idle: Mutex<HashMap<String, Vec<(Sender, Instant)>>>,
}

impl ConnectionPool {
    /// Takes out a connection to this peer URL that looks open: the one that was used last.
    pub(crate) fn take(&self, base: &str) -> Option<Sender> {
        let mut idle = self.idle.lock();
        let waiting = idle.get_mut(base)?;
        while let Some((sender, since)) = waiting.pop() {
            if !sender.is_closed() && since.elapsed() < IDLE_TIME_MAX {
                return Some(sender);
            }
        }
        None
    }

    /// Gives back a connection whose last answer is complete.
    pub(crate) fn put(&self, base: String, sender: Sender) {
        let mut idle = self.idle.lock();
        // Leaders change; what is kept for the last one is not taken out any more.
        idle.retain(|_, waiting| {
            waiting.retain(|(_, since)| since.elapsed() < IDLE_TIME_MAX);
            !waiting.is_empty()
        });
        let waiting = idle.entry(base).or_default();
        if waiting.len() < IDLE_MAX {
            waiting.push((sender, Instant::now()));
        }
    }
}
