//! What ends a program that serves: SIGTERM and SIGINT, once it has done what it wants to do first.
//!
//! It ends by the signal itself, so that whoever sent it sees it in the status. As process 1, which the kernel lets no
//! signal end that it does not catch, it exits with 0.

use std::io;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Has the process end when it is told to, after this.
pub fn when_told(first: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let told = signals.forever().next();
        first();
        if std::process::id() == 1 {
            exit(0);
        }
        let signal = told.unwrap_or(SIGTERM);
        // It returns only where the signal cannot be raised, which leaves the status a shell would show.
        drop(signal_hook::low_level::emulate_default_handler(signal));
        exit(128 + signal);
    })?;
    Ok(())
}

#[expect(clippy::exit, reason = "ending the process is what this module is for")]
fn exit(code: i32) -> ! {
    std::process::exit(code)
}
