//! Clusters under load with failing members and links. No fault may lose or reorder data.
//!
//! There is one module for each kind of fault, and `harness` tests the harness itself. A test injects one fault, or
//! several in sequence, and `storm` injects faults of many kinds in random order. [`quorate_tests::Load`] describes the
//! checks of the clients' observations. The library of this package describes how the tests run.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "tests convert only small numbers"
)]
#![expect(clippy::unwrap_used, reason = "a failing step must fail the test")]

mod clock;
mod disk;
mod engine;
mod flood;
mod handover;
mod harness;
mod host_hang;
mod kill;
mod membership;
mod partition;
mod pause;
mod security;
mod soak;
mod storm;

use quorate_tests::{Cluster, ClusterOptions, Load, Random, Summary, TIMEOUT, eventually_within};

/// Defines two tests for each function: `name::quorate` and `name::etcd`.
#[macro_export]
macro_rules! on_clusters {
    ($($name:ident),* $(,)?) => {
        $(mod $name {
            #[test]
            fn quorate() {
                quorate_tests::run_cluster(quorate_tests::Kind::Quorate, super::$name);
            }

            #[test]
            fn etcd() {
                quorate_tests::run_cluster(quorate_tests::Kind::Etcd, super::$name);
            }
        })*
    };
}

/// Defines one test for each function, for features or faults that only Quorate has.
#[macro_export]
macro_rules! on_clusters_of_quorate {
    ($($name:ident),* $(,)?) => {
        $(mod $name {
            #[test]
            fn quorate() {
                quorate_tests::run_cluster(quorate_tests::Kind::Quorate, super::$name);
            }
        })*
    };
}

/// A cluster under load from clients.
struct Ordeal {
    cluster: Cluster,
    load: Load,
    random: Random,
}

/// Heartbeat interval and election timeout, in milliseconds, for tests in which the leader must keep its role on a busy
/// machine.
const CALM: (u32, u32) = (100, 1_000);

/// Number of acknowledged changes that proves that a cluster serves its clients.
const SOME: u64 = 40;
/// Number of acknowledged changes for which the clients need some time, so that a fault lasts long enough.
const MANY: u64 = 100;

impl Ordeal {
    /// Starts a cluster and its load, applies a fault, and checks the result. At the end of the fault, all members must
    /// be running and connected.
    async fn run(options: ClusterOptions, fault: impl AsyncFnOnce(&mut Self)) -> Summary {
        let mut random = Random::by_chance();
        let cluster = options.start().await;
        let load = Load::start(&cluster, &mut random).await;
        let mut ordeal = Self { cluster, load, random };
        ordeal.load.progress(SOME).await;
        fault(&mut ordeal).await;
        ordeal.load.progress(SOME).await;
        let Self { cluster, load, .. } = ordeal;
        load.finish(&cluster).await
    }

    /// Waits until clients are served.
    async fn progress(&self) {
        self.load.progress(SOME).await;
    }

    /// Waits until a member has logged a text this many more times.
    async fn wait_for_log(&self, member: usize, text: &str, times: usize) {
        let count = || self.cluster.server(member).log().matches(text).count();
        let before = count();
        eventually_within(TIMEOUT, text, async || (count() >= before + times).then_some(())).await;
    }

    /// Returns the numbers of all members except one.
    fn others(&self, member: usize) -> Vec<usize> {
        self.cluster.members().into_iter().filter(|other| *other != member).collect()
    }
}
