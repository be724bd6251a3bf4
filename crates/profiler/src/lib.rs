//! Where this process spends its time, who holds its memory, and what its threads are doing: profiles as `go tool pprof`
//! and its like read them.
//!
//! ```text
//!  every thread ── SIGPROF ──► signal: registers and stack, copied ──► tray
//!                                                                       │ a thread of the recording
//!                                    binaries ──► unwind ──► stacks ◄───┘
//!                                       │                       │
//!                                       └────► names ──► encoding ──► gzipped protobuf
//!  whoever allocates ──► allocator ── a few ──► heap ─┘
//! ```
//!
//! # Invariants
//!
//! * Nothing happens and nothing is held while no profile of time is being taken: no handler in the way of requests, no
//!   timer, no thread, no memory but the few kilobytes of the empty tray. Where no profile of memory is wanted, an
//!   allocation looks at one flag.
//! * The handler of the signal makes system calls that are allowed there and touches atomics, and nothing else: no
//!   allocation, no lock, no look at memory that it has not been given. What a stack means is found out elsewhere, from
//!   a copy, by code that trusts none of its bytes.
//! * One recording at a time.
//!
//! # Not here
//!
//! Who may ask for a profile, and how (`edge::http`). Why it is made like this: decision 15.

mod allocator;
mod binaries;
mod cpu;
mod encoding;
mod heap;
mod names;
mod places;
mod recording;
mod signal;
mod threads;
mod tray;
mod unwind;

pub use allocator::{SamplingAllocator, heap_now, sample_heap};
pub use cpu::{CpuProfile, StartError};
pub use heap::{HeapProfile, HeapView};
pub use names::functions_at;
pub use threads::{Thread, threads, threads_profile, threads_profile_since};
