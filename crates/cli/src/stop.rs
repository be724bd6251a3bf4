//! Ends a serving program on SIGTERM or SIGINT, after a final action.
//!
//! The program ends by the signal itself, so that the parent process sees the signal in the exit status. As
//! process 1 it exits with 0, because the kernel does not let an uncaught signal end process 1.

use std::io;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Installs the handlers; `first` runs before the process ends.
pub fn on_signal(first: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let received = signals.forever().next();
        first();
        if std::process::id() == 1 {
            exit(0);
        }
        let signal = received.unwrap_or(SIGTERM);
        // This returns only if the signal cannot be raised; the exit code is then the one that a shell would
        // report.
        drop(signal_hook::low_level::emulate_default_handler(signal));
        exit(128 + signal);
    })?;
    Ok(())
}

#[expect(clippy::exit, reason = "ending the process is what this module is for")]
fn exit(code: i32) -> ! {
    std::process::exit(code)
}
