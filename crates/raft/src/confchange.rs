//! Membership changes: their types, their encoding in the log, and how they take effect.
//!
//! A change travels through the log like any other entry and takes effect when it is *applied*,
//! not when it is appended. There are two forms:
//!
//! * [`ConfChange`] changes one member. It is the only form that etcd proposes.
//! * [`ConfChangeV2`] changes any number of members. Changing more than one voter at a time
//!   requires joint consensus (Raft thesis, section 4.3): the group first enters a configuration in
//!   which old and new majorities must both agree, and leaves it through a second, empty change.
//!   The leader proposes that change automatically unless the first change forbids it.
//!
//! The submodule [`wire`] reads and writes the entry payloads. [`Changer`] computes the
//! configuration that results from a change.

mod changer;
pub mod wire;

use std::fmt;

use bytes::Bytes;
use thiserror::Error;

pub use changer::{Changer, restore};

use crate::entry::{Entry, EntryKind, MemberId};

/// The kind of a change to one member. The discriminants are the wire values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ConfChangeKind {
    /// A learner or a new member becomes a voter.
    #[default]
    AddNode = 0,
    /// The member leaves the group.
    RemoveNode = 1,
    /// The group stays the same. The application updates its own data about the member.
    UpdateNode = 2,
    /// A voter or a new member becomes a learner.
    AddLearnerNode = 3,
}

impl ConfChangeKind {
    /// Returns the kind with this number on the wire, or `None` if the number is unknown.
    #[must_use]
    pub fn from_wire(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::AddNode),
            1 => Some(Self::RemoveNode),
            2 => Some(Self::UpdateNode),
            3 => Some(Self::AddLearnerNode),
            _ => None,
        }
    }
}

/// Whether a [`ConfChangeV2`] uses joint consensus, and how the group leaves the joint configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Transition {
    /// Use joint consensus only if more than one member changes, and leave the joint configuration automatically.
    #[default]
    Auto = 0,
    /// Always use joint consensus, and leave the joint configuration automatically.
    JointImplicit = 1,
    /// Always use joint consensus. The application proposes the empty change that leaves the joint configuration.
    JointExplicit = 2,
}

impl Transition {
    /// Returns the transition with this number on the wire, or `None` if the number is unknown.
    #[must_use]
    pub fn from_wire(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::Auto),
            1 => Some(Self::JointImplicit),
            2 => Some(Self::JointExplicit),
            _ => None,
        }
    }
}

/// A change to one member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfChange {
    /// Request id chosen by the application. The core does not interpret it.
    pub id: u64,
    /// The kind of the change.
    pub kind: ConfChangeKind,
    /// The changed member. Zero makes the change a no-op: to reject a committed change, an application sets this field
    /// to zero before it applies the change.
    pub node_id: MemberId,
    /// Application data that the core does not interpret.
    pub context: Bytes,
}

/// One step of a [`ConfChangeV2`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfChangeStep {
    /// The kind of the change.
    pub kind: ConfChangeKind,
    /// The changed member; zero makes the step a no-op.
    pub node_id: MemberId,
}

/// A change to any number of members. An empty change leaves a joint configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfChangeV2 {
    /// Whether joint consensus is used, and how the joint configuration is left.
    pub transition: Transition,
    /// The changes, in order.
    pub changes: Vec<ConfChangeStep>,
    /// Application data that the core does not interpret.
    pub context: Bytes,
}

/// The effect of a [`ConfChangeV2`] on the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// At most one voter changes, so a single majority decides both before and after the change.
    Simple,
    /// The group enters a joint configuration.
    EnterJoint {
        /// Whether the leader leaves the joint configuration automatically.
        auto_leave: bool,
    },
    /// The group leaves the joint configuration.
    LeaveJoint,
}

impl ConfChangeV2 {
    /// Returns the effect of the change on the configuration.
    #[must_use]
    pub fn passage(&self) -> Passage {
        match (self.transition, self.changes.len()) {
            (Transition::Auto, 0) => Passage::LeaveJoint,
            (Transition::Auto, 1) => Passage::Simple,
            (Transition::Auto | Transition::JointImplicit, _) => {
                Passage::EnterJoint { auto_leave: true }
            }
            (Transition::JointExplicit, _) => Passage::EnterJoint { auto_leave: false },
        }
    }

    /// Returns whether the change only leaves a joint configuration. Proposals are checked only with this method, which
    /// ignores the transition. [`passage`](Self::passage) also takes the transition into account.
    pub(crate) fn is_leave_request(&self) -> bool {
        self.changes.is_empty()
    }
}

impl From<ConfChange> for ConfChangeV2 {
    fn from(change: ConfChange) -> Self {
        let step = ConfChangeStep { kind: change.kind, node_id: change.node_id };
        Self { transition: Transition::Auto, changes: vec![step], context: change.context }
    }
}

impl fmt::Display for ConfChangeV2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transition = match self.transition {
            Transition::Auto => "ConfChangeTransitionAuto",
            Transition::JointImplicit => "ConfChangeTransitionJointImplicit",
            Transition::JointExplicit => "ConfChangeTransitionJointExplicit",
        };
        write!(f, "transition:{transition}")?;
        for step in &self.changes {
            write!(f, " changes:{{type:ConfChange{:?} node_id:{}}}", step.kind, step.node_id)?;
        }
        if !self.context.is_empty() {
            write!(f, " context:{:?}", self.context)?;
        }
        Ok(())
    }
}

/// A change in either form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnyConfChange {
    /// A change to one member.
    V1(ConfChange),
    /// A change to any number of members.
    V2(ConfChangeV2),
}

impl AnyConfChange {
    /// Decodes the change in a log entry. Returns `None` if the entry contains no change.
    pub fn from_entry(entry: &Entry) -> Result<Option<Self>, wire::DecodeError> {
        match entry.kind {
            EntryKind::Normal => Ok(None),
            EntryKind::ConfChange => wire::decode_v1(&entry.data).map(Self::V1).map(Some),
            EntryKind::ConfChangeV2 => wire::decode_v2(&entry.data).map(Self::V2).map(Some),
        }
    }

    /// Encodes the change as an entry to propose.
    #[must_use]
    pub fn into_entry(self) -> Entry {
        match self {
            Self::V1(change) => Entry::proposal(EntryKind::ConfChange, wire::encode_v1(&change)),
            Self::V2(change) => Entry::proposal(EntryKind::ConfChangeV2, wire::encode_v2(&change)),
        }
    }
}

impl From<ConfChange> for AnyConfChange {
    fn from(change: ConfChange) -> Self {
        Self::V1(change)
    }
}

impl From<ConfChangeV2> for AnyConfChange {
    fn from(change: ConfChangeV2) -> Self {
        Self::V2(change)
    }
}

impl From<AnyConfChange> for ConfChangeV2 {
    fn from(change: AnyConfChange) -> Self {
        match change {
            AnyConfChange::V1(change) => change.into(),
            AnyConfChange::V2(change) => change,
        }
    }
}

/// The reason why a change cannot be applied to the current configuration.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfChangeError {
    /// A joint configuration must be left before another one is entered.
    #[error("config is already joint")]
    AlreadyJoint,
    /// The group has no voters that could form the outgoing majority.
    #[error("can't make a zero-voter config joint")]
    JointWithoutVoters,
    /// The configuration is not joint.
    #[error("can't leave a non-joint config")]
    NotJoint,
    /// A joint configuration can only be left, not changed in another way.
    #[error("can't apply simple config change in joint config")]
    SimpleInJoint,
    /// More than one voter would change at once, so the old and new majorities might not overlap.
    #[error("more than one voter changed without entering joint config")]
    SeveralVoters,
    /// No voter would remain.
    #[error("removed all voters")]
    NoVoters,
    /// A recorded configuration contradicts itself.
    #[error("the recorded configuration contradicts itself")]
    Contradictory,
}
