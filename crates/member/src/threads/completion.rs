//! Delivery of responses from the core threads to the requests that wait for them.
//!
//! Waking a task on another thread costs 4-6 microseconds, most of it in the kernel, so a core thread wakes each
//! runtime once for a whole batch. Every connection runtime has one [`CompletionQueue`]. A core thread adds all
//! responses of a batch to the queue and wakes the runtime once. The runtime's delivery task then passes each response
//! to its request on the runtime's own thread, where waking a task is only a push to a local queue.
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

/// Interval at which deadlines are checked while a request waits. It determines the precision of request timeouts.
const DEADLINE_SCAN: Duration = Duration::from_millis(50);

/// Number of consecutive scans without a waiting request after which the scans stop, so that an idle member sleeps. The
/// next request restarts the scan. The number is high enough for occasional requests to keep the scans running, because
/// a restart costs a wake-up.
const IDLE_SCANS_MAX: u32 = 20;

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
pub(crate) struct CompletionQueue<A> {
    outcomes: Mutex<Vec<(Slot, A)>>,
    arrived: Notify,
    generations: Mutex<Vec<Generations>>,
}

/// Sends the response to one waiting request.
#[derive(Debug)]
pub(crate) struct Completer<A> {
    queue: Arc<CompletionQueue<A>>,
    slot: Slot,
}

impl<A> CompletionQueue<A> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            outcomes: Mutex::new(Vec::new()),
            arrived: Notify::new(),
            generations: Mutex::new(Vec::new()),
        })
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
        let was_empty = {
            let mut outcomes = self.queue.outcomes.lock();
            outcomes.push((self.slot, answer));
            outcomes.len() == 1
        };
        if was_empty {
            self.queue.arrived.notify_one();
        }
    }
}

/// Gathers the responses of one batch, so that every runtime is woken once.
#[derive(Debug)]
pub(crate) struct CompletionBatch<A> {
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
            queue.outcomes.lock().append(heap);
            queue.arrived.notify_one();
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
struct Awaiting<A> {
    queue: Arc<CompletionQueue<A>>,
    slots: Vec<(u32, SlotState<A>)>,
    free: Vec<u32>,
    /// Copy of the generations in `slots`, which the core threads can read.
    generations: Vec<Generations>,
    /// Number of consecutive scans that found no waiting request.
    idle_scans: u32,
}

/// The waiting requests of one thread. The server keeps one cell for each runtime, in a thread-local.
pub(crate) struct AwaitingCell<A>(RefCell<Option<Awaiting<A>>>);

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
pub(crate) async fn deliver<A: 'static>(awaiting: AwaitingKey<A>, queue: Arc<CompletionQueue<A>>) {
    awaiting.with(|cell| {
        let opened = Awaiting {
            queue: Arc::clone(&queue),
            slots: Vec::new(),
            free: Vec::new(),
            generations: Vec::new(),
            idle_scans: 0,
        };
        *cell.0.borrow_mut() = Some(opened);
    });
    let mut scan = tokio::time::interval(DEADLINE_SCAN);
    scan.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut delivered, mut is_scanning) = (Vec::new(), true);
    loop {
        tokio::select! {
            () = queue.arrived.notified() => {
                std::mem::swap(&mut delivered, &mut *queue.outcomes.lock());
                awaiting.with(|cell| cell.with(|awaiting| awaiting.deliver(&mut delivered)));
                if !is_scanning {
                    is_scanning = true;
                    scan.reset();
                }
            }
            now = scan.tick(), if is_scanning => {
                let goes_on =
                    awaiting.with(|cell| cell.with(|awaiting| awaiting.scan(now.into_std())));
                is_scanning = goes_on.unwrap_or_default();
            }
        }
    }
}

impl<A> Awaiting<A> {
    fn take_slot(&mut self, deadline: Instant) -> Slot {
        if std::mem::take(&mut self.idle_scans) == IDLE_SCANS_MAX {
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

    /// Expires requests whose deadline has passed. Returns whether another scan is needed.
    fn scan(&mut self, now: Instant) -> bool {
        if self.free.len() == self.slots.len() {
            self.idle_scans = IDLE_SCANS_MAX.min(self.idle_scans + 1);
        } else {
            self.idle_scans = 0;
            self.expire(now);
        }
        self.idle_scans < IDLE_SCANS_MAX
    }

    fn expire(&mut self, now: Instant) {
        for (_, state) in &mut self.slots {
            if let SlotState::Waiting { waker, deadline } = state
                && *deadline <= now
            {
                let waker = waker.take();
                *state = SlotState::Expired;
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
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
            let delivery = deliver(&AWAITING, CompletionQueue::new());
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

    #[test]
    fn a_new_request_restarts_stopped_deadline_scans() {
        with_delivery(async {
            tokio::time::pause();
            let idle_scans = || AWAITING.with(|cell| cell.with(|open| open.idle_scans)).unwrap();
            for _ in 0..3 {
                let (_completer, waiting) = wait(&AWAITING, Instant::now()).unwrap();
                assert_eq!(waiting.await, None);
                // The paused clock advances during these sleeps. Since no request waits, the scans stop after the
                // maximum number.
                tokio::time::sleep(DEADLINE_SCAN * (IDLE_SCANS_MAX + 1)).await;
                assert_eq!(idle_scans(), IDLE_SCANS_MAX);
                tokio::time::sleep(Duration::from_secs(3600)).await;
                assert_eq!(idle_scans(), IDLE_SCANS_MAX);
            }
            let (completer, waiting) = wait(&AWAITING, far()).unwrap();
            completer.send(1);
            assert_eq!(waiting.await, Some(1));
        });
    }

    #[test]
    fn a_wait_is_refused_on_a_thread_that_delivers_no_completions() {
        std::thread::spawn(|| assert!(wait(&AWAITING, far()).is_none())).join().unwrap();
    }
}
