//! Takes a CPU profile: starts and stops the recording, and encodes the profile.
//!
//! A separate recording thread creates a timer for every other thread of the process, and updates the timers regularly,
//! because threads start and end. The recording thread also empties the sample buffer, unwinds the stacks, and finally
//! looks up the symbols.
//!
//! # Invariants
//!
//! * Only one profile is taken at a time: another request is refused until the recording thread has ended.
//! * Dropping a recording ends it: its timers are removed, its sample buffer is closed, and nothing is encoded.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use crate::binaries::Binaries;
use crate::recording::Recording;
use crate::sample_buffer::SAMPLE_BUFFER;
use crate::signal::{IS_SUPPORTED, TIMERS_MAX, Timers, install_handler};
use crate::threads;
use crate::unwind::Unwinder;

/// The CPU time between two samples of a thread: 100 samples per second, as in Go.
const PERIOD: Duration = Duration::from_millis(10);

/// The interval for emptying the sample buffer. It is short enough that a hundred busy threads do not fill the buffer.
const EMPTYING_INTERVAL: Duration = Duration::from_millis(20);

/// The interval for finding new threads.
const THREADS_INTERVAL: Duration = Duration::from_millis(100);

/// The reason why no profile can be taken.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another profile is being taken. The text is Go's.
    #[error("cpu profiling already in use")]
    InUse,
    /// The architecture is not supported.
    #[error("stack unwinding is not supported on this architecture")]
    Unsupported,
    /// A system call failed.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// The permission to take a profile, which is held by at most one recording.
#[derive(Debug)]
struct Turn;

static IS_TAKEN: AtomicBool = AtomicBool::new(false);

impl Turn {
    fn take() -> Option<Self> {
        (!IS_TAKEN.swap(true, Ordering::AcqRel)).then_some(Self)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        IS_TAKEN.store(false, Ordering::Release);
    }
}

/// A profile that is being taken. Dropping it discards the profile.
#[derive(Debug)]
pub struct CpuProfile {
    finish: mpsc::Sender<()>,
    thread: JoinHandle<io::Result<Vec<u8>>>,
}

impl CpuProfile {
    /// Starts taking a profile.
    pub fn start() -> Result<Self, StartError> {
        if !IS_SUPPORTED {
            return Err(StartError::Unsupported);
        }
        let turn = Turn::take().ok_or(StartError::InUse)?;
        install_handler()?;
        let (finish, finished) = mpsc::channel();
        let thread = std::thread::Builder::new().name("profile".to_owned());
        let thread = thread.spawn(move || record(turn, &finished))?;
        Ok(Self { finish, thread })
    }

    /// Ends the recording, and returns the compressed profile. This call blocks while symbols are looked up.
    pub fn finish(self) -> io::Result<Vec<u8>> {
        let Self { finish, thread } = self;
        // If the thread has already ended, its result contains the error.
        let _sent = finish.send(());
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Keeps the sample buffer open until this value is dropped.
struct OpenBuffer;

impl OpenBuffer {
    fn open() -> io::Result<Self> {
        SAMPLE_BUFFER.open()?;
        Ok(Self)
    }
}

impl Drop for OpenBuffer {
    fn drop(&mut self) {
        SAMPLE_BUFFER.close();
    }
}

/// Records until `finished` receives a message, and returns the encoded profile. If the sender is dropped, nothing is
/// encoded.
fn record(_turn: Turn, finished: &mpsc::Receiver<()>) -> io::Result<Vec<u8>> {
    let binaries = Binaries::of_process();
    let (began, start) = (SystemTime::now(), Instant::now());
    let mut recorder = Recorder::new(&binaries)?;
    recorder.cover_threads()?;
    let mut covered_at = start;
    loop {
        match finished.recv_timeout(EMPTYING_INTERVAL) {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(Vec::new()),
            Ok(()) => break,
        }
        recorder.take_samples();
        if covered_at.elapsed() >= THREADS_INTERVAL {
            covered_at = Instant::now();
            recorder.cover_threads()?;
        }
    }
    recorder.take_samples();
    Ok(recorder.finish((began, start.elapsed())))
}

struct Recorder<'a> {
    // This field comes first, because the timers must be removed before the sample buffer is closed.
    timers: Timers,
    _buffer: OpenBuffer,
    binaries: &'a Binaries,
    unwinder: Unwinder,
    recording: Recording,
    own_thread: u32,
    /// The names of the threads that are being sampled.
    names: HashMap<u32, String>,
}

impl<'a> Recorder<'a> {
    fn new(binaries: &'a Binaries) -> io::Result<Self> {
        Ok(Self {
            timers: Timers::new(PERIOD, TIMERS_MAX),
            _buffer: OpenBuffer::open()?,
            binaries,
            unwinder: Unwinder::default(),
            recording: Recording::default(),
            own_thread: threads::own_id(),
            names: HashMap::new(),
        })
    }

    fn cover_threads(&mut self) -> io::Result<()> {
        let mut threads = threads::ids();
        threads.retain(|thread| *thread != self.own_thread);
        self.names.retain(|thread, _| threads.contains(thread));
        for thread in &threads {
            if !self.names.contains_key(thread)
                && let Some(name) = threads::name(*thread)
            {
                self.names.insert(*thread, name);
            }
        }
        let covered = self.timers.cover(&threads);
        // A partial profile is better than none: if the number of timers is limited, only some threads are missing.
        if self.timers.count() > 0 { Ok(()) } else { covered }
    }

    fn take_samples(&mut self) {
        let Self { unwinder, recording, binaries, names, .. } = self;
        SAMPLE_BUFFER.take_all(|sample| {
            let addresses = unwinder.follow(binaries, &sample);
            let name = names.get(&sample.thread).map_or("", String::as_str);
            recording.count(name, addresses);
        });
    }

    fn finish(self, (began, lasted): (SystemTime, Duration)) -> Vec<u8> {
        let Self { timers, recording, binaries, .. } = self;
        drop(timers);
        let missing = SAMPLE_BUFFER.lost() + recording.left_out();
        let mut profile = recording.into_cpu_profile(binaries, PERIOD, (began, lasted));
        if missing > 0 {
            profile.comments.push(format!(
                "{missing} samples were lost: too many at once, or too many distinct stacks"
            ));
        }
        profile.encode()
    }
}

#[cfg(test)]
mod tests;
