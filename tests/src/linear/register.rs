//! Actions on one key, and the answers of a register.

/// The value of a key. Tests write each value only once, so a number identifies it.
pub type Value = u64;

/// A client's action on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read.
    Read,
    /// Store this value unconditionally.
    Write(Value),
    /// Store this value if the expected one is present; `None` stands for an absent key.
    Swap {
        /// The expected value.
        expected: Option<Value>,
        /// The value to store.
        new: Value,
    },
    /// Delete.
    Delete,
}

/// An answer to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The value that was present: the answer to a read, a deletion or a failed swap.
    Found(Option<Value>),
    /// The action succeeded: a write, or a swap whose expected value was present.
    Done,
}

impl Answer {
    /// Returns the value in the answer.
    #[must_use]
    pub const fn found(self) -> Option<Value> {
        match self {
            Self::Found(value) => value,
            Self::Done => None,
        }
    }
}

/// Returns the state after an action, or `None` if this answer is impossible in the given state. An absent answer is
/// possible in any state.
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
        // A swap without an answer is ordered only as a success, because a failed swap changes nothing.
        (Action::Swap { expected, new }, None) => (expected == state).then_some(Some(new)),
        (Action::Delete, None | Some(Answer::Done)) => Some(None),
        (Action::Delete, Some(Answer::Found(found))) => (found == state).then_some(None),
    }
}
