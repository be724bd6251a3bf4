//! The buffer between the signal handler and the recording.
//!
//! A sample is a few registers and a copy of the stack. The registers are stored in slots that consist of atomics. The
//! stack copies are stored in an in-memory file with a section for each slot. The copies are written to a file so that
//! the kernel makes them, because only the kernel knows which part of a stack is readable. A slot is filled by one
//! handler at a time, and emptied by the recording thread.
//!
//! # Invariants
//!
//! * The file is created once and never closed. A handler that is delayed beyond the end of the recording thus still
//!   writes to this file, and never to another file that has been given the same descriptor.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// The maximum number of samples waiting to be processed.
pub(crate) const SLOTS: usize = 256;

/// The maximum size of a stack copy, in bytes from the innermost end.
pub(crate) const STACK_BYTES: usize = 64 << 10;

/// The number of bytes that code may use below the stack pointer (the "red zone" of x86-64).
pub(crate) const BELOW_STACK_BYTES: u64 = 128;

const EMPTY: u8 = 0;
const BEING_FILLED: u8 = 1;
const FULL: u8 = 2;

/// The registers required to unwind a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Registers {
    /// The program counter.
    pub(crate) code: u64,
    pub(crate) stack: u64,
    pub(crate) frame: u64,
    /// The return address, on architectures that keep it in a register.
    pub(crate) link: u64,
}

/// A sample taken by a signal handler.
#[derive(Debug)]
pub(crate) struct Sample<'a> {
    pub(crate) thread: u32,
    pub(crate) registers: Registers,
    /// The readable part of the stack, starting [`BELOW_STACK_BYTES`] below the stack pointer.
    pub(crate) stack: &'a [u8],
}

#[derive(Debug)]
struct Slot {
    state: AtomicU8,
    thread: AtomicU32,
    registers: [AtomicU64; 4],
    copied: AtomicU32,
}

impl Slot {
    const fn new() -> Self {
        Self {
            state: AtomicU8::new(EMPTY),
            thread: AtomicU32::new(0),
            registers: [const { AtomicU64::new(0) }; 4],
            copied: AtomicU32::new(0),
        }
    }
}

/// The slots for samples.
#[derive(Debug)]
pub(crate) struct SampleBuffer {
    is_open: AtomicBool,
    file: AtomicI32,
    lost: AtomicU64,
    slots: [Slot; SLOTS],
}

/// The sample buffer of this process, the only one outside tests.
pub(crate) static SAMPLE_BUFFER: SampleBuffer = SampleBuffer::new();

/// The in-memory file with the stack copies. It exists until the process ends.
static COPIES: OnceLock<OwnedFd> = OnceLock::new();

impl SampleBuffer {
    const fn new() -> Self {
        Self {
            is_open: AtomicBool::new(false),
            file: AtomicI32::new(-1),
            lost: AtomicU64::new(0),
            slots: [const { Slot::new() }; SLOTS],
        }
    }

    /// Empties the sample buffer, and allows handlers to store samples.
    pub(crate) fn open(&self) -> io::Result<()> {
        if COPIES.get().is_none() {
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            let made = rustix::fs::memfd_create("profile", flags)?;
            // Only one recording runs at a time, so no other thread can have set the file since the check.
            drop(COPIES.set(made));
        }
        let file = COPIES.get().map_or(-1, AsRawFd::as_raw_fd);
        self.file.store(file, Ordering::Relaxed);
        self.lost.store(0, Ordering::Relaxed);
        for slot in &self.slots {
            // Discards samples stored by a late handler of the previous recording. The sample of a handler that is
            // still running becomes part of this recording.
            let (from, to) = (Ordering::Acquire, Ordering::Relaxed);
            let _was_full = slot.state.compare_exchange(FULL, EMPTY, from, to);
        }
        self.is_open.store(true, Ordering::Release);
        Ok(())
    }

    /// Stops handlers from storing samples, and frees the memory of the copies.
    pub(crate) fn close(&self) {
        self.is_open.store(false, Ordering::Release);
        if let Some(file) = COPIES.get() {
            // If truncating fails, a few megabytes stay allocated, which is harmless.
            let _shrunk = rustix::fs::ftruncate(file.as_fd(), 0);
        }
    }

    /// Returns whether handlers may store samples.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Returns the number of samples lost because no slot was empty.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Stores a sample. `copy` copies a stack to a position in a file, and returns the number of copied bytes.
    ///
    /// Signal handlers call this function, so it neither blocks nor allocates.
    pub(crate) fn put(
        &self,
        thread: u32,
        registers: Registers,
        copy: impl FnOnce(i32, u64) -> u32,
    ) {
        for (index, slot) in self.slots.iter().enumerate() {
            let (taken, not) = (Ordering::Acquire, Ordering::Relaxed);
            if slot.state.compare_exchange(EMPTY, BEING_FILLED, taken, not).is_err() {
                continue;
            }
            slot.thread.store(thread, Ordering::Relaxed);
            let Registers { code, stack, frame, link } = registers;
            for (place, value) in slot.registers.iter().zip([code, stack, frame, link]) {
                place.store(value, Ordering::Relaxed);
            }
            let place = (index * STACK_BYTES) as u64;
            let copied = copy(self.file.load(Ordering::Relaxed), place);
            slot.copied.store(copied, Ordering::Relaxed);
            slot.state.store(FULL, Ordering::Release);
            return;
        }
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes all stored samples, and empties their slots.
    pub(crate) fn take_all(&self, mut each: impl FnMut(Sample<'_>)) {
        let Some(file) = COPIES.get() else { return };
        let mut copy = vec![0; STACK_BYTES];
        for (index, slot) in self.slots.iter().enumerate() {
            if slot.state.load(Ordering::Acquire) != FULL {
                continue;
            }
            let [code, stack, frame, link] =
                [0, 1, 2, 3].map(|at: usize| slot.registers[at].load(Ordering::Relaxed));
            let thread = slot.thread.load(Ordering::Relaxed);
            let copied = slot.copied.load(Ordering::Relaxed) as usize;
            let wanted = &mut copy[..copied.min(STACK_BYTES)];
            let stack_len = read_at(file.as_fd(), wanted, index * STACK_BYTES);
            slot.state.store(EMPTY, Ordering::Release);
            let registers = Registers { code, stack, frame, link };
            each(Sample { thread, registers, stack: &copy[..stack_len] });
        }
    }
}

/// Reads the available bytes at a position, and returns their number.
fn read_at(file: BorrowedFd<'_>, bytes: &mut [u8], place: usize) -> usize {
    let wanted = bytes.len();
    rustix::io::pread(file, bytes, place as u64).map_or(0, |read| read.min(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_without_a_free_slot_are_dropped_and_counted() {
        let buffer = SampleBuffer::new();
        buffer.open().unwrap();
        assert!(buffer.is_open());
        for number in 0..=SLOTS as u64 {
            let registers = Registers { code: number, ..Registers::default() };
            buffer.put(7, registers, |_, _| 0);
        }
        assert_eq!(buffer.lost(), 1);
        let mut seen = Vec::new();
        buffer.take_all(|sample| {
            assert_eq!((sample.thread, sample.stack), (7, &[][..]));
            seen.push(sample.registers.code);
        });
        assert_eq!(seen, (0..SLOTS as u64).collect::<Vec<_>>());
        buffer.take_all(|_| panic!("a sample was taken twice"));
        // Samples left in the buffer must be dropped when it is opened again.
        buffer.put(7, Registers::default(), |_, _| 0);
        buffer.open().unwrap();
        buffer.take_all(|_| panic!("a sample of another recording was kept"));
    }
}
