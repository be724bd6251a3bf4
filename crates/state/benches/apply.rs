//! Benchmark of applying entries and serving watchers: `cargo bench -p quorate-state --bench
//! apply`.
//!
//! It prints the processor time of one thread per operation, in microseconds.

#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]
#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::hint::black_box;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use prost::Message;
use quorate_api::etcdserverpb::{
    InternalRaftRequest, LeaseGrantRequest, PutRequest, RequestHeader, WatchCreateRequest,
};
use quorate_seeded_random::SplitMix64;
use quorate_state::apply::{EntryMeta, Request, State, StateOptions};
use quorate_state::units::{LeaseId, Millis};
use quorate_state::watch::{HeaderFields, WatchStream};

/// Returns the processor time of this thread, which is independent of other load on the machine.
/// Linux reports it with nanosecond precision.
fn processor_seconds() -> f64 {
    let spent = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanoseconds = spent.split_whitespace().next().and_then(|spent| spent.parse().ok());
    nanoseconds.unwrap_or(0.0) / 1e9
}

fn measure(what: &str, count: usize, work: impl FnOnce()) {
    let started = processor_seconds();
    work();
    let seconds = processor_seconds() - started;
    println!("{what:56} {:9.3} us   ({seconds:.3} s in all)", seconds * 1e6 / count as f64);
}

fn encoded(request: InternalRaftRequest) -> Bytes {
    let header = Some(RequestHeader { id: 1, ..RequestHeader::default() });
    InternalRaftRequest { header, ..request }.encode_to_vec().into()
}

fn put(key: usize) -> Bytes {
    let key = Bytes::from(format!("key-{key:012}"));
    let put = PutRequest { key, value: vec![b'v'; 256].into(), ..PutRequest::default() };
    encoded(InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() })
}

struct Log {
    state: State,
    index: u64,
}

impl Log {
    fn apply(&mut self, data: Bytes) {
        self.index += 1;
        let entry =
            EntryMeta { index: self.index, term: 1, reply_wanted: true, ..EntryMeta::default() };
        let applied = self.state.apply(entry, Request::decode(data).unwrap()).unwrap();
        black_box(applied);
    }

    /// Applies entries in batches of a hundred.
    fn apply_all(&mut self, entries: impl Iterator<Item = Bytes>) {
        for (position, entry) in entries.enumerate() {
            self.apply(entry);
            if position % 100 == 99 {
                self.publish();
            }
        }
        self.publish();
    }

    fn publish(&mut self) {
        self.state.publish();
        drop(self.state.take_batch());
    }
}

fn create(stream: &mut WatchStream, key: usize, range_end: &'static [u8], prev_kv: bool) {
    let request = WatchCreateRequest {
        key: Bytes::from(format!("key-{key:012}")),
        range_end: Bytes::from_static(range_end),
        prev_kv,
        ..WatchCreateRequest::default()
    };
    stream.create(request, |_, _| Ok(()));
}

/// Takes all waiting responses and encodes them as a connection would. Returns their number.
fn drain(streams: &mut [WatchStream], buffer: &mut BytesMut) -> usize {
    let header = HeaderFields { cluster_id: 1 << 60, member_id: 1 << 61, raft_term: 3 };
    let mut count = 0;
    for stream in streams {
        while let Poll::Ready(frame) =
            stream.poll_next(&Context::from_waker(Waker::noop()), &header)
        {
            frame.unwrap().encode(buffer);
            count += 1;
            if buffer.len() > 1 << 18 {
                black_box(&buffer);
                buffer.clear();
            }
        }
    }
    count
}

fn watching(log: &mut Log, what: &str, streams: usize, per_stream: usize, prev_kv: bool) {
    let mut opened: Vec<WatchStream> =
        (0..streams).map(|_| log.state.published().hub.open_stream(2 << 20)).collect();
    measure(&format!("{what}: create"), streams * per_stream, || {
        for stream in &mut opened {
            for _ in 0..per_stream {
                create(stream, 7, b"", prev_kv);
            }
        }
    });
    let mut buffer = BytesMut::with_capacity(1 << 19);
    drain(&mut opened, &mut buffer);
    for (pace, burst) in [("paced", 1), ("burst", 50)] {
        let rounds = 200 / burst;
        let mut count = 0;
        measure(&format!("{what}: event, {pace}"), rounds * burst * streams * per_stream, || {
            for _ in 0..rounds {
                for _ in 0..burst {
                    log.apply(put(7));
                }
                log.publish();
                count += drain(&mut opened, &mut buffer);
            }
        });
        assert_eq!(count, rounds * burst * streams * per_stream);
    }
}

fn main() {
    const KEYS: usize = 100_000;
    let mut log = Log { state: State::new(StateOptions::default()), index: 0 };
    let entries: Vec<Bytes> = (0..KEYS).map(put).collect();
    measure("put, new key", KEYS, || log.apply_all(entries.iter().cloned()));
    measure("put, existing key", KEYS, || log.apply_all(entries.iter().cloned()));
    let mut random = SplitMix64::new(7);
    let random: Vec<Bytes> = (0..KEYS).map(|_| entries[random.position(KEYS)].clone()).collect();
    measure("put, random existing key", KEYS, || log.apply_all(random.iter().cloned()));

    let mut streams = vec![log.state.published().hub.open_stream(2 << 20)];
    for key in 0..10_000 {
        create(&mut streams[0], KEYS + key, b"", false);
    }
    create(&mut streams[0], KEYS, b"key-0001000000ff", false);
    let mut buffer = BytesMut::new();
    drain(&mut streams, &mut buffer);
    measure("put of a key that no watcher watches, 10,001 watchers", KEYS, || {
        log.apply_all(entries.iter().cloned());
    });
    drop(streams);

    let mut streams: Vec<_> =
        (0..10).map(|_| log.state.published().hub.open_stream(2 << 20)).collect();
    for key in 0..10_000 {
        create(&mut streams[key % 10], key, b"", false);
    }
    drain(&mut streams, &mut buffer);
    measure("put and its event, 10,000 watchers of 10,000 keys", 10_000, || {
        for entry in &entries[..10_000] {
            log.apply(entry.clone());
            log.publish();
            drain(&mut streams, &mut buffer);
        }
    });
    drop(streams);

    watching(&mut log, "10 streams of 1,000 watchers", 10, 1000, false);
    watching(&mut log, "10 streams of 1,000 watchers, prev_kv", 10, 1000, true);
    watching(&mut log, "1,000 streams of one watcher", 1000, 1, false);

    let grant = |id| LeaseGrantRequest { id, ttl: 60 };
    measure("lease grant", 10_000, || {
        log.apply_all((1..=10_000).map(|id| {
            let lease_grant = Some(grant(id));
            encoded(InternalRaftRequest { lease_grant, ..InternalRaftRequest::default() })
        }));
    });
    let leases = log.state.published().leases;
    leases.promote(1, 0, Millis(0));
    measure("lease renewal", 1_000_000, || {
        for round in 0..100 {
            for id in 1..=10_000 {
                black_box(leases.renew(LeaseId(id), 1, Millis(round)));
            }
        }
    });
}
