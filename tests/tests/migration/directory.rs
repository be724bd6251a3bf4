//! Whom clients may ask, while members come and go.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate_tests::Client;

/// How long a client waits before it asks again after an error, so that it does not do so in a circle.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);

/// The voters of a cluster with a client for each, shared by everybody who asks them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory {
    members: Arc<Mutex<Vec<(usize, Client)>>>,
}

impl Directory {
    /// A directory of one, for those who ask the same member for ever.
    pub(crate) fn of(number: usize, client: Client) -> Self {
        Self { members: Arc::new(Mutex::new(vec![(number, client)])) }
    }

    /// Replaces the members.
    pub(crate) fn set(&self, members: Vec<(usize, Client)>) {
        *self.members.lock().unwrap() = members;
    }

    /// A member and its number, another one for the next number in a row.
    pub(crate) fn pick(&self, turn: usize) -> (usize, Client) {
        let members = self.members.lock().unwrap();
        members[turn % members.len()].clone()
    }

    /// The numbers of all members.
    pub(crate) fn numbers(&self) -> Vec<usize> {
        self.members.lock().unwrap().iter().map(|(number, _)| *number).collect()
    }
}
