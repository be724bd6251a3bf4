//! How answers get from the core threads to the requests that wait for them.
//!
//! Waking a task of another thread costs 4-6 microseconds, most of it in the kernel, so it is done once
//! for a batch: every connection runtime has one [`Mailbox`]; a core thread drops all answers of a batch
//! into it and wakes the runtime once; the runtime's postman task then hands them out to the waiting
//! requests, on their own thread, where waking is a push to a local queue.
//!
//! # Invariants
//!
//! * A request's [`Waiting`] ends exactly once: with its answer, or at its deadline.
//! * An answer for a request that is gone (cancelled, timed out) is dropped: a slot carries a generation,
//!   and a late answer does not match it.
//! * [`Waiting`] stays on the runtime thread that made it. All connection runtimes are single-threaded,
//!   so a task cannot move; the thread-local desk relies on it.
//!
//! # Bound
//!
//! One slot for each request in progress. Their number is bounded by `admission`, not here.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// How often deadlines are looked at; the precision of a request timeout.
const DEADLINE_SCAN: Duration = Duration::from_millis(50);

/// Names one waiting request of one runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    index: u32,
    generation: u32,
}

/// Slots are added in so many at a time.
const CHUNK_SLOTS: usize = 1024;

/// The generation of each slot. The runtime's thread writes, core threads look.
type Generations = Arc<[AtomicU32; CHUNK_SLOTS]>;

/// The way into one runtime, for answers of type `A`.
#[derive(Debug)]
pub(crate) struct Mailbox<A> {
    inbox: Mutex<Vec<(Slot, A)>>,
    arrived: Notify,
    generations: Mutex<Vec<Generations>>,
}

/// Where an answer goes.
#[derive(Debug)]
pub(crate) struct Address<A> {
    mailbox: Arc<Mailbox<A>>,
    slot: Slot,
}

impl<A> Mailbox<A> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            inbox: Mutex::new(Vec::new()),
            arrived: Notify::new(),
            generations: Mutex::new(Vec::new()),
        })
    }
}

impl<A> Clone for Address<A> {
    fn clone(&self) -> Self {
        Self { mailbox: Arc::clone(&self.mailbox), slot: self.slot }
    }
}

impl<A> Address<A> {
    /// Whether somebody waits here still. One that has just gone may not be noticed yet.
    pub(crate) fn is_awaited(&self) -> bool {
        let at = self.slot.index as usize;
        let chunks = self.mailbox.generations.lock();
        let generation = &chunks[at / CHUNK_SLOTS][at % CHUNK_SLOTS];
        generation.load(Ordering::Relaxed) == self.slot.generation
    }

    /// Sends one answer, now.
    pub(crate) fn send(self, answer: A) {
        let was_empty = {
            let mut inbox = self.mailbox.inbox.lock();
            inbox.push((self.slot, answer));
            inbox.len() == 1
        };
        if was_empty {
            self.mailbox.arrived.notify_one();
        }
    }
}

/// Gathers the answers of one batch, so that every runtime is woken once.
#[derive(Debug)]
pub(crate) struct Outbox<A> {
    /// One heap for each mailbox met so far; there are as many as runtimes.
    heaps: Vec<Heap<A>>,
}

type Heap<A> = (Arc<Mailbox<A>>, Vec<(Slot, A)>);

impl<A> Outbox<A> {
    pub(crate) const fn new() -> Self {
        Self { heaps: Vec::new() }
    }

    pub(crate) fn push(&mut self, address: Address<A>, answer: A) {
        let known =
            self.heaps.iter().position(|(mailbox, _)| Arc::ptr_eq(mailbox, &address.mailbox));
        let at = known.unwrap_or_else(|| {
            self.heaps.push((address.mailbox, Vec::new()));
            self.heaps.len() - 1
        });
        self.heaps[at].1.push((address.slot, answer));
    }

    /// Delivers everything gathered.
    pub(crate) fn send(&mut self) {
        for (mailbox, heap) in self.heaps.iter_mut().filter(|(_, heap)| !heap.is_empty()) {
            mailbox.inbox.lock().append(heap);
            mailbox.arrived.notify_one();
        }
    }
}

enum SlotState<A> {
    Free,
    Waiting { waker: Option<Waker>, deadline: Instant },
    Answered(A),
    Expired,
}

/// The requests of one runtime that wait.
struct Desk<A> {
    mailbox: Arc<Mailbox<A>>,
    slots: Vec<(u32, SlotState<A>)>,
    free: Vec<u32>,
    /// The same generations as in `slots`, for others to see.
    generations: Vec<Generations>,
}

/// A desk that the requests of one thread share. The server keeps one per runtime in a thread-local.
pub(crate) struct DeskCell<A>(RefCell<Option<Desk<A>>>);

impl<A: 'static> DeskCell<A> {
    pub(crate) const fn new() -> Self {
        Self(RefCell::new(None))
    }

    fn with<R>(&self, act: impl FnOnce(&mut Desk<A>) -> R) -> Option<R> {
        self.0.borrow_mut().as_mut().map(act)
    }
}

type DeskKey<A> = &'static std::thread::LocalKey<DeskCell<A>>;

/// Opens this thread's desk and runs its postman for as long as the future is polled.
pub(crate) async fn run_postman<A: 'static>(desk: DeskKey<A>, mailbox: Arc<Mailbox<A>>) {
    desk.with(|cell| {
        let opened = Desk {
            mailbox: Arc::clone(&mailbox),
            slots: Vec::new(),
            free: Vec::new(),
            generations: Vec::new(),
        };
        *cell.0.borrow_mut() = Some(opened);
    });
    let mut scan = tokio::time::interval(DEADLINE_SCAN);
    scan.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut delivered = Vec::new();
    loop {
        tokio::select! {
            () = mailbox.arrived.notified() => {
                std::mem::swap(&mut delivered, &mut *mailbox.inbox.lock());
                desk.with(|cell| cell.with(|desk| desk.deliver(&mut delivered)));
            }
            now = scan.tick() => {
                desk.with(|cell| cell.with(|desk| desk.expire(now.into_std())));
            }
        }
    }
}

impl<A> Desk<A> {
    fn take_slot(&mut self, deadline: Instant) -> Slot {
        let state = SlotState::Waiting { waker: None, deadline };
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.1 = state;
            return Slot { index, generation: slot.0 };
        }
        let index = u32::try_from(self.slots.len()).expect("requests in progress fit 32 bits");
        if self.slots.len().is_multiple_of(CHUNK_SLOTS) {
            let chunk = Generations::new(std::array::from_fn(|_| AtomicU32::new(0)));
            self.mailbox.generations.lock().push(Arc::clone(&chunk));
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

/// A request that waits for its answer; `None` at the deadline.
pub(crate) struct Waiting<A: 'static> {
    desk: DeskKey<A>,
    slot: Slot,
}

/// Starts to wait on this thread's desk. `None` where no postman runs, which is everywhere but on a
/// connection runtime.
pub(crate) fn wait<A: 'static>(
    desk: DeskKey<A>,
    deadline: Instant,
) -> Option<(Address<A>, Waiting<A>)> {
    desk.with(|cell| {
        cell.with(|open| {
            let slot = open.take_slot(deadline);
            (Address { mailbox: Arc::clone(&open.mailbox), slot }, Waiting { desk, slot })
        })
    })
}

impl<A: 'static> Future for Waiting<A> {
    type Output = Option<A>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<A>> {
        let slot = self.slot;
        self.desk.with(|cell| {
            cell.with(|desk| {
                let (generation, state) = &mut desk.slots[slot.index as usize];
                assert_eq!(*generation, slot.generation, "a slot belongs to one request");
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
        // The thread's desk is gone already when the runtime is torn down with requests in it.
        let slot = self.slot;
        let _outcome = self.desk.try_with(|cell| cell.with(|desk| desk.release(slot)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static DESK: DeskCell<u32> = const { DeskCell::new() };
    }

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Runs `act` beside a postman.
    fn with_postman<F: Future<Output = ()>>(act: F) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let postman = run_postman(&DESK, Mailbox::new());
            tokio::select! {
                biased;
                () = postman => {}
                () = act => {}
            }
        });
    }

    #[test]
    fn a_batch_from_another_thread_reaches_each_request() {
        with_postman(async {
            let (addresses, waiting): (Vec<_>, Vec<_>) =
                (0..100).map(|_| wait(&DESK, far()).unwrap()).unzip();
            let core = std::thread::spawn(move || {
                let mut outbox = Outbox::new();
                for (number, address) in (0..).zip(addresses) {
                    outbox.push(address, number);
                }
                outbox.send();
            });
            for (number, one) in (0..).zip(waiting) {
                assert_eq!(one.await, Some(number));
            }
            core.join().unwrap();
        });
    }

    #[test]
    fn a_deadline_ends_the_wait_and_a_late_answer_is_dropped() {
        with_postman(async {
            let (address, waiting) = wait(&DESK, Instant::now()).unwrap();
            assert_eq!(waiting.await, None);
            let (next_address, next) = wait(&DESK, far()).unwrap();
            assert_eq!(next_address.slot.index, address.slot.index, "the slot is used again");
            address.send(1);
            next_address.send(2);
            assert_eq!(next.await, Some(2));
        });
    }

    #[test]
    fn nobody_waits_where_no_postman_runs() {
        std::thread::spawn(|| assert!(wait(&DESK, far()).is_none())).join().unwrap();
    }
}
