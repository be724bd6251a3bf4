//! Compares a restored member with members that do not publish the origin of their state, such as etcd members, before
//! the restored member serves clients.
//!
//! By the time the states are compared, the restored member has joined consensus and has applied the committed entries.
//! If the other members were not restored from the same snapshot, this member has applied their log to a different
//! state, so the revisions or the hashes differ.

use std::time::Duration;

use super::survey::Survey;
use super::{blocking, survey};
use crate::Handles;
use quorate_state::mvcc::HashKv;
use quorate_telemetry::log;

/// Maximum number of attempts to compare states with a member that does not answer, or that compacts its keyspace
/// during the comparison.
const ATTEMPTS: usize = 10;

/// The parameters of a request for a member's hash at its newest revision.
const NEWEST: HashKv = HashKv { hash: 0, hash_revision: 0, compact_revision: 0 };

const PAUSE: Duration = Duration::from_millis(500);

/// Another member's state differs from the state of this member, which was restored from a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this member was restored from a snapshot, and the state of member {member:x} differs at revision {revision}: \
     the two members were not restored from the same snapshot"
)]
pub struct StateDiffers {
    /// The id of the other member.
    pub member: u64,
    /// The revision at which the two states differ.
    pub revision: i64,
}

/// Compares this member's state with the states of the members `others`.
///
/// # Errors
///
/// One of the other members has a different state.
pub async fn compare_restored(handles: &Handles, others: &[u64]) -> Result<(), StateDiffers> {
    let mut left: Vec<u64> = others.to_vec();
    for _ in 0..ATTEMPTS {
        let mut uncompared = Vec::new();
        for member in left {
            if !compare_with(handles, member).await? {
                uncompared.push(member);
            }
        }
        if uncompared.is_empty() {
            return Ok(());
        }
        left = uncompared;
        tokio::time::sleep(PAUSE).await;
    }
    let names: Vec<String> = left.iter().map(|id| format!("{id:x}")).collect();
    log::warn!(
        "this member was restored from a snapshot, but could not be compared with some of the other members",
        "members" = names.join(",")
    );
    Ok(())
}

/// Compares this member's state with the state of another member. Returns whether a comparison was possible.
async fn compare_with(handles: &Handles, member: u64) -> Result<bool, StateDiffers> {
    let survey = survey(handles);
    let Some(newest) = hash_of(&survey, member, &NEWEST).await.map(|(_, _, revision)| revision)
    else {
        return Ok(false);
    };
    // The other member has applied only committed entries, so this member has applied the same entries once the barrier
    // has passed.
    if handles.reader.read_barrier().await.is_err() {
        return Ok(false);
    }
    let view = handles.reader.view();
    let differ = StateDiffers { member, revision: newest };
    if view.current_revision() < newest {
        return Err(differ);
    }
    let Ok(own) = blocking(move || view.hash_kv(newest)).await else { return Ok(false) };
    let Some((hash, compacted, _)) = hash_of(&survey, member, &own).await else {
        return Ok(false);
    };
    match own.compact_revision == compacted {
        true if own.hash != hash => Err(differ),
        is_comparable => Ok(is_comparable),
    }
}

/// Requests a member's hash that is comparable with `held`. Returns the hash, the compaction revision on which it is
/// based, and the member's newest revision.
async fn hash_of(survey: &Survey, member: u64, held: &HashKv) -> Option<(u32, i64, i64)> {
    let answers = survey.take(held).await;
    let (_, answer) = answers.into_iter().find(|(id, _)| *id == member)?;
    let answer = answer.ok()?;
    Some((answer.hash, answer.compact_revision, answer.revision))
}
