//! A pool of persistent connections to peers' HTTP ports, for frequent calls: a follower forwards every lease renewal,
//! and one connection per renewal would exhaust the local ports.
//!
//! A call takes an idle connection from the pool or opens a new one, and puts it into the pool once the response is
//! complete. If the peer has closed the idle connection, the call is repeated on a new one. The pool is therefore
//! suitable only for calls that may be made twice.
//!
//! # Bound
//!
//! The pool keeps at most [`IDLE_MAX`] idle connections to each address, each for at most [`IDLE_TIME_MAX`]. The number
//! of connections in use equals the number of calls in progress.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use parking_lot::Mutex;

/// Maximum number of idle connections to one address.
const IDLE_MAX: usize = 32;

/// Maximum idle time of a pooled connection.
const IDLE_TIME_MAX: Duration = Duration::from_secs(30);

/// The sending side of a connection, which a separate task drives. Dropping this value closes the connection.
pub(crate) type Sender = SendRequest<Full<Bytes>>;

/// The pool of connections.
#[derive(Debug, Default)]
pub struct ConnectionPool {
    idle: Mutex<HashMap<String, Vec<(Sender, Instant)>>>,
}

impl ConnectionPool {
    /// Takes the most recently used idle connection to this peer URL. Skips connections that are closed or have been
    /// idle for too long.
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

    /// Puts back a connection whose last response is complete.
    pub(crate) fn put(&self, base: String, sender: Sender) {
        let mut idle = self.idle.lock();
        // Without this cleanup, the connections to a former leader would stay in the pool.
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
