//! Whether a change of the membership leaves the cluster with a quorum.
//!
//! A change that is committed counts at once: a voter that was added is one more that a majority needs,
//! whether or not it ever starts. So before a change is proposed the member that was asked looks whether,
//! after it, enough voters have started, and whether enough of them are connected to it now. All of it is
//! judged from where this member stands; nothing of it is replicated.
//!
//! # Not here
//!
//! Whether a change makes sense (`state::members`, by every member alike, when it is applied).

use super::RequestError;

/// How a voter is connected to this member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Down,
    /// Connected, but not for long enough to count on.
    Fresh,
    /// Connected for a while; a member is so to itself.
    Steady,
}

/// What the checks ask about a voter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Voter {
    pub(super) id: u64,
    /// Whether it has told its name.
    pub(super) is_started: bool,
    pub(super) link: Link,
}

/// Why a change is too dangerous to propose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Danger {
    /// Too few of the voters after it would have started.
    NotEnoughStarted,
    /// Too few of the voters are connected.
    Unhealthy,
}

impl From<Danger> for RequestError {
    fn from(danger: Danger) -> Self {
        match danger {
            Danger::NotEnoughStarted => Self::NotEnoughStartedMembers,
            Danger::Unhealthy => Self::Unhealthy,
        }
    }
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

/// Judges the addition of a voter or a learner. A cluster of one may always grow: it is how one that was
/// restored is made whole.
pub(super) fn check_addition(voters: &[Voter], as_learner: bool) -> Result<(), Danger> {
    let is_alone = voters.len() == 1;
    let started = started_count(voters);
    let may_grow = is_alone && started == 1;
    if !as_learner && !may_grow && started < majority_of(voters.len() + 1) {
        return Err(Danger::NotEnoughStarted);
    }
    // The newcomer counts as down.
    if !is_alone && connected_count(voters) < majority_of(voters.len() + 1) {
        return Err(Danger::Unhealthy);
    }
    Ok(())
}

/// Judges the removal of anybody but a learner, which never does harm.
pub(super) fn check_removal(voters: &[Voter], id: u64) -> Result<(), Danger> {
    let rest: Vec<Voter> = voters.iter().filter(|voter| voter.id != id).copied().collect();
    if started_count(&rest) < majority_of(rest.len()) {
        return Err(Danger::NotEnoughStarted);
    }
    // Who is down is no part of the quorum that there is.
    let link = voters.iter().find(|voter| voter.id == id).map_or(Link::Down, |voter| voter.link);
    if link == Link::Down {
        return Ok(());
    }
    if connected_count(voters) < majority_of(voters.len().saturating_sub(1)) + 1 {
        return Err(Danger::Unhealthy);
    }
    Ok(())
}

/// Judges the promotion of a learner, which counts as started.
pub(super) fn check_promotion(voters: &[Voter]) -> Result<(), Danger> {
    if started_count(voters) + 1 < majority_of(voters.len() + 1) {
        return Err(Danger::NotEnoughStarted);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Voters 1, 2 and so on, a letter each: `s` started and connected, `f` started and connected only now,
    /// `d` started and down, `n` never started.
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
    fn an_addition_needs_a_majority_with_the_newcomer_down() {
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
    fn a_removal_leaves_a_majority_that_has_started_and_is_connected() {
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
    fn a_promotion_needs_a_majority_that_has_started() {
        for (letters, verdict) in
            [("s", Ok(())), ("sn", Ok(())), ("snn", NOT_STARTED), ("sddn", Ok(()))]
        {
            assert_eq!(check_promotion(&voters(letters)), verdict, "{letters}");
        }
    }
}
