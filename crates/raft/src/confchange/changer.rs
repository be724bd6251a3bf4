//! Computes the configuration that results from a membership change.
//!
//! A [`Changer`] holds a configuration and its members' progress. It computes new values and leaves
//! the originals unchanged. It refuses a change that would break one of these safety rules:
//!
//! * without joint consensus, at most one voter changes, so that every old majority shares a member
//!   with every new majority;
//! * a joint configuration must be left before any other change;
//! * the group always has at least one voter.
//!
//! # Not here
//!
//! The time at which a change takes effect and its consequences for a leader (`membership`), and
//! the checks of proposals (`proposal`).
//!
//! # Tests
//!
//! `tests/` runs scenario files (`confchange/*.txt`) of etcd's library and of this crate, and a property test which
//! checks that several changes in one joint step have the same result as the same changes made one by one.

use std::collections::BTreeSet;

use super::{ConfChangeError, ConfChangeKind, ConfChangeStep, ConfChangeV2, Passage};
use crate::entry::MemberId;
use crate::log_index::LogIndex;
use crate::progress::Progress;
use crate::state::ConfState;
use crate::tracker::{Configuration, InflightLimits, ProgressMap};

/// The configuration to change, and the progress of its members.
#[derive(Clone, Debug)]
pub struct Changer {
    /// The configuration to change, or the result of a change.
    pub config: Configuration,
    /// The progress of the members in `config`.
    pub progress: ProgressMap,
    /// The last index of the local log, where probing of a new member starts.
    pub last_index: LogIndex,
    /// The limits of a new member's window of unacknowledged appends.
    pub limits: InflightLimits,
}

impl Changer {
    /// Applies a change, directly or through joint consensus, as its [`passage`](ConfChangeV2::passage) requires.
    pub fn apply(self, change: &ConfChangeV2) -> Result<Self, ConfChangeError> {
        match change.passage() {
            Passage::Simple => self.simple(&change.changes),
            Passage::EnterJoint { auto_leave } => self.enter_joint(auto_leave, &change.changes),
            Passage::LeaveJoint => self.leave_joint(),
        }
    }

    /// Applies `steps`, which must change at most one voter in total.
    pub fn simple(mut self, steps: &[ConfChangeStep]) -> Result<Self, ConfChangeError> {
        if self.config.voters.is_joint() {
            return Err(ConfChangeError::SimpleInJoint);
        }
        let before = self.config.voters.incoming.0.clone();
        self.take_steps(steps)?;
        if before.symmetric_difference(&self.config.voters.incoming.0).count() > 1 {
            return Err(ConfChangeError::SeveralVoters);
        }
        Ok(self.checked())
    }

    /// Enters a joint configuration: the current voters become the outgoing half, and `steps` are applied to the
    /// incoming half.
    pub fn enter_joint(
        mut self,
        auto_leave: bool,
        steps: &[ConfChangeStep],
    ) -> Result<Self, ConfChangeError> {
        if self.config.voters.is_joint() {
            return Err(ConfChangeError::AlreadyJoint);
        }
        if self.config.voters.incoming.0.is_empty() {
            return Err(ConfChangeError::JointWithoutVoters);
        }
        self.config.voters.outgoing = self.config.voters.incoming.clone();
        self.take_steps(steps)?;
        self.config.auto_leave = auto_leave;
        Ok(self.checked())
    }

    /// Drops the outgoing half, and the progress of members that are then neither voters nor learners.
    pub fn leave_joint(mut self) -> Result<Self, ConfChangeError> {
        if !self.config.voters.is_joint() {
            return Err(ConfChangeError::NotJoint);
        }
        for id in std::mem::take(&mut self.config.learners_next) {
            self.config.learners.insert(id);
            if let Some(progress) = self.progress.get_mut(&id) {
                progress.is_learner = true;
            }
        }
        for id in std::mem::take(&mut self.config.voters.outgoing.0) {
            self.forget_unless_listed(id);
        }
        self.config.auto_leave = false;
        Ok(self.checked())
    }

    fn take_steps(&mut self, steps: &[ConfChangeStep]) -> Result<(), ConfChangeError> {
        // A step without a member is a change that the application rejected.
        for step in steps.iter().filter(|step| step.node_id != crate::NONE) {
            match step.kind {
                ConfChangeKind::AddNode => self.add_voter(step.node_id),
                ConfChangeKind::AddLearnerNode => self.add_learner(step.node_id),
                ConfChangeKind::RemoveNode => self.remove(step.node_id),
                ConfChangeKind::UpdateNode => {}
            }
        }
        if self.config.voters.incoming.0.is_empty() {
            return Err(ConfChangeError::NoVoters);
        }
        Ok(())
    }

    fn add_voter(&mut self, id: MemberId) {
        self.track(id).is_learner = false;
        self.config.learners.remove(&id);
        self.config.learners_next.remove(&id);
        self.config.voters.incoming.0.insert(id);
    }

    fn add_learner(&mut self, id: MemberId) {
        if self.config.learners.contains(&id) {
            return;
        }
        // A voter of the outgoing half keeps its vote until that half is dropped.
        let votes_until_leave = self.config.voters.outgoing.0.contains(&id);
        self.track(id).is_learner = !votes_until_leave;
        self.config.voters.incoming.0.remove(&id);
        if votes_until_leave {
            self.config.learners_next.insert(id);
        } else {
            self.config.learners.insert(id);
        }
    }

    fn remove(&mut self, id: MemberId) {
        self.config.voters.incoming.0.remove(&id);
        self.config.learners.remove(&id);
        self.config.learners_next.remove(&id);
        self.forget_unless_listed(id);
    }

    /// Returns a member's progress, creating it for a new member.
    fn track(&mut self, id: MemberId) -> &mut Progress {
        let next_index = self.last_index.max(LogIndex(1));
        let limits = self.limits;
        self.progress.entry(id).or_insert_with(|| {
            let mut progress = Progress::new(next_index, limits.window());
            // A new member counts as active at first. It cannot have responded yet, and the leader must not lose its
            // quorum for that reason.
            progress.is_recently_active = true;
            progress
        })
    }

    fn forget_unless_listed(&mut self, id: MemberId) {
        if !self.config.voters.contains(id) && !self.config.learners.contains(&id) {
            self.progress.remove(&id);
        }
    }

    /// Returns the result of a change after checking that the progress map and the member lists are
    /// consistent.
    fn checked(self) -> Self {
        let Configuration { voters, learners, learners_next, auto_leave } = &self.config;
        let listed: BTreeSet<_> = voters.ids().union(learners).copied().collect();
        assert!(
            self.progress.keys().eq(listed.iter()),
            "exactly the configured members have a progress entry: otherwise the leader would not replicate to one of \
             them"
        );
        assert!(
            learners.iter().all(|id| !voters.contains(*id)),
            "no member is both a voter and a learner: otherwise a voter could not campaign or be counted as active"
        );
        assert!(
            learners_next.is_subset(&voters.outgoing.0),
            "a future learner is an outgoing voter: otherwise it would have to become a learner immediately"
        );
        assert!(
            voters.is_joint() || !*auto_leave,
            "auto_leave is set only in a joint configuration: there is no other configuration to leave"
        );
        for (id, progress) in &self.progress {
            assert!(
                progress.is_learner == learners.contains(id),
                "a progress entry is marked as a learner if and only if its member is a learner: otherwise a learner \
                 could campaign"
            );
        }
        self
    }
}

/// Builds the configuration recorded in a snapshot, with new progress for its members.
///
/// `last_index` is the last index of the local log. The snapshot may come from another member, so a configuration that
/// no sequence of changes could produce is refused.
pub fn restore(
    conf_state: &ConfState,
    last_index: LogIndex,
    limits: InflightLimits,
) -> Result<(Configuration, ProgressMap), ConfChangeError> {
    let empty = Changer {
        config: Configuration::default(),
        progress: ProgressMap::new(),
        last_index,
        limits,
    };
    let step = |kind: ConfChangeKind| move |id: &MemberId| ConfChangeStep { kind, node_id: *id };
    let add = step(ConfChangeKind::AddNode);
    let learn = step(ConfChangeKind::AddLearnerNode);
    let remove = step(ConfChangeKind::RemoveNode);

    let mut members =
        conf_state.voters.iter().map(add).chain(conf_state.learners.iter().map(learn));
    let restored = if conf_state.voters_outgoing.is_empty() {
        members.try_fold(empty, |changer, step| changer.simple(&[step]))?
    } else {
        // First build the outgoing configuration, then enter the joint configuration from it.
        let outgoing = conf_state.voters_outgoing.iter();
        let left = outgoing.clone().map(add).try_fold(empty, |c, step| c.simple(&[step]))?;
        let learners_next = conf_state.learners_next.iter().map(learn);
        let steps: Vec<_> = outgoing.map(remove).chain(members).chain(learners_next).collect();
        left.enter_joint(conf_state.auto_leave, &steps)?
    };
    if !restored.config.conf_state().is_equivalent(conf_state) {
        return Err(ConfChangeError::Contradictory);
    }
    Ok((restored.config, restored.progress))
}
