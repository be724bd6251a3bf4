//! Decides which messages reach the consensus core. Only messages from members, and from senders that are confirmed as
//! members, reach it.
//!
//! A member that lags behind, or has not received the log yet, depends on messages from members that are not in its own
//! log. Therefore its own log cannot be the only source of the membership. The sender's claim to be a member is not
//! enough either, because a single message from an unknown sender can do permanent harm. This member therefore requests
//! the member list from the URL that an unknown sender provides. The sender is confirmed if the response is for this
//! cluster and lists both the sender and this member. Until then its messages are dropped, which consensus tolerates.
//!
//! # Bounds
//!
//! Only the transport's remotes are asked, each at most once per [`ASK_INTERVAL`]. At most [`CONFIRMED_MAX`] confirmed
//! senders are remembered. When that number is reached, all of them are forgotten.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use quorate_core::incoming::Sender;
use quorate_raft::MemberId;
use serde::Deserialize;

use crate::call::Call;
use crate::dialer::Dialer;
use crate::handshake::CLUSTER_ID;

/// Minimum time between two requests to the same unknown sender.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of confirmed members that are not in the applied membership yet.
const CONFIRMED_MAX: usize = 64;

/// The members from which this member accepts messages.
#[derive(Debug)]
pub(crate) struct KnownMembers {
    own: MemberId,
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The members in the applied membership, and the members that were learned at startup.
    members: HashSet<MemberId>,
    /// The removed members. Their ids are never reused.
    removed: HashSet<MemberId>,
    confirmed: HashSet<MemberId>,
    asked: HashMap<MemberId, Instant>,
}

impl KnownMembers {
    pub(crate) fn new(own: MemberId) -> Self {
        Self { own, state: RwLock::default() }
    }

    /// Adds current members and removed members.
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

    /// Returns the number of members in the applied membership.
    pub(crate) fn member_count(&self) -> usize {
        let state = self.state.read();
        state.members.iter().filter(|id| !state.removed.contains(id)).count()
    }

    /// Returns whether the host of an unknown sender may be asked for its member list now. If so, records that it was
    /// asked.
    pub(crate) fn may_ask(&self, id: MemberId, now: Instant) -> bool {
        let mut state = self.state.write();
        state.asked.retain(|_, asked| now.duration_since(*asked) < ASK_INTERVAL);
        if state.asked.contains_key(&id) {
            return false;
        }
        state.asked.insert(id, now);
        true
    }

    /// Marks an unknown sender as a confirmed member.
    pub(crate) fn confirm(&self, id: MemberId) {
        let mut state = self.state.write();
        if state.confirmed.len() >= CONFIRMED_MAX {
            state.confirmed.clear();
        }
        state.confirmed.insert(id);
    }

    /// Returns the number of confirmed members.
    pub(crate) fn confirmed_count(&self) -> usize {
        self.state.read().confirmed.len()
    }

    /// Returns whether the member at this URL lists both `id` and this member as members of the cluster.
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
    fn a_removed_member_stays_removed() {
        let known = KnownMembers::new(1);
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
    fn unknown_senders_are_looked_up_at_a_limited_rate() {
        let (known, start) = (KnownMembers::new(1), Instant::now());
        assert!(known.may_ask(2, start) && known.may_ask(3, start));
        assert!(!known.may_ask(2, start + ASK_INTERVAL / 2));
        assert!(known.may_ask(2, start + ASK_INTERVAL));
        assert_eq!(known.state.read().asked.len(), 1, "a sender that does not return is forgotten");
    }

    #[test]
    fn the_number_of_confirmed_members_is_bounded() {
        let known = KnownMembers::new(1);
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
