//! Signals: a clean stop on SIGTERM and SIGINT, and death by the same signal afterwards.
//!
//! Handlers are installed only once the member serves; before that the default action applies, so a
//! start that hangs can be killed. A second signal while the member stops changes nothing. After the
//! stop the process ends by the signal itself, so that whoever sent it sees it in the status; as
//! process 1, which the kernel would not let die so, it exits with 0.
//!
//! SIGUSR1 and SIGUSR2 are ignored from the start, as a Go program ignores them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::signal::{SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::log;

/// The signal that asked for the stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    /// SIGTERM.
    Terminated,
    /// SIGINT.
    Interrupt,
}

impl StopSignal {
    /// The name in the log line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Terminated => "terminated",
            Self::Interrupt => "interrupt",
        }
    }

    const fn number(self) -> i32 {
        match self {
            Self::Terminated => SIGTERM,
            Self::Interrupt => SIGINT,
        }
    }

    /// Ends the process the way the signal would have, had nobody caught it.
    pub fn end_process(self) -> ! {
        log::flush();
        if rustix::process::getpid().is_init() {
            exit(0);
        }
        // It returns only where the signal cannot be raised, which leaves the status a shell would show.
        let _outcome = signal_hook::low_level::emulate_default_handler(self.number());
        exit(128 + self.number())
    }
}

#[expect(clippy::exit, reason = "ending the process is what this module is for")]
fn exit(code: i32) -> ! {
    std::process::exit(code)
}

/// The installed handlers of the stop signals.
#[derive(Debug)]
pub struct StopSignals {
    signals: Signals,
}

impl StopSignals {
    /// Installs the handlers; from here on the signals no longer end the process.
    pub fn install() -> io::Result<Self> {
        Ok(Self { signals: Signals::new([SIGTERM, SIGINT])? })
    }

    /// Waits for the first signal, on a thread of its own. Later ones stay unread.
    pub fn wait(&mut self) -> StopSignal {
        let number = loop {
            if let Some(number) = self.signals.wait().next() {
                break number;
            }
        };
        let signal = match number {
            SIGTERM => StopSignal::Terminated,
            _ => StopSignal::Interrupt,
        };
        log::info!("received signal; shutting down", "signal" = signal.name());
        signal
    }
}

/// Ignores the signals that mean nothing to the server and would end it.
pub fn ignore_user_signals() -> io::Result<()> {
    for number in [SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(number, Arc::new(AtomicBool::new(false)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_signal_is_the_one_told() {
        let mut signals = StopSignals::install().unwrap();
        ignore_user_signals().unwrap();
        signal_hook::low_level::raise(SIGUSR1).unwrap();
        signal_hook::low_level::raise(SIGTERM).unwrap();
        assert_eq!(signals.wait(), StopSignal::Terminated);
        // Unread, it harms nobody.
        signal_hook::low_level::raise(SIGTERM).unwrap();
    }
}
