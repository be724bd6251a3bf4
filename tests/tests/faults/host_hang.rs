//! A leader whose host hangs: its disk and its link fail at the same moment, or its process is suspended.
//!
//! Network storage can cause such a hang in practice. The other members elect a new leader, which revokes a lease that
//! is not renewed in time through the new leader. From then on, the old leader must not grant any renewal of the lease.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Bridge, Client, Held, Kind, Server, Shim, TIMEOUT, eventually_within, is_long, put,
};

use crate::{CALM, on_clusters_of_quorate};

on_clusters_of_quorate! {
    a_hung_leader_does_not_renew_expired_leases,
    a_hung_leader_does_not_renew_expired_leases_over_tls,
    a_hung_leader_without_disk_fence_does_not_renew_expired_leases,
    a_hung_leader_without_disk_fence_does_not_renew_expired_leases_over_tls,
    a_suspended_leader_does_not_renew_expired_leases,
    a_suspended_leader_does_not_renew_expired_leases_over_tls,
}

/// TTL of the leases, in seconds.
const LIFE: i64 = 2;
/// Pause between two renewals through the old leader, and between two writes through it.
const PAUSE: Duration = Duration::from_millis(50);
/// Time for which renewals are sent to the old leader after the lease has ended. It is longer than the time for which
/// the old leader keeps connections over a link that is down.
const AFTERWARDS: Duration = Duration::from_secs(4);
/// Number of leader changes in a long run (`QUORATE_LONG=1`).
const ROUNDS: i64 = 50;

/// How the leader fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The leader's syncs never return, and its link is down.
    Hang { has_fence: bool },
    /// The leader's process is suspended by a signal.
    Suspension,
}

async fn a_hung_leader_does_not_renew_expired_leases(_: Kind) {
    check(Fault::Hang { has_fence: true }, false).await;
}

async fn a_hung_leader_does_not_renew_expired_leases_over_tls(_: Kind) {
    check(Fault::Hang { has_fence: true }, true).await;
}

async fn a_hung_leader_without_disk_fence_does_not_renew_expired_leases(_: Kind) {
    check(Fault::Hang { has_fence: false }, false).await;
}

async fn a_hung_leader_without_disk_fence_does_not_renew_expired_leases_over_tls(_: Kind) {
    check(Fault::Hang { has_fence: false }, true).await;
}

async fn a_suspended_leader_does_not_renew_expired_leases(_: Kind) {
    check(Fault::Suspension, false).await;
}

async fn a_suspended_leader_does_not_renew_expired_leases_over_tls(_: Kind) {
    check(Fault::Suspension, true).await;
}

async fn check(fault: Fault, is_secured: bool) {
    let Some(bridge) = Bridge::new(3, is_secured) else { return };
    let shims: Option<Vec<Shim>> = (0..3).map(|_| Shim::build()).collect();
    let Some(shims) = shims else { return };
    let mut servers: Vec<Server> = (0..3)
        .map(|member| {
            bridge.member(member, |options| {
                let options = shims[member].prepare(options.timing(CALM.0, CALM.1));
                match fault {
                    Fault::Hang { has_fence: false } => options.flag("--fence-stalled-disk=false"),
                    Fault::Hang { has_fence: true } | Fault::Suspension => options,
                }
            })
        })
        .collect();
    servers.iter_mut().for_each(Server::launch);
    for server in &mut servers {
        server.ready().await.unwrap();
    }
    let rounds = if is_long() { ROUNDS } else { 1 };
    for round in 1..=rounds {
        let leader = leader_among(&bridge, &[0, 1, 2]).await;
        let lease = Lease::hold(&bridge, leader, round).await;
        match fault {
            Fault::Hang { .. } => {
                shims[leader].hold(Held::Everything);
                bridge.set_link(leader, false);
            }
            Fault::Suspension => servers[leader].pause().await,
        }
        let began = Instant::now();
        let others: Vec<usize> = (0..3).filter(|member| *member != leader).collect();
        let next = leader_among(&bridge, &others).await;
        lease.wait_for_end(&bridge.client(next)).await;
        if fault == Fault::Suspension {
            servers[leader].resume();
        }
        tokio::time::sleep(AFTERWARDS).await;
        lease.check_renewals(fault, began);
        shims[leader].hold(Held::Nothing);
        bridge.set_link(leader, true);
        let client = bridge.client(leader);
        eventually_within(TIMEOUT, "the member serves again", async || {
            client.put(put("again", "v")).await.ok()
        })
        .await;
        drop(lease);
    }
}

async fn leader_among(bridge: &Bridge, members: &[usize]) -> usize {
    let clients: Vec<(usize, Client)> =
        members.iter().map(|member| (*member, bridge.client(*member))).collect();
    eventually_within(TIMEOUT, "a leader", async || {
        for (member, client) in &clients {
            let asked = client.status(pb::StatusRequest {});
            let Ok(Ok(status)) = tokio::time::timeout(Duration::from_secs(1), asked).await else {
                continue;
            };
            if status.header.is_some_and(|header| header.member_id == status.leader) {
                return Some(*member);
            }
        }
        None
    })
    .await
}

/// A granted renewal.
#[derive(Clone, Copy, Debug)]
struct Granted {
    sent_at: Instant,
    answered_at: Instant,
}

/// A lease that its holder renews through one member until this value is dropped.
struct Lease {
    id: i64,
    /// All granted renewals.
    granted: Rc<RefCell<Vec<Granted>>>,
    /// Time at which a client of the new leader found that the lease had ended.
    ended: Cell<Option<Instant>>,
    tasks: tokio::task::JoinSet<()>,
}

impl Lease {
    async fn hold(bridge: &Bridge, member: usize, id: i64) -> Self {
        let client = bridge.client(member);
        eventually_within(TIMEOUT, "a lease", async || {
            client.lease_grant(pb::LeaseGrantRequest { id, ttl: LIFE }).await.ok()
        })
        .await;
        let granted = Rc::new(RefCell::new(Vec::new()));
        let all = Rc::clone(&granted);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn_local(async move {
            let mut number = 0;
            loop {
                // Each renewal is a separate task, so that an unanswered one does not delay the next.
                let (all, renewing) = (Rc::clone(&all), client.clone());
                tokio::task::spawn_local(async move {
                    let sent_at = Instant::now();
                    if renewing.renew(id).await.is_ok_and(|ttl| ttl > 0) {
                        all.borrow_mut().push(Granted { sent_at, answered_at: Instant::now() });
                    }
                });
                // Writes keep the disk busy, so that a sync is in progress when the disk fails.
                number += 1;
                let writing = client.clone();
                tokio::task::spawn_local(async move {
                    drop(writing.put(put(format!("{number}"), "v")).await);
                });
                tokio::time::sleep(PAUSE).await;
            }
        });
        let lease = Self { id, granted, ended: Cell::default(), tasks };
        let has_granted = async || (!lease.granted.borrow().is_empty()).then_some(());
        eventually_within(TIMEOUT, "a renewal", has_granted).await;
        lease
    }

    /// Waits until the new leader has ended the lease.
    async fn wait_for_end(&self, client: &Client) {
        eventually_within(TIMEOUT, "the lease expires", async || {
            let request = pb::LeaseTimeToLiveRequest { id: self.id, keys: false };
            let found = client.lease_time_to_live(request).await.ok()?;
            (found.ttl == -1).then_some(())
        })
        .await;
        self.ended.set(Some(Instant::now()));
    }

    /// Checks that no renewal was granted after the lease had ended. A suspended leader may have granted a renewal
    /// before its suspension and send the response when it continues. To the client, this is a delayed message.
    fn check_renewals(&self, fault: Fault, began: Instant) {
        let ended = self.ended.get().unwrap();
        for granted in self.granted.borrow().iter().filter(|granted| granted.answered_at > ended) {
            let was_sent_before = fault == Fault::Suspension && granted.sent_at < began;
            assert!(
                was_sent_before,
                "the old leader granted a renewal after the lease had ended: sent {:?} after the fault, answered {:?} \
                 after the end",
                granted.sent_at.saturating_duration_since(began),
                granted.answered_at - ended
            );
        }
        assert!(!self.tasks.is_empty(), "renewals were sent during the whole test");
    }
}
