//! Chooses the directory to recover from, and decides whether it contains all acknowledged changes.
//!
//! The choice follows Raft's rule for votes: the log whose last entry has the highest term wins. If several logs end
//! with this term, the longest of them wins. An acknowledged entry is on the disks of a majority of the voters. Every
//! other majority shares a voter with that majority, and a log that is at least as up to date as that voter's log also
//! contains the entry. As a result, if sound logs of a majority of the voters are given, the most up-to-date log
//! contains all acknowledged entries. The highest commit index is no substitute, because the commit index on disk lags
//! behind.
//!
//! A directory that was restored from a snapshot is an exception. It has its member's id, but it lacks the entries that
//! the member had acknowledged before. Such a directory does not count as a voter, unless the chosen directory comes
//! from the same restore.
//!
//! # Not here
//!
//! The criteria for a sound directory (see `source`), and the determination of the voters (see `replay`).

use std::collections::BTreeSet;
use std::path::PathBuf;

use quorate_raft::joint::JointConfig;
use quorate_raft::quorum::VoteResult;

use crate::failure::RecoveryError;

/// The origin of a directory's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Origin {
    /// Mark of the restore that created the state, or `None` if the state was never restored.
    pub(super) restore_mark: Option<String>,
    /// Whether the member has received no entries since the directory was restored.
    pub(super) is_unused: bool,
}

impl Origin {
    /// Returns the reason why the directory's log may lack entries that its member has acknowledged to the cluster of
    /// the chosen directory.
    pub(super) fn difference(&self, chosen: &Self) -> Option<&'static str> {
        if self.restore_mark != chosen.restore_mark {
            return Some(match self.restore_mark {
                Some(_) => {
                    "restored from a snapshot from which the chosen directory was not restored"
                }
                None => {
                    "not restored from the snapshot from which the chosen directory was restored"
                }
            });
        }
        (self.is_unused && !chosen.is_unused)
            .then_some("restored from a snapshot, and not used since, unlike the chosen directory")
    }
}

/// Properties of a directory that matter for the choice.
#[derive(Clone, Debug, Default)]
pub(super) struct Candidate {
    pub(super) path: PathBuf,
    /// Member id, if the log contains it.
    pub(super) member: Option<u64>,
    /// Cluster id, if the log contains it.
    pub(super) cluster: Option<u64>,
    pub(super) is_sound: bool,
    pub(super) origin: Origin,
    /// Term and index of the last log entry.
    pub(super) last: (u64, u64),
    /// Applied index of the backend file.
    pub(super) applied: u64,
}

/// Refuses directories of different clusters, and several directories of the same member.
pub(super) fn check_identities(candidates: &[Candidate]) -> Result<(), RecoveryError> {
    for (at, one) in candidates.iter().enumerate() {
        for other in &candidates[at + 1..] {
            let paths = || (one.path.clone(), other.path.clone());
            if let (Some(cluster), Some(other_cluster)) = (one.cluster, other.cluster)
                && cluster != other_cluster
            {
                let (path, other) = paths();
                return Err(RecoveryError::OtherCluster { path, cluster, other, other_cluster });
            }
            if let Some(member) = one.member
                && Some(member) == other.member
            {
                let (path, other) = paths();
                return Err(RecoveryError::SameMember { path, other, member });
            }
        }
    }
    Ok(())
}

/// Returns the sound directory with the most up-to-date log. Among equally up-to-date directories, prefers the
/// directory with the fewest entries to replay, then the first.
pub(super) fn furthest(candidates: &[Candidate]) -> Option<usize> {
    let sound = candidates.iter().enumerate().filter(|(_, candidate)| candidate.is_sound);
    let by_log = |(at, candidate): &(usize, &Candidate)| {
        (candidate.last, candidate.applied, std::cmp::Reverse(*at))
    };
    sound.max_by_key(by_log).map(|(at, _)| at)
}

/// Returns the voters for which one of the candidates has a sound log. An empty log does not count, because its member
/// may be new or may have been wiped. A state of a different origin than the chosen one does not count either.
pub(super) fn voters_at_hand(
    candidates: &[Candidate],
    chosen: &Origin,
    voters: &JointConfig,
) -> BTreeSet<u64> {
    let counts = |candidate: &&Candidate| {
        let has_all_acknowledged = candidate.origin.difference(chosen).is_none();
        candidate.is_sound && candidate.last.1 > 0 && has_all_acknowledged
    };
    let members = candidates.iter().filter(counts).filter_map(|candidate| candidate.member);
    members.filter(|id| voters.contains(*id)).collect()
}

/// Returns whether the voters `at_hand` are a majority of the voters. In a joint configuration, they must be a majority
/// of both halves.
pub(super) fn are_majority(at_hand: &BTreeSet<u64>, voters: &JointConfig) -> bool {
    let has_voters = !voters.incoming.0.is_empty();
    has_voters && voters.vote_result(|id| Some(at_hand.contains(&id))) == VoteResult::Won
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a sound directory of a member whose log ends with this term and index.
    fn sound(member: u64, term: u64, index: u64) -> Candidate {
        Candidate {
            path: format!("m{member}").into(),
            member: Some(member),
            cluster: Some(7),
            is_sound: true,
            origin: Origin::default(),
            last: (term, index),
            applied: 0,
        }
    }

    fn unsound(member: u64, term: u64, index: u64) -> Candidate {
        Candidate { is_sound: false, ..sound(member, term, index) }
    }

    #[test]
    fn the_highest_last_term_wins_then_the_highest_last_index() {
        let ahead = |applied| Candidate { applied, ..sound(2, 3, 10) };
        for (candidates, expected) in [
            (vec![sound(1, 3, 10), sound(2, 3, 12), sound(3, 3, 11)], Some(1)),
            (vec![sound(1, 3, 90), sound(2, 4, 12), sound(3, 3, 91)], Some(1)),
            (vec![unsound(1, 5, 99), sound(2, 4, 12), sound(3, 4, 11)], Some(1)),
            (vec![sound(1, 3, 10), sound(2, 3, 10)], Some(0)),
            (vec![sound(1, 3, 10), ahead(5)], Some(1)),
            (vec![unsound(1, 5, 99)], None),
            (vec![], None),
        ] {
            assert_eq!(furthest(&candidates), expected, "{candidates:?}");
        }
    }

    #[test]
    fn a_majority_of_voters_with_sound_logs_is_needed_in_each_configuration() {
        let joint = |incoming: &[u64], outgoing: &[u64]| JointConfig {
            incoming: incoming.iter().copied().collect(),
            outgoing: outgoing.iter().copied().collect(),
        };
        let three = joint(&[1, 2, 3], &[]);
        for (candidates, voters, expected) in [
            (vec![sound(1, 1, 1), sound(2, 1, 1), sound(3, 1, 1)], &three, true),
            (vec![sound(1, 1, 1), sound(2, 1, 1)], &three, true),
            (vec![sound(1, 1, 1)], &three, false),
            // The most up-to-date directory may be unsound, provided that a majority remains without it.
            (vec![unsound(1, 9, 9), sound(2, 1, 1), sound(3, 1, 1)], &three, true),
            (vec![unsound(1, 9, 9), sound(2, 1, 1)], &three, false),
            // Learners and removed members do not count.
            (vec![sound(4, 1, 1), sound(5, 1, 1), sound(1, 1, 1)], &three, false),
            // A member with an empty log does not count, because it may have lost its data.
            (vec![sound(1, 1, 1), sound(2, 0, 0)], &three, false),
            (vec![sound(1, 1, 1), sound(2, 1, 1)], &joint(&[1, 2, 3, 4], &[]), false),
            (vec![sound(1, 1, 1)], &joint(&[1], &[]), true),
            (vec![sound(1, 1, 1), sound(2, 1, 1)], &joint(&[1, 2, 3], &[3, 4, 5]), false),
            (vec![sound(1, 1, 1), sound(3, 1, 1)], &joint(&[1, 2, 3], &[3, 4, 5]), false),
            (
                vec![sound(1, 1, 1), sound(3, 1, 1), sound(4, 1, 1)],
                &joint(&[1, 2, 3], &[3, 4, 5]),
                true,
            ),
            (vec![sound(1, 1, 1)], &joint(&[], &[]), false),
        ] {
            let at_hand = voters_at_hand(&candidates, &Origin::default(), voters);
            assert_eq!(are_majority(&at_hand, voters), expected, "{candidates:?} of {voters}");
        }
    }

    #[test]
    fn directories_of_different_clusters_or_of_the_same_member_are_refused() {
        let refused = |candidates: &[Candidate]| {
            check_identities(candidates).map_err(|error| error.to_string()).unwrap_err()
        };
        let stranger = Candidate { cluster: Some(8), ..sound(3, 1, 1) };
        let text = refused(&[sound(1, 1, 1), sound(2, 1, 1), stranger]);
        assert!(text.starts_with("m1 belongs to cluster 7 and m3 to cluster 8"), "{text}");
        let copy = Candidate { path: "copy".into(), ..unsound(2, 1, 1) };
        let text = refused(&[sound(1, 1, 1), sound(2, 1, 1), copy]);
        assert!(text.starts_with("m2 and copy both belong to member 2"), "{text}");
        // A log without a member id is unsound and does not count.
        let nameless = Candidate { member: None, cluster: None, ..unsound(0, 0, 0) };
        check_identities(&[sound(1, 1, 1), nameless.clone(), nameless]).unwrap();
    }
}
