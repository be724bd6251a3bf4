//! Handles signals. SIGTERM and SIGINT stop the member cleanly, and the same signal then ends the process.
//!
//! The handlers are installed before anything else. While the member is starting, which may take a long time because it
//! may have to wait for other members, a signal ends the process immediately. This is equivalent to a crash, which the
//! files tolerate at any point. After [`StopSignals::take_over`] the member itself handles the signal. A second signal
//! during the stop has no effect. Finally, the process raises the signal again, so that the sender sees it in the exit
//! status. A process with id 1 exits with status 0 instead, because the kernel does not allow an uncaught signal to end
//! it.
//!
//! SIGUSR1 and SIGUSR2 are ignored from the start, as in a Go program.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use signal_hook::consts::signal::{SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use tokio::sync::mpsc;

use quorate_telemetry::log;

/// The signal that requested the stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    /// SIGTERM.
    Terminated,
    /// SIGINT.
    Interrupt,
}

impl StopSignal {
    /// Returns the signal's name for the log.
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

    /// Ends the process as the signal would without a handler.
    pub fn end_process(self) -> ! {
        log::flush();
        // A process that a signal ends does not write the profile that it has recorded.
        if rustix::process::getpid().is_init() || cfg!(quorate_training) {
            exit(0);
        }
        // The call returns only if the signal cannot be raised. The exit status is then the status that a shell reports
        // for the signal.
        let _outcome = signal_hook::low_level::emulate_default_handler(self.number());
        exit(128 + self.number())
    }
}

#[expect(clippy::exit, reason = "this module ends the process")]
fn exit(code: i32) -> ! {
    std::process::exit(code)
}

/// The stop signals of the process.
#[derive(Debug)]
pub struct StopSignals {
    signal: mpsc::Receiver<StopSignal>,
    /// Whether the member handles signals itself. The lock is held while the process ends.
    is_taken_over: Arc<Mutex<bool>>,
}

impl StopSignals {
    /// Installs the handlers. After this call, the first signal is logged and handled.
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
                log::info!("the member has not finished starting; ending the process immediately");
                signal.end_process();
            }
            drop(is_taken_over);
            // Later signals are ignored.
            _ = sender.blocking_send(signal);
        })?;
        Ok(Self { signal, is_taken_over })
    }

    /// Hands signals over to the member, which calls [`Self::wait`]. After this call, a signal no longer ends the
    /// process.
    pub fn take_over(&self) {
        *self.is_taken_over.lock() = true;
    }

    /// Waits for the first signal.
    pub async fn wait(&mut self) -> StopSignal {
        match self.signal.recv().await {
            Some(signal) => signal,
            // The first signal has already been returned, and later ones are ignored.
            None => std::future::pending().await,
        }
    }
}

/// Waits for the first signal on a separate thread.
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

/// Ignores the signals that have no meaning for the server but would end it.
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
    async fn the_first_stop_signal_is_returned() {
        let mut signals = StopSignals::install().unwrap();
        signals.take_over();
        ignore_user_signals().unwrap();
        signal_hook::low_level::raise(SIGUSR1).unwrap();
        signal_hook::low_level::raise(SIGTERM).unwrap();
        assert_eq!(signals.wait().await, StopSignal::Terminated);
        // A signal that the member does not wait for has no effect.
        signal_hook::low_level::raise(SIGTERM).unwrap();
    }
}
