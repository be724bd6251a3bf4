//! Signals: a clean stop on SIGTERM and SIGINT, and death by the same signal afterwards.
//!
//! Handlers are installed before anything else is done. While the member is being put together, which may take as
//! long as others let it wait, a signal ends the process at once: its files are as after a crash, which they
//! survive at any moment. From [`StopSignals::take_over`] on, the signal is for the member to act on. A second one
//! while it stops changes nothing. In the end the process ends by the signal itself, so that whoever sent it sees
//! it in the status; as process 1, which the kernel would not let die so, it exits with 0.
//!
//! SIGUSR1 and SIGUSR2 are ignored from the start, as a Go program ignores them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use signal_hook::consts::signal::{SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use tokio::sync::mpsc;

use quorate_telemetry::log;

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
        // It returns only where the signal cannot be raised, which leaves the status a shell would
        // show.
        let _outcome = signal_hook::low_level::emulate_default_handler(self.number());
        exit(128 + self.number())
    }
}

#[expect(clippy::exit, reason = "ending the process is what this module is for")]
fn exit(code: i32) -> ! {
    std::process::exit(code)
}

/// The stop signals of the process, from its beginning to its end.
#[derive(Debug)]
pub struct StopSignals {
    signal: mpsc::Receiver<StopSignal>,
    /// Whether the member stops by itself when it is told. Held while the process ends.
    is_taken_over: Arc<Mutex<bool>>,
}

impl StopSignals {
    /// Installs the handlers; from here on the first signal is told in the log and acted on.
    pub fn install() -> io::Result<Self> {
        let mut signals = Signals::new([SIGTERM, SIGINT])?;
        let (sender, signal) = mpsc::channel(1);
        let is_taken_over = Arc::new(Mutex::new(false));
        let taken_over = Arc::clone(&is_taken_over);
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            let signal = first_of(&mut signals);
            log::info!("received signal; shutting down", "signal" = signal.name());
            let is_taken_over = taken_over.lock();
            if !*is_taken_over {
                log::info!("the member had not started yet");
                signal.end_process();
            }
            drop(is_taken_over);
            // Later ones stay unread.
            _ = sender.blocking_send(signal);
        })?;
        Ok(Self { signal, is_taken_over })
    }

    /// From here on a signal does not end the process: somebody waits for it in [`Self::wait`].
    pub fn take_over(&self) {
        *self.is_taken_over.lock() = true;
    }

    /// Waits for the first signal.
    pub async fn wait(&mut self) -> StopSignal {
        match self.signal.recv().await {
            Some(signal) => signal,
            // It was told before.
            None => std::future::pending().await,
        }
    }
}

/// Waits for the first signal, on a thread of its own.
fn first_of(signals: &mut Signals) -> StopSignal {
    let number = loop {
        if let Some(number) = signals.wait().next() {
            break number;
        }
    };
    match number {
        SIGTERM => StopSignal::Terminated,
        _ => StopSignal::Interrupt,
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

    #[tokio::test]
    async fn the_first_signal_is_the_one_told() {
        let mut signals = StopSignals::install().unwrap();
        signals.take_over();
        ignore_user_signals().unwrap();
        signal_hook::low_level::raise(SIGUSR1).unwrap();
        signal_hook::low_level::raise(SIGTERM).unwrap();
        assert_eq!(signals.wait().await, StopSignal::Terminated);
        // Unread, it harms nobody.
        signal_hook::low_level::raise(SIGTERM).unwrap();
    }
}
