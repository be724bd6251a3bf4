//! Administration: sends orders and queries to the threads that own the backend and consensus.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quorate_core::Defragmented;
use quorate_node::Leadership;
use quorate_raft::{NONE, Status};
use quorate_state::units::MemberId;
use tokio::sync::{oneshot, watch};

use crate::requests::member_info::MemberInfo;
use crate::threads::accepted_compactions::AcceptedCompactions;
use crate::threads::channels::{ApplierHandle, Done, DriverHandle, Input, Job, Order, ProcessedBy};
use quorate_net::runtime::blocking;
use quorate_peer::Peers;
use quorate_requests::admission::{Admission, Bound, OwnedPermit};
use quorate_requests::{HashPermit, HashPermits, RequestError};
use quorate_telemetry::log;

/// Interval at which a leadership transfer checks that its target is still connected.
const PEER_LOOK: Duration = Duration::from_millis(50);

/// Interval at which a stopping member checks whether its messages to the new leader have been sent.
const SEND_LOOK: Duration = Duration::from_millis(1);

/// Maximum time that a stopping member waits for its messages to the new leader to be sent.
const SEND_TIME_MAX: Duration = Duration::from_secs(1);

/// Sends orders and queries to the core threads.
#[derive(Debug)]
pub struct Administrator {
    pub(crate) info: Arc<MemberInfo>,
    pub(crate) driver: DriverHandle,
    pub(crate) applier: ApplierHandle,
    pub(crate) backend_orders: crossbeam_channel::Sender<Order>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) admission: Arc<Admission>,
    /// Number of defragmentations that callers are waiting for.
    pub(crate) defragmentation_count: Mutex<usize>,
    /// Publishes whether the health service reports this member as serving.
    pub(crate) serving: watch::Sender<bool>,
    pub(crate) compactions: AcceptedCompactions,
    pub(crate) hashes: HashPermits,
}

impl Administrator {
    /// Returns the status of consensus.
    pub async fn raft_status(&self) -> Result<Status, RequestError> {
        let (done, receiver) = oneshot::channel();
        let place = self.take_task()?;
        let done: Done<Status> = Box::new(move |status| {
            _ = done.send(status);
            drop(place);
        });
        self.driver.request(Input::AskStatus(done), ProcessedBy::DriverThread)?;
        receiver.await.map_err(|_| RequestError::Stopped)
    }

    /// Transfers the leadership, and waits until this member sees the new leader, but at most for the request timeout:
    /// consensus aborts a transfer without a report if the target does not respond.
    pub async fn move_leader(&self, to: u64) -> Result<(), RequestError> {
        if !self.info.member_status().leads() {
            return Err(RequestError::NotLeader);
        }
        if self.info.facts().members.get(MemberId(to)).is_none_or(|row| row.is_learner) {
            return Err(RequestError::BadLeaderTransferee);
        }
        let started = Instant::now();
        log::info!(
            "leadership transfer starting",
            "local-member-id" = format!("{:x}", self.info.id()),
            "current-leader-member-id" = format!("{:x}", self.info.id()),
            "transferee-member-id" = format!("{to:x}")
        );
        let leadership = self.info.member_status().leadership();
        let _permit = self.take_task()?;
        self.driver.request(Input::TransferLeadership(to), ProcessedBy::DriverThread)?;
        let timeout = self.info.limits().request_timeout;
        transferred(leadership, self.info.id(), to, timeout).await?;
        log::info!(
            "leadership transfer finished",
            "local-member-id" = format!("{:x}", self.info.id()),
            "old-leader-member-id" = format!("{:x}", self.info.id()),
            "new-leader-member-id" = format!("{to:x}"),
            "took" = started.elapsed()
        );
        Ok(())
    }

    /// Transfers the leadership before this member stops, so that clients do not wait for an election. The target is
    /// the voter that has been connected longest. The transfer takes at most the request timeout. During the transfer,
    /// this member holds back the requests that other members have forwarded. It sends these requests to the new leader
    /// before this method returns, or gives up after `SEND_TIME_MAX`.
    pub async fn hand_over(&self) {
        let own_id = format!("{:x}", self.info.id());
        if !self.info.member_status().leads() {
            log::info!(
                "skipped leadership transfer; local server is not leader",
                "local-member-id" = own_id,
                "current-leader-member-id" = format!("{:x}", self.info.member_status().leader())
            );
            return;
        }
        let facts = self.info.facts();
        let voters: Vec<u64> = facts
            .members
            .iter()
            .filter(|member| !member.is_learner)
            .map(|member| member.id.0)
            .collect();
        if voters.len() < 2 {
            log::info!(
                "skipped leadership transfer for single voting member cluster",
                "local-member-id" = own_id,
                "current-leader-member-id" = own_id
            );
            return;
        }
        let others = voters.into_iter().filter(|id| *id != self.info.id());
        let connected = others.filter_map(|id| Some((self.peers.active_since(id)?, id)));
        let target = connected.min().map(|(_, to)| to);
        let moved = match target {
            None => Err(RequestError::Unhealthy),
            Some(to) => {
                tokio::select! {
                    moved = self.move_leader(to) => moved,
                    // The target may be stopping as well, in which case it can no longer become leader.
                    () = self.disconnected(to) => Err(RequestError::Unhealthy),
                }
            }
        };
        if let Err(error) = moved {
            log::warn!(
                "leadership transfer failed",
                "local-member-id" = own_id,
                "error" = error.to_string()
            );
        } else if let Some(to) = target {
            self.send_all(to).await;
        }
    }

    /// Waits until all messages that consensus has produced for the other member have been sent.
    async fn send_all(&self, to: u64) {
        // The status is returned only after consensus has passed the messages of all earlier events to the transport.
        if self.raft_status().await.is_err() {
            return;
        }
        let sent = async {
            while self.peers.has_unsent(to) {
                tokio::time::sleep(SEND_LOOK).await;
            }
        };
        if tokio::time::timeout(SEND_TIME_MAX, sent).await.is_err() {
            log::warn!(
                "stopping before all messages to the new leader have been sent",
                "local-member-id" = format!("{:x}", self.info.id()),
                "remote-peer-id" = format!("{to:x}")
            );
        }
    }

    /// Waits until this member has no connection to the other member.
    async fn disconnected(&self, id: u64) {
        while self.peers.active_since(id).is_some() {
            tokio::time::sleep(PEER_LOOK).await;
        }
    }

    /// Waits until all entries applied so far are in the backend file.
    pub async fn commit_backend(&self) -> Result<(), RequestError> {
        self.ask_applier(Job::Commit).await
    }

    /// Waits until the compactions accepted so far are finished, and their hashes are stored.
    pub async fn wait_compacted(&self) -> Result<(), RequestError> {
        self.ask_applier(Job::AwaitCompactions).await?;
        self.compactions.all_hashed().await;
        Ok(())
    }

    /// Waits until the hashes of the compactions accepted so far are stored, but at most for the request timeout. Does
    /// not wait for revision 0, which means the newest revision, because the hash of the newest revision is always
    /// computed, never taken from the stored hashes.
    pub async fn wait_hashed(&self, revision: i64) {
        if revision != 0 {
            let hashed = self.compactions.all_hashed();
            // After the timeout, the caller computes the hash from the keyspace, as etcd does while a compaction is
            // running.
            _ = tokio::time::timeout(self.info.limits().request_timeout, hashed).await;
        }
    }

    /// Waits for a permit to compute a hash, but at most for the request timeout.
    pub async fn hash_permit(&self) -> Result<HashPermit, RequestError> {
        self.hashes.take(self.info.limits().request_timeout).await
    }

    /// Updates the version of the backend file to the cluster version, in case the update failed when the cluster
    /// version changed.
    pub fn follow_cluster_version(&self) {
        // If the applier has stopped, it has already logged the reason, so the error is ignored.
        _ = self.applier.send(Job::FollowClusterVersion);
    }

    /// Returns the free space in the backend file to the file system.
    pub async fn defragment(&self) -> Result<Defragmented, RequestError> {
        let _defragmenting = Defragmenting::begin(self);
        self.commit_backend().await?;
        let (done, receiver) = oneshot::channel();
        let place = self.take_task()?;
        let done: Done<Defragmented> = Box::new(move |result| {
            _ = done.send(result);
            drop(place);
        });
        let orders = self.backend_orders.clone();
        // The queue may be full for the duration of a commit, so the order is sent from a blocking thread.
        let sent = blocking(move || orders.send(Order::Defragment(done)).is_ok()).await;
        if !sent {
            return Err(RequestError::Stopped);
        }
        receiver.await.map_err(|_| RequestError::Stopped)
    }

    /// Subscribes to changes of the serving status that the health service reports for this member.
    pub fn serving(&self) -> watch::Receiver<bool> {
        self.serving.subscribe()
    }

    /// Records the start or the end of a defragmentation.
    fn count_defragmentations(&self, change: impl FnOnce(&mut usize)) {
        let mut count = self.defragmentation_count.lock();
        change(&mut count);
        self.info.metrics().disk.defrag_inflight.set(i64::from(*count > 0));
        if self.info.limits().unhealthy_on_defragmentation {
            self.serving.send_replace(*count == 0);
        }
    }

    async fn ask_applier(&self, job: impl FnOnce(Done<()>) -> Job) -> Result<(), RequestError> {
        let (done, receiver) = oneshot::channel();
        let place = self.take_task()?;
        // If the caller no longer waits, the result is discarded.
        let done: Done<()> = Box::new(move |()| {
            _ = done.send(());
            drop(place);
        });
        self.applier.send(job(done)).map_err(|_| RequestError::Stopped)?;
        receiver.await.map_err(|_| RequestError::Stopped)
    }

    /// Takes a permit for a query or an order to a core thread.
    fn take_task(&self) -> Result<OwnedPermit, RequestError> {
        Ok(Bound::take_owned(&self.admission.tasks, 1)?)
    }
}

/// Waits until the leadership has moved from this member to the target. Fails after the timeout, or if another member
/// becomes leader.
async fn transferred(
    mut leadership: watch::Receiver<Leadership>,
    own_id: u64,
    to: u64,
    timeout: Duration,
) -> Result<(), RequestError> {
    let has_ended = |now: &Leadership| now.leader == to || ![NONE, own_id].contains(&now.leader);
    let ended = tokio::time::timeout(timeout, leadership.wait_for(has_ended)).await;
    let ended = ended.map_err(|_| RequestError::TimeoutMovingLeader)?;
    let leader = ended.map_err(|_| RequestError::Stopped)?.leader;
    if leader == to { Ok(()) } else { Err(RequestError::LeaderChanged) }
}

/// A defragmentation for which a caller waits. It is counted until this value is dropped.
struct Defragmenting<'a> {
    administrator: &'a Administrator,
}

impl<'a> Defragmenting<'a> {
    fn begin(administrator: &'a Administrator) -> Self {
        administrator.count_defragmentations(|count| *count += 1);
        Self { administrator }
    }
}

impl Drop for Defragmenting<'_> {
    fn drop(&mut self) {
        self.administrator.count_defragmentations(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use quorate_raft::{Role, Term};

    use super::*;

    const OWN: u64 = 1;
    const TARGET: u64 = 2;
    const TIMEOUT: Duration = Duration::from_secs(7);

    fn led_by(leader: u64) -> Leadership {
        Leadership { leader, term: Term(1), role: Role::Follower }
    }

    #[tokio::test]
    async fn a_transfer_ends_when_any_other_member_becomes_leader() {
        for (leader, expected) in
            [(TARGET, Ok(())), (3, Err("etcdserver: leader changed".to_owned()))]
        {
            let (sender, receiver) = watch::channel(led_by(OWN));
            let transfer = tokio::spawn(transferred(receiver, OWN, TARGET, TIMEOUT));
            tokio::task::yield_now().await;
            sender.send_replace(led_by(NONE));
            tokio::task::yield_now().await;
            assert!(!transfer.is_finished());
            sender.send_replace(led_by(leader));
            let outcome = transfer.await.unwrap();
            assert_eq!(outcome.map_err(|error| error.to_string()), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_aborted_transfer_ends_after_the_request_timeout() {
        let (sender, receiver) = watch::channel(led_by(OWN));
        let begun = tokio::time::Instant::now();
        let outcome = transferred(receiver, OWN, TARGET, TIMEOUT).await;
        assert_eq!(
            outcome.unwrap_err().to_string(),
            "etcdserver: request timed out, leader transfer took too long"
        );
        assert!(begun.elapsed() >= TIMEOUT);
        drop(sender);
    }
}
