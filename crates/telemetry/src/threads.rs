//! Threads of a member, which talk to whom the one talks to that starts them.
//!
//! A program that embeds a member has a subscriber of `tracing`, for itself or for one thread alone ([`log`](crate::log)). What
//! a member's threads say belongs to the subscriber of the thread that started the member: with one for each, two
//! members in one process are told apart. A server has none, and its threads are like any other.

use std::io;
use std::mem::ManuallyDrop;
use std::thread::{Builder, JoinHandle};

use tracing_core::dispatcher::{self, Dispatch};

/// Starts a thread that talks to whom this one talks to.
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

/// Whom a thread talks to.
#[derive(Clone, Debug)]
pub struct Listener(Option<Dispatch>);

impl Listener {
    /// Whom this thread talks to.
    #[must_use]
    pub fn of_this_thread() -> Self {
        Self(dispatcher::has_been_set().then(|| dispatcher::get_default(Dispatch::clone)))
    }

    /// Has this thread talk to the same, until it ends. For threads that a runtime starts.
    pub fn take_on(&self) {
        if let Some(subscriber) = &self.0 {
            // What would put back the one before is not wanted.
            let _until_the_end = ManuallyDrop::new(dispatcher::set_default(subscriber));
        }
    }
}
