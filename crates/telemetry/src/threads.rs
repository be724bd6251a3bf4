//! Threads that inherit the `tracing` subscriber of the thread that starts them.
//!
//! A program that embeds a member has a subscriber, for the whole program or for one thread
//! ([`log`](crate::log)). The log lines of a member's threads go to the subscriber of the thread that started
//! the member. With a subscriber for each, a program can separate the logs of two members. A server has no
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

    /// Sets the subscriber of the current thread until it ends. For threads that a runtime starts.
    pub fn take_on(&self) {
        if let Some(subscriber) = &self.0 {
            // The guard that would restore the previous subscriber is not needed.
            let _until_the_end = ManuallyDrop::new(dispatcher::set_default(subscriber));
        }
    }
}
