//! Status of this member: its leader, its committed and applied indexes, and the requests that wait for an applied
//! index.
//!
//! The driver publishes the leadership, the committed index and, with each tick, the state of consensus. The applier
//! publishes the applied index once per batch, after the batch's view. It then releases the requests that waited for
//! the index. A new request only reads a few atomics.
//!
//! # Invariant
//!
//! After `applied()` has returned `i`, a view taken later contains the effects of entry `i`.
//!
//! # Not here
//!
//! The consequences of leadership. [`LeadershipState`] derives them for a given time on this member's clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use quorate_core::{AppliedWaits, LeadershipState};
use quorate_node::Leadership;
use quorate_raft::{LogIndex, MemberId, NONE, Status, Term};
use quorate_state::units::Millis;
use quorate_state::versions::Version;
use tokio::sync::watch;

use crate::threads::clock::{Clock, to_millis};
use crate::threads::completion::{Completer, CompletionBatch};
use crate::threads::outcome::Outcome;
use crate::threads::waitlist::SweepMark;

/// Maximum number of committed entries that wait for the applier. Above it, new requests are refused.
const UNAPPLIED_COUNT_MAX: u64 = 5_000;

/// Maximum number of committed entries that wait for the applier. Above it, priority requests are refused too.
const UNAPPLIED_COUNT_MAX_FIRST: u64 = 10_000;

/// Requests that wait for an applied index. Abandoned requests are swept, as in a [`Waitlist`].
///
/// [`Waitlist`]: crate::threads::waitlist::Waitlist
#[derive(Debug, Default)]
struct Waiting {
    waits: AppliedWaits<Completer<Outcome>>,
    mark: SweepMark,
}

impl Waiting {
    fn sweep(&mut self) {
        if self.mark.is_reached(self.waits.len()) {
            self.waits.retain(Completer::is_awaited);
            self.mark.set_after(self.waits.len());
        }
    }
}

/// The status, shared by all threads.
#[derive(Debug)]
pub struct MemberStatus {
    committed: AtomicU64,
    applied: AtomicU64,
    applied_term: AtomicU64,
    waiting: Mutex<Waiting>,
    leadership: watch::Sender<Leadership>,
    state: ArcSwap<LeadershipState>,
    /// The state of consensus at the last tick or change of leadership.
    consensus: ArcSwap<Status>,
    clock: Clock,
    storage_version: Mutex<Option<Version>>,
    refuses_writes: watch::Sender<bool>,
}

impl MemberStatus {
    pub(crate) fn new(applied: LogIndex, applied_term: Term, clock: Clock) -> Self {
        Self {
            committed: AtomicU64::new(applied.get()),
            applied: AtomicU64::new(applied.get()),
            applied_term: AtomicU64::new(applied_term.get()),
            waiting: Mutex::new(Waiting::default()),
            leadership: watch::Sender::new(Leadership::default()),
            // No leader is known until the driver reports one.
            state: ArcSwap::from_pointee(LeadershipState::default()),
            consensus: ArcSwap::from_pointee(Status::default()),
            clock,
            storage_version: Mutex::new(None),
            refuses_writes: watch::Sender::new(false),
        }
    }

    /// Returns the last index that is known to be committed.
    pub fn committed(&self) -> LogIndex {
        LogIndex(self.committed.load(Ordering::Acquire))
    }

    /// Returns the last applied index.
    pub fn applied(&self) -> LogIndex {
        LogIndex(self.applied.load(Ordering::Acquire))
    }

    /// Returns the term of the last applied entry, which response headers contain.
    pub fn applied_term(&self) -> Term {
        Term(self.applied_term.load(Ordering::Acquire))
    }

    /// Returns whether the applier is so far behind that new requests are refused. Requests with `first` have priority:
    /// their limit is higher.
    pub(crate) fn is_overloaded(&self, first: bool) -> bool {
        let count_max = if first { UNAPPLIED_COUNT_MAX_FIRST } else { UNAPPLIED_COUNT_MAX };
        self.committed() > self.applied() + count_max
    }

    /// Returns the leadership as last published by this member's driver.
    pub fn state(&self) -> LeadershipState {
        **self.state.load()
    }

    /// Returns whether a read of the newest view is linearizable without a read barrier.
    pub(crate) fn reads_need_no_barrier(&self) -> bool {
        // The index is read first, because the term of an entry is published before its index.
        let (applied, applied_term) = (self.applied(), self.applied_term());
        self.state().reads_need_no_barrier(applied, applied_term)
    }

    /// Returns the leader, or [`NONE`].
    pub fn leader(&self) -> MemberId {
        self.state().leadership.leader
    }

    /// Returns whether this member believes that it leads.
    pub fn leads(&self) -> bool {
        self.state().leads()
    }

    /// Subscribes to a flag that is true while this member refuses writes, because it leads without disk space for its
    /// backend file and no other member can lead.
    pub(crate) fn refuses_writes(&self) -> watch::Receiver<bool> {
        self.refuses_writes.subscribe()
    }

    pub(crate) fn set_refuses_writes(&self, refuses: bool) {
        self.refuses_writes.send_replace(refuses);
    }

    /// Returns whether there has been no leader for this long. Callers of this method and of
    /// [`Self::has_leader_within`] pass at least an election timeout, which is longer than a change of leaders among
    /// members of Quorate.
    pub fn misses_leader(&self, timeout: Duration) -> bool {
        self.state().misses_leader(self.clock.now(), to_millis(timeout))
    }

    /// Waits until there is a leader, or until there has been no leader for `timeout`. Returns whether there is a
    /// leader.
    pub async fn has_leader_within(&self, timeout: Duration) -> bool {
        let Some(since) = self.state().leaderless_since else { return true };
        let deadline = self.clock.instant(since) + timeout;
        let mut leadership = self.leadership();
        let led = leadership.wait_for(|now| now.leader != NONE);
        matches!(tokio::time::timeout_at(deadline.into(), led).await, Ok(Ok(_)))
    }

    /// Returns whether this member has known no leader since this instant.
    pub fn had_no_leader_since(&self, then: Instant) -> bool {
        self.state().had_no_leader_since(self.clock.at(then))
    }

    /// Returns whether consensus has handled a tick within this duration.
    pub fn has_ticked_within(&self, last: Duration) -> bool {
        self.state().has_ticked_within(self.clock.now(), to_millis(last))
    }

    /// Returns the current time on the clock of the state machine.
    pub(crate) fn clock_now(&self) -> Millis {
        self.clock.now()
    }

    /// Subscribes to changes of leadership.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.subscribe()
    }

    /// Returns the storage version of the backend file.
    pub fn storage_version(&self) -> Option<Version> {
        *self.storage_version.lock()
    }

    pub(crate) fn set_storage_version(&self, version: Option<Version>) {
        *self.storage_version.lock() = version;
    }

    /// Sets the leadership. Only the driver calls this.
    pub(crate) fn publish(&self, state: LeadershipState) {
        if state == self.state() {
            return;
        }
        self.state.store(Arc::new(state));
        self.leadership.send_if_modified(|before| {
            std::mem::replace(before, state.leadership) != state.leadership
        });
    }

    /// Returns the state of consensus, which may be one tick old. Does not wait for the driver.
    pub(crate) fn consensus(&self) -> Arc<Status> {
        self.consensus.load_full()
    }

    /// Sets the state of consensus. Only the driver calls this.
    pub(crate) fn publish_consensus(&self, status: Status) {
        self.consensus.store(Arc::new(status));
    }

    /// Raises the committed index. Only the driver calls this.
    pub(crate) fn set_committed(&self, index: LogIndex) {
        self.committed.fetch_max(index.get(), Ordering::AcqRel);
    }

    /// Sets the applied index and releases the requests that wait for it. The applier calls this after it has published
    /// the batch that ends with `index`.
    pub(crate) fn set_applied(
        &self,
        index: LogIndex,
        term: Term,
        completions: &mut CompletionBatch<Outcome>,
    ) {
        let mut waiting = self.waiting.lock();
        self.applied_term.store(term.get(), Ordering::Release);
        self.applied.store(index.get(), Ordering::Release);
        while let Some(completers) = waiting.waits.take_released(index) {
            for completer in completers {
                completions.push(completer, Outcome::Ready);
            }
        }
    }

    /// Completes `completer` when `index` is applied, or immediately if it already is.
    pub(crate) fn when_applied(&self, index: LogIndex, completer: Completer<Outcome>) {
        let released = {
            let mut waiting = self.waiting.lock();
            waiting.sweep();
            // The applied index is read under the lock, so that the applier cannot advance between the comparison and
            // the registration of the wait.
            waiting.waits.wait(completer, index, self.applied())
        };
        if let Some(completer) = released {
            completer.send(Outcome::Ready);
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_raft::Role;

    use super::*;

    use crate::threads::completion::{AwaitingCell, deliver, wait};

    thread_local! {
        static AWAITING: AwaitingCell<Outcome> = const { AwaitingCell::new() };
    }

    #[tokio::test]
    async fn cancelled_waits_do_not_accumulate_while_the_applier_stalls() {
        let far = Instant::now() + Duration::from_secs(3600);
        let member_status = MemberStatus::new(LogIndex::ZERO, Term::ZERO, Clock::start());
        let callers = async {
            let (completer, staying) = wait(&AWAITING, far).unwrap();
            member_status.when_applied(LogIndex(7), completer);
            for index in 1..10_000 {
                let (completer, gone) = wait(&AWAITING, far).unwrap();
                drop(gone);
                member_status.when_applied(LogIndex(index), completer);
            }
            assert!(member_status.waiting.lock().waits.len() <= 1024);
            member_status.set_applied(LogIndex(7), Term(1), &mut CompletionBatch::new());
            assert!(member_status.waiting.lock().waits.len() < 1024);
            drop(staying);
        };
        tokio::select! {
            biased;
            () = deliver(&AWAITING) => {}
            () = callers => {}
        }
    }

    #[test]
    fn prioritised_requests_are_refused_at_a_higher_backlog() {
        let member_status = MemberStatus::new(LogIndex(7), Term(1), Clock::start());
        for (committed, refused) in [
            (5_007, [false, false]),
            (5_008, [true, false]),
            (10_007, [true, false]),
            (10_008, [true, true]),
        ] {
            member_status.set_committed(LogIndex(committed));
            assert_eq!([false, true].map(|first| member_status.is_overloaded(first)), refused);
        }
    }

    /// A timeout that never expires during a test.
    const LONG: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(5);
    const LED: Leadership = Leadership { leader: 1, term: Term(2), role: Role::Follower };

    fn led() -> MemberStatus {
        let member_status = MemberStatus::new(LogIndex::ZERO, Term::ZERO, Clock::start());
        publish(&member_status, LED, None);
        member_status
    }

    fn publish(
        member_status: &MemberStatus,
        leadership: Leadership,
        leaderless_since: Option<Millis>,
    ) {
        member_status.publish(LeadershipState {
            leadership,
            leaderless_since,
            ..member_status.state()
        });
    }

    fn lose_leader(member_status: &MemberStatus) {
        let since = member_status.clock.now();
        publish(member_status, Leadership { leader: NONE, ..LED }, Some(since));
    }

    #[tokio::test]
    async fn a_lost_leader_is_reported_after_the_timeout() {
        let member_status = led();
        assert!(!member_status.misses_leader(Duration::ZERO));
        assert!(member_status.has_leader_within(Duration::ZERO).await);
        lose_leader(&member_status);
        assert!(!member_status.misses_leader(LONG));
        assert!(!member_status.has_leader_within(SHORT).await, "the wait ends at the timeout");
        assert!(member_status.misses_leader(SHORT));
        assert!(
            !member_status.has_leader_within(Duration::ZERO).await,
            "the timeout has already passed"
        );
    }

    #[tokio::test]
    async fn a_request_that_requires_a_leader_waits_for_the_next_leader() {
        let member_status = led();
        lose_leader(&member_status);
        let mut waiting = std::pin::pin!(member_status.has_leader_within(LONG));
        assert!(now_or_never(waiting.as_mut()).await.is_none());
        publish(&member_status, Leadership { leader: 3, term: Term(3), ..LED }, None);
        assert!(waiting.await);
    }

    /// Returns the outcome if it is available.
    async fn now_or_never<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let mut future = Some(future);
        std::future::poll_fn(move |cx| {
            let polled = future.take().expect("the future is polled only once").poll(cx);
            std::task::Poll::Ready(match polled {
                std::task::Poll::Ready(outcome) => Some(outcome),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }
}
