//! The steps of a request that only the leader's lease clocks can answer: a renewal or `LeaseTimeToLive`.
//!
//! Lease clocks run only on the leader, and neither request is a log entry. So every other member forwards the request.
//! A leader answers only if a quorum has confirmed its leadership recently enough.
//!
//! # How it is driven
//!
//! [`LeaseTask::step`] returns the event to wait for. The caller waits, then calls `step` again and passes whether the
//! event has occurred. Each step reads the member's current state. [`LeaseTask::renew_at_once`] renews a known lease
//! without these steps.
//!
//! # Invariants
//!
//! * A renewal is answered only if the leader is confirmed at that moment ([`LeadershipState::is_confirmed`]). The
//!   confirmation is checked after the lease is renewed, because the process may be suspended in between.
//! * A lease is reported as missing only after a quorum has confirmed the leadership, because a newer leader may have
//!   granted it. The remaining time of a lease, too, is reported only after a quorum has confirmed the leadership since
//!   the request arrived, unless no other member can lead: a successor may be elected right after the last confirmation
//!   (decision record 0009), and may have revoked the lease.
//! * An answer that reflects the removal of a lease or its keys is returned only after the entries that caused them are
//!   published, so that the client's next read observes them.
//! * A request is answered from the clock of a single term, the term in which this member leads. A quorum's
//!   confirmation and a proposal are valid only for the term in which they were requested.
//!
//! # Not here
//!
//! The clocks (`state::lease`), the quorum's confirmation (the read barrier of `consensus`), and forwarding to the
//! leader (`member`).

use std::sync::Arc;

use quorate_api::etcdserverpb::{InternalRaftRequest, LeaseCheckpoint, LeaseCheckpointRequest};
use quorate_raft::Term;
use quorate_state::lease::{Leases, Renewal};
use quorate_state::units::{LeaseId, Millis};

use crate::leadership::LeadershipState;

/// The part of the member's state that decisions about leases depend on.
pub trait LeaseView {
    /// Returns the leases.
    fn leases(&self) -> &Leases;

    /// Returns the time on the lease clock, on which the times in [`LeadershipState`] are measured as well.
    fn now(&self) -> Millis;

    /// Returns the current leadership.
    fn leadership(&self) -> LeadershipState;
}

/// The kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Renew,
    TimeToLive { keys: bool },
}

/// The progress of the task.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    New,
    /// All entries known to be committed are applied.
    Applied,
    /// The client is permitted to renew the lease.
    Checked,
    /// The client is permitted to renew the lease, and this member does not lead.
    Elsewhere,
    /// A quorum was asked to confirm the leadership in this term.
    Asked {
        term: Term,
    },
    /// The answer is known. It is returned once the entries that it reflects are published.
    Settled(LeaseAnswer),
}

/// The next step for the caller.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseStep {
    /// Wait until all entries known to be committed are applied.
    AwaitApplied,
    /// Check that the client may renew the lease. If another member forwarded the request, that member has checked it
    /// already.
    CheckClient,
    /// Wait until a quorum confirms that this member leads.
    AskQuorum,
    /// Wait until the expired lease is removed.
    AwaitGone,
    /// Propose this request as the leader of this term, and wait until it is applied.
    Propose(Term, Box<InternalRaftRequest>),
    /// Forward the request to the leader. If this member has become the leader, or the leader does not answer, call
    /// `step` again.
    AskLeader,
    /// Return this answer.
    Answer(LeaseAnswer),
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseAnswer {
    /// The lease was renewed and expires after this time.
    Renewed {
        /// The lease's TTL, in seconds.
        ttl_secs: i64,
    },
    /// The answer to `LeaseTimeToLive`.
    TimeToLive {
        /// The remaining TTL, in seconds. It is 0 or negative shortly before the lease is removed.
        ttl_secs: i64,
        /// The granted TTL, in seconds.
        granted_secs: i64,
        /// The lease's keys, if the request asks for them.
        keys: Vec<Arc<[u8]>>,
    },
    /// The lease does not exist.
    Gone,
}

/// A request that only the leader can answer, from its lease clocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseTask {
    id: LeaseId,
    question: Question,
    /// Whether a lease known to this member is renewed before all committed entries are applied.
    renews_at_once: bool,
    stage: Stage,
}

impl LeaseTask {
    /// Creates a task that renews this lease.
    #[must_use]
    pub const fn renew(id: LeaseId, renews_at_once: bool) -> Self {
        Self { id, question: Question::Renew, renews_at_once, stage: Stage::New }
    }

    /// Creates a task for a `LeaseTimeToLive` request. `keys` is true if the request asks for the lease's keys.
    #[must_use]
    pub const fn time_to_live(id: LeaseId, keys: bool) -> Self {
        let question = Question::TimeToLive { keys };
        Self { id, question, renews_at_once: false, stage: Stage::New }
    }

    /// Returns the lease's id.
    #[must_use]
    pub const fn id(&self) -> LeaseId {
        self.id
    }

    /// Renews the lease in one step, for a client whose permission need not be checked. Returns the TTL in seconds, or
    /// `None` if more steps are necessary: then the caller creates a new task and calls [`Self::step`]. The lease may
    /// already have been renewed in that case.
    pub fn renew_at_once(mut self, view: &impl LeaseView) -> Option<i64> {
        let state = view.leadership();
        if !(self.renews_at_once && state.leads()) {
            return None;
        }
        match self.renew_here(view, &state, false) {
            LeaseStep::Answer(LeaseAnswer::Renewed { ttl_secs }) => Some(ttl_secs),
            // The step is dropped, and the new task determines it again.
            LeaseStep::AwaitApplied
            | LeaseStep::CheckClient
            | LeaseStep::AskQuorum
            | LeaseStep::AwaitGone
            | LeaseStep::Propose(..)
            | LeaseStep::AskLeader
            | LeaseStep::Answer(LeaseAnswer::Gone | LeaseAnswer::TimeToLive { .. }) => None,
        }
    }

    /// Returns the next step. `has_happened` is true if the event named by the last step has occurred.
    pub fn step(&mut self, has_happened: bool, view: &impl LeaseView) -> LeaseStep {
        let stage = std::mem::replace(&mut self.stage, Stage::New);
        if !has_happened {
            return self.ask_leader_instead();
        }
        let state = view.leadership();
        match (stage, self.question) {
            (Stage::Elsewhere, _) => LeaseStep::AskLeader,
            (Stage::Settled(answer), _) => LeaseStep::Answer(answer),
            (Stage::New, _) if !state.leads() => self.ask_leader_instead(),
            (Stage::New, _) if !(self.renews_at_once && view.leases().contains(self.id)) => {
                self.wait(Stage::Applied, LeaseStep::AwaitApplied)
            }
            (Stage::New | Stage::Applied, Question::Renew) => {
                self.wait(Stage::Checked, LeaseStep::CheckClient)
            }
            (Stage::Checked, Question::Renew) => self.renew_here(view, &state, false),
            (Stage::New | Stage::Applied | Stage::Checked, Question::TimeToLive { keys }) => {
                self.look(view, keys, false)
            }
            (Stage::Asked { term }, _) if !state.leads_in(term) => self.ask_leader_instead(),
            (Stage::Asked { .. }, Question::Renew) => self.renew_here(view, &state, true),
            (Stage::Asked { .. }, Question::TimeToLive { keys }) => self.look(view, keys, true),
        }
    }

    fn wait(&mut self, stage: Stage, step: LeaseStep) -> LeaseStep {
        self.stage = stage;
        step
    }

    /// Returns the step towards forwarding the request to the leader. Before a renewal is forwarded, the client is
    /// checked.
    fn ask_leader_instead(&mut self) -> LeaseStep {
        match self.question {
            Question::Renew => self.wait(Stage::Elsewhere, LeaseStep::CheckClient),
            Question::TimeToLive { .. } => LeaseStep::AskLeader,
        }
    }

    /// Returns the step before an answer that reflects the removal of a lease or its keys. The leases change while a
    /// batch of entries is applied, before the batch is published. A client that has received the answer must read the
    /// same keys, even from a sole member, whose reads need no barrier.
    fn settle(&mut self, answer: LeaseAnswer) -> LeaseStep {
        self.wait(Stage::Settled(answer), LeaseStep::AwaitApplied)
    }

    fn ask_quorum(&mut self, view: &impl LeaseView) -> LeaseStep {
        let term = view.leadership().leadership.term;
        self.wait(Stage::Asked { term }, LeaseStep::AskQuorum)
    }

    fn renew_here(
        &mut self,
        view: &impl LeaseView,
        state: &LeadershipState,
        was_quorum_asked: bool,
    ) -> LeaseStep {
        let term = state.leadership.term;
        // Evaluated only after the lease is renewed, because the process may be suspended in between.
        let is_confirmed = || {
            let state = view.leadership();
            state.leads_in(term) && state.is_confirmed(view.now())
        };
        match view.leases().renew(self.id, term.get(), view.now()) {
            Renewal::Renewed { ttl_secs } if is_confirmed() => {
                LeaseStep::Answer(LeaseAnswer::Renewed { ttl_secs })
            }
            Renewal::NotFound if was_quorum_asked => self.settle(LeaseAnswer::Gone),
            Renewal::NotPrimary => self.ask_leader_instead(),
            Renewal::CheckpointFirst => {
                let request =
                    checkpoints(vec![LeaseCheckpoint { id: self.id.0, remaining_ttl: 0 }]);
                self.wait(Stage::Checked, LeaseStep::Propose(term, Box::new(request)))
            }
            Renewal::Expired if was_quorum_asked || is_confirmed() => {
                self.wait(Stage::Checked, LeaseStep::AwaitGone)
            }
            Renewal::Renewed { .. } | Renewal::NotFound | Renewal::Expired => self.ask_quorum(view),
        }
    }

    fn look(&mut self, view: &impl LeaseView, keys: bool, was_quorum_asked: bool) -> LeaseStep {
        let (leases, now, state) = (view.leases(), view.now(), view.leadership());
        if leases.term() != Some(state.leadership.term.get()) {
            return self.ask_leader_instead();
        }
        let may_answer = leases.contains(self.id) && state.leads_alone();
        if !was_quorum_asked && !may_answer {
            return self.ask_quorum(view);
        }
        let Some(found) = leases.time_to_live(self.id, now) else {
            return self.settle(LeaseAnswer::Gone);
        };
        // A lease without a clock means that this member has been deposed.
        let Some(ttl_secs) = found.remaining_secs else { return self.ask_leader_instead() };
        let granted_secs = found.granted_secs;
        if keys {
            let Some(keys) = leases.keys(self.id) else { return self.settle(LeaseAnswer::Gone) };
            self.settle(LeaseAnswer::TimeToLive { ttl_secs, granted_secs, keys })
        } else {
            let keys = Vec::new();
            LeaseStep::Answer(LeaseAnswer::TimeToLive { ttl_secs, granted_secs, keys })
        }
    }
}

/// Creates a request that stores the remaining TTLs of leases.
pub(crate) fn checkpoints(checkpoints: Vec<LeaseCheckpoint>) -> InternalRaftRequest {
    InternalRaftRequest {
        lease_checkpoint: Some(LeaseCheckpointRequest { checkpoints }),
        ..InternalRaftRequest::default()
    }
}

#[cfg(test)]
mod tests;
