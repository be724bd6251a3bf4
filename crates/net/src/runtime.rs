//! The connection runtimes: single-threaded tokio runtimes over which the connections are distributed. A member has one
//! for each processor.
//!
//! In measurements, a current-thread runtime used two thirds of the multi-threaded scheduler's CPU time per call. A
//! current-thread runtime has no work stealing, which matters little because every task is short. Each runtime runs a
//! resident task. On a member, this task delivers the results of the core threads.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use quorate_telemetry::threads::{self, Listener};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::ticks::note_runtime_start;
use crate::wakes::WakeQueue;

/// The settings of the threads in a set of runtimes.
#[derive(Clone, Copy, Debug)]
pub struct Threads<'a> {
    /// The prefix of the thread names, before a hyphen and a number.
    pub name: &'a str,
    /// The number of threads.
    pub count: usize,
    /// The stack size, which must be sufficient for the deepest call of any request.
    pub stack_bytes: usize,
}

/// A running set of runtimes. Dropping it stops the threads and their tasks.
#[derive(Debug)]
pub struct Runtimes {
    workers: Vec<Worker>,
    next: AtomicUsize,
}

#[derive(Debug)]
struct Worker {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Runtimes {
    /// Starts runtimes on their own threads. Each runs its `resident` until the set is dropped.
    pub fn start<F, R>(threads: Threads<'_>, mut resident: R) -> io::Result<Self>
    where
        R: FnMut(usize) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        let workers = (0..threads.count)
            .map(|index| {
                let name = format!("{}-{index}", threads.name);
                Worker::start(name, threads.stack_bytes, resident(index))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { workers, next: AtomicUsize::new(0) })
    }

    /// Returns the runtime that also runs the member's periodic tasks.
    pub fn first(&self) -> &Handle {
        &self.workers[0].handle
    }

    /// Returns the next runtime, in round-robin order.
    pub fn deal(&self) -> &Handle {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        &self.workers[turn % self.workers.len()].handle
    }
}

impl Worker {
    fn start(
        name: String,
        stack_bytes: usize,
        resident: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<Self> {
        // The separate threads for blocking work must log to the same subscriber as this thread.
        let listener = Listener::of_this_thread();
        let mut runtime = Builder::new_current_thread();
        // Some requests are handled as blocking work, so the threads for blocking work need the same stack size.
        runtime.thread_stack_size(stack_bytes);
        let start = Instant::now();
        let runtime = runtime.enable_all().on_thread_start(move || listener.take_on()).build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name(name).stack_size(stack_bytes);
        let thread = threads::spawn(thread, move || {
            note_runtime_start(start);
            runtime.block_on(async {
                tokio::select! {
                    () = resident => {}
                    () = Arc::<WakeQueue>::default().deliver() => {}
                    // The receiver also resolves if the sender is dropped.
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Runtimes {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            drop(worker.stop.take());
        }
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take()
                && thread.thread().id() != std::thread::current().id()
            {
                // A panic in a runtime has already been reported on stderr.
                drop(thread.join());
            }
        }
    }
}

/// Runs blocking work outside the connection threads, and returns its result.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, so no result is needed.
            Err(_) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREADS: Threads<'_> = Threads { name: "test", count: 2, stack_bytes: 1 << 20 };

    #[test]
    fn tasks_are_assigned_to_the_runtimes_in_turn_and_end_with_their_runtime() {
        let runtimes = Runtimes::start(THREADS, |_| std::future::pending()).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        for _ in 0..4 {
            let sender = sender.clone();
            runtimes.deal().spawn(async move { sender.send(std::thread::current().id()).unwrap() });
        }
        let mut seen: Vec<_> = (0..4).map(|_| receiver.recv().unwrap()).collect();
        seen.sort_by_key(|id| format!("{id:?}"));
        seen.dedup();
        assert_eq!(seen.len(), 2);
        let held = Arc::new(());
        let kept = Arc::clone(&held);
        runtimes.first().spawn(async move {
            let _kept = kept;
            std::future::pending::<()>().await;
        });
        drop(runtimes);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
