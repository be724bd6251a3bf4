//! The entry point for watchers: adds a watcher to the set of identical watchers, and opens a watch on a member if the
//! watcher cannot share a watch of the set.
//!
//! # Bound
//!
//! The watchers of all clients occupy at most [`WATCHER_BYTES_MAX`] bytes. Further watchers are refused.

use std::sync::Arc;

use quorate_telemetry::metrics::ProxyMetrics;

use super::catching_up::{self, CatchingUp};
use super::feed::Feeds;
use super::member::Members;
use super::watcher_set::{Added, Follower, WatchParameters, Watcher, WatcherSet};
use super::watcher_sets::WatcherSets;
use crate::byte_limit::ByteLimit;
use crate::leasing::Latest;
use crate::namespace::Namespace;
use crate::upstream::Upstream;

/// Maximum memory of all watchers, as on a member.
const WATCHER_BYTES_MAX: usize = 512 << 20;

/// Memory of a watcher, not counting its key and range: its own state, and a watch on a member.
pub(super) const WATCHER_BYTES: usize = 4 << 10;

/// Additional memory of a watcher while it has its own stream to a member.
const STREAM_BYTES: usize = 16 << 10;

/// Adds watchers to watcher sets.
#[derive(Debug)]
pub(crate) struct Hub {
    members: Arc<Members>,
    sets: Arc<WatcherSets>,
    feeds: Arc<Feeds>,
    pub(super) watcher_bytes: Arc<ByteLimit>,
}

impl Hub {
    pub(crate) fn new(
        upstream: Arc<Upstream>,
        metrics: Arc<ProxyMetrics>,
        namespace: Option<Namespace>,
        latest: Option<Arc<Latest>>,
    ) -> Self {
        let members = Arc::new(Members { upstream, namespace, latest });
        let sets = Arc::new(WatcherSets::new(metrics));
        let feeds = Arc::new(Feeds::new(Arc::clone(&members), Arc::clone(&sets)));
        Self { members, sets, feeds, watcher_bytes: ByteLimit::new(WATCHER_BYTES_MAX) }
    }

    pub(super) fn namespace(&self) -> Option<&Namespace> {
        self.members.namespace.as_ref()
    }

    /// Adds a watcher to the set with these parameters.
    pub(super) fn add(
        &self,
        parameters: &WatchParameters,
        watcher: Watcher,
    ) -> (Arc<WatcherSet>, u64) {
        let begins_now = watcher.next == 0;
        match self.sets.add(parameters, watcher) {
            (set, Added::Joined(watcher)) => (set, watcher),
            (set, Added::NewGroup { watcher, group, has_joinable_group }) => {
                let follower: Box<dyn Follower> = if begins_now || has_joinable_group {
                    Box::new(self.feeds.add(&set, group))
                } else {
                    let catching_up = CatchingUp {
                        members: Arc::clone(&self.members),
                        sets: Arc::clone(&self.sets),
                        feeds: Arc::clone(&self.feeds),
                        set: Arc::clone(&set),
                        group,
                        _bytes: self.watcher_bytes.take_regardless(STREAM_BYTES),
                    };
                    Box::new(catching_up::follow(catching_up))
                };
                set.set_follower(group, follower);
                (set, watcher)
            }
        }
    }

    /// Removes the watcher set if it is empty.
    pub(super) fn remove_if_empty(&self, set: &Arc<WatcherSet>) {
        self.sets.remove_if_empty(set);
    }
}
