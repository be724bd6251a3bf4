//! Reserves free ports, each for one test at a time.
//!
//! The ports of a stopped server must be free when it restarts, even if other tests in this or another process start
//! servers in between. A port is therefore reserved by a UDP socket with the same number. All tests try to bind that
//! socket first, and the socket does not affect servers.

use std::net::{TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

const FIRST: u32 = 20_000;
const COUNT: u32 = 10_000;

/// A port that no other test uses. Dropping the value releases it.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _held: UdpSocket,
}

impl Port {
    /// Finds a port that nothing listens on. Processes that run at the same time start their search at different ports.
    #[must_use]
    pub fn free() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let own = std::process::id().wrapping_mul(97);
        for _ in 0..COUNT {
            let offset = own.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
            let number = u16::try_from(FIRST + offset).unwrap();
            let Ok(held) = UdpSocket::bind(("127.0.0.1", number)) else { continue };
            if TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Self { number, _held: held };
            }
        }
        panic!("no free port between {FIRST} and {}", FIRST + COUNT);
    }

    /// Returns the port number.
    #[must_use]
    pub const fn number(&self) -> u16 {
        self.number
    }
}
