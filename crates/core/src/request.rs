//! The checks on a client's request, in order, before the request is proposed or its read is carried out.
//!
//! # How it is driven
//!
//! [`Course::step`] returns the next step. The caller carries it out and calls `step` again, until the request is ready
//! to be proposed or carried out as a read. A failed step ends the request.
//!
//! # Invariants
//!
//! * A write that grows the backend file is proposed only if it fits in the quota ([`QuotaHeadroom`]).
//! * A linearizable read waits for a read barrier ([`Consensus`](crate::Consensus)), and then until the barrier's index
//!   is applied ([`AppliedWaits`](crate::AppliedWaits)).
//!
//! # Not here
//!
//! Permissions, which are checked when a write is applied or a read is carried out (`state::apply`). Bounds on requests
//! in progress (`requests::admission`).

use prost::Message as _;
use quorate_api::etcdserverpb::alarm_request::AlarmAction;
use quorate_api::etcdserverpb::{
    AlarmRequest, AlarmType, DeleteRangeRequest, InternalRaftRequest, PutRequest, RangeRequest,
    RequestHeader, TxnRequest,
};
use quorate_node::Proposal;
use quorate_state::alarm::Cause;
use quorate_state::apply::{
    RequestRefusal, check_amount, check_delete_range, check_put, check_range, check_structure,
    is_read_only, is_serializable,
};
use quorate_state::quota::{LEASE_COST, Quota, put_cost, txn_cost};

/// The limit on the size of the backend file for client writes.
#[derive(Clone, Copy, Debug)]
pub struct QuotaHeadroom {
    /// The quota of the backend file.
    pub quota: Quota,
    /// The part of the quota, in bytes, that is reserved for writes that free space.
    pub headroom_bytes: u64,
}

impl QuotaHeadroom {
    /// Returns whether a file of `file_bytes` may grow by `cost` bytes.
    #[must_use]
    pub const fn allows(self, file_bytes: u64, cost: u64) -> bool {
        self.quota.allows(file_bytes.saturating_add(self.headroom_bytes), cost)
    }
}

/// A client's request to be checked.
#[derive(Clone, Copy, Debug)]
pub enum Ask<'a> {
    /// Read keys.
    Range(&'a RangeRequest),
    /// Store a key.
    Put(&'a PutRequest),
    /// Delete keys.
    DeleteRange(&'a DeleteRangeRequest),
    /// Carry out several operations atomically.
    Txn(&'a TxnRequest),
    /// Grant a lease.
    LeaseGrant,
}

/// The next step for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Check the client's credentials, if authentication is enabled.
    Credentials,
    /// Check that [`QuotaHeadroom`] allows this growth. If not, raise the NOSPACE alarm ([`no_space_alarm`]) and refuse
    /// the request.
    Quota {
        /// The expected growth of the file, in bytes.
        cost: u64,
    },
    /// Check that no branch of the transaction writes a key twice (`state::apply::check_overlap`). The check is slow if
    /// there are many operations.
    Compare {
        /// The number of operations.
        operation_count: usize,
    },
    /// All checks have passed, and this is the last step.
    Ready(Ready),
}

/// How a checked request is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// Propose the request for the log.
    Propose,
    /// Read from the newest view.
    Read {
        /// Whether the read must wait for a read barrier first.
        needs_barrier: bool,
    },
}

/// The steps of a request from its arrival until it is proposed or carried out as a read.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    txn_ops_max: usize,
    last: Option<Step>,
}

impl Course {
    /// Returns the course of a new request. `txn_ops_max` is the maximum number of operations in a transaction.
    #[must_use]
    pub const fn new(txn_ops_max: usize) -> Self {
        Self { txn_ops_max, last: None }
    }

    /// Returns the next step. The caller must have carried out the previous step.
    ///
    /// # Errors
    ///
    /// Returns the refusal if the request fails a check.
    pub fn step(&mut self, ask: Ask<'_>) -> Result<Step, RequestRefusal> {
        let read =
            |is_serializable: bool| Step::Ready(Ready::Read { needs_barrier: !is_serializable });
        let propose = Step::Ready(Ready::Propose);
        let step = match (ask, self.last) {
            (_, Some(Step::Ready(_))) => unreachable!("`step` is not called after `Ready`"),
            (Ask::Range(range), _) => {
                check_range(range)?;
                read(range.serializable)
            }
            (Ask::Put(put), None) => Step::Quota { cost: put_cost(put) },
            (Ask::Put(put), Some(_)) => {
                check_put(put)?;
                propose
            }
            (Ask::DeleteRange(delete), _) => {
                check_delete_range(delete)?;
                propose
            }
            // An empty transaction needs no credentials, as in etcd.
            (Ask::Txn(txn), None) if *txn != TxnRequest::default() => {
                check_amount(txn, self.txn_ops_max)?;
                Step::Credentials
            }
            (Ask::Txn(txn), None | Some(Step::Credentials)) => Step::Quota { cost: txn_cost(txn) },
            (Ask::Txn(txn), Some(Step::Quota { .. })) => {
                Step::Compare { operation_count: check_structure(txn, self.txn_ops_max)? }
            }
            (Ask::Txn(txn), Some(Step::Compare { .. })) if is_read_only(txn) => {
                read(is_serializable(txn))
            }
            (Ask::Txn(_), Some(Step::Compare { .. })) => propose,
            (Ask::LeaseGrant, None) => Step::Quota { cost: LEASE_COST },
            (Ask::LeaseGrant, Some(Step::Quota { .. })) => Step::Credentials,
            (Ask::LeaseGrant, Some(_)) => propose,
        };
        self.last = Some(step);
        Ok(step)
    }
}

/// Encodes a request for the log. Returns `None` if the encoding is longer than `bytes_max` bytes.
#[must_use]
pub fn encode(
    header: RequestHeader,
    request: InternalRaftRequest,
    bytes_max: usize,
) -> Option<Proposal> {
    let request_id = header.id;
    let request = InternalRaftRequest { header: Some(header), ..request };
    let len = request.encoded_len();
    if len > bytes_max {
        return None;
    }
    // Generated code writes single bytes, and would check the capacity of a growing vector before each of them.
    let mut data = vec![0; len];
    request.encode_raw(&mut &mut data[..]);
    Some(Proposal { request_id, data: data.into() })
}

/// Creates a request that raises or clears this member's NOSPACE alarm. While the alarm is raised, all members refuse
/// writes that grow the backend file.
#[must_use]
pub fn no_space_alarm(member_id: u64, action: AlarmAction, cause: Cause) -> InternalRaftRequest {
    let alarm = AlarmRequest { action: action.into(), member_id, alarm: AlarmType::Nospace.into() };
    InternalRaftRequest {
        alarm: Some(alarm),
        alarm_of_full_disk: cause == Cause::FullDisk,
        ..InternalRaftRequest::default()
    }
}

/// Whether a member may disarm the NOSPACE alarm that it raised because its disk was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disarming {
    /// The alarm stays active for now.
    Refused,
    /// The alarm may be disarmed if all applied changes are in the backend file.
    IfWritten,
    /// The alarm may be disarmed.
    Allowed,
}

impl Disarming {
    /// Decides for a member that no longer refuses writes. `leads` is `None` if the member knows no leader. The alarm
    /// stays active while the file has reached its quota, because the next write would raise it again. Only a leader has
    /// to prove that its disk has room, because the alarm is raised by leaders.
    #[must_use]
    pub fn decide(leads: Option<bool>, file_bytes: u64, quota_bytes: Option<u64>) -> Self {
        match leads {
            _ if quota_bytes.is_some_and(|quota| file_bytes >= quota) => Self::Refused,
            None => Self::Refused,
            Some(true) => Self::IfWritten,
            Some(false) => Self::Allowed,
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_api::etcdserverpb::{RequestOp, request_op};

    use super::*;

    fn course(ask: Ask<'_>) -> Vec<Result<Step, RequestRefusal>> {
        let mut course = Course::new(2);
        let mut steps = Vec::new();
        loop {
            let step = course.step(ask);
            let is_last = matches!(step, Err(_) | Ok(Step::Ready(_)));
            steps.push(step);
            if is_last {
                return steps;
            }
        }
    }

    const PROPOSED: Result<Step, RequestRefusal> = Ok(Step::Ready(Ready::Propose));

    const fn reads(needs_barrier: bool) -> Result<Step, RequestRefusal> {
        Ok(Step::Ready(Ready::Read { needs_barrier }))
    }

    fn put(key: &'static [u8]) -> PutRequest {
        PutRequest { key: key.into(), ..PutRequest::default() }
    }

    fn range(serializable: bool) -> RangeRequest {
        RangeRequest { key: b"k".as_slice().into(), serializable, ..RangeRequest::default() }
    }

    fn txn(operations: Vec<request_op::Request>) -> TxnRequest {
        let success =
            operations.into_iter().map(|request| RequestOp { request: Some(request) }).collect();
        TxnRequest { success, ..TxnRequest::default() }
    }

    #[test]
    fn the_quota_is_checked_first_for_requests_that_grow_the_backend_file() {
        let room = |cost| Ok(Step::Quota { cost });
        assert_eq!(course(Ask::Put(&put(b"k"))), [room(257), PROPOSED]);
        assert_eq!(course(Ask::Put(&put(b""))), [room(256), Err(RequestRefusal::EmptyKey)]);
        let grant = [room(64), Ok(Step::Credentials), PROPOSED];
        assert_eq!(course(Ask::LeaseGrant), grant);
        assert_eq!(
            course(Ask::DeleteRange(&DeleteRangeRequest::default())),
            [Err(RequestRefusal::EmptyKey)]
        );
    }

    #[test]
    fn a_linearizable_range_needs_a_read_barrier() {
        assert_eq!(course(Ask::Range(&range(false))), [reads(true)]);
        assert_eq!(course(Ask::Range(&range(true))), [reads(false)]);
    }

    #[test]
    fn a_transaction_is_proposed_only_if_it_writes() {
        let before = |cost, operation_count| {
            [Step::Credentials, Step::Quota { cost }, Step::Compare { operation_count }].map(Ok)
        };
        let read = txn(vec![request_op::Request::RequestRange(range(false))]);
        let steps = [&before(0, 1)[..], &[reads(true)]].concat();
        assert_eq!(course(Ask::Txn(&read)), steps);
        let write = txn(vec![request_op::Request::RequestPut(put(b"k"))]);
        let steps = [&before(257, 1)[..], &[PROPOSED]].concat();
        assert_eq!(course(Ask::Txn(&write)), steps);
        let long = txn(vec![request_op::Request::RequestRange(range(true)); 3]);
        let refused = Err(RequestRefusal::TooManyOperations);
        let steps = [&before(0, 1)[..2], &[refused]].concat();
        assert_eq!(course(Ask::Txn(&long)), steps);
        assert_eq!(course(Ask::Txn(&TxnRequest::default()))[0], Ok(Step::Quota { cost: 0 }));
        // Empty operations take much less space in a request than in memory.
        let empty = RequestOp { request: None };
        let huge = TxnRequest { success: vec![empty; 20_000], ..TxnRequest::default() };
        assert_eq!(course(Ask::Txn(&huge)), [refused], "refused before the credentials are read");
    }

    #[test]
    fn requests_without_cost_may_use_the_reserved_headroom() {
        let room = QuotaHeadroom { quota: Quota::new(1_000), headroom_bytes: 100 };
        assert!(room.allows(800, 99));
        assert!(!room.allows(800, 100));
        assert!(room.allows(990, 0), "a request without cost may use the headroom");
        let unbounded = QuotaHeadroom { quota: Quota::new(-1), headroom_bytes: 100 };
        assert!(unbounded.allows(u64::MAX, 1));
    }

    #[test]
    fn a_request_that_exceeds_the_size_limit_is_not_proposed() {
        let header = RequestHeader { id: 7, ..RequestHeader::default() };
        let request =
            InternalRaftRequest { put: Some(put(b"k")), ..InternalRaftRequest::default() };
        let proposal = encode(header.clone(), request.clone(), 100).unwrap();
        assert_eq!(proposal.request_id, 7);
        let len = proposal.data.len();
        assert!(encode(header.clone(), request.clone(), len).is_some());
        assert!(encode(header, request, len - 1).is_none());
    }

    #[test]
    fn an_alarm_for_a_full_disk_stays_active_while_the_file_has_reached_its_quota() {
        let decide = |leads, file_bytes| Disarming::decide(leads, file_bytes, Some(100));
        assert_eq!(decide(Some(true), 99), Disarming::IfWritten);
        assert_eq!(decide(Some(false), 99), Disarming::Allowed);
        assert_eq!(decide(None, 99), Disarming::Refused);
        for leads in [None, Some(true), Some(false)] {
            assert_eq!(decide(leads, 100), Disarming::Refused);
        }
        assert_eq!(Disarming::decide(Some(false), u64::MAX, None), Disarming::Allowed);
    }
}
