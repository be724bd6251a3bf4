//! The connection runtimes: single-threaded tokio runtimes over which the connections are distributed. A member has one
//! for each processor.
//!
//! A new connection is given to the runtime with the fewest connections, unless its thread waits for the disk. The first
//! runtime also accepts connections and runs the periodic tasks, so it is chosen last among equals. Therefore a single
//! connection has a thread of its own if there are several runtimes. That thread may wait for the disk ([`may_wait`]).
//!
//! In measurements, a current-thread runtime used two thirds of the multi-threaded scheduler's CPU time per call. A
//! current-thread runtime has no work stealing, which matters little because every task is short. Each runtime runs a
//! resident task. On a member, this task delivers the results of the core threads.

use std::cell::{Cell, OnceCell};
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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
}

#[derive(Debug)]
struct Worker {
    handle: Handle,
    load: Arc<Load>,
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
                Worker::start(name, threads.stack_bytes, index == 0, resident(index))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { workers })
    }

    /// Returns the runtime that also runs the member's periodic tasks.
    pub fn first(&self) -> &Handle {
        &self.workers[0].handle
    }

    /// Chooses the runtime for a new connection, which counts as open until the returned value is dropped.
    pub fn deal(&self) -> (&Handle, OpenConnection) {
        let least_loaded = self.workers.iter().rev().min_by_key(|worker| worker.load.rank());
        let chosen = least_loaded.expect("a set of runtimes is not empty");
        let open = OpenConnection::count(&chosen.load);
        if !chosen.load.is_waiting.load(Ordering::SeqCst) {
            return (&chosen.handle, open);
        }
        drop(open);
        // The thread has begun to wait since it was chosen. The first runtime never waits.
        let first = &self.workers[0];
        (&first.handle, OpenConnection::count(&first.load))
    }
}

/// The load of a runtime.
#[derive(Debug, Default)]
struct Load {
    connection_count: AtomicUsize,
    /// Whether the thread may be waiting for the disk.
    is_waiting: AtomicBool,
}

impl Load {
    /// Returns the sort key for choosing a runtime. The runtime with the lowest key is chosen.
    fn rank(&self) -> (bool, usize) {
        let is_waiting = self.is_waiting.load(Ordering::SeqCst);
        (is_waiting, self.connection_count.load(Ordering::SeqCst))
    }
}

/// Counts a connection of a runtime.
#[derive(Debug)]
pub struct OpenConnection(Arc<Load>);

impl OpenConnection {
    fn count(load: &Arc<Load>) -> Self {
        load.connection_count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(load))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connection_count.fetch_sub(1, Ordering::SeqCst);
    }
}

thread_local! {
    /// The load of this thread's runtime. Not set on the first runtime of a set.
    static LOAD: OnceCell<Arc<Load>> = const { OnceCell::new() };
    /// The number of open streams of the HTTP/2 connection whose requests are polled, plus one if complete responses wait
    /// for its socket. Zero between such polls.
    static STREAM_COUNT: Cell<usize> = const { Cell::new(0) };
}

/// Sets the number of open streams of the HTTP/2 connection whose requests are about to be polled on this thread, plus
/// one if complete responses wait for its socket. The number is zero while no requests are polled.
pub(crate) fn set_stream_count(count: usize) {
    STREAM_COUNT.set(count);
}

/// Returns permission for the current thread to wait for the disk, if its runtime is not the first of its set and serves
/// one connection, which has one open stream and no unwritten response. Until the permission is dropped, new connections
/// are given to other runtimes.
pub fn may_wait() -> Option<DiskWait> {
    if STREAM_COUNT.get() != 1 {
        return None;
    }
    LOAD.with(|load| {
        let load = load.get()?;
        // The flag is set before the connections are counted, and `deal` counts a connection before it reads the flag.
        // So one of them notices the other.
        load.is_waiting.store(true, Ordering::SeqCst);
        let permission = DiskWait(Arc::clone(load));
        (load.connection_count.load(Ordering::SeqCst) == 1).then_some(permission)
    })
}

/// Permission for the current thread to wait for the disk.
#[derive(Debug)]
pub struct DiskWait(Arc<Load>);

impl Drop for DiskWait {
    fn drop(&mut self) {
        self.0.is_waiting.store(false, Ordering::SeqCst);
    }
}

impl Worker {
    fn start(
        name: String,
        stack_bytes: usize,
        is_first: bool,
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
        let load = Arc::<Load>::default();
        let own_load = (!is_first).then(|| Arc::clone(&load));
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name(name).stack_size(stack_bytes);
        let thread = threads::spawn(thread, move || {
            note_runtime_start(start);
            if let Some(load) = own_load {
                LOAD.with(|own| own.set(load)).expect("the thread belongs to one runtime");
            }
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
        Ok(Self { handle, load, stop: Some(stop), thread: Some(thread) })
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

    fn run<T: Send + 'static>(runtime: &Handle, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = std::sync::mpsc::channel();
        runtime.spawn(async move { sender.send(work()).unwrap() });
        receiver.recv().unwrap()
    }

    fn names(dealt: &[(&Handle, OpenConnection)]) -> Vec<String> {
        let name = || std::thread::current().name().unwrap().to_owned();
        dealt.iter().map(|(runtime, _)| run(runtime, name)).collect()
    }

    #[test]
    fn a_connection_goes_to_the_runtime_with_the_fewest_connections() {
        let runtimes = Runtimes::start(THREADS, |_| std::future::pending()).unwrap();
        let mut dealt = vec![runtimes.deal(), runtimes.deal(), runtimes.deal()];
        assert_eq!(names(&dealt), ["test-1", "test-0", "test-1"]);
        dealt.remove(0);
        dealt.remove(1);
        dealt.extend([runtimes.deal(), runtimes.deal()]);
        assert_eq!(names(&dealt), ["test-0", "test-1", "test-1"]);
    }

    #[test]
    fn only_a_thread_with_one_request_may_wait_and_it_receives_no_other_connection() {
        let may_wait_with = |stream_count| {
            move || {
                set_stream_count(stream_count);
                may_wait()
            }
        };
        let may_wait = may_wait_with(1);
        let runtimes = Runtimes::start(THREADS, |_| std::future::pending()).unwrap();
        assert!(may_wait().is_none(), "the thread belongs to no runtime");
        let (one, _one) = runtimes.deal();
        assert!(run(one, may_wait_with(0)).is_none(), "no request is polled");
        assert!(run(one, may_wait_with(2)).is_none(), "the connection has two requests");
        let waiting = run(one, may_wait).expect("the runtime serves one request");
        let others = [runtimes.deal(), runtimes.deal()];
        assert_eq!(names(&others), ["test-0", "test-0"]);
        drop(waiting);
        drop(others);
        assert!(run(runtimes.first(), may_wait).is_none(), "the first runtime has other tasks");
        let others = [runtimes.deal(), runtimes.deal()];
        assert_eq!(names(&others), ["test-0", "test-1"]);
        assert!(run(one, may_wait).is_none(), "the runtime serves two connections");
    }

    #[test]
    fn tasks_end_with_their_runtime() {
        let runtimes = Runtimes::start(THREADS, |_| std::future::pending()).unwrap();
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
