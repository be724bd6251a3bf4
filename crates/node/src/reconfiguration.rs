//! Checks that a membership change leaves the cluster with a quorum. The checks are part of `--strict-reconfig-check`,
//! which is enabled by default.
//!
//! A committed change takes effect immediately: an added voter increases the size of a majority even if it never
//! starts. Two conditions are therefore checked before an addition or a removal: enough voters of the new configuration
//! must have started, and enough of these voters must be connected now. Before a promotion, only the first condition is
//! checked. The result of a check is not replicated.
//!
//! The checks run twice. The member that received the request checks its own view before it proposes the change
//! (`member::membership`). If the change then waits for an earlier change, the first result is outdated, because the
//! earlier change has altered the voters. The leader therefore checks such a change again, with the responses that it
//! has received from the voters (`node::proposing`).
//!
//! # Not here
//!
//! The validity of the change itself, which every member checks in the same way when it applies the change
//! (`state::members`).

use thiserror::Error;

/// How a voter is connected to the member that checks a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// The voter is not connected.
    Down,
    /// The voter has been connected for less than the required time.
    Fresh,
    /// The voter has been connected for the required time. A member counts as connected to itself.
    Steady,
}

/// The properties of a voter that the checks use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Voter {
    /// The id of the voter.
    pub id: u64,
    /// Whether the voter has started.
    pub is_started: bool,
    /// How the voter is connected.
    pub link: Link,
}

/// Why a change is not proposed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Danger {
    /// Too few voters of the new configuration have started.
    #[error("not enough started members")]
    NotEnoughStarted,
    /// Too few voters are connected.
    #[error("too few voters have been connected for the required time")]
    Unhealthy,
}

const fn majority_of(voter_count: usize) -> usize {
    voter_count / 2 + 1
}

fn started_count(voters: &[Voter]) -> usize {
    voters.iter().filter(|voter| voter.is_started).count()
}

fn connected_count(voters: &[Voter]) -> usize {
    voters.iter().filter(|voter| voter.link == Link::Steady).count()
}

/// Checks the addition of a voter or a learner. A cluster with a single started voter may always grow. A majority of
/// two voters includes the new voter, which has not started, so a restored cluster, which starts with one member, could
/// otherwise never be extended.
pub fn check_addition(voters: &[Voter], as_learner: bool) -> Result<(), Danger> {
    let is_alone = voters.len() == 1;
    let started = started_count(voters);
    let may_grow = is_alone && started == 1;
    if !as_learner && !may_grow && started < majority_of(voters.len() + 1) {
        return Err(Danger::NotEnoughStarted);
    }
    // The added member counts as a disconnected voter.
    if !is_alone && connected_count(voters) < majority_of(voters.len() + 1) {
        return Err(Danger::Unhealthy);
    }
    Ok(())
}

/// Checks the removal of a voter. The removal of a learner is always safe.
pub fn check_removal(voters: &[Voter], id: u64) -> Result<(), Danger> {
    let rest: Vec<Voter> = voters.iter().filter(|voter| voter.id != id).copied().collect();
    if started_count(&rest) < majority_of(rest.len()) {
        return Err(Danger::NotEnoughStarted);
    }
    // A disconnected voter is not part of the connected quorum, so its removal is safe.
    let link = voters.iter().find(|voter| voter.id == id).map_or(Link::Down, |voter| voter.link);
    if link == Link::Down {
        return Ok(());
    }
    if connected_count(voters) < majority_of(voters.len().saturating_sub(1)) + 1 {
        return Err(Danger::Unhealthy);
    }
    Ok(())
}

/// Checks the promotion of a learner. The learner counts as started.
pub fn check_promotion(voters: &[Voter]) -> Result<(), Danger> {
    if started_count(voters) + 1 < majority_of(voters.len() + 1) {
        return Err(Danger::NotEnoughStarted);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns voters with the ids 1, 2, and so on, one for each letter: `s` is started and connected, `f` is started
    /// and connected only recently, `d` is started and disconnected, and `n` was never started.
    fn voters(letters: &str) -> Vec<Voter> {
        (1..)
            .zip(letters.chars())
            .map(|(id, letter)| {
                let link = match letter {
                    's' => Link::Steady,
                    'f' => Link::Fresh,
                    _ => Link::Down,
                };
                Voter { id, is_started: letter != 'n', link }
            })
            .collect()
    }

    const NOT_STARTED: Result<(), Danger> = Err(Danger::NotEnoughStarted);
    const UNHEALTHY: Result<(), Danger> = Err(Danger::Unhealthy);

    #[test]
    fn an_addition_must_leave_a_started_and_connected_majority() {
        for (letters, as_voter, as_learner) in [
            ("s", Ok(()), Ok(())),
            ("ss", Ok(()), Ok(())),
            ("sf", UNHEALTHY, UNHEALTHY),
            ("sn", NOT_STARTED, UNHEALTHY),
            ("sss", Ok(()), Ok(())),
            ("ssf", UNHEALTHY, UNHEALTHY),
            ("ssd", UNHEALTHY, UNHEALTHY),
            ("ssn", NOT_STARTED, UNHEALTHY),
            ("ssss", Ok(()), Ok(())),
            ("sssd", Ok(()), Ok(())),
            ("ssdd", UNHEALTHY, UNHEALTHY),
            ("sssn", Ok(()), Ok(())),
            ("ssnn", NOT_STARTED, UNHEALTHY),
        ] {
            assert_eq!(check_addition(&voters(letters), false), as_voter, "{letters}");
            assert_eq!(check_addition(&voters(letters), true), as_learner, "{letters}");
        }
    }

    #[test]
    fn a_removal_must_leave_a_started_and_connected_majority() {
        for (letters, id, verdict) in [
            ("s", 1, NOT_STARTED),
            ("ss", 1, Ok(())),
            ("ss", 2, Ok(())),
            ("sd", 2, Ok(())),
            ("sd", 1, UNHEALTHY),
            ("sf", 2, UNHEALTHY),
            ("sn", 2, Ok(())),
            ("sn", 1, NOT_STARTED),
            ("sss", 3, Ok(())),
            ("ssd", 3, Ok(())),
            ("ssd", 2, UNHEALTHY),
            ("sdd", 1, UNHEALTHY),
            ("sss", 9, Ok(())),
            ("snn", 9, NOT_STARTED),
        ] {
            assert_eq!(check_removal(&voters(letters), id), verdict, "{letters} without {id}");
        }
    }

    #[test]
    fn a_promotion_needs_a_majority_of_started_members() {
        for (letters, verdict) in
            [("s", Ok(())), ("sn", Ok(())), ("snn", NOT_STARTED), ("sddn", Ok(()))]
        {
            assert_eq!(check_promotion(&voters(letters)), verdict, "{letters}");
        }
    }
}
