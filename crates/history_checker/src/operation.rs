//! The requests of clients and their outcomes.
//!
//! The names come from the API (`put`, `range`, `txn` …), but the types are plain values: the recorder converts API
//! messages, or the types of the state machine, to these types once. Keys and values are reference counted.
//!
//! Not here: the sort orders and revision filters of ranges, users, and other features that are not checked. Requests
//! that use these features are not recorded.

use bytes::Bytes;

use crate::Moment;

/// A record, as the API returns it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// The value; empty in a response to a request for keys only.
    pub value: Bytes,
    /// The revision that created the key.
    pub create_revision: i64,
    /// The revision of the last change.
    pub mod_revision: i64,
    /// The number of changes since the key was created, including its creation.
    pub version: i64,
    /// The lease that the key is attached to; 0 for none.
    pub lease: i64,
}

/// A key range of the API: one key, an interval, or all keys from `key` on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key.
    pub key: Bytes,
    /// The first key after the range. It is empty for `key` alone, and one zero byte for all keys from `key` on.
    pub end: Bytes,
}

impl KeyRange {
    /// All keys.
    pub const ALL: Self = Self { key: Bytes::from_static(b"\0"), end: Bytes::from_static(b"\0") };

    /// Creates the range of a single key.
    #[must_use]
    pub const fn one(key: Bytes) -> Self {
        Self { key, end: Bytes::new() }
    }

    /// Returns whether the key is in the range.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        match &self.end[..] {
            [] => key == &self.key[..],
            [0] => key >= &self.key[..],
            end => key >= &self.key[..] && key < end,
        }
    }
}

/// A request to store a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Put {
    /// The key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
    /// The lease to attach the key to; 0 for none.
    pub lease: i64,
    /// Whether the response includes the previous record.
    pub prev_kv: bool,
    /// Whether to keep the stored value and change only the other fields.
    pub ignore_value: bool,
    /// Whether to keep the attached lease and change only the other fields.
    pub ignore_lease: bool,
}

/// A request to delete keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delete {
    /// The keys.
    pub keys: KeyRange,
    /// Whether the response includes the deleted records.
    pub prev_kv: bool,
}

/// A request to read keys, in key order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The keys.
    pub keys: KeyRange,
    /// The revision to read at; 0 for the newest.
    pub revision: i64,
    /// The maximum number of keys; 0 for all.
    pub limit: i64,
    /// Whether the member may answer from its own state, which may be stale.
    pub serializable: bool,
    /// Whether values are left out.
    pub keys_only: bool,
    /// Whether only the count is returned.
    pub count_only: bool,
}

/// A condition on keys. Every key of the range must meet it. If the range contains no keys, the condition is evaluated
/// as for a single key that was never written, except that a condition on its value is false.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// The keys.
    pub keys: KeyRange,
    /// How the field of a key must relate to the operand.
    pub relation: Relation,
    /// The field to compare, and the operand.
    pub operand: Operand,
}

/// A relation between two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Equal.
    Equal,
    /// Not equal.
    NotEqual,
    /// Greater.
    Greater,
    /// Less.
    Less,
}

/// The field that a condition compares, with the operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The value.
    Value(Bytes),
    /// The version.
    Version(i64),
    /// The revision that created the key.
    CreateRevision(i64),
    /// The revision of the last change.
    ModRevision(i64),
    /// The lease.
    Lease(i64),
}

/// A transaction: conditions, and two lists of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// The conditions. If all conditions hold, `success` is executed, and otherwise `failure`.
    pub compares: Vec<Compare>,
    /// The requests that are executed, in order, if all conditions hold.
    pub success: Vec<KvRequest>,
    /// The requests that are executed, in order, if a condition does not hold.
    pub failure: Vec<KvRequest>,
}

/// A key-value request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvRequest {
    /// Store a value.
    Put(Put),
    /// Delete keys.
    Delete(Delete),
    /// Read keys.
    Range(Range),
    /// Execute several requests atomically. Transactions may be nested.
    Txn(Txn),
}

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A key-value request.
    Kv(KvRequest),
    /// Compact the keyspace: older revisions can no longer be read.
    Compact {
        /// The oldest revision that remains readable.
        revision: i64,
    },
    /// Grant a lease.
    LeaseGrant {
        /// The lease id; 0 to let the cluster choose one.
        id: i64,
        /// The TTL in seconds.
        ttl_secs: i64,
    },
    /// Revoke a lease, which deletes its keys.
    LeaseRevoke {
        /// The lease id.
        id: i64,
    },
    /// Renew a lease: it lives for its TTL from now on.
    LeaseKeepAlive {
        /// The lease id.
        id: i64,
    },
    /// Read the remaining time of a lease.
    LeaseTimeToLive {
        /// The lease id.
        id: i64,
        /// Whether the response lists the attached keys.
        keys: bool,
    },
}

/// The response to a [`KvRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvResponse {
    /// The value is stored.
    Put {
        /// The previous record, if requested.
        previous: Option<KeyValue>,
    },
    /// The keys are deleted.
    Delete {
        /// The number of deleted keys.
        deleted: i64,
        /// The deleted records in key order, if requested.
        previous: Vec<KeyValue>,
    },
    /// The keys are read.
    Range {
        /// The records, in key order.
        kvs: Vec<KeyValue>,
        /// The number of keys in the range, regardless of the limit.
        count: i64,
        /// Whether keys were left out because of the limit.
        more: bool,
    },
    /// The transaction was executed.
    Txn {
        /// Whether the conditions held.
        succeeded: bool,
        /// The responses to the executed requests, in order.
        responses: Vec<Self>,
    },
}

/// The response to an executed [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// The response to a key-value request.
    Kv(KvResponse),
    /// The keyspace is compacted.
    Compacted,
    /// The lease is granted.
    LeaseGranted {
        /// The lease id.
        id: i64,
        /// The TTL in seconds.
        ttl_secs: i64,
    },
    /// The lease is revoked.
    LeaseRevoked,
    /// The lease is renewed.
    LeaseKeptAlive {
        /// The TTL in seconds, never 0: the API reports [`Refusal::LeaseNotFound`] as 0.
        ttl_secs: i64,
    },
    /// The lease is alive.
    LeaseTimeToLive {
        /// The remaining time in seconds.
        ttl_secs: i64,
        /// The granted TTL in seconds.
        granted_ttl_secs: i64,
        /// The attached keys in any order, if requested.
        keys: Option<Vec<Bytes>>,
    },
}

/// Why the state machine refused a request. The reason was true at some moment between the call and the return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The revision is compacted.
    Compacted,
    /// The revision does not exist yet.
    FutureRevision,
    /// The lease does not exist. The API reports this as a TTL of 0 for a renewal, and as a TTL of -1 for a query of
    /// the remaining time.
    LeaseNotFound,
    /// A lease with this id already exists.
    LeaseExists,
    /// The request would keep the value or lease of a key that does not exist.
    KeyNotFound,
}

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The operation was executed.
    Succeeded {
        /// When the client received the response.
        at: Moment,
        /// The revision in the response header. `None` if the recorder saw no header, or if the header has no revision
        /// (as in responses to lease requests).
        revision: Option<i64>,
        /// The response.
        response: Response,
    },
    /// The state machine refused the operation, and nothing changed.
    Refused {
        /// When the client received the refusal.
        at: Moment,
        /// The reason.
        refusal: Refusal,
    },
    /// The outcome is unknown. The request may have been executed at any moment since the call, may still be executed
    /// later, or may never be executed. Examples are a missing response, a broken connection, a change of leader, and
    /// "no space", which one member may report for a request that another member executed. A request that was certainly
    /// never executed need not be recorded.
    Unknown,
}

/// One request of one client, and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The client, for error messages only.
    pub client: u64,
    /// The member that received the request, for error messages only.
    pub member: u64,
    /// When the client sent the request.
    pub called: Moment,
    /// The request.
    pub request: Request,
    /// The outcome.
    pub outcome: Outcome,
}

impl Operation {
    /// Returns the moment at which the client learned the outcome, or `None` if the client never learned it.
    #[must_use]
    pub const fn returned(&self) -> Option<Moment> {
        match &self.outcome {
            Outcome::Succeeded { at, .. } | Outcome::Refused { at, .. } => Some(*at),
            Outcome::Unknown => None,
        }
    }
}
