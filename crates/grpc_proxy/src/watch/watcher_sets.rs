//! All watcher sets, by their watch parameters.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use quorate_telemetry::metrics::ProxyMetrics;

use super::watcher_set::{Added, WatchParameters, Watcher, WatcherSet};

/// The watcher sets of the proxy.
#[derive(Debug)]
pub(super) struct WatcherSets {
    metrics: Arc<ProxyMetrics>,
    sets: Mutex<HashMap<WatchParameters, Arc<WatcherSet>>>,
}

impl WatcherSets {
    pub(super) fn new(metrics: Arc<ProxyMetrics>) -> Self {
        Self { metrics, sets: Mutex::default() }
    }

    /// Adds a watcher to the set with these parameters.
    pub(super) fn add(
        &self,
        parameters: WatchParameters,
        watcher: Watcher,
    ) -> (Arc<WatcherSet>, Added) {
        let mut sets = self.sets.lock();
        let set = match sets.entry(parameters) {
            Entry::Occupied(found) => Arc::clone(found.get()),
            Entry::Vacant(vacant) => {
                let set = WatcherSet::new(vacant.key().clone(), Arc::clone(&self.metrics));
                Arc::clone(vacant.insert(Arc::new(set)))
            }
        };
        // The map stays locked while the watcher is added, because an empty set may be removed at any time.
        let added = set.add(watcher);
        (set, added)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.sets.lock().is_empty()
    }

    /// Removes the set if it is empty.
    pub(super) fn remove_if_empty(&self, set: &Arc<WatcherSet>) {
        let mut sets = self.sets.lock();
        let is_it = sets.get(&set.parameters).is_some_and(|found| Arc::ptr_eq(found, set));
        if is_it && set.is_empty() {
            sets.remove(&set.parameters);
        }
    }
}
