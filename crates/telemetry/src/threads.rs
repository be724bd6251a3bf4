//! Threads that inherit the `tracing` subscriber of the thread that starts them.
//!
//! A program that embeds a member may set a subscriber, for the whole program or for one thread ([`log`](crate::log)).
//! All threads of a member send their log lines to the subscriber of the thread that started the member. A program can
//! thus separate the logs of two members by starting them with different subscribers. The server itself has no
//! subscriber.

use std::io;
use std::mem::ManuallyDrop;
use std::thread::{Builder, JoinHandle};

use tracing_core::dispatcher::{self, Dispatch};

/// Starts a thread with the subscriber of the current thread.
pub fn spawn<T: Send + 'static>(
    thread: Builder,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let listener = Listener::of_this_thread();
    thread.spawn(move || {
        listener.take_on();
        run()
    })
}

/// The subscriber of a thread.
#[derive(Clone, Debug)]
pub struct Listener(Option<Dispatch>);

impl Listener {
    /// Returns the subscriber of the current thread.
    #[must_use]
    pub fn of_this_thread() -> Self {
        Self(dispatcher::has_been_set().then(|| dispatcher::get_default(Dispatch::clone)))
    }

    /// Sets this subscriber for the current thread until the thread ends. Used by threads that a runtime starts.
    pub fn take_on(&self) {
        if let Some(subscriber) = &self.0 {
            // The guard is not dropped, because the previous subscriber need not be restored.
            let _until_the_end = ManuallyDrop::new(dispatcher::set_default(subscriber));
        }
    }
}
