//! The published state, which all threads except the applier read, and the step that publishes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use super::compare::Plan;
use super::guard::Guards;
use super::keyspace::Answer;
use super::txn::check_plan;
use super::{AuthCommand, Command, Refusal, Request, State};
use crate::alarm::Alarms;
use crate::auth::{AuthReader, AuthRefusal, check_new_range};
use crate::lease::Leases;
use crate::members::Members;
use crate::mvcc::{StoreReader, Tally, View};
use crate::quota::Quota;
use crate::versions::Versions;
use crate::watch::Hub;

/// Facts about the cluster that change rarely and are published as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Raised alarms.
    pub alarms: Alarms,
    /// The members of the cluster.
    pub members: Members,
    /// The cluster version and downgrade.
    pub versions: Versions,
}

/// A handle to the published facts, for any thread.
#[derive(Clone, Debug, Default)]
pub struct PublishedFacts(Arc<ArcSwap<Facts>>);

impl PublishedFacts {
    /// Returns the last published facts.
    #[must_use]
    pub fn get(&self) -> Arc<Facts> {
        self.0.load_full()
    }

    /// Calls a function with the last published facts without cloning them, for checks that run on
    /// every request.
    pub fn look<T>(&self, look: impl FnOnce(&Facts) -> T) -> T {
        look(&self.0.load())
    }

    /// Replaces the facts. Only the owner of the state calls this.
    pub fn publish(&self, facts: Facts) {
        self.0.store(Arc::new(facts));
    }
}

/// Handles to the published state, for any thread.
#[derive(Clone, Debug)]
pub struct PublishedState {
    /// Leases. Unlike the rest of the state, leases need no publication: readers always see the current leases.
    pub leases: Leases,
    /// Users, with their permissions and tokens.
    pub auth: AuthReader,
    /// Watchers.
    pub hub: Hub,
    /// The effective quota.
    pub quota: Quota,
    /// Members, alarms and versions.
    pub facts: PublishedFacts,
    /// The reader of the store. It is replaced when a snapshot replaces the store.
    pub(super) store: Arc<ArcSwap<StoreReader>>,
    pub(super) applied: Arc<Applied>,
}

/// Index and term of the last published entry.
#[derive(Debug, Default)]
pub(super) struct Applied {
    index: AtomicU64,
    term: AtomicU64,
}

impl PublishedState {
    /// Returns the last published keyspace.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.store.load().view()
    }

    /// Returns the newest published revision.
    #[must_use]
    pub fn current_revision(&self) -> i64 {
        self.store.load().current_revision()
    }

    /// Returns the last published members, alarms and versions.
    #[must_use]
    pub fn facts(&self) -> Arc<Facts> {
        self.facts.get()
    }

    /// Calls a function with the last published facts without cloning them, for checks that run on
    /// every request.
    pub fn look<T>(&self, look: impl FnOnce(&Facts) -> T) -> T {
        self.facts.look(look)
    }

    /// Checks whether a request would be refused if it were applied to the published state. Commands other than
    /// transactions are checked only for the refusals that some version of etcd does not make: those of the guards, a
    /// name that is too long, and a permission for an invalid range.
    pub fn check(&self, request: &Request) -> Answer<()> {
        let (facts, auth) = (self.facts(), self.auth.view());
        let guards = Guards { alarms: &facts.alarms, auth: &auth, leases: &self.leases };
        if let Err(refusal) = guards.check(request) {
            return Ok(Err(refusal));
        }
        match &request.command {
            Command::Txn(txn) => {
                let view = self.view();
                let snapshot = view.snapshot();
                Ok(check_plan(&Plan::new(txn, &snapshot)?, &snapshot, &self.leases))
            }
            Command::Auth(command) => Ok(check_auth(command).map_err(Refusal::from)),
            Command::Range(_)
            | Command::Put(_)
            | Command::DeleteRange(_)
            | Command::Compaction(_)
            | Command::LeaseGrant(_)
            | Command::LeaseRevoke(_)
            | Command::LeaseCheckpoint(_)
            | Command::Alarm(_)
            | Command::Cluster(_)
            | Command::Nothing => Ok(Ok(())),
        }
    }

    /// Returns the index of the last entry whose effects are published.
    #[cfg(test)]
    pub(crate) fn applied_index(&self) -> u64 {
        self.applied.index.load(Ordering::Acquire)
    }

    /// Returns the term of the last published entry, or of a later entry.
    #[must_use]
    pub fn applied_term(&self) -> u64 {
        self.applied.term.load(Ordering::Acquire)
    }
}

/// Makes the refusals of an auth command that depend on the command alone.
fn check_auth(command: &AuthCommand) -> Result<(), AuthRefusal> {
    if let AuthCommand::RoleGrantPermission(request) = command
        && let Some(permission) = &request.perm
    {
        check_new_range(permission)?;
    }
    command.check_new_name()
}

impl State {
    /// Returns the counts of operations on the keyspace and on leases since the last call.
    pub fn take_tally(&mut self) -> Tally {
        self.store.take_tally()
    }

    /// Publishes everything applied so far and delivers events to watchers. The applier calls this
    /// after each batch of entries, before their outcomes are returned.
    pub fn publish(&mut self) {
        self.publish_with(|| {});
    }

    /// Publishes like [`State::publish`], and calls `reveal` when the changes become visible to readers. At that
    /// moment, no watcher can be registered, and no event of these changes has been delivered yet.
    pub(super) fn publish_with(&mut self, reveal: impl FnOnce()) {
        self.auth.begin_publication();
        let mut publication = self.hub.publication();
        self.store.publish();
        reveal();
        for changes in self.unpublished.drain(..) {
            publication.deliver(&changes);
        }
        drop(publication);
        if std::mem::take(&mut self.facts_changed) {
            self.published.facts.publish(self.facts());
        }
        self.auth.publish();
        let (index, term) = self.applied;
        self.published.applied.term.store(term, Ordering::Release);
        self.published.applied.index.store(index, Ordering::Release);
    }

    /// Returns the handles through which other threads read the state.
    #[must_use]
    pub fn published(&self) -> PublishedState {
        self.published.clone()
    }

    pub(super) fn facts(&self) -> Facts {
        Facts {
            alarms: self.alarms.clone(),
            members: self.members.clone(),
            versions: self.versions.clone(),
        }
    }
}
