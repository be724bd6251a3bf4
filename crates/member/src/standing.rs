//! Where this member stands: who leads, what is committed, what is applied, and who waits for the latter.
//!
//! The driver writes leadership, ticks and the committed index, the applier the applied index, once per batch,
//! after the batch's view is published; then it releases everybody who waited for it. Requests read a few
//! atomics on their way in.
//!
//! # Invariant
//!
//! When `applied()` has returned `i`, a view taken afterwards contains the effects of entry `i`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quorate_core::lease_rules;
use quorate_node::Leadership;
use quorate_raft::{LogIndex, MemberId, NONE, Role, Term};
use quorate_state::units::Millis;
use quorate_state::versions::Version;
use tokio::sync::watch;

use crate::admission::SweepMark;
use crate::completion::{Completer, CompletionBatch};
use crate::outcome::Outcome;

/// Committed entries that may wait for the applier before new requests are refused.
const UNAPPLIED_COUNT_MAX: u64 = 5_000;

/// The same for requests that are let through first.
const UNAPPLIED_COUNT_MAX_FIRST: u64 = 10_000;

/// Who waits until which index is applied. Those that have given up are swept, as in a [`Waitlist`].
///
/// [`Waitlist`]: crate::admission::Waitlist
#[derive(Debug, Default)]
struct Waiting {
    by_index: BTreeMap<LogIndex, Vec<Completer<Outcome>>>,
    count: usize,
    mark: SweepMark,
}

impl Waiting {
    fn add(&mut self, index: LogIndex, completer: Completer<Outcome>) {
        if self.mark.is_reached(self.count) {
            self.by_index.retain(|_, completers| {
                completers.retain(Completer::is_awaited);
                !completers.is_empty()
            });
            self.count = self.by_index.values().map(Vec::len).sum();
            self.mark.set_after(self.count);
        }
        self.by_index.entry(index).or_default().push(completer);
        self.count += 1;
    }

    /// The next one that waits for no more than this index.
    fn take_up_to(&mut self, index: LogIndex) -> Option<Vec<Completer<Outcome>>> {
        let first = self.by_index.first_entry().filter(|first| *first.key() <= index)?;
        let completers = first.remove();
        self.count -= completers.len();
        Some(completers)
    }
}

/// Shared by all threads.
#[derive(Debug)]
pub struct Standing {
    committed: AtomicU64,
    applied: AtomicU64,
    applied_term: AtomicU64,
    /// Whether this member leads, and there is no other.
    alone: AtomicBool,
    /// What others may know to be committed from the time when there were some.
    alone_from: AtomicU64,
    waiting: Mutex<Waiting>,
    leadership: watch::Sender<Leadership>,
    leader: AtomicU64,
    term: AtomicU64,
    /// Since when no leader is known, while that is so.
    leaderless_since: Mutex<Option<Instant>>,
    started: Instant,
    election_timeout: Duration,
    /// When consensus handled its last tick, in milliseconds since the start.
    ticked_millis: AtomicU64,
    /// When this member's leadership was last confirmed, in milliseconds since the start: no other leader had been
    /// elected before.
    confirmed_millis: AtomicU64,
    storage_version: Mutex<Option<Version>>,
    refuses_writes: watch::Sender<bool>,
}

impl Standing {
    pub(crate) fn new(applied: LogIndex, applied_term: Term, election_timeout: Duration) -> Self {
        let now = Instant::now();
        Self {
            committed: AtomicU64::new(applied.get()),
            applied: AtomicU64::new(applied.get()),
            applied_term: AtomicU64::new(applied_term.get()),
            alone: AtomicBool::new(false),
            alone_from: AtomicU64::new(0),
            waiting: Mutex::new(Waiting::default()),
            leadership: watch::Sender::new(Leadership::default()),
            leader: AtomicU64::new(NONE),
            term: AtomicU64::new(0),
            leaderless_since: Mutex::new(Some(now)),
            started: now,
            election_timeout,
            ticked_millis: AtomicU64::new(0),
            confirmed_millis: AtomicU64::new(0),
            storage_version: Mutex::new(None),
            refuses_writes: watch::Sender::new(false),
        }
    }

    /// The last index that is known to be committed.
    pub fn committed(&self) -> LogIndex {
        LogIndex(self.committed.load(Ordering::Acquire))
    }

    /// The last index that is applied.
    pub fn applied(&self) -> LogIndex {
        LogIndex(self.applied.load(Ordering::Acquire))
    }

    /// Term of the last applied entry; what response headers carry.
    pub fn applied_term(&self) -> Term {
        Term(self.applied_term.load(Ordering::Acquire))
    }

    /// Whether the applier is so far behind that new requests have to be refused; those that go `first`
    /// later than others.
    pub(crate) fn is_overloaded(&self, first: bool) -> bool {
        let count_max = if first { UNAPPLIED_COUNT_MAX_FIRST } else { UNAPPLIED_COUNT_MAX };
        self.committed() > self.applied() + count_max
    }

    /// Whether this member is alone, leads, and has applied an entry of its term and all that others may have heard of
    /// while there were some, and so everything that was ever acknowledged before. Whatever it acknowledges now it has
    /// applied first, so a read of the newest view is linearizable without asking anybody.
    pub(crate) fn reads_need_no_barrier(&self) -> bool {
        self.alone.load(Ordering::Acquire)
            && self.applied_term() == Term(self.term.load(Ordering::Acquire))
            && self.applied() >= LogIndex(self.alone_from.load(Ordering::Acquire))
    }

    /// The leader, or [`NONE`].
    pub fn leader(&self) -> MemberId {
        self.leader.load(Ordering::Acquire)
    }

    /// Whether this member believes that it leads.
    pub fn leads(&self) -> bool {
        self.leadership.borrow().role == Role::Leader
    }

    /// Whether this member leads without room for its backend file, and no other member can lead.
    pub(crate) fn refuses_writes(&self) -> watch::Receiver<bool> {
        self.refuses_writes.subscribe()
    }

    pub(crate) fn set_refuses_writes(&self, refuses: bool) {
        self.refuses_writes.send_replace(refuses);
    }

    /// Since when no leader is known, while that is so.
    pub fn leaderless_since(&self) -> Option<Instant> {
        *self.leaderless_since.lock()
    }

    /// Whether there is no leader, and has been none for so long (an election timeout, here and below) that
    /// it is no mere change of leaders.
    pub fn misses_leader(&self, patience: Duration) -> bool {
        self.leaderless_since().is_some_and(|since| since.elapsed() >= patience)
    }

    /// Waits for a leader until there has been none for so long. Says whether there is one.
    pub async fn has_leader_within(&self, patience: Duration) -> bool {
        let Some(since) = self.leaderless_since() else { return true };
        let mut leadership = self.leadership();
        let led = leadership.wait_for(|now| now.leader != NONE);
        matches!(tokio::time::timeout_at((since + patience).into(), led).await, Ok(Ok(_)))
    }

    /// Whether no leader has been known at any moment since then.
    pub fn had_no_leader_since(&self, then: Instant) -> bool {
        self.leaderless_since().is_some_and(|since| since <= then)
    }

    /// Whether this member leads and may answer for leases on its own ([`lease_rules`]).
    pub fn is_leadership_confirmed(&self) -> bool {
        let confirmed_at = Millis(self.confirmed_millis.load(Ordering::Acquire));
        let timeout_millis = to_millis(self.election_timeout);
        self.leads() && lease_rules::is_confirmed(confirmed_at, self.now(), timeout_millis)
    }

    /// Whether consensus has handled a tick within the last while.
    pub fn has_ticked_within(&self, last: Duration) -> bool {
        let ticked = self.ticked_millis.load(Ordering::Acquire);
        Duration::from_millis(self.now().0.saturating_sub(ticked)) <= last
    }

    /// Called by the driver at each tick.
    pub(crate) fn note_tick(&self) {
        self.ticked_millis.store(self.now().0, Ordering::Release);
    }

    /// The leadership of this member was confirmed at this time: by answers to heartbeats, or by a quorum that was
    /// asked then.
    pub(crate) fn note_confirmed(&self, at: Millis) {
        self.confirmed_millis.fetch_max(at.0, Ordering::AcqRel);
    }

    /// Time since the start; see [`Self::note_confirmed`].
    pub(crate) fn now(&self) -> Millis {
        Millis(to_millis(self.started.elapsed()))
    }

    /// Follows changes of leadership.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.subscribe()
    }

    /// The version that the backend file's content has.
    pub fn storage_version(&self) -> Option<Version> {
        *self.storage_version.lock()
    }

    pub(crate) fn set_storage_version(&self, version: Option<Version>) {
        *self.storage_version.lock() = version;
    }

    /// Called by the driver.
    pub(crate) fn set_leadership(&self, leadership: Leadership) {
        self.term.store(leadership.term.get(), Ordering::Release);
        self.leader.store(leadership.leader, Ordering::Release);
        {
            let mut since = self.leaderless_since.lock();
            let now = (leadership.leader == NONE).then(Instant::now);
            *since = now.map(|now| since.unwrap_or(now));
        }
        self.leadership.send_replace(leadership);
    }

    /// Called by the driver: whether there is no other member, and what is committed by now, of which those who were
    /// there may have heard.
    pub(crate) fn set_alone(&self, is_alone: bool, commit: LogIndex) {
        let leads = self.leadership.borrow().role == Role::Leader;
        self.alone_from.store(commit.get(), Ordering::Release);
        self.alone.store(is_alone && leads, Ordering::Release);
    }

    /// Called by the driver.
    pub(crate) fn set_committed(&self, index: LogIndex) {
        self.committed.fetch_max(index.get(), Ordering::AcqRel);
    }

    /// Called by the applier after it has published the batch that ends with `index`.
    pub(crate) fn set_applied(
        &self,
        index: LogIndex,
        term: Term,
        completions: &mut CompletionBatch<Outcome>,
    ) {
        let mut waiting = self.waiting.lock();
        self.applied_term.store(term.get(), Ordering::Release);
        self.applied.store(index.get(), Ordering::Release);
        while let Some(completers) = waiting.take_up_to(index) {
            for completer in completers {
                completions.push(completer, Outcome::Ready);
            }
        }
    }

    /// Tells `completer` once `index` is applied, which may be now.
    pub(crate) fn when_applied(&self, index: LogIndex, completer: Completer<Outcome>) {
        {
            let mut waiting = self.waiting.lock();
            // Looked at under the lock, so that the applier cannot pass in between.
            if self.applied() < index {
                waiting.add(index, completer);
                return;
            }
        }
        completer.send(Outcome::Ready);
    }
}

fn to_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::completion::{AwaitingCell, CompletionQueue, deliver, wait};

    const TIMEOUT: Duration = Duration::from_millis(300);

    thread_local! {
        static AWAITING: AwaitingCell<Outcome> = const { AwaitingCell::new() };
    }

    #[tokio::test]
    async fn callers_that_have_gone_while_the_applier_stalls_do_not_pile_up() {
        let far = Instant::now() + Duration::from_secs(3600);
        let standing = Standing::new(LogIndex::ZERO, Term::ZERO, TIMEOUT);
        let callers = async {
            let (completer, staying) = wait(&AWAITING, far).unwrap();
            standing.when_applied(LogIndex(7), completer);
            for index in 1..10_000 {
                let (completer, gone) = wait(&AWAITING, far).unwrap();
                drop(gone);
                standing.when_applied(LogIndex(index), completer);
            }
            assert!(standing.waiting.lock().count <= 1024);
            standing.set_applied(LogIndex(7), Term(1), &mut CompletionBatch::new());
            let waiting = standing.waiting.lock();
            let held: usize = waiting.by_index.values().map(Vec::len).sum();
            assert_eq!(waiting.count, held);
            drop((waiting, staying));
        };
        tokio::select! {
            biased;
            () = deliver(&AWAITING, CompletionQueue::new()) => {}
            () = callers => {}
        }
    }

    #[test]
    fn only_a_leader_that_was_confirmed_lately_answers_for_leases() {
        let timeout = Duration::from_secs(3600);
        let standing = Standing::new(LogIndex::ZERO, Term::ZERO, timeout);
        assert!(!standing.is_leadership_confirmed(), "it does not lead");
        let leads = Leadership { leader: 1, term: Term(2), role: Role::Leader };
        standing.set_leadership(leads);
        standing.note_confirmed(standing.now());
        assert!(standing.is_leadership_confirmed());
        standing.set_leadership(Leadership { leader: NONE, role: Role::Follower, ..leads });
        assert!(!standing.is_leadership_confirmed());

        let standing = Standing::new(LogIndex::ZERO, Term::ZERO, Duration::ZERO);
        standing.set_leadership(leads);
        standing.note_confirmed(standing.now());
        // Ticks are no confirmation.
        while standing.now() == Millis(0) || standing.is_leadership_confirmed() {
            standing.note_tick();
        }
    }

    #[test]
    fn it_is_known_since_when_there_is_no_leader() {
        let standing = Standing::new(LogIndex::ZERO, Term::ZERO, TIMEOUT);
        let asked = Instant::now();
        assert!(standing.had_no_leader_since(asked));
        let led = Leadership { leader: 1, term: Term(2), role: Role::Follower };
        standing.set_leadership(led);
        assert!(!standing.had_no_leader_since(asked));
        standing.set_leadership(Leadership { leader: NONE, ..led });
        assert!(!standing.had_no_leader_since(asked), "there was one in between");
        let asked = Instant::now();
        standing.set_leadership(Leadership { leader: NONE, term: Term(3), ..led });
        assert!(standing.had_no_leader_since(asked), "another term is no leader");
    }

    #[test]
    fn reads_need_no_barrier_where_nobody_else_can_have_acknowledged_anything() {
        let standing = Standing::new(LogIndex::ZERO, Term::ZERO, TIMEOUT);
        let apply = |index, term| {
            standing.set_applied(LogIndex(index), Term(term), &mut CompletionBatch::new());
        };
        standing.set_leadership(Leadership { leader: 1, term: Term(2), role: Role::Leader });
        standing.set_alone(true, LogIndex(3));
        apply(3, 1);
        assert!(!standing.reads_need_no_barrier(), "nothing of this term is applied");
        apply(4, 2);
        assert!(standing.reads_need_no_barrier());
        standing.set_alone(false, LogIndex(4));
        assert!(!standing.reads_need_no_barrier(), "a learner may apply first");
        apply(8, 2);
        standing.set_alone(true, LogIndex(9));
        assert!(!standing.reads_need_no_barrier(), "whoever was there may have applied the ninth");
        apply(9, 2);
        assert!(standing.reads_need_no_barrier());
        standing.set_leadership(Leadership { leader: 2, term: Term(3), role: Role::Follower });
        standing.set_alone(true, LogIndex(9));
        assert!(!standing.reads_need_no_barrier(), "another leads");
    }

    #[test]
    fn what_goes_first_is_refused_later() {
        let standing = Standing::new(LogIndex(7), Term(1), TIMEOUT);
        for (committed, refused) in [
            (5_007, [false, false]),
            (5_008, [true, false]),
            (10_007, [true, false]),
            (10_008, [true, true]),
        ] {
            standing.set_committed(LogIndex(committed));
            assert_eq!([false, true].map(|first| standing.is_overloaded(first)), refused);
        }
    }

    /// No test waits for it.
    const LONG: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(5);
    const LED: Leadership = Leadership { leader: 1, term: Term(2), role: Role::Follower };
    const LEADERLESS: Leadership = Leadership { leader: NONE, ..LED };

    fn led() -> Standing {
        let standing = Standing::new(LogIndex::ZERO, Term::ZERO, LONG);
        standing.set_leadership(LED);
        standing
    }

    #[tokio::test]
    async fn a_leader_that_is_gone_is_missed_after_a_while() {
        let standing = led();
        assert!(!standing.misses_leader(Duration::ZERO));
        assert!(standing.has_leader_within(Duration::ZERO).await);
        standing.set_leadership(LEADERLESS);
        assert!(!standing.misses_leader(LONG));
        assert!(!standing.has_leader_within(SHORT).await, "the wait has an end");
        assert!(standing.misses_leader(SHORT));
        assert!(!standing.has_leader_within(Duration::ZERO).await, "nothing is left to wait for");
    }

    #[tokio::test]
    async fn who_requires_a_leader_gets_its_successor() {
        let standing = led();
        standing.set_leadership(LEADERLESS);
        let mut waiting = std::pin::pin!(standing.has_leader_within(LONG));
        assert!(now_or_never(waiting.as_mut()).await.is_none());
        standing.set_leadership(Leadership { leader: 3, term: Term(3), ..LED });
        assert!(waiting.await);
    }

    /// The outcome, if it is there.
    async fn now_or_never<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let mut future = Some(future);
        std::future::poll_fn(move |cx| {
            let polled = future.take().expect("polled once").poll(cx);
            std::task::Poll::Ready(match polled {
                std::task::Poll::Ready(outcome) => Some(outcome),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }
}
