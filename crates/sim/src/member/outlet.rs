//! Outputs of a member's state machine to the other components and to waiting clients.
//!
//! As in production, the outcome of a request is held back until the state that contains its change is published.

use std::collections::VecDeque;

use quorate_api::etcdserverpb::InternalRaftRequest;
use quorate_api::etcdserverpb::alarm_request::AlarmAction;
use quorate_core::request::no_space_alarm;
use quorate_core::{Begun, LeadershipState, ORDERS_QUEUED_MAX, Order, Outlet, Output, Pending};
use quorate_node::Event;
use quorate_raft::{Entry, LogIndex, Term};
use quorate_state::alarm::Cause;
use quorate_state::apply::{Refusal, Request, Response};
use quorate_state::auth::View;
use quorate_state::members::{Members, MembershipRefusal};

use super::input::Input;
use super::{Completion, Waiter};

/// The outcome of a request in the log.
#[derive(Debug)]
pub(super) enum Outcome {
    Applied(Result<Response, Refusal>),
    Changed(Result<(), MembershipRefusal>),
}

/// Outputs of the state machine not yet taken by another component.
#[derive(Debug)]
pub(super) struct Outputs {
    pub(super) inputs: VecDeque<Input>,
    pub(super) orders: VecDeque<Order<Completion, Completion>>,
    /// The waiter of each request in the log.
    pub(super) pending: Pending<Waiter>,
    /// Outcomes of applied entries whose state is not published yet.
    pub(super) held: Vec<(Waiter, Outcome)>,
    /// Outcomes that are ready to be delivered.
    pub(super) outcomes: Vec<(Waiter, Outcome)>,
    pub(super) published: LogIndex,
    pub(super) published_term: Term,
    /// The leadership that consensus last published.
    pub(super) state: LeadershipState,
    pub(super) completed: Vec<Completion>,
    pub(super) members: Option<Members>,
    pub(super) is_removed: bool,
    /// Whether a leader's snapshot has replaced the state.
    pub(super) was_installed: bool,
    /// Alarm requests to be proposed.
    pub(super) proposals: Vec<InternalRaftRequest>,
    pub(super) own_id: u64,
    pub(super) rare_states: Vec<&'static str>,
}

impl Outputs {
    /// Creates the outputs of a member that has published the state recovered from its files.
    pub(super) fn new(own_id: u64, published: LogIndex, published_term: Term) -> Self {
        Self {
            inputs: VecDeque::new(),
            orders: VecDeque::new(),
            // Simulated clients send few requests, so no limit is necessary.
            pending: Pending::new(usize::MAX, usize::MAX),
            held: Vec::new(),
            outcomes: Vec::new(),
            published,
            published_term,
            state: LeadershipState::default(),
            completed: Vec::new(),
            members: None,
            is_removed: false,
            was_installed: false,
            proposals: Vec::new(),
            own_id,
            rare_states: Vec::new(),
        }
    }

    fn raise_no_space(&mut self) {
        self.change_no_space(AlarmAction::Activate, Cause::Other);
    }

    /// Queues a request that raises or disarms the NOSPACE alarm of this member.
    pub(super) fn change_no_space(&mut self, action: AlarmAction, cause: Cause) {
        self.proposals.push(no_space_alarm(self.own_id, action, cause));
    }

    fn publish(&mut self, index: LogIndex, term: Term) {
        assert!(index >= self.published, "the published index never decreases");
        self.published = index;
        self.published_term = term;
        self.outcomes.append(&mut self.held);
    }
}

impl Outlet for Outputs {
    type Ticket = Option<Waiter>;
    type Completion = Completion;

    fn begin(&mut self, request: &Request, _: &View) -> Begun<Self::Ticket> {
        let waiter = self.pending.take(request.id);
        Begun { reply_wanted: waiter.is_some(), ticket: waiter, kind: "request" }
    }

    fn finish(
        &mut self,
        ticket: Self::Ticket,
        _: &Entry,
        outcome: Option<Result<Response, Refusal>>,
    ) {
        if let (Some(waiter), Some(outcome)) = (ticket, outcome) {
            self.held.push((waiter, Outcome::Applied(outcome)));
        }
    }

    fn leads_in(&self, term: Term) -> bool {
        self.state.leads_in(term)
    }

    fn is_backend_behind(&self) -> bool {
        self.orders.len() >= ORDERS_QUEUED_MAX
    }

    fn put(&mut self, output: Output<Completion>) {
        match output {
            Output::Decided(decision) => {
                self.inputs.push_back(Input::Event(Event::ConfChangeDecided(decision)));
            }
            Output::Members(members) => self.members = Some(members),
            Output::ChangeRefused(_) => {
                self.rare_states.push("a membership change is refused by the log");
            }
            Output::Removed => self.is_removed = true,
            Output::ChangeAnswered { request_id, outcome } => {
                if let Some(waiter) = self.pending.take(request_id) {
                    self.held.push((waiter, Outcome::Changed(outcome)));
                }
            }
            Output::Published { index, term, members_changed, tally: _ } => {
                self.publish(index, term);
                if members_changed {
                    self.inputs.push_back(Input::Applied);
                }
            }
            Output::ClusterVersion { from, to } => {
                if from.is_some_and(|from| to < from) {
                    self.rare_states.push("the cluster version is lowered");
                }
            }
            Output::Changed { .. }
            | Output::CompactionAccepted { .. }
            | Output::StorageVersion { .. }
            | Output::TakingSnapshot { .. } => {}
            Output::StorageVersionStays(_) => {
                self.rare_states.push("the storage version stays behind");
            }
            Output::OverQuota { .. } => self.raise_no_space(),
            Output::Commit { batch, then } => self.orders.push_back(Order::Commit { batch, then }),
            Output::Install { index } => {
                self.orders.push_back(Order::Install { index, completion: 0 });
            }
            Output::Installed { index, term } => {
                self.was_installed = true;
                self.publish(index, term);
                self.inputs.push_back(Input::Applied);
            }
            Output::Complete(completed) => self.completed.push(completed),
        }
    }
}
