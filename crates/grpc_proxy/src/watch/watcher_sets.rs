//! All watcher sets, by their watch parameters.

use std::collections::HashMap;
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
        parameters: &WatchParameters,
        mut watcher: Watcher,
    ) -> (Arc<WatcherSet>, Added) {
        // The map is not locked while the watcher is added, because the set may be delivering a response to many
        // watchers. If the set is removed in the meantime, the watcher is added to a new set.
        loop {
            let set = self.set(parameters);
            match set.add(watcher) {
                Ok(added) => return (set, added),
                Err(returned) => watcher = returned,
            }
        }
    }

    fn set(&self, parameters: &WatchParameters) -> Arc<WatcherSet> {
        let mut sets = self.sets.lock();
        if let Some(set) = sets.get(parameters) {
            return Arc::clone(set);
        }
        let set = Arc::new(WatcherSet::new(parameters.clone(), Arc::clone(&self.metrics)));
        sets.insert(parameters.clone(), Arc::clone(&set));
        set
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.sets.lock().is_empty()
    }

    /// Removes the set if it is empty.
    pub(super) fn remove_if_empty(&self, set: &Arc<WatcherSet>) {
        if !set.is_empty() {
            return;
        }
        let mut sets = self.sets.lock();
        let is_it = sets.get(&set.parameters).is_some_and(|found| Arc::ptr_eq(found, set));
        if is_it && set.remove_if_empty() {
            sets.remove(&set.parameters);
        }
    }
}
