//! What everybody but the applier sees of the state, and the moment it becomes visible.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use super::State;
use crate::alarm::Alarms;
use crate::auth::AuthReader;
use crate::lease::Leases;
use crate::members::Members;
use crate::mvcc::{StoreReader, Tally, View};
use crate::quota::Quota;
use crate::versions::Versions;
use crate::watch::Hub;

/// What changes rarely: replaced as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Raised alarms.
    pub alarms: Alarms,
    /// Who is in the cluster.
    pub members: Members,
    /// Cluster version and downgrade.
    pub versions: Versions,
}

/// Handles to everything published, for any thread.
#[derive(Clone, Debug)]
pub struct Readers {
    /// Leases; these are not published but always current.
    pub leases: Leases,
    /// Users, what they may do, and their tokens.
    pub auth: AuthReader,
    /// Watchers.
    pub hub: Hub,
    /// The effective quota.
    pub quota: Quota,
    /// Another one when a snapshot replaces the store.
    pub(super) store: Arc<ArcSwap<StoreReader>>,
    pub(super) facts: Arc<ArcSwap<Facts>>,
    pub(super) applied: Arc<Applied>,
}

/// Index and term of the last entry published.
#[derive(Debug, Default)]
pub(super) struct Applied {
    index: AtomicU64,
    term: AtomicU64,
}

impl Readers {
    /// The keyspace as published last.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.store.load().view()
    }

    /// Members, alarms and versions as published last.
    #[must_use]
    pub fn facts(&self) -> Arc<Facts> {
        self.facts.load_full()
    }

    /// Looks at them where they are: for what every request asks.
    pub fn look<T>(&self, look: impl FnOnce(&Facts) -> T) -> T {
        look(&self.facts.load())
    }

    /// Index of the last entry whose effects can be read here.
    #[cfg(test)]
    pub(crate) fn applied_index(&self) -> u64 {
        self.applied.index.load(Ordering::Acquire)
    }

    /// Term of that entry, or of one after it.
    #[must_use]
    pub fn applied_term(&self) -> u64 {
        self.applied.term.load(Ordering::Acquire)
    }
}

impl State {
    /// What was done to the keyspace since this was asked last.
    pub fn take_tally(&mut self) -> Tally {
        self.store.take_tally()
    }

    /// Makes everything applied so far visible, and tells watchers. Call it after each batch of entries,
    /// before their outcomes are given out.
    pub fn publish(&mut self) {
        self.auth.begin_publication();
        let mut publication = self.hub.publication();
        self.store.publish();
        for changes in self.unpublished.drain(..) {
            publication.deliver(&changes);
        }
        drop(publication);
        if std::mem::take(&mut self.facts_changed) {
            self.readers.facts.store(Arc::new(self.facts()));
        }
        self.auth.publish();
        let (index, term) = self.applied;
        self.readers.applied.term.store(term, Ordering::Release);
        self.readers.applied.index.store(index, Ordering::Release);
    }

    /// The handles for everybody else.
    #[must_use]
    pub fn readers(&self) -> Readers {
        self.readers.clone()
    }

    pub(super) fn facts(&self) -> Facts {
        Facts {
            alarms: self.alarms.clone(),
            members: self.members.clone(),
            versions: self.versions.clone(),
        }
    }
}
