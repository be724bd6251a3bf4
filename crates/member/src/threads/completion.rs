//! Delivery of responses from the core threads to the requests that wait for them.
//!
//! Waking a task on another thread costs 4-6 microseconds, most of it in the kernel, so a core thread wakes each
//! runtime once for a whole batch. Every connection runtime has one [`CompletionQueue`]. A core thread adds all
//! responses of a batch to the queue and wakes the runtime once. The runtime's delivery task then passes each response
//! to its request on the runtime's own thread, where waking a task is only a push to a local queue.
//!
//! A connection thread may run the driver and the applier itself. The responses to its own runtime's requests then
//! bypass the queue, so a request that is answered while it is being sent never sleeps.
//!
//! # Invariants
//!
//! * A request's [`Waiting`] ends at most once: with its response or at its deadline. If the request is cancelled, it
//!   is dropped before either.
//! * A response to a request that was cancelled or timed out is dropped, because each slot has a generation, and the
//!   generation of a late response does not match.
//! * [`Waiting`] stays on the runtime thread that created it. All connection runtimes are single-threaded, so a task
//!   cannot move to another thread. The thread-local [`AwaitingCell`] relies on this.
//!
//! # Deadlines
//!
//! A timer for each request would cost more than the rest of its wait. Therefore each runtime has a single timer, which
//! is due at the earliest deadline that was known when it was set. Nearly all requests have the same timeout. While
//! they are answered in time, the timer is set at most once in each such period, however many requests arrive. All
//! timeouts are at least a second; a request with a shorter one would cause a check of its own.
//!
//! # Bound
//!
//! There is one slot per request in progress. `admission` bounds the number of requests.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant as TimerInstant;

/// Minimum time between a check of the deadlines and the next one that results from it. Each check looks at every slot,
/// so the pause limits their cost while many requests time out. A request may time out this much after its deadline.
const CHECK_PAUSE: Duration = Duration::from_millis(50);

/// Identifies one waiting request of one runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    index: u32,
    generation: u32,
}

/// Number of slots in one chunk. Slots are allocated in chunks.
const CHUNK_SLOTS: usize = 1024;

/// The generation of each slot, written by the runtime's thread and read by core threads.
type Generations = Arc<[AtomicU32; CHUNK_SLOTS]>;

/// The queue of one runtime, for responses of type `A`.
#[derive(Debug)]
pub(crate) struct CompletionQueue<A: 'static> {
    /// The waiting requests of a thread. On the runtime's own thread, these are the queue's requests.
    awaiting: AwaitingKey<A>,
    outcomes: Mutex<Vec<(Slot, A)>>,
    arrived: Notify,
    generations: Mutex<Vec<Generations>>,
}

/// Sends the response to one waiting request.
#[derive(Debug)]
pub(crate) struct Completer<A: 'static> {
    queue: Arc<CompletionQueue<A>>,
    slot: Slot,
}

impl<A> CompletionQueue<A> {
    fn new(awaiting: AwaitingKey<A>) -> Arc<Self> {
        Arc::new(Self {
            awaiting,
            outcomes: Mutex::new(Vec::new()),
            arrived: Notify::new(),
            generations: Mutex::new(Vec::new()),
        })
    }

    /// Delivers responses, which leaves the vector empty. They bypass the queue if this is the thread of its runtime.
    fn send(self: &Arc<Self>, responses: &mut Vec<(Slot, A)>) {
        let delivered = self.awaiting.try_with(|cell| {
            // The cell is borrowed if a request's waker sends another response.
            let mut own = cell.0.try_borrow_mut().ok()?;
            let own = own.as_mut().filter(|own| Arc::ptr_eq(&own.queue, self))?;
            own.deliver(responses);
            Some(())
        });
        if !matches!(delivered, Ok(Some(()))) {
            self.outcomes.lock().append(responses);
            self.arrived.notify_one();
        }
    }
}

impl<A> Clone for Completer<A> {
    fn clone(&self) -> Self {
        Self { queue: Arc::clone(&self.queue), slot: self.slot }
    }
}

impl<A> Completer<A> {
    /// Returns whether the request still waits. May return true for a short time after the request has ended.
    pub(crate) fn is_awaited(&self) -> bool {
        let at = self.slot.index as usize;
        let chunks = self.queue.generations.lock();
        let generation = &chunks[at / CHUNK_SLOTS][at % CHUNK_SLOTS];
        generation.load(Ordering::Relaxed) == self.slot.generation
    }

    /// Sends one response immediately.
    pub(crate) fn send(self, answer: A) {
        self.queue.send(&mut vec![(self.slot, answer)]);
    }
}

/// Gathers the responses of one batch, so that every runtime is woken once.
#[derive(Debug)]
pub(crate) struct CompletionBatch<A: 'static> {
    /// The gathered responses, grouped by queue. Each runtime has one queue.
    heaps: Vec<Heap<A>>,
}

type Heap<A> = (Arc<CompletionQueue<A>>, Vec<(Slot, A)>);

impl<A> CompletionBatch<A> {
    pub(crate) const fn new() -> Self {
        Self { heaps: Vec::new() }
    }

    pub(crate) fn push(&mut self, completer: Completer<A>, answer: A) {
        let known = self.heaps.iter().position(|(queue, _)| Arc::ptr_eq(queue, &completer.queue));
        let at = known.unwrap_or_else(|| {
            self.heaps.push((completer.queue, Vec::new()));
            self.heaps.len() - 1
        });
        self.heaps[at].1.push((completer.slot, answer));
    }

    /// Delivers all gathered responses.
    pub(crate) fn send(&mut self) {
        for (queue, heap) in self.heaps.iter_mut().filter(|(_, heap)| !heap.is_empty()) {
            queue.send(heap);
        }
    }
}

enum SlotState<A> {
    Free,
    Waiting { waker: Option<Waker>, deadline: Instant },
    Answered(A),
    Expired,
}

/// The waiting requests of one runtime.
struct Awaiting<A: 'static> {
    queue: Arc<CompletionQueue<A>>,
    slots: Vec<(u32, SlotState<A>)>,
    free: Vec<u32>,
    /// Copy of the generations in `slots`, which the core threads can read.
    generations: Vec<Generations>,
    /// The time of the next check of the deadlines. No request has an earlier deadline, except for one that will be
    /// checked late because of [`CHECK_PAUSE`]. `None` if no request was waiting at the last check and none has started
    /// since.
    check_at: Option<Instant>,
}

/// The waiting requests of one thread. The server keeps one cell for each runtime, in a thread-local.
pub(crate) struct AwaitingCell<A: 'static>(RefCell<Option<Awaiting<A>>>);

impl<A: 'static> AwaitingCell<A> {
    pub(crate) const fn new() -> Self {
        Self(RefCell::new(None))
    }

    fn with<R>(&self, act: impl FnOnce(&mut Awaiting<A>) -> R) -> Option<R> {
        self.0.borrow_mut().as_mut().map(act)
    }
}

type AwaitingKey<A> = &'static std::thread::LocalKey<AwaitingCell<A>>;

/// Delivers responses to the waiting requests of this thread while the future is polled.
pub(crate) async fn deliver<A: 'static>(awaiting: AwaitingKey<A>) {
    let queue = CompletionQueue::new(awaiting);
    awaiting.with(|cell| {
        let opened = Awaiting {
            queue: Arc::clone(&queue),
            slots: Vec::new(),
            free: Vec::new(),
            generations: Vec::new(),
            check_at: None,
        };
        *cell.0.borrow_mut() = Some(opened);
    });
    let mut timer = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
    let mut delivered = Vec::new();
    loop {
        let check_at = awaiting.with(|cell| cell.with(|awaiting| awaiting.check_at)).flatten();
        if let Some(at) = check_at.map(TimerInstant::from_std)
            && timer.deadline() != at
        {
            timer.as_mut().reset(at);
        }
        tokio::select! {
            () = queue.arrived.notified() => {
                std::mem::swap(&mut delivered, &mut *queue.outcomes.lock());
                awaiting.with(|cell| cell.with(|awaiting| awaiting.deliver(&mut delivered)));
            }
            () = timer.as_mut(), if check_at.is_some() => {
                let now = TimerInstant::now().into_std();
                awaiting.with(|cell| cell.with(|awaiting| awaiting.check_deadlines(now)));
            }
        }
    }
}

impl<A> Awaiting<A> {
    fn take_slot(&mut self, deadline: Instant) -> Slot {
        if self.check_at.is_none_or(|at| deadline < at) {
            self.check_at = Some(deadline);
            // The delivery task sets its timer.
            self.queue.arrived.notify_one();
        }
        let state = SlotState::Waiting { waker: None, deadline };
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.1 = state;
            return Slot { index, generation: slot.0 };
        }
        let index = u32::try_from(self.slots.len())
            .expect("the number of requests in progress fits in 32 bits");
        if self.slots.len().is_multiple_of(CHUNK_SLOTS) {
            let chunk = Generations::new(std::array::from_fn(|_| AtomicU32::new(0)));
            self.queue.generations.lock().push(Arc::clone(&chunk));
            self.generations.push(chunk);
        }
        self.slots.push((0, state));
        Slot { index, generation: 0 }
    }

    fn deliver(&mut self, delivered: &mut Vec<(Slot, A)>) {
        for (slot, answer) in delivered.drain(..) {
            let (generation, state) = &mut self.slots[slot.index as usize];
            if *generation != slot.generation {
                continue;
            }
            if let SlotState::Waiting { waker, .. } =
                std::mem::replace(state, SlotState::Answered(answer))
                && let Some(waker) = waker
            {
                waker.wake();
            }
        }
    }

    /// Expires requests whose deadline has passed, and determines the time of the next check.
    fn check_deadlines(&mut self, now: Instant) {
        let mut earliest = None;
        for (_, state) in &mut self.slots {
            let SlotState::Waiting { waker, deadline } = state else { continue };
            if *deadline > now {
                earliest = Some(earliest.map_or(*deadline, |at: Instant| at.min(*deadline)));
                continue;
            }
            let waker = waker.take();
            *state = SlotState::Expired;
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        self.check_at = earliest.map(|at| at.max(now + CHECK_PAUSE));
    }

    fn release(&mut self, slot: Slot) {
        let (generation, state) = &mut self.slots[slot.index as usize];
        if *generation == slot.generation {
            *generation = generation.wrapping_add(1);
            *state = SlotState::Free;
            let at = slot.index as usize;
            self.generations[at / CHUNK_SLOTS][at % CHUNK_SLOTS]
                .store(*generation, Ordering::Relaxed);
            self.free.push(slot.index);
        }
    }
}

/// A future that yields the response to a request, or `None` at the deadline.
pub(crate) struct Waiting<A: 'static> {
    awaiting: AwaitingKey<A>,
    slot: Slot,
}

/// Starts to wait for a response on this thread. Returns `None` if the thread has no delivery task. Only the threads of
/// connection runtimes have one.
pub(crate) fn wait<A: 'static>(
    awaiting: AwaitingKey<A>,
    deadline: Instant,
) -> Option<(Completer<A>, Waiting<A>)> {
    awaiting.with(|cell| {
        cell.with(|open| {
            let slot = open.take_slot(deadline);
            (Completer { queue: Arc::clone(&open.queue), slot }, Waiting { awaiting, slot })
        })
    })
}

impl<A: 'static> Future for Waiting<A> {
    type Output = Option<A>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<A>> {
        let slot = self.slot;
        self.awaiting.with(|cell| {
            cell.with(|awaiting| {
                let (generation, state) = &mut awaiting.slots[slot.index as usize];
                assert_eq!(
                    *generation, slot.generation,
                    "a slot belongs to one request: otherwise a request would receive the response to another \
                     request"
                );
                match std::mem::replace(state, SlotState::Free) {
                    SlotState::Waiting { waker, deadline } => {
                        let waker = match waker {
                            Some(waker) if waker.will_wake(cx.waker()) => waker,
                            _ => cx.waker().clone(),
                        };
                        *state = SlotState::Waiting { waker: Some(waker), deadline };
                        Poll::Pending
                    }
                    SlotState::Answered(answer) => Poll::Ready(Some(answer)),
                    SlotState::Expired | SlotState::Free => Poll::Ready(None),
                }
            })
            .unwrap_or(Poll::Ready(None))
        })
    }
}

impl<A: 'static> Drop for Waiting<A> {
    fn drop(&mut self) {
        // An error means that the runtime is shutting down and has already dropped the thread-local state, so there is
        // no slot to release.
        let slot = self.slot;
        let _outcome = self.awaiting.try_with(|cell| cell.with(|awaiting| awaiting.release(slot)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static AWAITING: AwaitingCell<u32> = const { AwaitingCell::new() };
    }

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Runs `act` concurrently with the delivery task.
    fn with_delivery<F: Future<Output = ()>>(act: F) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let delivery = deliver(&AWAITING);
            tokio::select! {
                biased;
                () = delivery => {}
                () = act => {}
            }
        });
    }

    #[test]
    fn responses_from_another_thread_reach_the_matching_requests() {
        with_delivery(async {
            let (completers, waiting): (Vec<_>, Vec<_>) =
                (0..100).map(|_| wait(&AWAITING, far()).unwrap()).unzip();
            let core = std::thread::spawn(move || {
                let mut completions = CompletionBatch::new();
                for (number, completer) in (0..).zip(completers) {
                    completions.push(completer, number);
                }
                completions.send();
            });
            for (number, one) in (0..).zip(waiting) {
                assert_eq!(one.await, Some(number));
            }
            core.join().unwrap();
        });
    }

    #[test]
    fn a_response_from_the_thread_of_its_request_is_received_without_a_wake_up() {
        with_delivery(async {
            let (completer, waiting) = wait(&AWAITING, far()).unwrap();
            let (other, other_waiting) = wait(&AWAITING, far()).unwrap();
            let mut completions = CompletionBatch::new();
            completions.push(completer, 1);
            completions.send();
            other.send(2);
            let mut context = Context::from_waker(Waker::noop());
            for (waiting, response) in [(waiting, 1), (other_waiting, 2)] {
                let polled = std::pin::pin!(waiting).poll(&mut context);
                assert_eq!(polled, Poll::Ready(Some(response)));
            }
        });
    }

    #[test]
    fn a_wait_ends_at_its_deadline_and_a_late_response_is_dropped() {
        with_delivery(async {
            let (completer, waiting) = wait(&AWAITING, Instant::now()).unwrap();
            assert_eq!(waiting.await, None);
            let (next_completer, next) = wait(&AWAITING, far()).unwrap();
            assert_eq!(next_completer.slot.index, completer.slot.index, "the slot is reused");
            completer.send(1);
            next_completer.send(2);
            assert_eq!(next.await, Some(2));
        });
    }

    fn check_at() -> Option<Instant> {
        AWAITING.with(|cell| cell.with(|open| open.check_at)).unwrap()
    }

    #[test]
    fn the_timer_is_set_once_per_timeout_and_not_while_no_request_waits() {
        with_delivery(async {
            tokio::time::pause();
            for _ in 0..3 {
                assert_eq!(check_at(), None);
                let first = TimerInstant::now().into_std() + Duration::from_secs(7);
                for millis in 0..100 {
                    let deadline = first + Duration::from_millis(millis);
                    let (completer, waiting) = wait(&AWAITING, deadline).unwrap();
                    completer.send(1);
                    assert_eq!(waiting.await, Some(1));
                    assert_eq!(check_at(), Some(first));
                }
                // The paused clock advances during this sleep.
                tokio::time::sleep(Duration::from_secs(8)).await;
            }
        });
    }

    #[test]
    fn each_wait_ends_at_its_own_deadline() {
        with_delivery(async {
            tokio::time::pause();
            let start = TimerInstant::now();
            let wait_for = async |secs| {
                let deadline = start + Duration::from_secs(secs);
                let (_completer, waiting) = wait(&AWAITING, deadline.into_std()).unwrap();
                assert_eq!(waiting.await, None);
                start.elapsed().as_secs()
            };
            let waited = tokio::join!(wait_for(9), wait_for(3), wait_for(6));
            assert_eq!(waited, (9, 3, 6));
        });
    }

    #[test]
    fn deadlines_in_quick_succession_share_a_check() {
        with_delivery(async {
            tokio::time::pause();
            let start = TimerInstant::now();
            let deadlines = (0..100).map(|millis| start + Duration::from_millis(1_000 + millis));
            let waits: Vec<_> =
                deadlines.map(|at| wait(&AWAITING, at.into_std()).unwrap().1).collect();
            let mut ends = std::collections::BTreeSet::new();
            for waiting in waits {
                assert_eq!(waiting.await, None);
                ends.insert(start.elapsed().as_millis());
            }
            assert!(ends.len() <= 3, "{ends:?}");
            assert!(ends.last().is_some_and(|last| *last <= 1_099 + CHECK_PAUSE.as_millis()));
        });
    }

    #[test]
    fn a_wait_is_refused_on_a_thread_that_delivers_no_completions() {
        std::thread::spawn(|| assert!(wait(&AWAITING, far()).is_none())).join().unwrap();
    }
}
