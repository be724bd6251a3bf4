//! Wall clocks that jump. Programs in Go read the clock without asking the C library, so the original
//! is out of reach here.

use std::time::Duration;

use quorate_tests::{ClusterOptions, Kind, Shim, notice};

use crate::{Ordeal, on_clusters};

on_clusters! {
    the_leaders_clock_jumps,
}

async fn the_leaders_clock_jumps(kind: Kind) {
    if kind == Kind::Etcd {
        notice("the clock of a program in Go cannot be moved: only Quorate's is");
        return;
    }
    let shims: Option<Vec<Shim>> = (0..3).map(|_| Shim::build()).collect();
    let Some(shims) = shims else { return };
    let options =
        shims.iter().enumerate().fold(ClusterOptions::new(kind, 3), |options, (member, shim)| {
            options.member(member, |member| shim.prepare(member))
        });
    Ordeal::run(options, async |ordeal| {
        for seconds in [3_600, -3_600, 86_400 * 400, 0] {
            let leader = ordeal.cluster.leader().await;
            shims[leader].set_clock(seconds);
            ordeal.load.work(Duration::from_millis(1_500)).await;
            ordeal.progress().await;
            assert_eq!(ordeal.cluster.leader().await, leader, "a clock decided an election");
        }
    })
    .await;
}
