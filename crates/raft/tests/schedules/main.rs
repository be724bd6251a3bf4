//! Random schedules: runs whole groups with an unreliable network, crashes and membership changes,
//! and checks the safety properties of Raft (thesis, figure 3.2) after every step.
//!
//! A seed determines the run. A failure prints its seed; `QUORATE_SEED` runs only that seed, and
//! `QUORATE_SEEDS` sets the number of seeds.
//!
//! * `cluster` contains the group: members, network, disks, and random events.
//! * `history` contains the observed history and the properties.

#![expect(clippy::disallowed_methods, reason = "seeds and lengths come from the environment")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests fail by panicking and print the seed"
)]

mod cluster;
mod garbage;
mod history;

use cluster::{Cluster, Settings};

/// Runs `count` schedules, each with its own seed.
fn run(name: &str, count: u64, run: impl Fn(u64)) {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seeds = match number("QUORATE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("QUORATE_SEEDS").unwrap_or(count),
    };
    for seed in seeds {
        let _guard = SeedGuard { name, seed };
        run(seed);
    }
}

/// Prints the seed if the run panics.
struct SeedGuard<'a> {
    name: &'a str,
    seed: u64,
}

impl Drop for SeedGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{} failed with QUORATE_SEED={}", self.name, self.seed);
        }
    }
}

#[test]
fn a_group_stays_safe_and_recovers_from_faults() {
    run("a_group_stays_safe_and_recovers_from_faults", 20, |seed| {
        let mut cluster = Cluster::new(Settings { seed, changes_membership: false });
        cluster.run(20_000);
        cluster.heal_and_converge();
    });
}

#[test]
fn a_group_stays_safe_during_membership_changes() {
    run("a_group_stays_safe_during_membership_changes", 20, |seed| {
        let mut cluster = Cluster::new(Settings { seed, changes_membership: true });
        cluster.run(20_000);
    });
}

#[test]
fn random_messages_do_not_make_a_member_panic() {
    run("random_messages_do_not_make_a_member_panic", 300, garbage::feed);
}
