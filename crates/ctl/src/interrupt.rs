//! The signals that ask a command to come to an end: SIGINT and SIGTERM.
//!
//! A command that holds something others wait for gives it back before it ends.

use std::io;
use std::sync::Arc;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use tokio::sync::Notify;

/// Hears signals, which no longer end the process, for as long as this lives.
pub(crate) struct Interrupt {
    heard: Arc<Notify>,
    handle: Handle,
}

impl Interrupt {
    /// Begins to listen.
    pub(crate) fn listen() -> io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let (heard, handle) = (Arc::new(Notify::new()), signals.handle());
        let notify = heard.clone();
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || signals.forever().for_each(|_| notify.notify_one()))?;
        Ok(Self { heard, handle })
    }

    /// Waits for a signal, if none has come yet.
    pub(crate) async fn wait(&self) {
        self.heard.notified().await;
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.handle.close();
    }
}
