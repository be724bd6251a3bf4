//! What one key can be asked, and what it must answer.

/// What a key holds. Tests write every value once, so a number names it.
pub type Value = u64;

/// What a client asks of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// What is there?
    Read,
    /// Store this, whatever is there.
    Write(Value),
    /// Store this if that is there; nothing stands for an absent key.
    Swap {
        /// What must be there.
        expected: Option<Value>,
        /// What to store.
        new: Value,
    },
    /// Make it absent.
    Delete,
}

/// What a client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This was there: the answer to a read, to a deletion or to a swap that failed.
    Found(Option<Value>),
    /// It was done, whatever was there before; to a swap: what was expected was there.
    Done,
}

impl Answer {
    /// The value that it tells of.
    #[must_use]
    pub const fn found(self) -> Option<Value> {
        match self {
            Self::Found(value) => value,
            Self::Done => None,
        }
    }
}

/// The state after an action on a state, or nothing when it could not have been answered like that.
/// No answer fits any state.
pub(super) fn step(
    state: Option<Value>,
    action: Action,
    answer: Option<Answer>,
) -> Option<Option<Value>> {
    match (action, answer) {
        (Action::Read, None | Some(Answer::Done)) => Some(state),
        (Action::Read, Some(Answer::Found(found))) => (found == state).then_some(state),
        (Action::Write(new), None | Some(Answer::Done)) => Some(Some(new)),
        (Action::Write(_), Some(Answer::Found(_))) => None,
        (Action::Swap { expected, new }, Some(Answer::Done)) => {
            (expected == state).then_some(Some(new))
        }
        (Action::Swap { expected, .. }, Some(Answer::Found(found))) => {
            (found == state && expected != state).then_some(state)
        }
        // One that fails changes nothing and need not be ordered.
        (Action::Swap { expected, new }, None) => (expected == state).then_some(Some(new)),
        (Action::Delete, None | Some(Answer::Done)) => Some(None),
        (Action::Delete, Some(Answer::Found(found))) => (found == state).then_some(None),
    }
}
