//! The load of a check: concurrent puts over many connections, at a fixed rate or as fast as possible.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io::IsTerminal as _;
use std::rc::Rc;
use std::time::Duration;

use quorate_api::etcdserverpb::PutRequest;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::client::{Client, Repeat};
use crate::failure::{Failure, status_text};
use crate::interrupt::Interrupt;
use crate::session::Session;

/// Parameters of a load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) clients: usize,
    /// Number of puts; `None` if only the duration limits them.
    pub(super) count: Option<u64>,
    pub(super) per_sec: Option<u32>,
    pub(super) time: Option<Duration>,
    pub(super) key_bytes: usize,
    pub(super) value_bytes: usize,
}

/// Results of a load.
#[derive(Debug, Default)]
pub(super) struct Summary {
    pub(super) took: Duration,
    /// Number of successful puts.
    pub(super) done: u64,
    pub(super) slowest_secs: f64,
    pub(super) mean_secs: f64,
    /// Sum of squared deviations from the mean.
    pub(super) spread: f64,
    /// Number of failed puts for each reason.
    pub(super) errors: BTreeMap<String, u64>,
}

impl Summary {
    fn add(&mut self, secs: f64) {
        self.done += 1;
        self.slowest_secs = self.slowest_secs.max(secs);
        // Welford's algorithm, which does not need to store earlier latencies.
        let distance = secs - self.mean_secs;
        self.mean_secs += distance / self.done as f64;
        self.spread += distance * (secs - self.mean_secs);
    }

    pub(super) fn per_sec(&self) -> f64 {
        self.done as f64 / self.took.as_secs_f64()
    }

    pub(super) fn deviation_secs(&self) -> f64 {
        (self.spread / self.done as f64).sqrt()
    }
}

/// State shared by the clients.
struct Work {
    load: Load,
    prefix: Vec<u8>,
    start: Instant,
    /// Time at which the next put is due.
    due: Cell<Instant>,
    begun: Cell<u64>,
    is_over: Cell<bool>,
    random: RandomState,
    summary: RefCell<Summary>,
}

impl Work {
    /// Waits until the next put is due and returns its number, or `None` if there are no more.
    async fn next(&self) -> Option<u64> {
        let number = self.begun.get();
        if self.is_over.get() || self.load.count.is_some_and(|count| number >= count) {
            return None;
        }
        self.begun.set(number + 1);
        if let Some(per_sec) = self.load.per_sec {
            // After a delay, the load continues at the normal rate and does not send the missed puts.
            let due = self.due.get().max(Instant::now());
            self.due.set(due + Duration::from_secs(1) / per_sec);
            if self.load.time.is_some_and(|time| due >= self.start + time) {
                return None;
            }
            sleep_until(due).await;
        }
        Some(number)
    }

    fn request(&self, number: u64) -> PutRequest {
        let mut key = self.prefix.clone();
        key.extend_from_slice(format!("{:016x}", self.random.hash_one(number)).as_bytes());
        key.resize(self.prefix.len() + self.load.key_bytes, 0);
        let value = vec![0; self.load.value_bytes].into();
        PutRequest { key: key.into(), value, ..Default::default() }
    }
}

/// Puts keys under the prefix until the load is done or a signal arrives.
pub(super) async fn run(session: &Session, load: Load) -> Result<Summary, Failure> {
    let mut clients = Vec::with_capacity(load.clients);
    for _ in 0..load.clients {
        clients.push(session.client().await?.failing_fast());
    }
    let interrupt = Interrupt::listen()?;
    let start = Instant::now();
    let work = Rc::new(Work {
        load,
        prefix: session.matches.text("prefix").as_bytes().to_vec(),
        start,
        due: Cell::new(start),
        begun: Cell::new(0),
        is_over: Cell::new(false),
        random: RandomState::new(),
        summary: RefCell::default(),
    });
    let mut workers = JoinSet::new();
    for client in clients {
        workers.spawn_local(put(client, work.clone()));
    }
    let mut second = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            ended = workers.join_next() => if ended.is_none() { break },
            () = interrupt.wait() => work.is_over.set(true),
            _ = second.tick() => show(session, &work),
        }
    }
    if std::io::stderr().is_terminal() {
        session.print_error("\n");
    }
    let mut summary = work.summary.take();
    summary.took = start.elapsed();
    Ok(summary)
}

/// Sends the puts of one client.
async fn put(client: Client, work: Rc<Work>) {
    while let Some(number) = work.next().await {
        let start = Instant::now();
        let put = async |channel, request| client.kv(channel).put(request).await;
        let done = client.call(None, Repeat::Never, work.request(number), put).await;
        let mut summary = work.summary.borrow_mut();
        match done {
            Ok(_) => summary.add(start.elapsed().as_secs_f64()),
            Err(status) => *summary.errors.entry(status_text(&status)).or_default() += 1,
        }
    }
}

/// Shows the progress on a terminal.
fn show(session: &Session, work: &Work) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let (done, seconds) = (work.summary.borrow().done, work.start.elapsed().as_secs());
    let of = match (work.load.count, work.load.time) {
        (Some(count), _) => format!("{done} / {count} puts"),
        (None, Some(time)) => format!("{seconds} / {} s, {done} puts", time.as_secs()),
        (None, None) => format!("{done} puts"),
    };
    session.print_error(&format!("\r{of}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_computes_mean_deviation_and_rate() {
        let mut summary = Summary { took: Duration::from_secs(2), ..Summary::default() };
        [1.0, 2.0, 3.0, 6.0].into_iter().for_each(|secs| summary.add(secs));
        assert!((summary.deviation_secs() - 3.5_f64.sqrt()).abs() < 1e-12);
        assert!((summary.slowest_secs - 6.0).abs() < 1e-12);
        assert!((summary.per_sec() - 2.0).abs() < 1e-12);
    }
}
