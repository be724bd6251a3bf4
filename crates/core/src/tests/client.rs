//! What is asked of a member, and what must have come of it.

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

/// Keys that are written in turn.
const KEYS: u64 = 5;

/// Every so many writes the history is compacted.
const COMPACT_EVERY: u64 = 6;

/// Writes numbers to keys, in order: so the revision says which are there.
#[derive(Clone, Debug, Default)]
pub(super) struct Client {
    /// Writes asked for, of which the log may lose the last ones.
    pub(super) asked: u64,
    /// Writes that were acknowledged.
    pub(super) acknowledged: u64,
    /// Writes in the entries up to each index, of all that was ever committed.
    pub(super) committed: BTreeMap<LogIndex, u64>,
}

impl Client {
    /// The next things to ask for.
    pub(super) fn ask(&mut self) -> Vec<Proposal> {
        self.asked += 1;
        let mut proposals = vec![proposal(self.asked)];
        if self.asked.is_multiple_of(COMPACT_EVERY) {
            proposals.push(compaction(self.asked));
        }
        proposals
    }

    /// So many writes, and nothing else.
    pub(super) fn ask_for(&mut self, count: u64) -> Vec<Proposal> {
        let first = self.asked + 1;
        self.asked += count;
        (first..).take(usize::try_from(count).unwrap()).map(proposal).collect()
    }

    /// An entry is to be carried out.
    pub(super) fn note_committed(&mut self, index: LogIndex, data: &Bytes) {
        let before = self.committed.range(..index).next_back().map_or(0, |(_, count)| *count);
        let count = before + u64::from(is_write(data));
        let known = *self.committed.entry(index).or_insert(count);
        assert_eq!(known, count, "members carry out the same at index {index}");
    }

    /// Writes that a state which has applied `index` holds.
    pub(super) fn written_at(&self, index: LogIndex) -> u64 {
        self.committed.range(..=index).next_back().map_or(0, |(_, count)| *count)
    }

    /// Makes sure that the state is what its index says, and returns how many writes it holds.
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
        let found = state.readers().view().range(&query).unwrap().kvs;
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

/// Now and then one that takes several pages.
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
    // Of a name that no write has.
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
