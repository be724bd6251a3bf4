//! A client's writes, and the check of a state against them.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message as _;
use quorate_api::etcdserverpb::{
    CompactionRequest, InternalRaftRequest, PutRequest, RequestHeader,
};
use quorate_node::Proposal;
use quorate_raft::LogIndex;
use quorate_state::apply::{Command, Request, State};
use quorate_state::mvcc::{RangeQuery, SortOrder, SortTarget};

/// The number of keys. The client writes to them in turn.
const KEYS: u64 = 5;

/// The number of writes after which the history is compacted.
const COMPACT_EVERY: u64 = 6;

/// Writes consecutive numbers to keys in turn, so that the revision of a state determines its keys and values.
#[derive(Clone, Debug, Default)]
pub(super) struct Client {
    /// The number of proposed writes. A crash may lose the last of them.
    pub(super) asked: u64,
    /// The number of acknowledged writes.
    pub(super) acknowledged: u64,
    /// The number of writes in the entries up to each index, for all entries ever committed.
    pub(super) committed: BTreeMap<LogIndex, u64>,
}

impl Client {
    /// Returns the next proposals: a write, and sometimes a compaction.
    pub(super) fn ask(&mut self) -> Vec<Proposal> {
        self.asked += 1;
        let mut proposals = vec![proposal(self.asked)];
        if self.asked.is_multiple_of(COMPACT_EVERY) {
            proposals.push(compaction(self.asked));
        }
        proposals
    }

    /// Returns proposals for this many writes, without compactions.
    pub(super) fn ask_for(&mut self, count: u64) -> Vec<Proposal> {
        let first = self.asked + 1;
        self.asked += count;
        (first..).take(usize::try_from(count).unwrap()).map(proposal).collect()
    }

    /// Records an entry that is about to be applied.
    pub(super) fn note_committed(&mut self, index: LogIndex, data: &Bytes) {
        let before = self.committed.range(..index).next_back().map_or(0, |(_, count)| *count);
        let count = before + u64::from(is_write(data));
        let known = *self.committed.entry(index).or_insert(count);
        assert_eq!(known, count, "members apply the same entry at index {index}");
    }

    /// Returns the number of writes in a state that has applied `index`.
    pub(super) fn written_at(&self, index: LogIndex) -> u64 {
        self.committed.range(..=index).next_back().map_or(0, |(_, count)| *count)
    }

    /// Checks that the state contains exactly the writes up to its applied index, and returns their number.
    pub(super) fn check(&self, state: &State, what: &str) -> u64 {
        let written = u64::try_from(state.store().current_revision()).unwrap() - 1;
        assert_eq!(
            written,
            self.written_at(LogIndex(state.applied().0)),
            "{what}: {:?}",
            state.applied()
        );
        let query = RangeQuery {
            key: Bytes::from_static(b"k"),
            range_end: Bytes::from_static(b"l"),
            limit: 0,
            revision: 0,
            sort_order: SortOrder::None,
            sort_target: SortTarget::Key,
            keys_only: false,
            count_only: false,
            min_mod_revision: 0,
            max_mod_revision: 0,
            min_create_revision: 0,
            max_create_revision: 0,
        };
        let found = state.published().view().range(&query).unwrap().kvs;
        let found: Vec<_> =
            found.iter().map(|kv| (kv.key().to_vec(), kv.value().to_vec())).collect();
        let mut model = BTreeMap::new();
        for number in 1..=written {
            model.insert(key(number), value(number));
        }
        assert_eq!(found, model.into_iter().collect::<Vec<_>>(), "{what}");
        written
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("k{}", number % KEYS).into_bytes()
}

/// Returns the value of a write. Every fourth value takes up several pages.
fn value(number: u64) -> Vec<u8> {
    let filler = if number.is_multiple_of(4) { 5000 } else { 50 };
    format!("{number:0filler$}").into_bytes()
}

pub(super) fn proposal(number: u64) -> Proposal {
    let put = PutRequest {
        key: key(number).into(),
        value: value(number).into(),
        ..PutRequest::default()
    };
    encoded(number, InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() })
}

pub(super) fn compaction(number: u64) -> Proposal {
    let revision = i64::try_from(number).unwrap() - 3;
    let compaction = Some(CompactionRequest { revision, physical: false });
    // No write has a request id this large.
    let request = InternalRaftRequest { compaction, ..InternalRaftRequest::default() };
    encoded(number + (1 << 32), request)
}

fn encoded(request_id: u64, mut request: InternalRaftRequest) -> Proposal {
    request.header = Some(RequestHeader { id: request_id, ..RequestHeader::default() });
    Proposal { request_id, data: request.encode_to_vec().into() }
}

fn is_write(data: &Bytes) -> bool {
    !data.is_empty() && matches!(Request::decode(data.clone()).unwrap().command, Command::Put(_))
}
