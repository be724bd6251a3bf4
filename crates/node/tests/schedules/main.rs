//! Tests of whole nodes under random schedules. Slow disks complete only some of the requested writes before a crash,
//! state machines lag behind their logs, snapshots arrive as images, and the network loses, repeats and reorders
//! messages. After every step, the tests check that all members apply the same entries and that no read misses a write
//! acknowledged before the read.
//!
//! A seed determines the run. A failure prints its seed. `QUORATE_SEED` runs only that seed, and `QUORATE_SEEDS` sets
//! the number of seeds.
//!
//! * `group` contains the nodes, their network, and random events.
//! * `member` contains one node with its disk and its state machine.

#![expect(clippy::disallowed_methods, reason = "seeds and lengths come from the environment")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests fail by panicking and print the seed"
)]

mod group;
mod member;

use group::Group;

/// Prints the seed if the run panics.
struct SeedGuard(u64);

impl Drop for SeedGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("failed with QUORATE_SEED={}", self.0);
        }
    }
}

#[test]
fn nodes_apply_the_same_entries_and_converge_after_faults() {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seeds = match number("QUORATE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("QUORATE_SEEDS").unwrap_or(60),
    };
    let mut snapshot_count = 0;
    for seed in seeds.clone() {
        let _guard = SeedGuard(seed);
        let mut group = Group::new(seed);
        group.run(6_000);
        group.heal_and_converge();
        snapshot_count += group.installed_count();
    }
    assert!(
        seeds.count() == 1 || snapshot_count > 20,
        "only {snapshot_count} snapshots were installed"
    );
}
