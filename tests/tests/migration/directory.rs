//! The list of members that clients may use, while members are added and removed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate_tests::Client;

/// Pause before a client retries after an error, so that it does not retry in a tight loop.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);

/// The voters of a cluster, with a client for each, shared by all users of the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory {
    members: Arc<Mutex<Vec<(usize, Client)>>>,
}

impl Directory {
    /// Returns a list of one member, for clients that always use the same member.
    pub(crate) fn of(number: usize, client: Client) -> Self {
        Self { members: Arc::new(Mutex::new(vec![(number, client)])) }
    }

    /// Replaces the members.
    pub(crate) fn set(&self, members: Vec<(usize, Client)>) {
        *self.members.lock().unwrap() = members;
    }

    /// Returns a member with its number. Consecutive values of `turn` select different members.
    pub(crate) fn pick(&self, turn: usize) -> (usize, Client) {
        let members = self.members.lock().unwrap();
        members[turn % members.len()].clone()
    }

    /// Returns the numbers of all members.
    pub(crate) fn numbers(&self) -> Vec<usize> {
        self.members.lock().unwrap().iter().map(|(number, _)| *number).collect()
    }
}
