//! Samples of allocations, grouped by stack: the memory allocated since sampling began, and the part of it that is
//! still in use.
//!
//! An allocation of `size` bytes is sampled with the probability `1 - exp(-size / mean)`, and each sample is weighted
//! by the inverse of this probability. The profile therefore estimates all allocations, as Go's heap profile does, and
//! readers need not take the sampling into account.
//!
//! # Invariants
//!
//! * The stored data is bounded: at most [`STACKS_MAX`] stacks of at most [`STACK_FRAMES_MAX`] frames, and at most
//!   [`LIVE_MAX`] samples in use. Samples beyond these limits are only counted, and the profile reports their number.
//!
//! # Not here
//!
//! The choice of the sampled allocations (`allocator`).

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::binaries::Binaries;
use crate::encoding::{Profile, Row, ValueType};
use crate::location_table::LocationTable;

/// The mean number of bytes between two samples, as in Go.
pub(crate) const MEAN_BYTES: u64 = 512 << 10;

/// The maximum number of innermost frames that are stored for a stack.
pub(crate) const STACK_FRAMES_MAX: usize = 64;

/// The maximum number of distinct stacks. Allocations of further stacks are only counted.
const STACKS_MAX: usize = 1 << 13;

/// The maximum number of samples in use. At one sample per `MEAN_BYTES`, they cover about 32 GiB of memory in use.
pub(crate) const LIVE_MAX: usize = (1 << 16) - 1;

/// An estimated number of objects and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Amount {
    objects: f64,
    bytes: f64,
}

impl Amount {
    /// Returns the amount that a sample of this size represents.
    fn of_sample(size: u64) -> Self {
        let size = size as f64;
        let objects = 1.0 / -(-size / MEAN_BYTES as f64).exp_m1();
        Self { objects, bytes: objects * size }
    }

    fn add(&mut self, other: Self) {
        self.objects += other.objects;
        self.bytes += other.bytes;
    }

    fn less(self, other: Self) -> Self {
        Self { objects: self.objects - other.objects, bytes: self.bytes - other.bytes }
    }
}

/// The amounts for one stack: memory allocated, and memory in use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sums {
    allocated: Amount,
    in_use: Amount,
}

/// A sample whose memory is in use.
#[derive(Clone, Copy, Debug)]
struct Live {
    stack: usize,
    size: u64,
}

/// All stored samples.
#[derive(Debug, Default)]
struct Heap {
    /// The index of each stack.
    stacks: HashMap<Box<[u64]>, usize>,
    /// The sums of each stack, by the index of the stack.
    sums: Vec<Sums>,
    /// The samples in use, by the address of their memory.
    live: HashMap<usize, Live>,
    /// The number of samples that exceeded a limit.
    left_out: u64,
}

static HEAP: Mutex<Option<Heap>> = Mutex::new(None);

fn heap() -> MutexGuard<'static, Option<Heap>> {
    HEAP.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts storing samples.
pub(crate) fn begin() {
    heap().get_or_insert_default();
}

/// Stores a sample. Returns whether [`remove`] must be called when the sampled memory is freed. The caller's own
/// allocations must not be sampled.
pub(crate) fn add(address: usize, size: u64, frames: &[u64]) -> bool {
    heap().as_mut().is_some_and(|heap| heap.add(address, size, frames))
}

/// Removes the sample at this address before its memory is freed. Returns whether there was one.
pub(crate) fn remove(address: usize) -> bool {
    heap().as_mut().is_some_and(|heap| heap.remove(address))
}

impl Heap {
    fn add(&mut self, address: usize, size: u64, frames: &[u64]) -> bool {
        let stack = match self.stacks.get(frames) {
            Some(number) => *number,
            None if self.stacks.len() < STACKS_MAX => {
                self.stacks.insert(frames.into(), self.sums.len());
                self.sums.push(Sums::default());
                self.sums.len() - 1
            }
            None => {
                self.left_out += 1;
                return false;
            }
        };
        let amount = Amount::of_sample(size);
        self.sums[stack].allocated.add(amount);
        if self.live.len() >= LIVE_MAX {
            self.left_out += 1;
            return false;
        }
        self.sums[stack].in_use.add(amount);
        let before = self.live.insert(address, Live { stack, size });
        before.inspect(|live| self.end(*live)).is_none()
    }

    fn remove(&mut self, address: usize) -> bool {
        let ended = self.live.remove(&address);
        ended.inspect(|live| self.end(*live)).is_some()
    }

    fn end(&mut self, live: Live) {
        let sums = &mut self.sums[live.stack];
        sums.in_use = sums.in_use.less(Amount::of_sample(live.size));
    }
}

/// The value type that pprof tools show by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeapView {
    /// Memory in use.
    InUse,
    /// All allocated memory.
    Allocated,
}

/// An estimate of the heap at one moment.
#[derive(Clone, Debug)]
pub struct HeapProfile {
    rows: HashMap<Box<[u64]>, Sums>,
    left_out: u64,
    /// The time of the snapshot, or the start of the interval between two snapshots.
    began: SystemTime,
    lasted: Duration,
}

/// Returns the current heap; `None` if allocations are not sampled. The caller's own allocations must not be sampled.
pub(crate) fn now() -> Option<HeapProfile> {
    let heap = heap();
    let heap = heap.as_ref()?;
    let rows = heap.stacks.iter().map(|(stack, number)| (stack.clone(), heap.sums[*number]));
    Some(HeapProfile {
        rows: rows.collect(),
        left_out: heap.left_out,
        began: SystemTime::now(),
        lasted: Duration::ZERO,
    })
}

impl HeapProfile {
    /// Returns the difference from an earlier snapshot: the memory allocated since then, and the change of the memory
    /// in use, which may be negative.
    #[must_use]
    pub fn since(mut self, before: &Self) -> Self {
        for (stack, sums) in &before.rows {
            // Stacks are never removed, so every stack of `before` is also in `self`.
            let now = self.rows.entry(stack.clone()).or_default();
            now.allocated = now.allocated.less(sums.allocated);
            now.in_use = now.in_use.less(sums.in_use);
        }
        self.rows.retain(|_, sums| *sums != Sums::default());
        self.lasted = self.began.duration_since(before.began).unwrap_or_default();
        self.began = before.began;
        self
    }

    /// Encodes and compresses the profile for `pprof`. This call blocks while symbols are looked up.
    #[must_use]
    pub fn encode(&self, view: HeapView) -> Vec<u8> {
        let binaries = Binaries::of_process();
        let mut table =
            LocationTable::new(&binaries, self.rows.keys().flat_map(|stack| stack.iter()));
        let mut rows = Vec::new();
        for (stack, sums) in self.by_size() {
            let calls = calls(stack, &table);
            let locations = calls.iter().map(|address| table.number(*address)).collect();
            let Sums { allocated, in_use } = sums;
            let values = [allocated.objects, allocated.bytes, in_use.objects, in_use.bytes];
            let values = values.map(|value| whole(value).cast_unsigned()).to_vec();
            rows.push(Row { locations, values, labels: Vec::new() });
        }
        let value = |what, unit| ValueType { what, unit };
        let mut comments =
            vec!["mapped memory, such as the backend file, is not part of the heap".to_owned()];
        if self.left_out > 0 {
            let lost = self.left_out;
            comments.push(format!(
                "{lost} samples were lost: too many distinct stacks, or too many samples of memory in use"
            ));
        }
        let profile = Profile {
            types: vec![
                value("alloc_objects", "count"),
                value("alloc_space", "bytes"),
                value("inuse_objects", "count"),
                value("inuse_space", "bytes"),
            ],
            rows,
            mappings: table.mappings(),
            locations: table.locations,
            functions: table.functions,
            began: self.began,
            lasted: self.lasted,
            period: Some((value("space", "bytes"), MEAN_BYTES)),
            comments,
            shown_first: match view {
                // Readers show the last value type by default.
                HeapView::InUse => None,
                HeapView::Allocated => Some("alloc_space"),
            },
        };
        profile.encode()
    }

    /// Formats the profile as text, as Go does: for each stack, the memory in use, the allocated memory, and the
    /// functions. This call blocks while symbols are looked up.
    #[must_use]
    pub fn text(&self) -> String {
        let binaries = Binaries::of_process();
        let table = LocationTable::new(&binaries, self.rows.keys().flat_map(|stack| stack.iter()));
        let amounts = |Sums { allocated, in_use }: Sums| {
            let [objects, bytes, all, all_bytes] =
                [in_use.objects, in_use.bytes, allocated.objects, allocated.bytes].map(whole);
            format!("{objects}: {bytes} [{all}: {all_bytes}]")
        };
        let mut total = Sums::default();
        for sums in self.rows.values() {
            total.allocated.add(sums.allocated);
            total.in_use.add(sums.in_use);
        }
        let mut text = format!("heap profile: {} @ heap/{MEAN_BYTES}\n", amounts(total));
        let written = "writing to a string cannot fail";
        for (stack, sums) in self.by_size() {
            let calls = calls(stack, &table);
            text.push_str(&amounts(sums));
            text.push_str(" @");
            for address in calls {
                write!(text, " {address:#x}").expect(written);
            }
            text.push('\n');
            for address in calls {
                let name = table.name(*address).unwrap_or("?");
                writeln!(text, "#\t{address:#x}\t{name}").expect(written);
            }
            text.push('\n');
        }
        text
    }

    /// Returns the stacks, sorted by memory in use, then by allocated memory.
    fn by_size(&self) -> Vec<(&[u64], Sums)> {
        let mut rows: Vec<_> = self.rows.iter().map(|(stack, sums)| (&**stack, *sums)).collect();
        rows.sort_by(|(stack, one), (other_stack, other)| {
            let by_use = other.in_use.bytes.total_cmp(&one.in_use.bytes);
            let by_all = other.allocated.bytes.total_cmp(&one.allocated.bytes);
            by_use.then(by_all).then(stack.cmp(other_stack))
        });
        rows
    }
}

/// Removes the frames of the sampling code and of the allocator from a stack.
fn calls<'a>(stack: &'a [u64], table: &LocationTable<'_>) -> &'a [u64] {
    /// Functions of the sampling code and of the allocator. The outermost of these functions on a stack is the last
    /// frame to remove. Several are listed, because the compiler may have inlined some of them.
    const OUTERMOST: [&str; 4] =
        ["allocator::count_down", "SamplingAllocator as ", "__rust_alloc", "__rust_realloc"];
    /// The number of innermost frames among which these functions are searched for.
    const INNER: usize = 16;
    let is_of_allocator = |address: &u64| {
        table.name(*address).is_some_and(|name| OUTERMOST.iter().any(|call| name.contains(call)))
    };
    let inner = &stack[..stack.len().min(INNER)];
    let own = inner.iter().rposition(is_of_allocator).map_or(0, |last| last + 1);
    // A stack that consists only of such frames is left unchanged.
    if own < stack.len() { &stack[own..] } else { stack }
}

/// Rounds to the nearest integer.
#[expect(clippy::cast_possible_truncation, reason = "memory has fewer than 2^63 bytes")]
fn whole(estimate: f64) -> i64 {
    estimate.round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_sample_represents_one_large_or_many_small_allocations() {
        let large = Amount::of_sample(64 << 20);
        assert_eq!((whole(large.objects), whole(large.bytes)), (1, 64 << 20));
        let small = Amount::of_sample(16);
        assert_eq!(whole(small.objects), 32_768 + 1, "half a MiB in allocations of 16 bytes");
    }

    #[test]
    fn freed_memory_is_not_reported_as_in_use() {
        let mut heap = Heap::default();
        assert!(heap.add(0x10, 1 << 30, &[1, 2]));
        assert!(heap.add(0x20, 1 << 30, &[1, 2]));
        assert!(heap.remove(0x10));
        assert!(!heap.remove(0x10), "the allocation was already removed");
        assert!(
            !heap.add(0x20, 1 << 30, &[3]),
            "the address is reused, but its release was not recorded"
        );
        let amount = |objects: i64| (objects, objects << 30);
        let seen = |of: Amount| (whole(of.objects), whole(of.bytes));
        assert_eq!(
            heap.sums.iter().map(|sums| seen(sums.allocated)).collect::<Vec<_>>(),
            [amount(2), amount(1)]
        );
        assert_eq!(
            heap.sums.iter().map(|sums| seen(sums.in_use)).collect::<Vec<_>>(),
            [amount(0), amount(1)]
        );
    }

    #[test]
    fn excess_stacks_and_samples_are_dropped_and_counted() {
        let mut heap = Heap::default();
        for number in 0..STACKS_MAX {
            assert!(heap.add(number, 1, &[number as u64]));
        }
        assert!(!heap.add(usize::MAX, 1, &[u64::MAX]));
        assert_eq!(heap.left_out, 1);
        for number in STACKS_MAX..LIVE_MAX {
            assert!(heap.add(number, 1, &[7]));
        }
        assert!(!heap.add(LIVE_MAX, 1, &[7]));
        assert_eq!((heap.left_out, heap.live.len()), (2, LIVE_MAX));
        assert!(heap.remove(0));
        assert!(heap.add(LIVE_MAX, 1, &[7]), "a slot is free again");
    }

    #[test]
    fn the_difference_of_snapshots_contains_allocations_and_releases() {
        let profile = |sums: &[(u64, f64, f64)], seconds| {
            let amount = |objects| Amount { objects, bytes: objects * 10.0 };
            let row = |(stack, allocated, in_use): &(u64, f64, f64)| {
                let sums = Sums { allocated: amount(*allocated), in_use: amount(*in_use) };
                (Box::from([*stack]), sums)
            };
            HeapProfile {
                rows: sums.iter().map(row).collect(),
                left_out: 0,
                began: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
                lasted: Duration::ZERO,
            }
        };
        let before = profile(&[(1, 5.0, 4.0)], 10);
        let span = profile(&[(1, 6.0, 1.0), (2, 1.0, 1.0)], 12).since(&before);
        let expected = profile(&[(1, 1.0, -3.0), (2, 1.0, 1.0)], 10);
        assert_eq!(span.rows, expected.rows);
        assert_eq!((span.began, span.lasted), (expected.began, Duration::from_secs(2)));
        assert!(span.text().starts_with("heap profile: -2: -20 [2: 20] @ heap/524288\n"));
    }
}
