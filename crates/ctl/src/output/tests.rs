//! Tests the output formats on hand-written replies. The tests in `tests/` compare the output with the real tools'
//! output.

use quorate_api::etcdserverpb::{
    LeaseStatus, Member, ResponseHeader, ResponseOp, response_op::Response,
};
use quorate_api::mvccpb::Event;
use quorate_api::record::{Fields, KeyValue};

use super::*;

fn header() -> Option<ResponseHeader> {
    Some(ResponseHeader {
        cluster_id: 14_841_639_068_965_178_418,
        member_id: 10_276_657_743_932_975_437,
        revision: 3,
        raft_term: 2,
    })
}

fn record(key: &[u8], value: &[u8]) -> KeyValue {
    let fields =
        Fields { key, create_revision: 2, mod_revision: 3, version: 2, value, lease: 0x7b };
    KeyValue::new(&fields)
}

fn check(reply: &Reply, format: Format, is_hex: bool, expected: &str) {
    let mut shown = Shown::default();
    format.render(reply, is_hex, &mut shown).unwrap();
    assert_eq!(String::from_utf8_lossy(&shown.output), expected);
}

fn refused(reply: &Reply, format: Format) -> Failure {
    format.render(reply, false, &mut Shown::default()).unwrap_err()
}

const HEADER: &str = r#"{"cluster_id":14841639068965178418,"member_id":10276657743932975437,"revision":3,"raft_term":2}"#;

#[test]
fn ranges_are_printed_as_text_json_and_fields() {
    let response =
        RangeResponse { header: header(), kvs: vec![record(b"a", b"x\ny")], more: true, count: 5 };
    let reply = Reply::Get(response.clone(), false);
    check(&reply, Format::Simple, false, "a\nx\ny\n");
    check(&reply, Format::Simple, true, "\\x61\n\\x78\\x0a\\x79\n");
    check(&Reply::Get(response, true), Format::Simple, false, "x\ny\n");
    check(
        &reply,
        Format::Json,
        false,
        &format!(
            r#"{{"header":{HEADER},"kvs":[{{"key":"YQ==","create_revision":2,"mod_revision":3,"version":2,"value":"eAp5","lease":123}}],"more":true,"count":5}}
"#
        ),
    );
    check(
        &reply,
        Format::Fields,
        true,
        "\"ClusterID\" : cdf818194e3a8c32\n\"MemberID\" : 8e9e05c52164694d\n\"Revision\" : 3\n\
         \"RaftTerm\" : 2\n\"Key\" : \"a\"\n\"CreateRevision\" : 2\n\"ModRevision\" : 3\n\
         \"Version\" : 2\n\"Value\" : \"x\\ny\"\n\"Lease\" : 000000000000007b\n\
         \"More\" : true\n\"Count\" : 5\n",
    );
    assert_eq!(refused(&reply, Format::Table).code, exit::BAD_FEATURE);
}

#[test]
fn transactions_are_printed_as_text_and_json() {
    let operation = |response| ResponseOp { response: Some(response) };
    let reply = Reply::Txn(TxnResponse {
        header: header(),
        succeeded: true,
        responses: vec![
            operation(Response::ResponsePut(PutResponse::default())),
            operation(Response::ResponseDeleteRange(DeleteRangeResponse {
                deleted: 1,
                prev_kvs: vec![record(b"k", b"v")],
                ..Default::default()
            })),
        ],
    });
    check(&reply, Format::Simple, false, "SUCCESS\n\nOK\n\n1\nk\nv\n");
    check(
        &reply,
        Format::Json,
        false,
        &format!(
            r#"{{"header":{HEADER},"succeeded":true,"responses":[{{"Response":{{"response_put":{{}}}}}},{{"Response":{{"response_delete_range":{{"deleted":1,"prev_kvs":[{{"key":"aw==","create_revision":2,"mod_revision":3,"version":2,"value":"dg==","lease":123}}]}}}}}}]}}
"#
        ),
    );
}

#[test]
fn events_are_printed_as_text_and_json() {
    let event = Event {
        r#type: 1,
        kv: Some(KeyValue::new(&Fields { key: b"k", mod_revision: 3, ..Fields::default() })),
        prev_kv: Some(record(b"k", b"old")),
    };
    let reply =
        Reply::Watch(WatchResponse { header: header(), events: vec![event], ..Default::default() });
    check(&reply, Format::Simple, false, "DELETE\nk\nold\nk\n\n");
    check(
        &reply,
        Format::Json,
        false,
        &format!(
            r#"{{"Header":{HEADER},"Events":[{{"type":1,"kv":{{"key":"aw==","mod_revision":3}},"prev_kv":{{"key":"aw==","create_revision":2,"mod_revision":3,"version":2,"value":"b2xk","lease":123}}}}],"CompactRevision":0,"Canceled":false,"Created":false,"CancelReason":""}}
"#
        ),
    );
}

#[test]
fn leases_are_printed_as_text_and_json() {
    let grant = Reply::LeaseGrant(LeaseGrantResponse {
        header: header(),
        id: 123,
        ttl: 60,
        error: String::new(),
    });
    check(&grant, Format::Simple, false, "lease 000000000000007b granted with TTL(60s)\n");
    let flat = HEADER.trim_end_matches('}');
    check(&grant, Format::Json, false, &format!("{flat},\"ID\":123,\"TTL\":60,\"Error\":\"\"}}\n"));
    let life = |ttl, granted_ttl| {
        let keys = vec!["a".into(), "b".into()];
        let response =
            LeaseTimeToLiveResponse { header: header(), id: 123, ttl, granted_ttl, keys };
        Reply::LeaseTimeToLive(response, true)
    };
    check(
        &life(58, 60),
        Format::Simple,
        false,
        "lease 000000000000007b granted with TTL(60s), remaining(58s), attached keys([a b])\n",
    );
    check(&life(-1, 0), Format::Simple, false, "lease 000000000000007b already expired\n");
    check(
        &life(58, 60),
        Format::Json,
        false,
        &format!(
            "{flat},\"id\":123,\"ttl\":58,\"granted-ttl\":60,\"keys\":[\"YQ==\",\"Yg==\"]}}\n"
        ),
    );
    let list = Reply::LeaseList(LeaseLeasesResponse {
        header: header(),
        leases: vec![LeaseStatus { id: 1 }],
    });
    check(&list, Format::Simple, false, "found 1 leases\n0000000000000001\n");
    check(&list, Format::Json, false, &format!("{flat},\"leases\":[{{\"id\":1}}]}}\n"));
}

#[test]
fn members_are_printed_as_text_table_and_json() {
    let member = Member {
        id: 0x8e9e,
        name: "default".to_owned(),
        peer_urls: vec!["http://a:2380".to_owned()],
        client_urls: vec!["http://a:2379".to_owned(), "http://b:2379".to_owned()],
        is_learner: false,
    };
    let unstarted =
        Member { id: 1, peer_urls: vec!["http://b:2380".to_owned()], ..Default::default() };
    let reply = Reply::MemberList(MemberListResponse {
        header: header(),
        members: vec![member, unstarted],
    });
    check(
        &reply,
        Format::Simple,
        false,
        "8e9e, started, default, http://a:2380, http://a:2379,http://b:2379, false\n\
         1, unstarted, , http://b:2380, , false\n",
    );
    check(
        &reply,
        Format::Table,
        false,
        "\
┌──────┬───────────┬─────────┬───────────────┬─────────────────────────────┬────────────┐
│  ID  │  STATUS   │  NAME   │  PEER ADDRS   │        CLIENT ADDRS         │ IS LEARNER │
├──────┼───────────┼─────────┼───────────────┼─────────────────────────────┼────────────┤
│ 8e9e │   started │ default │ http://a:2380 │ http://a:2379,http://b:2379 │      false │
│    1 │ unstarted │         │ http://b:2380 │                             │      false │
└──────┴───────────┴─────────┴───────────────┴─────────────────────────────┴────────────┘
",
    );
    check(
        &reply,
        Format::Json,
        true,
        "{\"header\":{\"cluster_id\":\"cdf818194e3a8c32\",\"member_id\":\"8e9e05c52164694d\",\
         \"revision\":3,\"raft_term\":2},\"members\":[{\"ID\":\"8e9e\",\"name\":\"default\",\
         \"peerURLs\":[\"http://a:2380\"],\"clientURLs\":[\"http://a:2379\",\"http://b:2379\"]},\
         {\"ID\":\"1\",\"peerURLs\":[\"http://b:2380\"]}]}\n",
    );
}

#[test]
fn endpoint_status_and_health_are_printed_as_text_and_json() {
    let status = StatusResponse {
        header: header(),
        version: "3.7.1".to_owned(),
        storage_version: "3.7.0".to_owned(),
        db_size: 20_480,
        db_size_in_use: 16_384,
        db_size_quota: 2_147_483_648,
        leader: 10_276_657_743_932_975_437,
        raft_term: 2,
        raft_index: 8,
        raft_applied_index: 8,
        ..Default::default()
    };
    let reply = Reply::Status(vec![("a:1".to_owned(), status)]);
    check(
        &reply,
        Format::Simple,
        false,
        "a:1, 8e9e05c52164694d, 3.7.1, 3.7.0, 20 kB, 16 kB, 20%, 2.1 GB, true, false, 2, 8, 8, , , false\n",
    );
    assert_eq!(refused(&reply, Format::Protobuf).code, exit::BAD_FEATURE);
    check(&Reply::Status(Vec::new()), Format::Json, false, "null\n");

    let health = |error: &str| Health {
        endpoint: "a:1".to_owned(),
        healthy: error.is_empty(),
        took: "2ms".to_owned(),
        error: error.to_owned(),
    };
    let reply = Reply::Health(vec![health(""), health("gone")]);
    let mut shown = Shown::default();
    Format::Simple.render(&reply, false, &mut shown).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&shown.output),
        "a:1 is healthy: successfully committed proposal: took = 2ms\n"
    );
    assert_eq!(shown.errors, "a:1 is unhealthy: failed to commit proposal: gone\n");
    check(
        &reply,
        Format::Json,
        false,
        "[{\"endpoint\":\"a:1\",\"health\":true,\"took\":\"2ms\"},\
         {\"endpoint\":\"a:1\",\"health\":false,\"took\":\"2ms\",\"error\":\"gone\"}]\n",
    );
}
