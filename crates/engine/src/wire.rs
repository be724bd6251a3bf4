//! The messages between servers: questions that only the sequencer can answer, and the replies to them.
//!
//! # Invariants
//!
//! * Every refusal and every response has its own number, and numbers are never reused, so servers of
//!   different versions understand each other.
//!
//! # Not here
//!
//! The transport, which the caller of the engine provides (`engine::Forward`).

use bytes::Bytes;
use prost::Message;
use quorate_api::etcdserverpb as pb;
use quorate_state::apply::{AuthRefusal, Refusal, RequestRefusal, Response};
use quorate_state::lease::LeaseRefusal;

use crate::error::{EngineError, Indexed};
use crate::sequencer::Outcome;

/// A question to the sequencer. Exactly one of the first three fields is set.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Question {
    /// The request that is to be applied.
    #[prost(message, optional, tag = "1")]
    pub(crate) request: Option<pb::InternalRaftRequest>,
    /// The id of the lease that is to be renewed.
    #[prost(int64, optional, tag = "2")]
    pub(crate) renew: Option<i64>,
    /// The id of the lease whose lifetimes are requested.
    #[prost(int64, optional, tag = "3")]
    pub(crate) time_to_live: Option<i64>,
    /// The name of the user who renews the lease.
    #[prost(string, tag = "4")]
    pub(crate) username: String,
    /// The revision of users and roles for which the user's token is valid.
    #[prost(uint64, tag = "5")]
    pub(crate) auth_revision: u64,
}

/// The reply of the sequencer.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Reply {
    /// The number of the error (see [`Trouble`]), or 0 if there is no error.
    #[prost(uint32, tag = "1")]
    pub(crate) trouble: u32,
    #[prost(string, tag = "2")]
    pub(crate) text: String,
    /// The number of the refusal, or 0 if the request was not refused.
    #[prost(uint32, tag = "3")]
    refusal: u32,
    #[prost(message, optional, tag = "4")]
    response: Option<EncodedResponse>,
    /// The lifetimes of a lease, in seconds. Absent if the lease does not exist.
    #[prost(message, optional, tag = "5")]
    pub(crate) lease: Option<LeaseTimes>,
    /// A size in bytes that exceeds a limit, followed by the limit. If a key or name is too long, a number for its kind
    /// (key, user name or role name) follows.
    #[prost(uint64, repeated, tag = "6")]
    excess: Vec<u64>,
}

/// The lifetimes of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseTimes {
    /// The granted lifetime, in seconds.
    #[prost(int64, tag = "1")]
    pub granted_secs: i64,
    /// The remaining lifetime, in seconds.
    #[prost(int64, tag = "2")]
    pub remaining_secs: i64,
}

/// A response. Exactly one field is set.
#[derive(Clone, PartialEq, Message)]
struct EncodedResponse {
    #[prost(message, optional, tag = "1")]
    range: Option<pb::RangeResponse>,
    #[prost(message, optional, tag = "2")]
    put: Option<pb::PutResponse>,
    #[prost(message, optional, tag = "3")]
    delete_range: Option<pb::DeleteRangeResponse>,
    #[prost(message, optional, tag = "4")]
    txn: Option<pb::TxnResponse>,
    #[prost(message, optional, tag = "5")]
    compaction: Option<pb::CompactionResponse>,
    #[prost(message, optional, tag = "6")]
    lease_grant: Option<pb::LeaseGrantResponse>,
    #[prost(message, optional, tag = "7")]
    lease_revoke: Option<pb::LeaseRevokeResponse>,
    #[prost(message, optional, tag = "8")]
    lease_checkpoint: Option<pb::LeaseCheckpointResponse>,
    #[prost(message, optional, tag = "9")]
    alarm: Option<pb::AlarmResponse>,
    #[prost(message, optional, tag = "10")]
    auth_status: Option<pb::AuthStatusResponse>,
    #[prost(message, optional, tag = "11")]
    authenticated: Option<pb::AuthenticateResponse>,
    #[prost(uint64, tag = "12")]
    auth_revision: u64,
    #[prost(message, optional, tag = "13")]
    user_get: Option<pb::AuthUserGetResponse>,
    #[prost(message, optional, tag = "14")]
    user_list: Option<pb::AuthUserListResponse>,
    #[prost(message, optional, tag = "15")]
    role_get: Option<pb::AuthRoleGetResponse>,
    #[prost(message, optional, tag = "16")]
    role_list: Option<pb::AuthRoleListResponse>,
    /// The header of a response that consists only of a header.
    #[prost(message, optional, tag = "17")]
    done: Option<pb::ResponseHeader>,
    #[prost(bool, tag = "18")]
    is_empty: bool,
}

/// The numbers that stand for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    NotSequencer = 1,
    Unknown = 2,
    TooMany = 3,
    Malformed = 4,
    Other = 5,
    KeyTooLong = 6,
    TooLarge = 7,
    Database = 8,
}

impl Reply {
    pub(crate) fn of_outcome(outcome: Outcome) -> Self {
        match outcome {
            Ok(Ok(response)) => {
                Self { response: Some(EncodedResponse::of(response)), ..Self::default() }
            }
            Ok(Err(refusal)) => Self { refusal: number_of(refusal), ..Self::default() },
            Err(error) => Self::of_error(&error),
        }
    }

    pub(crate) fn of_lease(lease: Option<LeaseTimes>) -> Self {
        Self { lease, ..Self::default() }
    }

    pub(crate) fn of_refusal(refusal: Refusal) -> Self {
        Self { refusal: number_of(refusal), ..Self::default() }
    }

    /// Returns the lifetimes of the lease that the question was about, or the refusal.
    pub(crate) fn into_lease(self) -> Result<Result<Option<LeaseTimes>, Refusal>, EngineError> {
        match (self.error(), self.refusal) {
            (Some(error), _) => Err(error),
            (None, 0) => Ok(Ok(self.lease)),
            (None, number) => {
                let refusal = refusal_of(number).ok_or(EngineError::OutcomeUnknown)?;
                Ok(Err(refusal))
            }
        }
    }

    pub(crate) fn of_error(error: &EngineError) -> Self {
        let trouble = match error {
            EngineError::NoSequencer | EngineError::SequencerChanged | EngineError::Stopped => {
                Trouble::NotSequencer
            }
            EngineError::OutcomeUnknown => Trouble::Unknown,
            EngineError::TooManyRequests | EngineError::NoRoom => Trouble::TooMany,
            EngineError::Malformed(_) => Trouble::Malformed,
            EngineError::TooLarge { .. } => Trouble::TooLarge,
            EngineError::KeyTooLong { .. } => Trouble::KeyTooLong,
            EngineError::Database(_) | EngineError::DatabaseOfSequencer(_) => Trouble::Database,
            EngineError::Content(_)
            | EngineError::Failed(_)
            | EngineError::Cancelled
            | EngineError::Thread(_)
            | EngineError::Random(_) => Trouble::Other,
        };
        let excess = match error {
            EngineError::TooLarge { bytes, bytes_max } => vec![*bytes as u64, *bytes_max as u64],
            EngineError::KeyTooLong { what, bytes, bytes_max } => {
                vec![*bytes as u64, *bytes_max as u64, number_of_indexed(*what)]
            }
            _ => Vec::new(),
        };
        Self { trouble: trouble as u32, text: error.to_string(), excess, ..Self::default() }
    }

    /// Returns the error in the reply, if there is one.
    pub(crate) fn error(&self) -> Option<EngineError> {
        let text = || self.text.clone();
        match self.trouble {
            0 => None,
            1 => Some(EngineError::SequencerChanged),
            3 => Some(EngineError::TooManyRequests),
            4 => Some(EngineError::Malformed(text())),
            5 => Some(EngineError::Failed(text())),
            8 => Some(EngineError::DatabaseOfSequencer(text())),
            7 => {
                let [bytes, bytes_max] = self.excess();
                Some(EngineError::TooLarge { bytes, bytes_max })
            }
            6 => {
                let [bytes, bytes_max] = self.excess();
                let what = match self.excess.get(2) {
                    Some(1) => Indexed::UserName,
                    Some(2) => Indexed::RoleName,
                    Some(_) | None => Indexed::Key,
                };
                Some(EngineError::KeyTooLong { what, bytes, bytes_max })
            }
            // A number that this version does not define may stand for any error, so the request may
            // have been applied.
            _ => Some(EngineError::OutcomeUnknown),
        }
    }

    /// Returns the size that exceeds a limit, and the limit, in bytes.
    fn excess(&self) -> [usize; 2] {
        [0, 1].map(|at| {
            let bytes = *self.excess.get(at).unwrap_or(&0);
            usize::try_from(bytes).unwrap_or(usize::MAX)
        })
    }

    pub(crate) fn into_outcome(self) -> Outcome {
        if let Some(error) = self.error() {
            return Err(error);
        }
        if self.refusal != 0 {
            return match refusal_of(self.refusal) {
                Some(refusal) => Ok(Err(refusal)),
                None => Err(EngineError::OutcomeUnknown),
            };
        }
        self.response.and_then(EncodedResponse::decode).map(Ok).ok_or(EngineError::OutcomeUnknown)
    }

    pub(crate) fn encode_bytes(&self) -> Bytes {
        self.encode_to_vec().into()
    }
}

impl EncodedResponse {
    fn of(response: Response) -> Self {
        let mut encoded = Self::default();
        match response {
            Response::Range(response) => encoded.range = Some(response),
            Response::Put(response) => encoded.put = Some(response),
            Response::DeleteRange(response) => encoded.delete_range = Some(response),
            Response::Txn(response) => encoded.txn = Some(response),
            Response::Compaction(response) => encoded.compaction = Some(response),
            Response::LeaseGrant(response) => encoded.lease_grant = Some(response),
            Response::LeaseRevoke(response) => encoded.lease_revoke = Some(response),
            Response::LeaseCheckpoint(response) => encoded.lease_checkpoint = Some(response),
            Response::Alarm(response) => encoded.alarm = Some(response),
            Response::AuthStatus(response) => encoded.auth_status = Some(response),
            Response::Authenticated { response, auth_revision } => {
                encoded.authenticated = Some(response);
                encoded.auth_revision = auth_revision;
            }
            Response::AuthUserGet(response) => encoded.user_get = Some(response),
            Response::AuthUserList(response) => encoded.user_list = Some(response),
            Response::AuthRoleGet(response) => encoded.role_get = Some(response),
            Response::AuthRoleList(response) => encoded.role_list = Some(response),
            Response::AuthDone(header) => encoded.done = Some(header.unwrap_or_default()),
            Response::Empty => encoded.is_empty = true,
        }
        encoded
    }

    fn decode(self) -> Option<Response> {
        let auth_revision = self.auth_revision;
        let authenticated = |response| Response::Authenticated { response, auth_revision };
        let keys = self.range.map(Response::Range).or_else(|| self.put.map(Response::Put));
        keys.or_else(|| self.delete_range.map(Response::DeleteRange))
            .or_else(|| self.txn.map(Response::Txn))
            .or_else(|| self.compaction.map(Response::Compaction))
            .or_else(|| self.lease_grant.map(Response::LeaseGrant))
            .or_else(|| self.lease_revoke.map(Response::LeaseRevoke))
            .or_else(|| self.lease_checkpoint.map(Response::LeaseCheckpoint))
            .or_else(|| self.alarm.map(Response::Alarm))
            .or_else(|| self.auth_status.map(Response::AuthStatus))
            .or_else(|| self.authenticated.map(authenticated))
            .or_else(|| self.user_get.map(Response::AuthUserGet))
            .or_else(|| self.user_list.map(Response::AuthUserList))
            .or_else(|| self.role_get.map(Response::AuthRoleGet))
            .or_else(|| self.role_list.map(Response::AuthRoleList))
            .or_else(|| self.done.map(|header| Response::AuthDone(Some(header))))
            .or_else(|| self.is_empty.then_some(Response::Empty))
    }
}

const fn number_of_indexed(what: Indexed) -> u64 {
    match what {
        Indexed::Key => 0,
        Indexed::UserName => 1,
        Indexed::RoleName => 2,
    }
}

const fn number_of(refusal: Refusal) -> u32 {
    match refusal {
        Refusal::Compacted => 1,
        Refusal::FutureRevision => 2,
        Refusal::KeyNotFound => 3,
        Refusal::NoSpace => 4,
        Refusal::Corrupt => 5,
        Refusal::Request(refusal) => match refusal {
            RequestRefusal::EmptyKey => 20,
            RequestRefusal::EmptyOperation => 21,
            RequestRefusal::ValueProvided => 22,
            RequestRefusal::LeaseProvided => 23,
            RequestRefusal::InvalidSortOption => 24,
            RequestRefusal::TooManyOperations => 25,
            RequestRefusal::DuplicateKey => 26,
        },
        Refusal::Lease(refusal) => match refusal {
            LeaseRefusal::NotFound => 40,
            LeaseRefusal::Exists => 41,
            LeaseRefusal::TtlTooLarge => 42,
        },
        Refusal::Auth(refusal) => match refusal {
            AuthRefusal::NotEnabled => 60,
            AuthRefusal::RootUserNotExist => 61,
            AuthRefusal::RootRoleNotExist => 62,
            AuthRefusal::UserAlreadyExists => 63,
            AuthRefusal::UserEmpty => 64,
            AuthRefusal::UserNotFound => 65,
            AuthRefusal::RoleAlreadyExists => 66,
            AuthRefusal::RoleNotFound => 67,
            AuthRefusal::RoleEmpty => 68,
            AuthRefusal::AuthenticationFailed => 69,
            AuthRefusal::NoPasswordUser => 70,
            AuthRefusal::PermissionNotGiven => 71,
            AuthRefusal::PermissionDenied => 72,
            AuthRefusal::RoleNotGranted => 73,
            AuthRefusal::PermissionNotGranted => 74,
            AuthRefusal::InvalidManagement => 75,
            AuthRefusal::OldRevision => 76,
            AuthRefusal::NameTooLong => 77,
        },
    }
}

/// All refusals, for looking up a refusal by its number.
const REFUSALS: [Refusal; 33] = [
    Refusal::Compacted,
    Refusal::FutureRevision,
    Refusal::KeyNotFound,
    Refusal::NoSpace,
    Refusal::Corrupt,
    Refusal::Request(RequestRefusal::EmptyKey),
    Refusal::Request(RequestRefusal::EmptyOperation),
    Refusal::Request(RequestRefusal::ValueProvided),
    Refusal::Request(RequestRefusal::LeaseProvided),
    Refusal::Request(RequestRefusal::InvalidSortOption),
    Refusal::Request(RequestRefusal::TooManyOperations),
    Refusal::Request(RequestRefusal::DuplicateKey),
    Refusal::Lease(LeaseRefusal::NotFound),
    Refusal::Lease(LeaseRefusal::Exists),
    Refusal::Lease(LeaseRefusal::TtlTooLarge),
    Refusal::Auth(AuthRefusal::NotEnabled),
    Refusal::Auth(AuthRefusal::RootUserNotExist),
    Refusal::Auth(AuthRefusal::RootRoleNotExist),
    Refusal::Auth(AuthRefusal::UserAlreadyExists),
    Refusal::Auth(AuthRefusal::UserEmpty),
    Refusal::Auth(AuthRefusal::UserNotFound),
    Refusal::Auth(AuthRefusal::RoleAlreadyExists),
    Refusal::Auth(AuthRefusal::RoleNotFound),
    Refusal::Auth(AuthRefusal::RoleEmpty),
    Refusal::Auth(AuthRefusal::AuthenticationFailed),
    Refusal::Auth(AuthRefusal::NoPasswordUser),
    Refusal::Auth(AuthRefusal::PermissionNotGiven),
    Refusal::Auth(AuthRefusal::PermissionDenied),
    Refusal::Auth(AuthRefusal::RoleNotGranted),
    Refusal::Auth(AuthRefusal::PermissionNotGranted),
    Refusal::Auth(AuthRefusal::InvalidManagement),
    Refusal::Auth(AuthRefusal::OldRevision),
    Refusal::Auth(AuthRefusal::NameTooLong),
];

fn refusal_of(number: u32) -> Option<Refusal> {
    REFUSALS.into_iter().find(|refusal| number_of(*refusal) == number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::DatabaseFault;

    fn transferred(outcome: Outcome) -> Outcome {
        let bytes = Reply::of_outcome(outcome).encode_bytes();
        Reply::decode(bytes).unwrap().into_outcome()
    }

    #[test]
    fn every_refusal_round_trips_in_a_reply() {
        for refusal in REFUSALS {
            assert_eq!(transferred(Ok(Err(refusal))).unwrap(), Err(refusal));
        }
        let mut numbers: Vec<_> = REFUSALS.map(number_of).into();
        numbers.dedup();
        assert_eq!(numbers.len(), REFUSALS.len());
    }

    #[test]
    fn responses_round_trip_in_a_reply_even_if_they_are_empty() {
        let authenticated = Response::Authenticated {
            response: pb::AuthenticateResponse::default(),
            auth_revision: 7,
        };
        for response in [
            Response::Put(pb::PutResponse::default()),
            Response::Txn(pb::TxnResponse { succeeded: true, ..pb::TxnResponse::default() }),
            authenticated,
            Response::AuthDone(Some(pb::ResponseHeader::default())),
            Response::Empty,
        ] {
            assert_eq!(transferred(Ok(Ok(response.clone()))).unwrap(), Ok(response));
        }
    }

    #[test]
    fn errors_about_exceeded_limits_round_trip_in_a_reply() {
        let (bytes, bytes_max) = (3_000, 2_048);
        let kinds = [Indexed::Key, Indexed::UserName, Indexed::RoleName];
        let too_long = kinds.map(|what| EngineError::KeyTooLong { what, bytes, bytes_max });
        for error in too_long.into_iter().chain([EngineError::TooLarge { bytes, bytes_max }]) {
            let expected = error.to_string();
            assert_eq!(transferred(Err(error)).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn a_database_fault_of_the_sequencer_is_reported_as_a_database_fault() {
        let fault = DatabaseFault::Unread("the log table could not be read");
        let expected = fault.to_string();
        let error = transferred(Err(fault.into())).unwrap_err();
        assert!(matches!(error, EngineError::DatabaseOfSequencer(text) if text == expected));
    }

    #[test]
    fn a_reply_that_cannot_be_interpreted_leaves_the_outcome_unknown() {
        for reply in [
            Reply::default(),
            Reply { trouble: 99, ..Reply::default() },
            Reply { refusal: 9999, ..Reply::default() },
        ] {
            assert!(matches!(reply.into_outcome(), Err(EngineError::OutcomeUnknown)));
        }
        assert!(matches!(
            transferred(Err(EngineError::SequencerChanged)),
            Err(EngineError::SequencerChanged)
        ));
    }
}
