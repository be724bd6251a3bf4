//! Tests of lease requests and of the leader's lease checks. The test sets the leader's confirmation, clock and term.

use std::cell::Cell;

use quorate_node::Leadership;
use quorate_raft::Role;
use quorate_state::lease::{LeaseRecord, Lessor, LessorOptions};

use super::*;
use crate::lease_care::LeaseCare;

const ID: LeaseId = LeaseId(7);
const TERM: Term = Term(3);
const RENEWED: LeaseStep = LeaseStep::Answer(LeaseAnswer::Renewed { ttl_secs: 60 });
const GONE: LeaseStep = LeaseStep::Answer(LeaseAnswer::Gone);

/// A leader with one lease, whose TTL is one minute.
struct Member {
    lessor: Lessor,
    leases: Leases,
    now: Cell<Millis>,
    state: Cell<LeadershipState>,
}

impl LeaseView for Member {
    fn leases(&self) -> &Leases {
        &self.leases
    }

    fn now(&self) -> Millis {
        self.now.get()
    }

    fn leadership(&self) -> LeadershipState {
        self.state.get()
    }
}

impl Member {
    fn with(options: LessorOptions, remaining_secs: i64) -> Self {
        let record = LeaseRecord { id: ID, ttl_secs: 60, remaining_secs };
        let none: [(&[u8], LeaseId); 0] = [];
        let lessor = Lessor::recover([record], none, options);
        let leases = lessor.reader();
        leases.promote(TERM.get(), 0, Millis(0));
        let leadership = Leadership { leader: 1, term: TERM, role: Role::Leader };
        let state = LeadershipState { leadership, ..LeadershipState::new(1_000) };
        Self { lessor, leases, now: Cell::new(Millis(0)), state: Cell::new(state) }
    }

    fn new() -> Self {
        Self::with(LessorOptions::default(), 0)
    }

    /// Sets the clock and the time of the last confirmation.
    fn at(&self, now: u64, confirmed_at: u64) {
        self.now.set(Millis(now));
        self.state.set(LeadershipState { confirmed_at: Millis(confirmed_at), ..self.state.get() });
    }

    fn lead_in(&self, term: Term) {
        let leadership = Leadership { term, ..self.state.get().leadership };
        self.state.set(LeadershipState { leadership, ..self.state.get() });
    }

    fn follow(&self) {
        let leadership = Leadership { leader: 2, term: Term(4), role: Role::Follower };
        self.state.set(LeadershipState { leadership, ..self.state.get() });
    }

    /// Creates a renewal and runs it until the lease is renewed in memory. Returns the renewal and its next step.
    fn renewal(&self, id: LeaseId) -> (LeaseTask, LeaseStep) {
        let mut task = LeaseTask::renew(id, false);
        assert_eq!(task.step(true, self), LeaseStep::AwaitApplied);
        assert_eq!(task.step(true, self), LeaseStep::CheckClient);
        let step = task.step(true, self);
        (task, step)
    }
}

/// Returns the answer that the task returns once the entries that it reflects are published.
fn after_publication(task: &mut LeaseTask, member: &Member) -> LeaseStep {
    assert_eq!(task.step(true, member), LeaseStep::AwaitApplied);
    task.step(true, member)
}

#[test]
fn a_renewal_asks_a_quorum_unless_the_leadership_is_confirmed() {
    let member = Member::new();
    assert_eq!(member.renewal(ID).1, RENEWED);
    member.at(5_000, 0);
    let (mut task, step) = member.renewal(ID);
    assert_eq!(step, LeaseStep::AskQuorum);
    // The quorum took longer than an election timeout to answer.
    member.at(9_000, 5_000);
    assert_eq!(task.step(true, &member), LeaseStep::AskQuorum);
    member.at(10_000, 9_500);
    assert_eq!(task.step(true, &member), RENEWED);
    let left = member.leases.time_to_live(ID, Millis(10_000)).unwrap().remaining_secs;
    assert_eq!(left, Some(59), "the TTL is counted from the response, not from the request");
}

#[test]
fn a_renewal_is_answered_at_once_only_by_a_confirmed_leader_that_knows_the_lease() {
    let at_once = |member: &Member, id| LeaseTask::renew(id, true).renew_at_once(member);
    let member = Member::new();
    member.at(500, 0);
    assert_eq!(at_once(&member, ID), Some(60));
    assert_eq!(at_once(&member, LeaseId(8)), None, "the lease may be granted but not applied yet");
    assert_eq!(LeaseTask::renew(ID, false).renew_at_once(&member), None);
    member.at(5_000, 0);
    assert_eq!(at_once(&member, ID), None, "another member may lead");
    member.at(5_000, 5_000);
    assert_eq!(at_once(&member, ID), Some(60));
    member.follow();
    assert_eq!(at_once(&member, ID), None);
    let member = Member::new();
    member.at(60_000, 60_000);
    assert_eq!(at_once(&member, ID), None, "the lease has expired");
}

#[test]
fn a_quorum_confirmation_requested_in_another_term_is_ignored() {
    let member = Member::new();
    member.at(5_000, 0);
    let (mut task, step) = member.renewal(ID);
    assert_eq!(step, LeaseStep::AskQuorum);
    member.at(5_000, 5_000);
    member.lead_in(Term(5));
    assert_eq!(task.step(true, &member), LeaseStep::CheckClient);
    assert_eq!(task.step(true, &member), LeaseStep::AskLeader);
}

#[test]
fn without_a_quorum_a_lease_request_is_forwarded_to_the_leader() {
    let member = Member::new();
    member.at(5_000, 0);
    let (mut task, _) = member.renewal(ID);
    assert_eq!(task.step(false, &member), LeaseStep::CheckClient);
    assert_eq!(task.step(true, &member), LeaseStep::AskLeader);
    let mut task = LeaseTask::time_to_live(ID, false);
    assert_eq!(task.step(true, &member), LeaseStep::AwaitApplied);
    assert_eq!(task.step(true, &member), LeaseStep::AskQuorum);
    assert_eq!(task.step(false, &member), LeaseStep::AskLeader);
}

#[test]
fn a_lease_is_reported_missing_only_after_a_quorum_confirms_the_leader() {
    let member = Member::new();
    let (mut task, step) = member.renewal(LeaseId(8));
    assert_eq!(step, LeaseStep::AskQuorum);
    assert_eq!(after_publication(&mut task, &member), GONE);
    let mut task = LeaseTask::time_to_live(LeaseId(8), false);
    assert_eq!(task.step(true, &member), LeaseStep::AwaitApplied);
    assert_eq!(task.step(true, &member), LeaseStep::AskQuorum);
    assert_eq!(after_publication(&mut task, &member), GONE);
}

#[test]
fn renewing_an_expired_lease_waits_for_its_revocation() {
    let mut member = Member::new();
    member.at(60_000, 0);
    let (mut task, step) = member.renewal(ID);
    assert_eq!(step, LeaseStep::AskQuorum);
    assert_eq!(task.step(true, &member), LeaseStep::AwaitGone);
    member.lessor.revoke(ID);
    assert_eq!(task.step(true, &member), LeaseStep::AskQuorum);
    assert_eq!(after_publication(&mut task, &member), GONE);
}

#[test]
fn an_answer_about_a_revocation_or_about_keys_waits_until_they_can_be_read() {
    let mut member = Member::new();
    member.state.set(LeadershipState { is_alone: true, ..member.state.get() });
    member.lessor.attach(b"k", ID);
    let mut task = LeaseTask::time_to_live(ID, true);
    assert_eq!(task.step(true, &member), LeaseStep::AwaitApplied);
    // The lease has the key, but the batch of entries with the put is not published yet.
    assert_eq!(task.step(true, &member), LeaseStep::AwaitApplied);
    // The answer does not contain the effects of later batches, which may not be published yet either.
    member.lessor.attach(b"later", ID);
    let LeaseStep::Answer(LeaseAnswer::TimeToLive { keys, .. }) = task.step(true, &member) else {
        panic!("the answer is returned after the second wait");
    };
    assert_eq!(keys, [Arc::from(&b"k"[..])]);

    let mut task = LeaseTask::time_to_live(ID, false);
    assert_eq!(task.step(true, &member), LeaseStep::AwaitApplied);
    assert!(matches!(task.step(true, &member), LeaseStep::Answer(_)), "there are no keys to read");

    member.at(60_000, 60_000);
    let (mut task, step) = member.renewal(ID);
    assert_eq!(step, LeaseStep::AwaitGone);
    // The lease is removed before the batch with its revocation is published.
    member.lessor.revoke(ID);
    assert_eq!(task.step(true, &member), LeaseStep::AskQuorum);
    assert_eq!(task.step(true, &member), LeaseStep::AwaitApplied);
    member.lessor.grant(ID, 60, Millis(60_000)).unwrap();
    assert_eq!(task.step(true, &member), GONE, "the lease was granted again after its removal");
}

#[test]
fn a_renewal_first_proposes_to_reset_the_checkpoint() {
    let options = LessorOptions { checkpoints: true, ..LessorOptions::default() };
    let mut member = Member::with(options, 30);
    let (mut task, step) = member.renewal(ID);
    let LeaseStep::Propose(TERM, request) = step else { panic!("unexpected step: {step:?}") };
    let checkpoint = request.lease_checkpoint.unwrap().checkpoints[0];
    assert_eq!((checkpoint.id, checkpoint.remaining_ttl), (7, 0));
    member.lessor.checkpoint(ID, 0, Millis(0));
    assert_eq!(task.step(true, &member), RENEWED);
}

#[test]
fn a_follower_checks_the_client_and_forwards_lease_requests_to_the_leader() {
    let member = Member::new();
    member.follow();
    let mut task = LeaseTask::renew(ID, true);
    for _ in 0..2 {
        assert_eq!(task.step(true, &member), LeaseStep::CheckClient);
        assert_eq!(task.step(true, &member), LeaseStep::AskLeader);
    }
    assert_eq!(LeaseTask::time_to_live(ID, true).step(true, &member), LeaseStep::AskLeader);
    // The lease clocks were stopped while the member still believed that it led.
    let member = Member::new();
    member.leases.demote();
    let (mut task, step) = member.renewal(ID);
    assert_eq!(step, LeaseStep::CheckClient);
    assert_eq!(task.step(true, &member), LeaseStep::AskLeader);
}

#[test]
fn a_known_lease_can_be_renewed_before_all_entries_are_applied() {
    let member = Member::new();
    let mut task = LeaseTask::renew(ID, true);
    assert_eq!(task.step(true, &member), LeaseStep::CheckClient);
    assert_eq!(task.step(true, &member), RENEWED);
    assert_eq!(LeaseTask::renew(LeaseId(8), true).step(true, &member), LeaseStep::AwaitApplied);
}

#[test]
fn time_to_live_returns_the_remaining_ttl_and_the_keys() {
    let mut member = Member::new();
    member.lessor.attach(b"k", ID);
    member.at(500, 400);
    let mut task = LeaseTask::time_to_live(ID, true);
    assert_eq!(task.step(true, &member), LeaseStep::AwaitApplied);
    // A successor that was elected after the last confirmation may have revoked the lease.
    assert_eq!(task.step(true, &member), LeaseStep::AskQuorum);
    let keys = vec![Arc::from(&b"k"[..])];
    let answer = LeaseAnswer::TimeToLive { ttl_secs: 59, granted_secs: 60, keys };
    assert_eq!(after_publication(&mut task, &member), LeaseStep::Answer(answer.clone()));
    // No other member can lead.
    member.state.set(LeadershipState { is_alone: true, ..member.state.get() });
    let mut task = LeaseTask::time_to_live(ID, true);
    assert_eq!(task.step(true, &member), LeaseStep::AwaitApplied);
    assert_eq!(after_publication(&mut task, &member), LeaseStep::Answer(answer));
}

#[test]
fn leases_expire_only_if_a_quorum_confirms_the_leader_after_the_scan() {
    let member = Member::new();
    member.at(60_000, 59_900);
    let care = LeaseCare::look(&member).unwrap();
    assert!(care.needs_quorum());
    assert!(care.clone().proposals(&member).is_none(), "the confirmation is older than the scan");
    member.at(60_010, 60_000);
    let proposals = care.clone().proposals(&member).unwrap();
    assert_eq!((proposals.term, proposals.ends.len()), (TERM, 1));
    member.lead_in(Term(5));
    assert!(care.proposals(&member).is_none(), "the leader was deposed in between");
    member.follow();
    assert!(LeaseCare::look(&member).is_none());
}

#[test]
fn a_lease_that_was_revoked_and_granted_again_is_not_revoked_because_of_an_earlier_scan() {
    let mut member = Member::new();
    member.at(60_000, 60_000);
    let care = LeaseCare::look(&member).unwrap();
    let proposals = care.proposals(&member).unwrap();
    let [revocation] = &proposals.ends[..] else { panic!("{:?}", proposals.ends) };
    assert!(revocation.request(&member.leases).is_some());
    member.lessor.revoke(ID);
    assert!(revocation.request(&member.leases).is_none());
    member.lessor.grant(ID, 60, Millis(60_000)).unwrap();
    assert!(revocation.request(&member.leases).is_none());
}

#[test]
fn lease_checkpoints_need_no_quorum() {
    let options = LessorOptions {
        checkpoints: true,
        checkpoint_interval_secs: 10,
        ..LessorOptions::default()
    };
    let member = Member::with(options, 0);
    member.at(11_000, 0);
    let care = LeaseCare::look(&member).unwrap();
    assert!(!care.needs_quorum());
    assert!(care.proposals(&member).unwrap().checkpoints.is_some());
}
