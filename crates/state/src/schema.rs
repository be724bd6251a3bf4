//! The names of buckets and of fixed keys in the backend file, and the encoding of revisions. No other module depends
//! on how names, fixed keys and revisions are written in the file.
//!
//! The file has etcd's format, so etcd determines every name and byte here. A revision is stored as
//! `main` in eight big-endian bytes, `_`, and `sub` in eight big-endian bytes. The key of a
//! deletion ends with an additional `t`. Byte order is therefore revision order.
//!
//! # Invariants
//!
//! * [`RecordKey::decode`] accepts exactly the bytes that [`RecordKey::encode`] writes. Untrusted
//!   bytes never cause a panic.
//!
//! # Not here
//!
//! Writing the file (`backend`), interpreting the records (`mvcc`), and encoding the rows of
//! leases, users, roles and members (`lease`, `auth`, `members`).

use std::fmt;

/// A bucket of the backend file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bucket {
    /// Raised alarms.
    Alarm,
    /// Whether authentication is enabled, and the auth revision.
    Auth,
    /// Roles by name.
    AuthRoles,
    /// Users by name.
    AuthUsers,
    /// The cluster version and the downgrade in progress.
    Cluster,
    /// Records by revision.
    Key,
    /// Leases by id.
    Lease,
    /// Members by id.
    Members,
    /// Ids of removed members.
    MembersRemoved,
    /// Metadata of the file, such as its consistent index and version.
    Meta,
}

impl Bucket {
    /// All buckets, in the order in which the file stores them.
    pub const ALL: [Self; 10] = [
        Self::Alarm,
        Self::Auth,
        Self::AuthRoles,
        Self::AuthUsers,
        Self::Cluster,
        Self::Key,
        Self::Lease,
        Self::Members,
        Self::MembersRemoved,
        Self::Meta,
    ];

    /// Returns the bucket's name in the file.
    #[must_use]
    pub const fn name(self) -> &'static [u8] {
        match self {
            Self::Alarm => b"alarm",
            Self::Auth => b"auth",
            Self::AuthRoles => b"authRoles",
            Self::AuthUsers => b"authUsers",
            Self::Cluster => b"cluster",
            Self::Key => b"key",
            Self::Lease => b"lease",
            Self::Members => b"members",
            Self::MembersRemoved => b"members_removed",
            Self::Meta => b"meta",
        }
    }
}

/// Values of bucket `alarm`, in addition to the empty value that etcd writes.
pub mod alarm {
    /// The alarm was raised because of a full disk. Only Quorate writes this value; etcd members
    /// ignore it.
    pub const FULL_DISK: &[u8] = b"disk";
}

/// Keys of bucket `auth`.
pub mod auth {
    /// Whether authentication is enabled, as one byte: 1 for enabled, 0 for disabled.
    pub const ENABLED: &[u8] = b"authEnabled";
    /// The revision of users and roles, eight bytes.
    pub const REVISION: &[u8] = b"authRevision";
}

/// Keys of bucket `cluster`.
pub mod cluster {
    /// The cluster version, written like `3.6.0`.
    pub const VERSION: &[u8] = b"clusterVersion";
    /// The downgrade in progress, as JSON.
    pub const DOWNGRADE: &[u8] = b"downgrade";
}

/// Keys of bucket `meta`.
pub mod meta {
    /// Raft index of the last entry that the file contains, eight bytes.
    pub const CONSISTENT_INDEX: &[u8] = b"consistent_index";
    /// Raft term of the last entry that the file contains, eight bytes.
    pub const TERM: &[u8] = b"term";
    /// Voters and learners, as JSON.
    pub const CONF_STATE: &[u8] = b"confState";
    /// Revision of the last accepted compaction.
    pub const SCHEDULED_COMPACTION: &[u8] = b"scheduledCompactRev";
    /// Revision of the last compaction whose garbage has been deleted.
    pub const FINISHED_COMPACTION: &[u8] = b"finishedCompactRev";
    /// Mark of the restore that created the file, absent if the file was not restored. Only Quorate writes it; etcd
    /// members preserve it.
    pub const RESTORED: &[u8] = b"quorateRestored";
    /// Version of the file's content, written like `3.6.0`.
    pub const STORAGE_VERSION: &[u8] = b"storageVersion";
}

/// A point in the history of the keyspace: `main` counts the entries that changed the keyspace, and `sub` counts the
/// changes within one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision {
    /// The number of the entry, starting with 2. The empty keyspace has revision 1.
    pub main: i64,
    /// The number of the change within the entry, starting with 0.
    pub sub: i64,
}

impl Revision {
    /// Length of the encoding, in bytes.
    pub const ENCODED_LEN: usize = 17;

    /// The highest number that is decoded. No cluster reaches it by writing, so a higher number in a file is damage,
    /// and every decoded number can be counted up.
    pub const NUMBER_MAX: i64 = i64::MAX / 2;

    /// Returns the revision of change number `sub` in entry number `main`.
    #[must_use]
    pub const fn new(main: i64, sub: i64) -> Self {
        Self { main, sub }
    }

    /// Returns the encoded form.
    #[must_use]
    pub fn encode(self) -> [u8; Self::ENCODED_LEN] {
        let mut bytes = [b'_'; Self::ENCODED_LEN];
        bytes[..8].copy_from_slice(&self.main.to_be_bytes());
        bytes[9..].copy_from_slice(&self.sub.to_be_bytes());
        bytes
    }

    /// Decodes the encoded form. Returns `None` if it is invalid.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let valid = 0..=Self::NUMBER_MAX;
        let (main, rest) = bytes.split_first_chunk()?;
        let (&separator, rest) = rest.split_first()?;
        let sub: &[u8; 8] = rest.try_into().ok()?;
        let revision = Self { main: i64::from_be_bytes(*main), sub: i64::from_be_bytes(*sub) };
        let is_valid = valid.contains(&revision.main) && valid.contains(&revision.sub);
        (separator == b'_' && is_valid).then_some(revision)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.main, self.sub)
    }
}

/// The key of a record in bucket `key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey {
    /// The revision of the change.
    pub revision: Revision,
    /// Whether the change was a deletion.
    pub tombstone: bool,
}

/// The encoded form of a [`RecordKey`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EncodedRecordKey {
    bytes: [u8; RecordKey::ENCODED_LEN_MAX],
    len: usize,
}

impl RecordKey {
    /// Maximum length of the encoding, in bytes. Only deletions have this length.
    pub const ENCODED_LEN_MAX: usize = Revision::ENCODED_LEN + 1;

    const TOMBSTONE_MARK: u8 = b't';

    /// Returns the encoded form.
    #[must_use]
    pub fn encode(self) -> EncodedRecordKey {
        let mut bytes = [Self::TOMBSTONE_MARK; Self::ENCODED_LEN_MAX];
        bytes[..Revision::ENCODED_LEN].copy_from_slice(&self.revision.encode());
        EncodedRecordKey { bytes, len: Revision::ENCODED_LEN + usize::from(self.tombstone) }
    }

    /// Decodes the encoded form. Returns `None` if it is invalid.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (revision, mark) = bytes.split_at_checked(Revision::ENCODED_LEN)?;
        let tombstone = match mark {
            [] => false,
            [Self::TOMBSTONE_MARK] => true,
            _ => return None,
        };
        Some(Self { revision: Revision::decode(revision)?, tombstone })
    }
}

impl AsRef<[u8]> for EncodedRecordKey {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Debug for EncodedRecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_ref().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_are_listed_in_the_order_of_their_names() {
        assert!(Bucket::ALL.is_sorted_by_key(|bucket| bucket.name()));
    }

    #[test]
    fn a_revision_is_encoded_as_in_etcd() {
        let key = RecordKey { revision: Revision::new(0x0102, 3), tombstone: true };
        assert_eq!(key.encode().as_ref(), b"\0\0\0\0\0\0\x01\x02_\0\0\0\0\0\0\0\x03t");
    }

    #[test]
    fn invalid_record_keys_are_refused() {
        let good = RecordKey { revision: Revision::new(7, 0), tombstone: false }.encode();
        for len in 0..Revision::ENCODED_LEN {
            assert_eq!(RecordKey::decode(&good.as_ref()[..len]), None, "{len}");
        }
        for (at, byte) in [(8, b'-'), (0, 0xff), (0, 0x40), (9, 0x80), (9, 0x40)] {
            let mut bad = good.as_ref().to_vec();
            bad[at] = byte;
            assert_eq!(RecordKey::decode(&bad), None, "byte {at}");
        }
        for tail in [&b"x"[..], b"tt"] {
            assert_eq!(RecordKey::decode(&[good.as_ref(), tail].concat()), None);
        }
    }

    /// FORMAT.md is in the storage crate. It describes the backend file, which contains the keys defined here.
    const FORMAT: &str = include_str!("../../storage/FORMAT.md");

    #[test]
    fn the_table_in_the_format_page_lists_all_buckets_and_keys() {
        let rows = FORMAT.lines().skip_while(|line| *line != "| bucket | key | value |").skip(2);
        let rows = rows.take_while(|line| line.starts_with('|'));
        let rows: Vec<Vec<&str>> =
            rows.map(|row| row.split('|').map(str::trim).collect()).collect();
        let mut buckets: Vec<&str> = rows.iter().map(|row| row[1].trim_matches('`')).collect();
        buckets.dedup();
        assert_eq!(buckets, Bucket::ALL.map(|bucket| str::from_utf8(bucket.name()).unwrap()));

        let keys_of = |bucket: Bucket| -> Vec<&[u8]> {
            let name = str::from_utf8(bucket.name()).unwrap();
            let rows = rows.iter().filter(|row| row[1].trim_matches('`') == name);
            let keys = rows.filter_map(|row| row[2].strip_prefix('`')?.strip_suffix('`'));
            keys.map(str::as_bytes).collect()
        };
        assert_eq!(keys_of(Bucket::Auth), [auth::ENABLED, auth::REVISION]);
        assert_eq!(keys_of(Bucket::Cluster), [cluster::VERSION, cluster::DOWNGRADE]);
        let facts = [
            meta::CONF_STATE,
            meta::CONSISTENT_INDEX,
            meta::FINISHED_COMPACTION,
            meta::RESTORED,
            meta::SCHEDULED_COMPACTION,
            meta::STORAGE_VERSION,
            meta::TERM,
        ];
        assert_eq!(keys_of(Bucket::Meta), facts);
        // The assertions above cover every key that this file declares.
        let (keys, _) = include_str!("schema.rs").split_once("#[cfg(test)]").unwrap();
        assert_eq!(keys.matches(": &[u8] = b\"").count(), 1 + 2 + 2 + facts.len());
        let value = format!("`{}` for a full disk", str::from_utf8(alarm::FULL_DISK).unwrap());
        assert!(rows.iter().any(|row| row[1] == "`alarm`" && row[3].contains(&value)), "{value}");
    }

    #[test]
    fn the_format_page_describes_the_encoding_of_a_revision() {
        let text = FORMAT.split_whitespace().collect::<Vec<_>>().join(" ");
        let revision =
            format!("A revision takes {} bytes: `main i64 | _ | sub i64`.", Revision::ENCODED_LEN);
        assert!(text.contains(&revision), "{revision}");
        let mark = char::from(RecordKey::TOMBSTONE_MARK);
        assert!(text.contains(&format!("revision; `{mark}` after it for a deletion")));
    }

    proptest! {
        #[test]
        fn encoded_record_keys_round_trip_and_sort_by_revision(a: (u32, u32, bool), b: (u32, u32, bool)) {
            let key = |(main, sub, tombstone): (u32, u32, bool)| RecordKey {
                revision: Revision::new(main.into(), sub.into()),
                tombstone,
            };
            let (a, b) = (key(a), key(b));
            prop_assert_eq!(RecordKey::decode(a.encode().as_ref()), Some(a));
            prop_assert_eq!(a.cmp(&b), a.encode().as_ref().cmp(b.encode().as_ref()));
        }

        #[test]
        fn arbitrary_bytes_are_decoded_without_panic(bytes: Vec<u8>) {
            let _key = RecordKey::decode(&bytes);
        }
    }
}
