//! The signals that end a command: SIGINT and SIGTERM.
//!
//! A command that holds a lock releases it before it exits, and a command that leads an election resigns.

use std::io;
use std::sync::Arc;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use tokio::sync::Notify;

/// Receives the signals while it exists, so that they do not end the process.
pub(crate) struct Interrupt {
    heard: Arc<Notify>,
    handle: Handle,
}

impl Interrupt {
    /// Starts to receive signals.
    pub(crate) fn listen() -> io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let (heard, handle) = (Arc::new(Notify::new()), signals.handle());
        let notify = heard.clone();
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || signals.forever().for_each(|_| notify.notify_one()))?;
        Ok(Self { heard, handle })
    }

    /// Waits for a signal. Returns immediately if a signal has already arrived.
    pub(crate) async fn wait(&self) {
        self.heard.notified().await;
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.handle.close();
    }
}
