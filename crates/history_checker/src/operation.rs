//! What a client asked for, and what it was told.
//!
//! The words are those of the API (`put`, `range`, `txn` …), but the types are plain values: a recorder
//! translates from messages, or from the state's own types, once. Keys and values are reference counted.
//!
//! Not here: sorting and the revision filters of ranges, users, and whatever else the checkers have no
//! opinion on. Requests with those are not recorded.

use bytes::Bytes;

use crate::Moment;

/// A key with what is stored under it, as the API tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyValue {
    /// Its name.
    pub key: Bytes,
    /// What it holds. Nothing in an answer that was asked for keys only.
    pub value: Bytes,
    /// The revision that created it.
    pub create_revision: i64,
    /// The revision that changed it last.
    pub mod_revision: i64,
    /// Changes since it was created, that one included.
    pub version: i64,
    /// The lease that it goes with; 0 for none.
    pub lease: i64,
}

/// Keys as the API names them: one, those from here to there, or all from here on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key.
    pub key: Bytes,
    /// The first key that is not meant; empty for `key` alone, one zero byte for all from `key` on.
    pub end: Bytes,
}

impl KeyRange {
    /// Every key there is.
    pub const ALL: Self = Self { key: Bytes::from_static(b"\0"), end: Bytes::from_static(b"\0") };

    /// One key.
    #[must_use]
    pub const fn one(key: Bytes) -> Self {
        Self { key, end: Bytes::new() }
    }

    /// True for the keys that are meant.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        match &self.end[..] {
            [] => key == &self.key[..],
            [0] => key >= &self.key[..],
            end => key >= &self.key[..] && key < end,
        }
    }
}

/// Stores a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Put {
    /// Where.
    pub key: Bytes,
    /// What.
    pub value: Bytes,
    /// The lease that the key goes with from now on; 0 for none.
    pub lease: i64,
    /// Whether the answer tells what was there.
    pub prev_kv: bool,
    /// Keep what is stored, and change the rest.
    pub ignore_value: bool,
    /// Keep the lease, and change the rest.
    pub ignore_lease: bool,
}

/// Deletes keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delete {
    /// Which.
    pub keys: KeyRange,
    /// Whether the answer tells what was there.
    pub prev_kv: bool,
}

/// Reads keys, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// Which.
    pub keys: KeyRange,
    /// As of which revision; 0 for the newest.
    pub revision: i64,
    /// So many keys at most; 0 for all.
    pub limit: i64,
    /// Whether the member may answer from what it has, however old.
    pub serializable: bool,
    /// Without values.
    pub keys_only: bool,
    /// Without keys.
    pub count_only: bool,
}

/// A condition on keys. Every key of the range has to fulfil it; a range without keys is compared as one
/// key that was never written, except that no value compares with a missing one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// Which keys.
    pub keys: KeyRange,
    /// How what they hold must stand to the operand.
    pub relation: Relation,
    /// What is compared, and with what.
    pub operand: Operand,
}

/// How one thing stands to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The same.
    Equal,
    /// Anything else.
    NotEqual,
    /// More.
    Greater,
    /// Less.
    Less,
}

/// Of what a condition speaks, with the number or value that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The key's value.
    Value(Bytes),
    /// The key's version.
    Version(i64),
    /// The revision that created it.
    CreateRevision(i64),
    /// The revision that changed it last.
    ModRevision(i64),
    /// Its lease.
    Lease(i64),
}

/// Several operations at once, of which conditions choose one list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// All of these have to hold.
    pub compares: Vec<Compare>,
    /// Then these are carried out, in order.
    pub success: Vec<KvRequest>,
    /// Or else these.
    pub failure: Vec<KvRequest>,
}

/// What is asked of the key space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvRequest {
    /// Store.
    Put(Put),
    /// Delete.
    Delete(Delete),
    /// Read.
    Range(Range),
    /// Several of these at once, perhaps nested.
    Txn(Txn),
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Something about keys.
    Kv(KvRequest),
    /// Forget what was superseded up to a revision.
    Compact {
        /// The oldest revision that can be read from then on.
        revision: i64,
    },
    /// A new lease.
    LeaseGrant {
        /// Its name; 0 to be told one.
        id: i64,
        /// Seconds that it lasts without being kept alive.
        ttl_secs: i64,
    },
    /// The end of a lease, and of its keys.
    LeaseRevoke {
        /// Its name.
        id: i64,
    },
    /// A lease lasts as long as at its beginning, from now on.
    LeaseKeepAlive {
        /// Its name.
        id: i64,
    },
    /// What has become of a lease.
    LeaseTimeToLive {
        /// Its name.
        id: i64,
        /// Whether the answer tells the keys that go with it.
        keys: bool,
    },
}

/// An answer to a [`KvRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvAnswer {
    /// Stored.
    Put {
        /// What was there, if that was asked for.
        previous: Option<KeyValue>,
    },
    /// Deleted.
    Delete {
        /// How many keys.
        deleted: i64,
        /// What was there, if that was asked for, in the order of keys.
        previous: Vec<KeyValue>,
    },
    /// Read.
    Range {
        /// What was found, in the order of keys.
        kvs: Vec<KeyValue>,
        /// How many keys there are in the range, whatever the limit.
        count: i64,
        /// Whether the limit has left some out.
        more: bool,
    },
    /// Carried out.
    Txn {
        /// Whether the conditions held.
        succeeded: bool,
        /// The answers to what they chose, in order.
        answers: Vec<Self>,
    },
}

/// An answer to a [`Request`] that was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Of the key space.
    Kv(KvAnswer),
    /// What was superseded is forgotten.
    Compacted,
    /// There is a lease.
    LeaseGranted {
        /// Its name.
        id: i64,
        /// Seconds that it lasts.
        ttl_secs: i64,
    },
    /// The lease is no more.
    LeaseRevoked,
    /// The lease lasts for so many seconds from now on.
    LeaseKeptAlive {
        /// Never 0: that would be [`Refusal::LeaseNotFound`].
        ttl_secs: i64,
    },
    /// The lease lives.
    LeaseTimeToLive {
        /// Seconds that are left.
        ttl_secs: i64,
        /// Seconds that it was granted for.
        granted_ttl_secs: i64,
        /// The keys that go with it, in any order, if they were asked for.
        keys: Option<Vec<Bytes>>,
    },
}

/// The state's reason for carrying nothing out. It was true at some moment between question and answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The revision has been compacted.
    Compacted,
    /// There is no such revision yet.
    FutureRevision,
    /// There is no such lease. Keeping one alive that is not there is told as "0 seconds" by the API,
    /// asking for its time as "-1": both are this.
    LeaseNotFound,
    /// There is one of that name already.
    LeaseExists,
    /// What was to be kept of a key is not there.
    KeyNotFound,
}

/// What became of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was carried out.
    Answered {
        /// When the client knew.
        at: Moment,
        /// The revision of the answer's header; nothing where the recorder did not see one, or where the
        /// header says nothing (of leases).
        revision: Option<i64>,
        /// What it was told.
        answer: Answer,
    },
    /// The state refused it, and nothing has happened.
    Refused {
        /// When the client knew.
        at: Moment,
        /// Why.
        refusal: Refusal,
    },
    /// Nobody knows. It may have been carried out at any moment since it was asked for, may still be, or
    /// never. No answer, a broken connection and a change of leaders are this; so is "no space", which a
    /// member may say of what was carried out elsewhere. What certainly was never carried out need not
    /// be recorded.
    Unknown,
}

/// One question of one client, and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Who asked, for the reader of a failure only.
    pub client: u64,
    /// Which member was asked, for the reader of a failure only.
    pub member: u64,
    /// When.
    pub called: Moment,
    /// For what.
    pub request: Request,
    /// What became of it.
    pub outcome: Outcome,
}

impl Operation {
    /// When its client knew what became of it, if it ever did.
    #[must_use]
    pub const fn returned(&self) -> Option<Moment> {
        match &self.outcome {
            Outcome::Answered { at, .. } | Outcome::Refused { at, .. } => Some(*at),
            Outcome::Unknown => None,
        }
    }
}
