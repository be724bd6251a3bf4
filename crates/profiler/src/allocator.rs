//! The system allocator with sampling: on average, one sample is recorded for each [`MEAN_BYTES`] allocated.
//!
//! A program that needs heap profiles uses [`SamplingAllocator`] as its global allocator, and calls [`sample_heap`] to
//! start sampling. Before that call, an allocation costs one check of a flag. After it, each thread counts down the
//! bytes to its next sampled allocation. For a sampled allocation, the thread walks its own stack with the unwinder of
//! the language runtime, and passes the stack to `heap`. The address of freed memory is looked up only if a filter
//! indicates that it may be the address of a sample.
//!
//! # Invariants
//!
//! * Memory comes from the system allocator and is returned to it, whether it is sampled or not.
//! * Allocations made while a sample is recorded are not sampled, so recording is never re-entered on a thread.
//! * A sample is removed before its memory is freed, so an address identifies one allocation at a time.
//!
//! # Not here
//!
//! Storing the samples, and computing the profile from them (`heap`).
#![expect(
    unsafe_code,
    reason = "the allocator trait is unsafe, and no safe crate walks a stack without allocating"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use quorate_seeded_random::{SplitMix64, mix};

use crate::heap::{self, HeapProfile, MEAN_BYTES, STACK_FRAMES_MAX};

/// Whether allocations are sampled.
static IS_SAMPLING: AtomicBool = AtomicBool::new(false);

/// The number of samples in each slot. An address maps to one slot; if the number in this slot is zero, no sample has
/// the address.
static FILTER: [AtomicU16; FILTER_PLACES] = [const { AtomicU16::new(0) }; FILTER_PLACES];
const FILTER_PLACES: usize = 1 << 16;
// A counter must not overflow even if all samples map to the same slot.
const _: () = assert!(
    heap::LIVE_MAX <= u16::MAX as usize,
    "LIVE_MAX must fit in a filter counter: otherwise the counter could overflow"
);

/// The sampling state of a thread. It has no destructor, so it is available until the thread ends.
struct Local {
    /// The number of bytes until the next sample.
    left: Cell<u64>,
    /// Whether `left` has been initialised.
    has_begun: Cell<bool>,
    is_inside: Cell<bool>,
    chance: Cell<u64>,
}

thread_local! {
    static LOCAL: Local = const {
        Local {
            left: Cell::new(0),
            has_begun: Cell::new(false),
            is_inside: Cell::new(false),
            chance: Cell::new(0),
        }
    };
}

/// The system allocator with sampling, for use as the global allocator.
#[derive(Debug)]
pub struct SamplingAllocator;

/// Starts sampling allocations, until the process ends. Returns false if the program uses another global allocator.
pub fn sample_heap() -> bool {
    let before = LOCAL.with(|local| local.has_begun.get());
    IS_SAMPLING.store(true, Ordering::Release);
    // This allocation sets `has_begun` only if the global allocator is the sampling allocator.
    drop(std::hint::black_box(Box::new(0_u64)));
    let is_ours = before || LOCAL.with(|local| local.has_begun.get());
    if is_ours {
        unnoted(heap::begin);
    } else {
        IS_SAMPLING.store(false, Ordering::Release);
    }
    is_ours
}

/// Returns an estimate of the current heap; `None` if allocations are not sampled.
#[must_use]
pub fn heap_now() -> Option<HeapProfile> {
    unnoted(heap::now)
}

/// Runs `work` without sampling its allocations.
fn unnoted<T>(work: impl FnOnce() -> T) -> T {
    struct Inside(bool);
    impl Drop for Inside {
        fn drop(&mut self) {
            LOCAL.with(|local| local.is_inside.set(self.0));
        }
    }
    let _inside = Inside(LOCAL.with(|local| local.is_inside.replace(true)));
    work()
}

// SAFETY: every call is passed to the system allocator unchanged, and its result is returned unchanged. Sampling does
// not access the memory and does not unwind: a panic during sampling ends the process, as is required of an allocator.
unsafe impl GlobalAlloc for SamplingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is also the contract of the system allocator.
        let memory = unsafe { System.alloc(layout) };
        note_allocation(memory, layout.size());
        memory
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract, as in `alloc`.
        let memory = unsafe { System.alloc_zeroed(layout) };
        note_allocation(memory, layout.size());
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        note_end(memory);
        // SAFETY: the caller upholds the contract, as in `alloc`.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note_end(memory);
        // SAFETY: the caller upholds the contract, as in `alloc`.
        let moved = unsafe { System.realloc(memory, layout, size) };
        note_allocation(moved, size);
        moved
    }
}

#[inline(always)]
fn note_allocation(memory: *mut u8, size: usize) {
    if IS_SAMPLING.load(Ordering::Relaxed) {
        count_down(memory, size as u64);
    }
}

#[inline(always)]
fn note_end(memory: *mut u8) {
    if IS_SAMPLING.load(Ordering::Relaxed) {
        look_up(memory);
    }
}

#[inline(never)]
fn count_down(memory: *mut u8, size: u64) {
    LOCAL.with(|local| {
        let left = local.left.get();
        if size < left {
            local.left.set(left - size);
        } else if !memory.is_null() && !local.is_inside.get() {
            take_turn(local, memory, size);
        }
    });
}

/// Takes a sample if one is due, and draws the number of bytes until the next sample.
#[cold]
fn take_turn(local: &Local, memory: *mut u8, size: u64) {
    if !local.has_begun.replace(true) {
        // The address of the thread's state is the seed, so that threads with the same history draw different numbers.
        local.chance.set(mix(std::ptr::from_ref(local).addr() as u64));
        let first = draw(local);
        if size < first {
            local.left.set(first - size);
            return;
        }
    }
    local.left.set(draw(local));
    unnoted(|| {
        let mut frames = [0; STACK_FRAMES_MAX];
        let count = walk(&mut frames);
        if heap::add(memory.addr(), size, &frames[..count]) {
            FILTER[place(memory)].fetch_add(1, Ordering::Release);
        }
    });
}

#[inline(never)]
fn look_up(memory: *mut u8) {
    let place = &FILTER[place(memory)];
    if place.load(Ordering::Acquire) > 0
        && !LOCAL.with(|local| local.is_inside.get())
        && unnoted(|| heap::remove(memory.addr()))
    {
        place.fetch_sub(1, Ordering::Release);
    }
}

fn place(memory: *mut u8) -> usize {
    let place = mix(memory.addr() as u64) % FILTER_PLACES as u64;
    usize::try_from(place).expect("a remainder is less than its divisor")
}

/// Draws the number of bytes until the next sample, at least 1, from a distribution that makes every byte equally
/// likely to be sampled.
fn draw(local: &Local) -> u64 {
    let mut random = SplitMix64::new(local.chance.get());
    let drawn = random.next_u64();
    local.chance.set(drawn);
    // A number in (0, 1] with a resolution of 53 bits.
    let part = ((drawn >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    let distance = -part.ln() * MEAN_BYTES as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the distance is between zero and 37 times the mean"
    )]
    let whole = distance as u64;
    whole + 1
}

unsafe extern "C-unwind" {
    /// Calls `visit` for each frame, innermost first. The function is part of the runtime that also unwinds panics.
    fn _Unwind_Backtrace(
        visit: extern "C-unwind" fn(*mut c_void, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;

    /// Returns the address at which a frame's function continues: its return address, or the current address in the
    /// innermost frame.
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

struct Walk<'a> {
    frames: &'a mut [u64; STACK_FRAMES_MAX],
    count: usize,
}

/// Stores the call stack of this thread, innermost frame first, and returns its length. Each entry is an address inside
/// a function.
fn walk(frames: &mut [u64; STACK_FRAMES_MAX]) -> usize {
    const GO_ON: c_int = 0;
    const END: c_int = 5;

    extern "C-unwind" fn visit(context: *mut c_void, argument: *mut c_void) -> c_int {
        // SAFETY: `argument` points to the `Walk` below, which no other code accesses during the walk.
        let walk = unsafe { &mut *argument.cast::<Walk<'_>>() };
        // SAFETY: the unwinder passes the context of the current frame.
        let address = unsafe { _Unwind_GetIP(context) };
        if walk.count == walk.frames.len() || address == 0 {
            return END;
        }
        // The byte before the return address belongs to the call instruction, even if the call ends its function.
        walk.frames[walk.count] = address as u64 - 1;
        walk.count += 1;
        GO_ON
    }

    let mut walk = Walk { frames, count: 0 };
    // SAFETY: `visit` has the signature that the unwinder expects, and does not unwind. The unwinder does not allocate
    // with this allocator, and takes no lock that Rust code may hold during an allocation.
    unsafe { _Unwind_Backtrace(visit, (&raw mut walk).cast()) };
    walk.count
}

#[cfg(test)]
mod tests;
