//! Range and RangeStream: the returned keys and fields, their order, and refused requests.

use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::range_request::{SortOrder, SortTarget};
use quorate_tests::{
    Client, Kind, Server, bytes, delete, from_key, is_first_term, key, on_both_servers, on_quorate,
    prefix, put, put_leased, range, refused,
};
use tonic::Code;

on_both_servers! {
    a_missing_key_returns_an_empty_list,
    a_record_contains_all_its_fields,
    an_empty_range_end_matches_a_single_key,
    a_range_is_half_open,
    a_zero_range_end_includes_all_keys_from_the_start,
    an_inverted_range_is_empty,
    keys_may_contain_any_bytes,
    a_limited_range_reports_whether_more_keys_match,
    a_negative_limit_means_no_limit,
    count_only_counts_all_matching_keys,
    keys_only_omits_values,
    ranges_are_sorted_by_each_target_in_each_order,
    a_limit_without_an_order_returns_the_first_keys,
    filters_apply_before_the_limit,
    a_negative_maximum_revision_matches_no_keys,
    reads_at_older_revisions_return_the_keys_of_those_revisions,
    a_serializable_read_returns_the_same_keys_on_an_idle_store,
    pages_at_one_revision_form_the_complete_list,
    invalid_ranges_are_refused,
}

on_quorate! {
    a_range_stream_returns_the_same_list_as_a_range,
    a_range_stream_obeys_limits_and_counts,
    a_range_stream_counts_all_keys_at_every_limit,
    range_stream_messages_stay_small_when_records_become_larger,
    a_range_stream_returns_the_requested_revision,
    invalid_range_streams_are_refused,
}

/// Writes three keys, some of which are leased or written repeatedly, so that each sort target orders them differently.
///
/// | key | value | create | mod | version | lease |
/// |---|---|---|---|---|---|
/// | a | 3 | 2 | 7 | 2 | |
/// | b | 1 | 3 | 6 | 3 | |
/// | c | 2 | 4 | 4 | 1 | 99 |
async fn three_keys(client: &Client) {
    client.grant(99, 600).await;
    client.write("a", "x").await;
    client.write("b", "x").await;
    client.put(put_leased("c", "2", 99)).await.unwrap();
    client.write("b", "y").await;
    client.write("b", "1").await;
    client.write("a", "3").await;
}

fn keys(answer: &pb::RangeResponse) -> Vec<String> {
    let names = answer.kvs.iter().map(|record| String::from_utf8_lossy(record.key()).into_owned());
    names.collect()
}

async fn listed(client: &Client, request: pb::RangeRequest) -> (String, bool, i64) {
    let answer = client.range(request).await.unwrap();
    (keys(&answer).concat(), answer.more, answer.count)
}

fn all() -> pb::RangeRequest {
    from_key("\0")
}

async fn a_missing_key_returns_an_empty_list(kind: Kind) {
    let server = Server::start(kind).await;
    let answer = server.client().range(key("nothing")).await.unwrap();
    assert!(answer.kvs.is_empty());
    assert_eq!((answer.count, answer.more), (0, false));
    let header = answer.header.unwrap();
    assert_eq!(header.revision, 1, "an empty store is at revision 1");
    assert!(header.cluster_id != 0 && header.member_id != 0);
    assert!(is_first_term(header.raft_term), "{header:?}");
}

async fn a_record_contains_all_its_fields(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    three_keys(&client).await;
    let answer = client.range(range("a", "z")).await.unwrap();
    let expected = [("a", "3", 2, 7, 2, 0), ("b", "1", 3, 6, 3, 0), ("c", "2", 4, 4, 1, 99)];
    assert_eq!(answer.kvs.len(), expected.len());
    for (record, (name, value, created, modified, version, lease)) in
        answer.kvs.iter().zip(expected)
    {
        let fields = record.fields();
        assert_eq!(fields.key, name.as_bytes());
        assert_eq!(fields.value, value.as_bytes());
        assert_eq!(fields.create_revision, created);
        assert_eq!(fields.mod_revision, modified);
        assert_eq!(fields.version, version);
        assert_eq!(fields.lease, lease);
    }
    assert_eq!(answer.header.unwrap().revision, 7);
}

async fn an_empty_range_end_matches_a_single_key(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    three_keys(&client).await;
    assert_eq!(listed(&client, key("b")).await, ("b".to_owned(), false, 1));
}

async fn a_range_is_half_open(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    three_keys(&client).await;
    assert_eq!(listed(&client, range("a", "c")).await.0, "ab");
    assert_eq!(listed(&client, range("a\0", "c\0")).await.0, "bc");
    assert_eq!(listed(&client, prefix("b")).await.0, "b");
}

async fn a_zero_range_end_includes_all_keys_from_the_start(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    three_keys(&client).await;
    assert_eq!(listed(&client, from_key("b")).await.0, "bc");
    assert_eq!(listed(&client, all()).await.0, "abc");
    // A range end of two zero bytes has no special meaning.
    assert_eq!(listed(&client, range("a", "\0\0")).await.0, "");
}

async fn an_inverted_range_is_empty(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    three_keys(&client).await;
    assert_eq!(listed(&client, range("c", "a")).await, (String::new(), false, 0));
    assert_eq!(listed(&client, range("b", "b")).await, (String::new(), false, 0));
}

async fn keys_may_contain_any_bytes(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let names: [&[u8]; 5] = [b"\0", b"\0\0", b"a\xff", b"\xff", b"\xff\xff\0"];
    for name in names {
        client.write(name, name).await;
    }
    let answer = client.range(all()).await.unwrap();
    let found: Vec<&[u8]> = answer.kvs.iter().map(|record| record.key()).collect();
    assert_eq!(found, names);
    let answer = client.range(from_key(b"\xff")).await.unwrap();
    assert_eq!(answer.count, 2);
}

async fn a_limited_range_reports_whether_more_keys_match(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    three_keys(&client).await;
    for (limit, names, more) in
        [(0, "abc", false), (1, "a", true), (2, "ab", true), (3, "abc", false)]
    {
        let answer = listed(&client, pb::RangeRequest { limit, ..all() }).await;
        assert_eq!(answer, (names.to_owned(), more, 3), "limit {limit}");
    }
}

async fn a_negative_limit_means_no_limit(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    three_keys(&client).await;
    let answer = listed(&client, pb::RangeRequest { limit: -1, ..all() }).await;
    assert_eq!(answer, ("abc".to_owned(), false, 3));
}

async fn count_only_counts_all_matching_keys(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    three_keys(&client).await;
    let counting = pb::RangeRequest { count_only: true, ..all() };
    assert_eq!(listed(&client, counting.clone()).await, (String::new(), false, 3));
    let limited = pb::RangeRequest { limit: 1, min_mod_revision: 7, ..counting.clone() };
    assert_eq!(listed(&client, limited).await, (String::new(), false, 3));
    let past = pb::RangeRequest { revision: 3, ..counting };
    assert_eq!(listed(&client, past).await, (String::new(), false, 2));
}

async fn keys_only_omits_values(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    three_keys(&client).await;
    let request = pb::RangeRequest { keys_only: true, ..all() };
    let answer = client.range(request.clone()).await.unwrap();
    let seen: Vec<_> = answer
        .kvs
        .iter()
        .map(|record| record.fields())
        .map(|at| (at.value.len(), at.create_revision, at.mod_revision, at.version, at.lease))
        .collect();
    // Since etcd 3.7, the answer comes from the index, which does not contain leases.
    let lease = if server.is_3_7() { 0 } else { 99 };
    assert_eq!(seen, [(0, 2, 7, 2, 0), (0, 3, 6, 3, 0), (0, 4, 4, 1, lease)]);
    // Sorting by value requires reading the records.
    let by_value = pb::RangeRequest { sort_target: SortTarget::Value.into(), ..request };
    let answer = client.range(by_value).await.unwrap();
    assert_eq!(keys(&answer), ["b", "c", "a"]);
    assert_eq!(answer.kvs[1].fields().lease, 99);
    assert!(answer.kvs.iter().all(|record| record.value().is_empty()));
}

async fn ranges_are_sorted_by_each_target_in_each_order(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    three_keys(&client).await;
    for (target, ascending) in [
        (SortTarget::Key, "abc"),
        (SortTarget::Version, "cab"),
        (SortTarget::Create, "abc"),
        (SortTarget::Mod, "cba"),
        (SortTarget::Value, "bca"),
    ] {
        let descending: String = ascending.chars().rev().collect();
        for (order, expected) in [
            (SortOrder::None, ascending),
            (SortOrder::Ascend, ascending),
            (SortOrder::Descend, &descending),
        ] {
            let request =
                pb::RangeRequest { sort_order: order.into(), sort_target: target.into(), ..all() };
            assert_eq!(listed(&client, request.clone()).await.0, expected, "{target:?} {order:?}");
            if order != SortOrder::None {
                let first = pb::RangeRequest { limit: 1, ..request };
                let expected = (expected[..1].to_owned(), true, 3);
                assert_eq!(listed(&client, first).await, expected, "{target:?} {order:?}");
            }
        }
    }
}

async fn a_limit_without_an_order_returns_the_first_keys(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    three_keys(&client).await;
    client.write("d", "0").await;
    // Without an order, the server reads one key more than the limit and sorts only these keys by value: `b` (1) before
    // `a` (3). It does not read `d` (0).
    let request = pb::RangeRequest { limit: 1, sort_target: SortTarget::Value.into(), ..all() };
    assert_eq!(listed(&client, request).await, ("b".to_owned(), true, 4));
}

async fn filters_apply_before_the_limit(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    three_keys(&client).await;
    let cases = [
        (pb::RangeRequest { min_mod_revision: 6, ..all() }, "ab"),
        (pb::RangeRequest { max_mod_revision: 6, ..all() }, "bc"),
        (pb::RangeRequest { min_create_revision: 3, ..all() }, "bc"),
        (pb::RangeRequest { max_create_revision: 3, ..all() }, "ab"),
        (pb::RangeRequest { min_mod_revision: 5, max_create_revision: 2, ..all() }, "a"),
        (pb::RangeRequest { min_mod_revision: 8, ..all() }, ""),
    ];
    for (request, expected) in cases {
        let answer = listed(&client, request.clone()).await;
        assert_eq!(answer, (expected.to_owned(), false, 3), "{request:?}");
    }
    let limited = pb::RangeRequest { max_mod_revision: 6, limit: 1, ..all() };
    assert_eq!(listed(&client, limited).await, ("b".to_owned(), true, 3));
}

async fn a_negative_maximum_revision_matches_no_keys(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    three_keys(&client).await;
    let request = pb::RangeRequest { max_mod_revision: -1, ..all() };
    assert_eq!(listed(&client, request).await.0, "");
    let request = pb::RangeRequest { min_mod_revision: -1, ..all() };
    assert_eq!(listed(&client, request).await.0, "abc");
}

async fn reads_at_older_revisions_return_the_keys_of_those_revisions(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    three_keys(&client).await;
    client.delete_range(delete("a", "c")).await.unwrap();
    for (revision, expected) in
        [(1, ""), (2, "a"), (3, "ab"), (4, "abc"), (7, "abc"), (8, "c"), (0, "c"), (-1, "c")]
    {
        let answer = client.range(pb::RangeRequest { revision, ..all() }).await.unwrap();
        assert_eq!(keys(&answer).concat(), expected, "at {revision}");
        assert_eq!(answer.header.unwrap().revision, 8, "the header has the current revision");
    }
    let answer = client.range(pb::RangeRequest { revision: 5, ..key("b") }).await.unwrap();
    assert_eq!(answer.kvs[0].value(), b"y");
    assert_eq!(answer.kvs[0].fields().version, 2);
}

async fn a_serializable_read_returns_the_same_keys_on_an_idle_store(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    three_keys(&client).await;
    let request = pb::RangeRequest { serializable: true, ..all() };
    assert_eq!(listed(&client, request).await, ("abc".to_owned(), false, 3));
}

async fn pages_at_one_revision_form_the_complete_list(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let count = 95;
    for number in 0..count {
        client.write(format!("page/{number:03}"), "v").await;
    }
    let mut found = Vec::new();
    let mut revision = 0;
    let mut start = bytes("page/");
    loop {
        let request = pb::RangeRequest { limit: 10, revision, ..range(&start, "page0") };
        let answer = client.range(request).await.unwrap();
        assert_eq!(answer.count, count - found.len() as i64);
        found.extend(keys(&answer));
        if !answer.more {
            break;
        }
        if revision == 0 {
            revision = answer.header.unwrap().revision;
        }
        start = bytes(format!("{}\0", found.last().unwrap()));
        // Concurrent changes do not appear in later pages.
        client.write(format!("page/{:03}x", found.len()), "new").await;
        client.delete_range(delete(format!("page/{:03}", found.len() + 5), "")).await.unwrap();
    }
    let expected: Vec<String> = (0..count).map(|number| format!("page/{number:03}")).collect();
    assert_eq!(found, expected);
}

async fn invalid_ranges_are_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    three_keys(&client).await;
    let future = "etcdserver: mvcc: required revision is a future revision";
    let compacted = "etcdserver: mvcc: required revision has been compacted";
    let sort = "etcdserver: invalid sort option";
    refused(client.range(key("")).await, Code::InvalidArgument, "etcdserver: key is not provided");
    refused(
        client.range(range("", "\0")).await,
        Code::InvalidArgument,
        "etcdserver: key is not provided",
    );
    for (sort_order, sort_target) in [(3, 0), (-1, 0), (0, 5), (1, -1)] {
        let request = pb::RangeRequest { sort_order, sort_target, ..all() };
        // Debian's release accepts an unknown order and crashes on an unknown target.
        if server.is_3_7() {
            refused(client.range(request).await, Code::InvalidArgument, sort);
        }
    }
    let at = |revision| pb::RangeRequest { revision, ..key("a") };
    refused(client.range(at(8)).await, Code::OutOfRange, future);
    refused(client.range(at(i64::MAX)).await, Code::OutOfRange, future);
    client.compact_to(5).await;
    refused(client.range(at(4)).await, Code::OutOfRange, compacted);
    refused(client.range(at(1)).await, Code::OutOfRange, compacted);
    let serializable = pb::RangeRequest { serializable: true, ..at(4) };
    refused(client.range(serializable).await, Code::OutOfRange, compacted);
    assert_eq!(client.range(at(5)).await.unwrap().kvs[0].value(), b"x");
    assert_eq!(client.range(at(-5)).await.unwrap().kvs[0].value(), b"3");
    assert_eq!(client.revision().await, 7, "a refusal changes nothing");
}

async fn a_range_stream_returns_the_same_list_as_a_range(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for number in 0..200 {
        client.write(format!("s/{number:03}"), vec![b'v'; 100]).await;
    }
    let whole = client.range(prefix("s/")).await.unwrap();
    let pieces = client.range_stream(prefix("s/")).await.unwrap();
    let joined: Vec<_> = pieces.iter().flat_map(|piece| piece.kvs.clone()).collect();
    assert_eq!(joined, whole.kvs);
    let (last, earlier) = pieces.split_last().unwrap();
    assert_eq!(last.header, whole.header);
    assert_eq!((last.count, last.more), (200, false));
    for piece in earlier {
        assert_eq!((&piece.header, piece.count, piece.more), (&None, 0, false));
        assert!(!piece.kvs.is_empty());
    }
    // An empty answer consists of one message.
    let nothing = client.range_stream(prefix("t/")).await.unwrap();
    assert_eq!(nothing.len(), 1);
    assert_eq!((nothing[0].count, nothing[0].kvs.len()), (0, 0));
    assert!(nothing[0].header.is_some());
}

async fn a_range_stream_obeys_limits_and_counts(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for number in 0..50 {
        client.write(format!("s/{number:03}"), "v").await;
    }
    for (limit, expected, more) in
        [(0, 50, false), (25, 25, true), (50, 50, false), (-1, 50, false)]
    {
        let request = pb::RangeRequest { limit, ..prefix("s/") };
        let pieces = client.range_stream(request).await.unwrap();
        let found: usize = pieces.iter().map(|piece| piece.kvs.len()).sum();
        let last = pieces.last().unwrap();
        assert_eq!((found, last.more, last.count), (expected, more, 50), "limit {limit}");
    }
    let counting = pb::RangeRequest { count_only: true, ..prefix("s/") };
    let pieces = client.range_stream(counting).await.unwrap();
    assert_eq!(pieces.len(), 1);
    assert_eq!((pieces[0].count, pieces[0].kvs.len()), (50, 0));
    let names = pb::RangeRequest { keys_only: true, ..prefix("s/") };
    let pieces = client.range_stream(names).await.unwrap();
    assert!(pieces.iter().flat_map(|piece| &piece.kvs).all(|record| record.value().is_empty()));
    let ascending = pb::RangeRequest {
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Key.into(),
        ..prefix("s/")
    };
    let pieces = client.range_stream(ascending).await.unwrap();
    assert_eq!(pieces.iter().map(|piece| piece.kvs.len()).sum::<usize>(), 50);
    // Without a sort order, the server sorts each chunk separately by any target other than the key.
    for (key, value) in [("t/1", "c"), ("t/2", "a"), ("t/3", "b")] {
        client.write(key, value).await;
    }
    let by_value = pb::RangeRequest { sort_target: SortTarget::Value.into(), ..prefix("t/") };
    let pieces = client.range_stream(by_value).await.unwrap();
    let values: Vec<_> = pieces.iter().flat_map(|piece| &piece.kvs).map(|kv| kv.value()).collect();
    assert_eq!(values, [b"a", b"b", b"c"]);
}

async fn a_range_stream_counts_all_keys_at_every_limit(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for number in 0..25 {
        client.write(format!("s/{number:02}"), "v").await;
    }
    for limit in 1..=26 {
        let request = pb::RangeRequest { limit, ..prefix("s/") };
        let pieces = client.range_stream(request).await.unwrap();
        let last = pieces.last().unwrap();
        assert_eq!((last.count, last.more), (25, limit < 25), "limit {limit}");
    }
}

async fn range_stream_messages_stay_small_when_records_become_larger(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for number in 0..200 {
        client.write(format!("s/{number:03}"), "").await;
    }
    for number in 0..20 {
        client.write(format!("s/x{number:02}"), vec![b'v'; 1_000_000]).await;
    }
    for limit in [0, -1] {
        let request = pb::RangeRequest { limit, ..prefix("s/") };
        let pieces = client.range_stream(request).await.unwrap();
        assert_eq!(pieces.iter().map(|piece| piece.kvs.len()).sum::<usize>(), 220);
        let largest = pieces.iter().map(prost::Message::encoded_len).max().unwrap();
        assert!(largest < 3_000_000, "one message contains {largest} bytes");
    }
}

async fn a_range_stream_returns_the_requested_revision(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for number in 0..20 {
        client.write(format!("s/{number:02}"), "old").await;
    }
    let revision = client.revision().await;
    for number in 0..20 {
        client.put(put(format!("s/{number:02}"), "new")).await.unwrap();
    }
    let past = client.range_stream(pb::RangeRequest { revision, ..prefix("s/") }).await.unwrap();
    assert!(past.iter().flat_map(|piece| &piece.kvs).all(|record| record.value() == b"old"));
    assert_eq!(past.last().unwrap().header.as_ref().unwrap().revision, revision + 20);
}

async fn invalid_range_streams_are_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    three_keys(&client).await;
    let refused_stream = async |request: pb::RangeRequest, code: Code, text: &str| {
        refused(client.range_stream(request).await, code, text);
    };
    refused_stream(key(""), Code::InvalidArgument, "etcdserver: key is not provided").await;
    let sort = pb::RangeRequest { sort_order: 7, ..all() };
    refused_stream(sort, Code::InvalidArgument, "etcdserver: invalid sort option").await;
    let orders = "RangeStream does not support custom sort orders";
    let descending = pb::RangeRequest { sort_order: SortOrder::Descend.into(), ..all() };
    refused_stream(descending, Code::Unimplemented, orders).await;
    let by_value = pb::RangeRequest {
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Value.into(),
        ..all()
    };
    refused_stream(by_value, Code::Unimplemented, orders).await;
    let filters = "RangeStream does not support revision filters";
    let filtered = pb::RangeRequest { min_mod_revision: 1, ..all() };
    refused_stream(filtered, Code::Unimplemented, filters).await;
    let future = pb::RangeRequest { revision: 100, ..all() };
    let text = "etcdserver: mvcc: required revision is a future revision";
    refused_stream(future, Code::OutOfRange, text).await;
    client.compact_to(5).await;
    let compacted = pb::RangeRequest { revision: 4, ..all() };
    let text = "etcdserver: mvcc: required revision has been compacted";
    refused_stream(compacted, Code::OutOfRange, text).await;
}
