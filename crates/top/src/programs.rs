//! Reports for programs with their own display, such as the web console.
//!
//! # Guarantees
//!
//! - The load on the cluster is bounded as for `ctl top`: see `collect`, `walking` and `watching`.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use super::collect::Collector;
use super::prefixes::Shape;
use super::report::{History, Prefixes, Report};
use super::shared::{Shared, Watching};
use super::watching::Clock;
use super::{walking, watching};
use crate::Cluster;
use crate::client::Client;

/// Reports about the members of a cluster, without its prefixes.
#[expect(missing_debug_implementations, reason = "an active collector has no useful debug output")]
pub struct Reports<'a> {
    collector: Collector<'a>,
    history: History,
}

impl<'a> Reports<'a> {
    /// Prepares reports. No request is sent before the first call of [`Self::next`].
    #[must_use]
    pub fn new(cluster: &'a Cluster<'a>) -> Self {
        Self { collector: Collector::new(cluster), history: History::default() }
    }

    /// Collects the next report. `interval` is the time between two reports.
    pub async fn next(&mut self, interval: Duration) -> Report {
        let sample = self.collector.sample(interval).await;
        self.history.advance(sample, Prefixes::default())
    }
}

/// Measures prefixes: counts, sizes and write rates.
#[expect(missing_debug_implementations, reason = "an active meter has no useful debug output")]
pub struct PrefixMeter {
    shared: Shared,
    clock: RefCell<Clock>,
}

impl PrefixMeter {
    /// Prepares a meter that reads with this client. `interval` is the time between two calls of [`Self::rows`].
    #[must_use]
    pub fn new(client: Client, shape: Shape, interval: Duration) -> Self {
        let shared = Shared::new(shape, interval);
        shared.watching.replace(Watching::On(100));
        shared.reader.replace(Some(Rc::new(client.without_warnings())));
        Self { shared, clock: RefCell::new(Clock::new()) }
    }

    /// Counts the keys and watches for changes until the future is dropped.
    pub async fn run(&self) {
        tokio::join!(walking::walk(&self.shared), watching::watch(&self.shared, &self.clock));
    }

    /// Ends a window of the watch, and returns all known prefixes.
    pub fn rows(&self) -> Prefixes {
        watching::turn(&self.shared, &self.clock);
        let rows = self.shared.catalog.borrow().rows();
        Prefixes { rows, note: self.shared.note(), age: self.shared.age() }
    }
}
