//! Ends a server program on SIGTERM or SIGINT, after a final action.
//!
//! The signal itself ends the program, so that the exit status tells the parent process which signal it was. As process
//! 1, the program exits with code 0 instead, because the kernel does not allow an uncaught signal to end process 1.

use std::io;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Installs the signal handlers. `first` runs before the process ends.
pub fn on_signal(first: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let received = signals.forever().next();
        first();
        // An instrumented program writes its counters when it exits.
        if std::process::id() == 1 || cfg!(quorate_training) {
            exit(0);
        }
        let signal = received.unwrap_or(SIGTERM);
        // This function returns only if the signal cannot be raised. The process then exits with the code that a shell
        // would report for the signal.
        drop(signal_hook::low_level::emulate_default_handler(signal));
        exit(128 + signal);
    })?;
    Ok(())
}

#[expect(clippy::exit, reason = "this module ends the process")]
fn exit(code: i32) -> ! {
    std::process::exit(code)
}
