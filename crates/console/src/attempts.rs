//! The minimum pause between login attempts: one attempt per [`PAUSE`] for each user name and for each address,
//! regardless of the number of connections.
//!
//! An attempt counts from its start, so a client cannot avoid the pause by disconnecting before the response. A
//! successful login causes no pause.
//!
//! # Guarantees
//!
//! * An attempt that is still waiting for its turn does not count, so a client that disconnects during the wait does
//!   not delay other clients.
//!
//! # Bound
//!
//! * At most [`NAMES_MAX`] names and addresses are remembered, each for [`PAUSE`] after its last attempt. Only the
//!   digests of names are stored.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep_until, timeout};

use crate::clients::Origin;
use crate::refusal::{Kind, Refusal};

/// The minimum time between two attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// Maximum time that an attempt waits for its turn.
const WAIT_MAX: Duration = Duration::from_secs(5);

const NAMES_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    User([u8; 32]),
    Origin(Origin),
}

/// The user names and addresses with a recent attempt, each with the end of its pause.
#[derive(Debug, Default)]
pub(crate) struct Attempts(RefCell<BTreeMap<Name, Instant>>);

/// A login attempt in progress.
#[derive(Debug)]
pub(crate) struct Attempt<'a> {
    attempts: &'a Attempts,
    names: [Name; 2],
    /// The end of the pause that this attempt causes.
    until: Instant,
}

impl Attempts {
    /// Waits until this user name and this address may make an attempt, and starts the attempt.
    pub(crate) async fn begin(&self, user: &str, origin: Origin) -> Result<Attempt<'_>, Refusal> {
        let names = [Name::User(Sha256::digest(user).into()), Name::Origin(origin)];
        let turn = async {
            loop {
                let due = self.due(&names);
                if due <= Instant::now() {
                    return;
                }
                sleep_until(due).await;
            }
        };
        let busy = || {
            Refusal::new(Kind::Busy, "too many login attempts for this user or from this address")
                .advising("Try again in a few seconds.")
        };
        timeout(WAIT_MAX, turn).await.map_err(|_| busy())?;
        let (now, mut all) = (Instant::now(), self.0.borrow_mut());
        all.retain(|_, until| *until > now);
        if all.len() + names.len() > NAMES_MAX {
            return Err(busy());
        }
        let until = now + PAUSE;
        all.extend(names.map(|name| (name, until)));
        Ok(Attempt { attempts: self, names, until })
    }

    /// Returns the time at which the pauses for the user name and for the address have both ended.
    fn due(&self, names: &[Name; 2]) -> Instant {
        let all = self.0.borrow();
        let ends = names.iter().filter_map(|name| all.get(name).copied());
        ends.max().unwrap_or_else(Instant::now)
    }
}

impl Attempt<'_> {
    /// Ends a successful login, which causes no pause.
    pub(crate) fn succeeded(self) {
        let mut all = self.attempts.0.borrow_mut();
        // If a later attempt with the same name has caused a pause, that pause is kept.
        all.retain(|name, until| !self.names.contains(name) || *until != self.until);
    }

    /// Ends a failed login. The pause starts now.
    pub(crate) fn failed(self) {
        let until = Instant::now() + PAUSE;
        self.attempts.0.borrow_mut().extend(self.names.map(|name| (name, until)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::tests::anonymous;

    fn origin(number: u8) -> Origin {
        anonymous(number).origin
    }

    async fn time_of(attempts: &Attempts, user: &str, number: u8) -> Duration {
        let begun = Instant::now();
        attempts.begin(user, origin(number)).await.unwrap();
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn an_abandoned_login_attempt_delays_the_next_attempt() {
        let attempts = Attempts::default();
        assert_eq!(time_of(&attempts, "ann", 1).await, Duration::ZERO);
        // Changing only the user name or only the address does not avoid the pause.
        assert!(time_of(&attempts, "bob", 1).await >= PAUSE);
        assert!(time_of(&attempts, "bob", 2).await >= PAUSE);
        assert_eq!(time_of(&attempts, "cat", 3).await, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_login_causes_a_pause_and_a_successful_login_does_not() {
        let attempts = Attempts::default();
        attempts.begin("ann", origin(1)).await.unwrap().succeeded();
        assert_eq!(time_of(&attempts, "ann", 1).await, Duration::ZERO);
        let slow = attempts.begin("ann", origin(1)).await.unwrap();
        tokio::time::advance(PAUSE * 2).await;
        slow.failed();
        assert!(time_of(&attempts, "ann", 2).await >= PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_successful_login_keeps_the_pause_of_a_later_failed_login() {
        let attempts = Attempts::default();
        let own = attempts.begin("eve", origin(1)).await.unwrap();
        tokio::time::advance(PAUSE).await;
        attempts.begin("ann", origin(1)).await.unwrap().failed();
        own.succeeded();
        assert!(time_of(&attempts, "bob", 1).await >= PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn login_attempts_wait_for_a_limited_time_and_remembered_names_are_bounded() {
        let attempts = Attempts::default();
        let later = Instant::now() + WAIT_MAX * 2;
        attempts.0.borrow_mut().insert(Name::Origin(origin(1)), later);
        let refused = attempts.begin("ann", origin(1)).await.unwrap_err();
        assert_eq!(refused.kind, Kind::Busy);
        for number in 0..NAMES_MAX as u64 {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&number.to_be_bytes());
            attempts.0.borrow_mut().insert(Name::User(digest), Instant::now() + PAUSE);
        }
        assert_eq!(attempts.begin("ann", origin(2)).await.unwrap_err().kind, Kind::Busy);
        tokio::time::advance(PAUSE * 2).await;
        assert!(attempts.begin("ann", origin(2)).await.is_ok());
    }
}
