//! Clusters under load whose members and links fail, and that must not lose or mix up anything.
//!
//! One module per kind of fault, each test one fault or one after the other, and in `storm` all of
//! them in an order that chance decides. What the clients of the load must be able to say afterwards
//! is told at [`quorate_tests::Load`]. See the library beside this for how a test is run.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod clock;
mod disk;
mod flood;
mod harness;
mod host_hang;
mod kill;
mod membership;
mod partition;
mod pause;
mod security;
mod soak;
mod storm;

use quorate_tests::{Cluster, ClusterOptions, Load, PATIENCE, Random, Summary, eventually_within};

/// Makes two tests of each function named: `name::quorate` and `name::etcd`.
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

/// Makes one test of each function named, for what Quorate alone can do or have done to it.
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

/// A cluster with clients at work.
struct Ordeal {
    cluster: Cluster,
    load: Load,
    random: Random,
}

/// Heartbeat interval and election timeout for tests in which the leader must stay in office, however
/// busy the machine is.
const CALM: (u32, u32) = (100, 1_000);

/// Changes that show that a cluster is in service.
const SOME: u64 = 40;
/// Changes that take a while.
const MANY: u64 = 100;

impl Ordeal {
    /// Starts a cluster and its load, lets a fault have its way, and checks what came of it. The fault
    /// must leave all members running and able to talk to each other.
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

    /// Waits until a member has said something so many times from now on.
    async fn wait_for_log(&self, member: usize, text: &str, times: usize) {
        let count = || self.cluster.server(member).log().matches(text).count();
        let before = count();
        eventually_within(PATIENCE, text, async || (count() >= before + times).then_some(())).await;
    }

    /// The numbers of all members but one.
    fn others(&self, member: usize) -> Vec<usize> {
        self.cluster.members().into_iter().filter(|other| *other != member).collect()
    }
}
