//! Sends watchdog notifications to the init system, over systemd's notify protocol (sd_watchdog_enabled(3)).
//!
//! If `WatchdogSec` is set in the unit, systemd restarts a member whose consensus makes no progress.

use std::ffi::OsString;
use std::time::Duration;

use quorate_telemetry::{init_system, log};

/// The init system's watchdog for this process.
#[derive(Debug, PartialEq, Eq)]
pub struct Watchdog {
    socket_name: OsString,
    /// Time without a notification after which the init system ends the process.
    limit: Duration,
}

impl Watchdog {
    /// Returns the watchdog of this process, if it is enabled.
    pub fn over_this_process() -> Option<Self> {
        let var = |name| std::env::var_os(name);
        Self::asked_for(var("WATCHDOG_USEC"), var("WATCHDOG_PID"), var("NOTIFY_SOCKET"))
    }

    fn asked_for(
        micros: Option<OsString>,
        process: Option<OsString>,
        socket_name: Option<OsString>,
    ) -> Option<Self> {
        // Environment variables inherited from a parent process are intended for that process.
        let own = std::process::id().to_string();
        let is_meant = process.is_none_or(|process| process == *own);
        let limit = Duration::from_micros(micros?.to_str()?.parse().ok()?);
        let socket_name = socket_name.filter(|name| !name.is_empty())?;
        (is_meant && !limit.is_zero()).then_some(Self { socket_name, limit })
    }

    /// Sends two notifications within each limit, each only if `is_alive(limit)` returns true. Never returns.
    pub async fn keep(self, is_alive: impl Fn(Duration) -> bool) {
        let mut pause = tokio::time::interval(self.limit / 2);
        pause.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            pause.tick().await;
            if is_alive(self.limit) {
                // If a notification is lost, the next one arrives in time.
                drop(init_system::send(b"WATCHDOG=1", Some(&self.socket_name)));
            } else {
                log::warn!(
                    "consensus is not making progress; the init system's watchdog will kill this process"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn the_watchdog_is_enabled_only_by_valid_variables_meant_for_this_process() {
        let own = std::process::id().to_string();
        let asked = |micros: &str, process: Option<&str>, socket: &str| {
            Watchdog::asked_for(Some(micros.into()), process.map(Into::into), Some(socket.into()))
        };
        let limit = Duration::from_secs(3);
        let expected = Some(Watchdog { socket_name: "/run/notify".into(), limit });
        assert_eq!(asked("3000000", Some(&own), "/run/notify"), expected);
        assert_eq!(asked("3000000", None, "/run/notify"), expected);
        assert_eq!(asked("3000000", Some("1"), "/run/notify"), None);
        assert_eq!(asked("0", None, "/run/notify"), None);
        assert_eq!(asked("soon", None, "/run/notify"), None);
        assert_eq!(asked("3000000", None, ""), None);
        assert_eq!(Watchdog::asked_for(None, None, Some("/run/notify".into())), None);
    }

    #[tokio::test]
    async fn watchdog_notifications_require_progress() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let limit = Duration::from_millis(20);
        let is_asked = Cell::new(0);
        let mut signs = Vec::new();
        for is_alive in [true, false] {
            let watchdog = Watchdog { socket_name: path.clone().into(), limit };
            is_asked.set(0);
            let kept = watchdog.keep(|within| {
                assert_eq!(within, limit);
                is_asked.set(is_asked.get() + 1);
                is_alive
            });
            // Waits for one more check than the test counts, so that the notification after the last counted check is
            // sent.
            let enough = async {
                while is_asked.get() < 4 {
                    tokio::time::sleep(limit / 4).await;
                }
            };
            tokio::select! {
                () = kept => unreachable!("notifications never end"),
                () = enough => {}
            }
            let mut message = [0; 16];
            let mut count = 0;
            while let Ok(length) = socket.recv(&mut message) {
                assert_eq!(&message[..length], b"WATCHDOG=1");
                count += 1;
            }
            signs.push(count);
        }
        assert!(signs[0] >= 3);
        assert_eq!(signs[1], 0);
    }
}
