//! Profiles of this process: CPU time, heap memory and threads, in the format of `go tool pprof`.
//!
//! ```text
//!  every thread ── SIGPROF ──► signal: registers and stack, copied ──► sample buffer
//!                                                                       │ the recording thread
//!                                    binaries ──► unwind ──► stacks ◄───┘
//!                                       │                       │
//!                                       └────► names ──► encoding ──► gzipped protobuf
//!  allocations ──► allocator ── samples ──► heap ─┘
//! ```
//!
//! # Invariants
//!
//! * While no CPU profile is taken, the crate costs nothing: no signal interrupts requests, and there are no timers and
//!   no recording thread. It uses no memory except a few kilobytes for the empty sample buffer. While heap sampling is
//!   off, an allocation checks one flag.
//! * The signal handler only makes system calls that are allowed in a handler, and accesses atomics. It does not
//!   allocate, take locks, or read memory that was not passed to it. Stacks are unwound on another thread, from a copy,
//!   by code that treats all bytes as untrusted.
//! * At most one recording runs at a time.
//!
//! # Not here
//!
//! Permissions and requests for profiles (`edge::http`). Decision 15 gives the reasons for this design.

#![cfg_attr(
    test,
    expect(clippy::cast_possible_truncation, reason = "tests convert only small numbers")
)]

mod allocator;
mod binaries;
mod cpu;
mod encoding;
mod heap;
mod location_table;
mod names;
mod recording;
mod sample_buffer;
mod signal;
mod threads;
mod unwind;

pub use allocator::{SamplingAllocator, heap_now, sample_heap};
pub use cpu::{CpuProfile, StartError};
pub use heap::{HeapProfile, HeapView};
pub use names::functions_at;
pub use threads::{Thread, threads, threads_profile, threads_profile_since};
