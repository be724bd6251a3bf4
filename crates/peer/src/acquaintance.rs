//! Whose messages reach the consensus core: members', and those of whoever is shown to be one.
//!
//! A member that lags behind, or has yet to hear from a leader, is sent messages by members that it has never
//! heard of, and depends on them. So it cannot go by its own log alone; nor by what a sender says of itself,
//! because one message of a stranger can do harm for good. Whoever is not known is asked for the members of its
//! cluster, at the address that it gives: it is taken for one if it answers for this cluster, and lists itself
//! and this member. Its messages are dropped meanwhile, which consensus makes up for.
//!
//! # Bounds
//!
//! Only those are asked that the transport keeps as remotes, each once in [`ASK_INTERVAL`]; of those that were
//! confirmed, [`CONFIRMED_MAX`] are remembered, and forgotten together when there are more.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use quorate_core::incoming::Sender;
use quorate_raft::MemberId;
use serde::Deserialize;

use crate::call::Call;
use crate::dialer::Dialer;
use crate::handshake::CLUSTER_ID;

/// Between two questions to the same stranger.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// Strangers that were found to be members and are not yet among those applied here.
const CONFIRMED_MAX: usize = 64;

/// See the module.
#[derive(Debug)]
pub(crate) struct Acquaintances {
    own: MemberId,
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    /// As applied, or as learnt at the start.
    members: HashSet<MemberId>,
    /// Those that were removed and do not come back.
    removed: HashSet<MemberId>,
    confirmed: HashSet<MemberId>,
    asked: HashMap<MemberId, Instant>,
}

impl Acquaintances {
    pub(crate) fn new(own: MemberId) -> Self {
        Self { own, state: RwLock::default() }
    }

    /// Adds members and those that were removed.
    pub(crate) fn update(
        &self,
        members: impl Iterator<Item = MemberId>,
        removed: impl Iterator<Item = MemberId>,
    ) {
        let mut state = self.state.write();
        state.removed.extend(removed);
        for id in members {
            state.confirmed.remove(&id);
            state.members.insert(id);
        }
    }

    pub(crate) fn of(&self, id: MemberId) -> Sender {
        let state = self.state.read();
        if state.removed.contains(&id) {
            Sender::Removed
        } else if id == self.own || state.members.contains(&id) || state.confirmed.contains(&id) {
            Sender::Member
        } else {
            Sender::Unknown
        }
    }

    pub(crate) fn is_removed(&self, id: MemberId) -> bool {
        self.of(id) == Sender::Removed
    }

    /// How many members the cluster has, as far as this member has been told.
    pub(crate) fn member_count(&self) -> usize {
        let state = self.state.read();
        state.members.iter().filter(|id| !state.removed.contains(id)).count()
    }

    /// Whether to ask a stranger now who it is.
    pub(crate) fn may_ask(&self, id: MemberId, now: Instant) -> bool {
        let mut state = self.state.write();
        state.asked.retain(|_, asked| now.duration_since(*asked) < ASK_INTERVAL);
        if state.asked.contains_key(&id) {
            return false;
        }
        state.asked.insert(id, now);
        true
    }

    /// Takes a stranger for a member.
    pub(crate) fn confirm(&self, id: MemberId) {
        let mut state = self.state.write();
        if state.confirmed.len() >= CONFIRMED_MAX {
            state.confirmed.clear();
        }
        state.confirmed.insert(id);
    }

    /// How many strangers are taken for members.
    pub(crate) fn confirmed_count(&self) -> usize {
        self.state.read().confirmed.len()
    }

    /// Whether somebody at this URL lists itself, by this id, and this member as members of the cluster.
    pub(crate) async fn is_listed(
        &self,
        id: MemberId,
        url: &str,
        cluster: &str,
        (dialer, timeout): (&Dialer, Duration),
    ) -> bool {
        #[derive(Deserialize)]
        struct Row {
            id: MemberId,
        }
        let Ok(answer) = Call::get(url, "/members", timeout).send(dialer).await else {
            return false;
        };
        if answer.headers().get(CLUSTER_ID).is_none_or(|named| named != cluster) {
            return false;
        }
        let Ok(rows) = serde_json::from_slice::<Vec<Row>>(answer.body()) else { return false };
        [id, self.own].iter().all(|wanted| rows.iter().any(|row| row.id == *wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_removed_stays_so_whatever_else_is_said() {
        let known = Acquaintances::new(1);
        let of = |ids: [MemberId; 3]| ids.map(|id| known.of(id));
        use Sender::{Member, Removed, Unknown};
        assert_eq!(of([1, 2, 3]), [Member, Unknown, Unknown]);
        known.update([2].into_iter(), std::iter::empty());
        known.confirm(3);
        assert_eq!(of([1, 2, 3]), [Member; 3]);
        known.update(std::iter::empty(), [2, 3].into_iter());
        known.confirm(3);
        assert_eq!(of([1, 2, 3]), [Member, Removed, Removed]);
    }

    #[test]
    fn strangers_are_asked_now_and_then() {
        let (known, start) = (Acquaintances::new(1), Instant::now());
        assert!(known.may_ask(2, start) && known.may_ask(3, start));
        assert!(!known.may_ask(2, start + ASK_INTERVAL / 2));
        assert!(known.may_ask(2, start + ASK_INTERVAL));
        assert_eq!(known.state.read().asked.len(), 1, "who does not come again is forgotten");
    }

    #[test]
    fn no_more_are_remembered_than_the_bound_says() {
        let known = Acquaintances::new(1);
        for id in 2..1_000 {
            known.confirm(id);
            assert_eq!(known.of(id), Sender::Member);
            assert!((1..=CONFIRMED_MAX).contains(&known.confirmed_count()));
        }
        known.update([999].into_iter(), std::iter::empty());
        let left = known.confirmed_count();
        known.confirm(1_000);
        assert_eq!(known.confirmed_count(), left + 1);
    }
}
