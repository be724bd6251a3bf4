//! Tests of the sampling allocator, which is also the global allocator of this test program.

use std::sync::mpsc;

use super::*;
use crate::encoding::tests::{Read, decode};
use crate::heap::HeapView;

#[global_allocator]
static ALLOCATOR: SamplingAllocator = SamplingAllocator;

fn heap_profile() -> HeapProfile {
    assert!(sample_heap(), "the sampling allocator is installed");
    heap_now().expect("heap sampling is enabled")
}

/// Returns sums over all stacks that contain this function: allocated objects and bytes, then objects and bytes in use.
fn at(function: &str, profile: &HeapProfile) -> [i64; 4] {
    let read: Read = decode(&profile.encode(HeapView::InUse));
    let with_it =
        read.rows.iter().filter(|row| row.stack.iter().any(|call| call.contains(function)));
    with_it.fold([0; 4], |mut sums, row| {
        for (sum, value) in sums.iter_mut().zip(&row.values) {
            *sum += value.cast_signed();
        }
        sums
    })
}

#[inline(never)]
fn allocate_many_small_blocks() -> Vec<Vec<u8>> {
    (0..64_000).map(|_| vec![1; 1000]).collect()
}

#[inline(never)]
fn free_memory_of_another_thread(held: Vec<u8>) {
    drop(std::hint::black_box(held));
}

#[inline(never)]
fn allocate_one_block() -> Vec<u8> {
    vec![1; 100 << 20]
}

#[inline(never)]
fn grow_gradually() -> Vec<u8> {
    let mut held = Vec::with_capacity(40 << 20);
    held.resize(40 << 20, 1);
    held.reserve_exact(80 << 20);
    held
}

#[test]
fn memory_in_use_is_attributed_to_the_allocating_function() {
    let before = heap_profile();
    let held = allocate_many_small_blocks();
    let during = heap_profile().since(&before);
    let name = "allocate_many_small_blocks";
    let [objects, bytes, in_use, in_use_bytes] = at(name, &during);
    // About 122 samples are expected. The probability of fewer than 61 or more than 244 samples is below 10^-8.
    let expected = (64_000 * 1000 / 2)..(64_000 * 1000 * 2);
    assert!(expected.contains(&bytes), "{bytes}");
    assert!((32_000..128_000).contains(&objects), "{objects}");
    assert_eq!((in_use, in_use_bytes), (objects, bytes));
    drop(held);
    let [_, after_bytes, _, in_use_after] = at(name, &heap_profile().since(&before));
    assert_eq!((after_bytes, in_use_after), (bytes, 0), "the function must have no memory in use");
    let read = decode(&during.encode(HeapView::Allocated));
    let types: Vec<_> =
        read.types.iter().map(|(what, unit)| (what.as_str(), unit.as_str())).collect();
    let expected = [
        ("alloc_objects", "count"),
        ("alloc_space", "bytes"),
        ("inuse_objects", "count"),
        ("inuse_space", "bytes"),
    ];
    assert_eq!(types, expected);
    assert_eq!(read.period, ("space".to_owned(), "bytes".to_owned(), MEAN_BYTES));
}

#[test]
fn frames_of_the_allocator_are_hidden() {
    let _before = heap_profile();
    let held = allocate_one_block();
    let read = decode(&heap_profile().encode(HeapView::InUse));
    let is_of = |stack: &[String], name: &str| stack.iter().any(|call| call.contains(name));
    let test = "frames_of_the_allocator_are_hidden";
    let row = read
        .rows
        .iter()
        .find(|row| is_of(&row.stack, test) && is_of(&row.stack, "allocate_one_block"));
    let stack = &row.expect("an allocation of 100 MiB is sampled").stack;
    for name in ["SamplingAllocator", "__rust_alloc", "count_down", "walk"] {
        assert!(!is_of(stack, name), "{stack:#?}");
    }
    drop(held);
}

#[test]
fn memory_freed_by_another_thread_is_no_longer_in_use() {
    let before = heap_profile();
    let (give, taken) = mpsc::channel();
    let other = std::thread::spawn(move || taken.iter().for_each(free_memory_of_another_thread));
    for _ in 0..4 {
        give.send(allocate_one_block()).unwrap();
    }
    drop(give);
    other.join().unwrap();
    let [objects, _, in_use, _] =
        at("memory_freed_by_another_thread_is_no_longer_in_use", &heap_profile().since(&before));
    assert_eq!((objects, in_use), (4, 0));
}

#[test]
fn a_growing_allocation_counts_as_one_object_in_use() {
    let before = heap_profile();
    let held = grow_gradually();
    let [objects, bytes, in_use, in_use_bytes] =
        at("grow_gradually", &heap_profile().since(&before));
    assert_eq!((objects, bytes >> 20), (2, 40 + 120));
    assert_eq!((in_use, in_use_bytes >> 20), (1, 120));
    drop(held);
}

#[test]
fn the_mean_distance_between_heap_samples_equals_the_setting() {
    let local = Local {
        left: Cell::new(0),
        has_begun: Cell::new(true),
        is_inside: Cell::new(false),
        chance: Cell::new(7),
    };
    let sum: u64 = (0..100_000).map(|_| draw(&local)).sum();
    let mean = sum / 100_000;
    assert!((MEAN_BYTES * 98 / 100..MEAN_BYTES * 102 / 100).contains(&mean), "{mean}");
}
