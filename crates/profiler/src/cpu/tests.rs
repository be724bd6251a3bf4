//! Tests that profile busy threads.

use std::sync::Arc;

use super::*;
use crate::encoding::tests::decode;
use crate::sample_buffer::{Registers, Sample};

/// Held by each of these tests, because only one recording is possible at a time.
static ALONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

#[inline(never)]
fn work_to_be_found(rounds: u64) -> u64 {
    (0..rounds).fold(1, |sum, round| std::hint::black_box(sum ^ round.wrapping_mul(sum | 1)))
}

#[inline(never)]
fn caller_of_the_work(is_done: &AtomicBool) -> u64 {
    let mut sum = 0;
    while !is_done.load(Ordering::Relaxed) {
        sum ^= work_to_be_found(1000);
    }
    sum
}

/// Starts a profile, as soon as the thread of the previous recording has ended.
fn start() -> CpuProfile {
    loop {
        match CpuProfile::start() {
            Ok(profile) => return profile,
            Err(StartError::InUse) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Busy threads, which stop when this value is dropped.
struct Busy {
    is_done: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
}

impl Busy {
    fn start(count: usize) -> Self {
        let is_done = Arc::new(AtomicBool::new(false));
        let threads = (0..count).map(|number| {
            let is_done = Arc::clone(&is_done);
            let thread = std::thread::Builder::new().name(format!("busy-{number}"));
            thread.spawn(move || caller_of_the_work(&is_done)).unwrap()
        });
        Self { threads: threads.collect(), is_done }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

#[test]
fn a_busy_function_is_sampled_with_its_callers_and_threads() {
    let _alone = ALONE.lock();
    let _busy = Busy::start(2);
    for attempt in 1.. {
        let profile = start();
        std::thread::sleep(Duration::from_millis(100 * attempt));
        let read = decode(&profile.finish().unwrap());
        assert_eq!(read.period, ("cpu".to_owned(), "nanoseconds".to_owned(), 10_000_000));
        let calls = |row: &crate::encoding::tests::ReadRow| {
            let at = |name: &str| row.stack.iter().position(|frame| frame.ends_with(name));
            let places = ["::work_to_be_found", "::caller_of_the_work", "::thread_start"].map(at);
            places.iter().all(Option::is_some) && places.is_sorted()
        };
        let threads = ["busy-0", "busy-1"].map(|name| {
            let mut rows = read.rows.iter().filter(|row| row.labels[0].1 == name);
            rows.any(calls)
        });
        if threads == [true, true] {
            assert!(read.mappings[0].contains("profile"), "{:?}", read.mappings);
            let sums = read.rows.iter().all(|row| row.values[1] == row.values[0] * 10_000_000);
            assert!(sums && read.nanos.1 > 0);
            return;
        }
        assert!(attempt < 20, "{:?}", read.rows.first());
    }
}

#[test]
fn a_second_cpu_profile_is_refused_until_the_first_is_dropped() {
    let _alone = ALONE.lock();
    let first = start();
    assert_eq!(CpuProfile::start().unwrap_err().to_string(), "cpu profiling already in use");
    drop(first);
    // The next recording must begin and be unaffected.
    let read = decode(&start().finish().unwrap());
    assert_eq!(read.types.len(), 2);
}

#[test]
fn unwinding_random_stacks_returns_a_bounded_number_of_frames() {
    let binaries = Binaries::of_process();
    let code = caller_of_the_work as fn(&AtomicBool) -> u64 as usize as u64;
    let mut unwinder = Unwinder::default();
    for seed in 0..2000_u64 {
        let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut stack = Vec::new();
        for _ in 0..200 {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            // Some words are addresses of code or of this stack.
            let value = match word % 4 {
                0 => code.wrapping_add(word >> 52),
                1 => 0x7000_0000_0000 + (word >> 53),
                _ => word,
            };
            stack.extend(value.to_le_bytes());
        }
        let at = [0x7000_0000_0000, 0, u64::MAX, word][(seed % 4) as usize];
        let code = if seed % 3 == 0 { word } else { code.wrapping_add(seed % 64) };
        let registers = Registers { code, stack: at, frame: at.wrapping_add(512), link: word };
        let sample = Sample { thread: 1, registers, stack: &stack };
        let frames = unwinder.follow(&binaries, &sample);
        assert!((1..=crate::unwind::FRAMES_MAX).contains(&frames.len()));
    }
}
