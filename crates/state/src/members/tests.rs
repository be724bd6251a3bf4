//! Tests of the encoding of members, byte for byte as in etcd, and of every rule for membership changes.

use proptest::prelude::*;

use super::*;
use crate::versions::Version;

fn member(id: u64, url: &str, name: &str) -> Member {
    Member { name: name.to_owned(), ..Member::new(MemberId(id), vec![url.to_owned()]) }
}

#[test]
fn member_and_cluster_ids_do_not_depend_on_the_order_of_urls_and_members() {
    // The golden data of etcd 3.7.1 comes from a single founder with this URL and the default
    // token.
    let urls = ["http://127.0.0.1:38855".to_owned()];
    let id = member_id(&urls, CLUSTER_TOKEN_DEFAULT, None);
    assert_eq!(id.to_string(), format!("{:x}", id.0));
    let [a, b] = ["http://a:1", "http://b:2"].map(str::to_owned);
    let id_of = |urls: &[String]| member_id(urls, "", Some(1_700_000_000));
    assert_eq!(id_of(&[a.clone(), b.clone()]), id_of(&[b.clone(), a.clone()]));
    assert_ne!(id_of(&[a.clone(), b.clone()]), member_id(&[a, b], "", None));
    let ids = [MemberId(3), MemberId(1)];
    assert_eq!(cluster_id(ids), cluster_id([MemberId(1), MemberId(3)]));
    assert_ne!(cluster_id(ids), cluster_id([MemberId(1)]));
}

#[test]
fn member_rows_are_encoded_as_in_go() {
    let started = Member {
        client_urls: vec!["http://127.0.0.1:23701".to_owned()],
        ..member(4_627_081_221_937_520_288, "http://127.0.0.1:23801", "a")
    };
    assert_eq!(
        started.to_json(),
        r#"{"id":4627081221937520288,"peerURLs":["http://127.0.0.1:23801"],"name":"a","clientURLs":["http://127.0.0.1:23701"]}"#
    );
    let learner = Member { is_learner: true, ..member(u64::MAX, "u", "") };
    let json = r#"{"id":18446744073709551615,"peerURLs":["u"],"isLearner":true}"#;
    assert_eq!(learner.to_json(), json);
    assert_eq!(Member::from_json(json.as_bytes()), Ok(learner));
    let odd = Member::new(MemberId(1), Vec::new());
    assert_eq!(odd.to_json(), r#"{"id":1,"peerURLs":null}"#);
    let escaped = member(1, "a", "<&>\"\\\n\u{8}\u{1}\u{7f}\u{2028}é");
    assert_eq!(
        escaped.to_json(),
        "{\"id\":1,\"peerURLs\":[\"a\"],\"name\":\
         \"\\u003c\\u0026\\u003e\\\"\\\\\\n\\b\\u0001\u{7f}\\u2028é\"}"
    );
    assert_eq!(Member::from_json(escaped.to_json().as_bytes()), Ok(escaped));
}

#[test]
fn member_rows_are_decoded_as_leniently_as_in_go() {
    let json = br#"{"ID":5,"peerurls":["u"],"NAME":"n","clientURLs":null,"other":{"x":1}}"#;
    assert_eq!(Member::from_json(json), Ok(member(5, "u", "n")));
    for wrong in ["", "[]", r#"{"id":-1}"#, r#"{"id":1.5}"#, r#"{"name":1}"#, r#"{"peerURLs":[1]}"#]
    {
        assert!(Member::from_json(wrong.as_bytes()).is_err(), "{wrong}");
    }
}

#[test]
fn conf_states_are_encoded_as_in_go() {
    let state = ConfState {
        voters: vec![1, u64::MAX],
        learners: vec![7],
        auto_leave: Some(false),
        ..ConfState::default()
    };
    assert_eq!(
        &conf_state_json(&state)[..],
        br#"{"voters":[1,18446744073709551615],"learners":[7],"auto_leave":false}"#
    );
    assert_eq!(&conf_state_json(&ConfState::default())[..], br#"{"auto_leave":false}"#);
}

fn change(kind: ConfChangeType, id: u64, context: &str) -> ConfChange {
    ConfChange {
        id: Some(1),
        r#type: Some(kind as i32),
        node_id: Some(id),
        context: Some(Bytes::copy_from_slice(context.as_bytes())),
    }
}

#[test]
fn membership_changes_are_validated_against_the_current_members() {
    use ConfChangeType::{
        ConfChangeAddLearnerNode as AddLearner, ConfChangeAddNode as Add,
        ConfChangeRemoveNode as Remove, ConfChangeUpdateNode as Update,
    };
    use MembershipRefusal::{
        Exists, LastVoter, NotFound, NotLearner, PeerUrlExists, Removed, TooManyLearners,
    };
    let learner = Member { is_learner: true, ..member(3, "c", "") };
    let members =
        Members::new([member(1, "a", "m1"), member(2, "b", "m2"), learner.clone()], [MemberId(9)]);
    let promote = ChangeContext::promotion_json;
    let json = |id: u64, url: &str| member(id, url, "").to_json();
    let new_learner = Member { id: MemberId(4), ..learner };
    let new_learner = Member { peer_urls: vec!["d".to_owned()], ..new_learner };
    let cases = [
        (change(Add, 9, &json(9, "x")), Err(Removed)),
        (change(Remove, 9, ""), Err(Removed)),
        (change(Add, 1, &json(1, "x")), Err(Exists)),
        (change(Add, 4, &json(4, "b")), Err(PeerUrlExists)),
        (change(Add, 4, &json(4, "d")), Ok(MemberChange::Add(member(4, "d", "")))),
        (change(AddLearner, 4, &new_learner.to_json()), Err(TooManyLearners)),
        (change(Add, 0, &json(0, "x")), Err(NotFound)),
        (change(Add, 5, &promote(MemberId(5))), Err(NotFound)),
        (change(Add, 1, &promote(MemberId(1))), Err(NotLearner)),
        (change(Add, 3, &promote(MemberId(3))), Ok(MemberChange::Promote(MemberId(3)))),
        (change(AddLearner, 3, &promote(MemberId(3))), Err(NotLearner)),
        (change(Remove, 5, ""), Err(NotFound)),
        (change(Remove, 2, ""), Ok(MemberChange::Remove(MemberId(2)))),
        (change(Update, 5, &json(5, "x")), Err(NotFound)),
        (change(Update, 2, &json(2, "a")), Err(PeerUrlExists)),
        (
            change(Update, 2, &json(2, "b")),
            Ok(MemberChange::UpdatePeerUrls(MemberId(2), vec!["b".to_owned()])),
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(members.validate(&change, 1), Ok(expected), "{change:?}");
    }
    let add_learner = change(AddLearner, 4, &new_learner.to_json());
    let (added, refused) = (members.validate(&add_learner, 2), Ok(Err(LastVoter)));
    assert_eq!(added, Ok(Ok(MemberChange::Add(new_learner.clone()))));
    assert_eq!(Members::default().validate(&add_learner, 2), refused, "the cluster has no voter");
    // The type of the change decides whether the member is a learner. Its context does not.
    for (kind, is_learner) in [(Add, false), (AddLearner, true)] {
        for context in [&new_learner, &Member { is_learner: false, ..new_learner.clone() }] {
            let added = members.validate(&change(kind, 4, &context.to_json()), 2);
            let expected = Member { is_learner, ..new_learner.clone() };
            assert_eq!(added, Ok(Ok(MemberChange::Add(expected))));
        }
    }
    for broken in [
        change(Add, 4, &json(5, "d")),
        change(Update, 2, &json(1, "x")),
        change(Add, 4, "{"),
        ConfChange { r#type: Some(17), ..change(Add, 4, "") },
    ] {
        assert!(members.validate(&broken, 1).is_err(), "{broken:?}");
    }
}

#[test]
fn the_last_voter_is_not_removed() {
    let learner = Member { is_learner: true, ..member(3, "c", "") };
    let mut members = Members::new([member(1, "a", ""), member(2, "b", ""), learner], []);
    let remove = |id| change(ConfChangeType::ConfChangeRemoveNode, id, "");
    // Both removals were valid when they were proposed.
    let first = members.validate(&remove(2), 1).unwrap().unwrap();
    members.apply(first, &mut Batch::new());
    assert_eq!(members.validate(&remove(1), 1), Ok(Err(MembershipRefusal::LastVoter)));
    assert_eq!(members.validate(&remove(3), 1), Ok(Ok(MemberChange::Remove(MemberId(3)))));
}

#[test]
fn valid_membership_changes_are_applied_and_stored() {
    let mut members = Members::new([member(1, "a", "m1")], []);
    let mut batch = Batch::new();
    let learner = Member { is_learner: true, ..member(2, "b", "") };
    members.apply(MemberChange::Add(learner), &mut batch);
    assert_eq!((members.conf_state().voters, members.conf_state().learners), (vec![1], vec![2]));
    members.apply(MemberChange::Promote(MemberId(2)), &mut batch);
    members.apply(MemberChange::UpdatePeerUrls(MemberId(2), vec!["c".to_owned()]), &mut batch);
    fn set_attributes_of(members: &mut Members, id: u64, batch: Option<&mut Batch>) -> bool {
        members.set_attributes(MemberId(id), "n".to_owned(), vec!["u".to_owned()], batch)
    }
    assert!(set_attributes_of(&mut members, 2, Some(&mut batch)));
    assert!(!set_attributes_of(&mut members, 5, Some(&mut batch)));
    assert_eq!(batch.op_count(), 4);
    assert!(set_attributes_of(&mut members, 1, None));
    members.apply(MemberChange::Remove(MemberId(1)), &mut batch);
    assert_eq!(batch.op_count(), 6);
    assert_eq!(members.conf_state().voters, [2]);
    assert!(members.is_removed(MemberId(1)));
    assert!(members.get(MemberId(2)).unwrap().is_started());
}

#[test]
fn repairing_members_rewrites_only_rows_that_differ() {
    let stored = Members::new([member(1, "a", "m1"), member(2, "b", ""), member(3, "c", "")], []);
    let truth = Members::new([member(1, "a", "m1"), member(2, "b", "m2")], [MemberId(3)]);
    let mut batch = Batch::new();
    truth.rewrite(&stored, &mut batch);
    assert_eq!(batch.op_count(), 3);
    let mut nothing = Batch::new();
    truth.rewrite(&truth, &mut nothing);
    assert_eq!(nothing.op_count(), 0);
}

#[test]
fn the_v2_store_corrects_outdated_member_rows() {
    let learner = Member { is_learner: true, ..member(3, "c", "") };
    let stored = Members::new([member(1, "a", ""), member(2, "b", "m2"), learner], [MemberId(8)]);
    let mut v2 = Members::new([member(1, "a", "m1"), member(4, "d", "")], [MemberId(9)]);
    let add = change(ConfChangeType::ConfChangeAddNode, 3, &member(3, "c", "").to_json());
    for change in [add.clone(), add, change(ConfChangeType::ConfChangeRemoveNode, 2, "")] {
        v2.replay(&change, 1).unwrap();
    }
    let truth = stored.reconciled(&v2);
    // Member 2 was never in the tree, so its removal is refused, and its row stays.
    let expected =
        [member(1, "a", "m1"), member(2, "b", "m2"), member(3, "c", ""), member(4, "d", "")];
    assert_eq!(truth.iter().cloned().collect::<Vec<_>>(), expected);
    assert_eq!(truth.removed().collect::<Vec<_>>(), [MemberId(8), MemberId(9)]);
    let zombie = Members::new([member(9, "z", "")], []).reconciled(&v2);
    assert!(zombie.get(MemberId(9)).is_none());
}

#[test]
fn member_rows_are_corrected_to_match_the_raft_configuration() {
    let learner = |id, url| Member { is_learner: true, ..member(id, url, "") };
    let stored = Members::new([member(1, "a", ""), learner(2, "b"), member(3, "c", "")], []);
    let counted = |voters: &[u64], learners: &[u64]| {
        let members = stored.counted_as(voters, learners)?;
        Some(members.iter().cloned().collect::<Vec<_>>())
    };
    // The rows have three errors: a promotion that was not stored, a learner whose row was overwritten, and a row of a
    // former member.
    let promoted = [member(1, "a", ""), member(2, "b", ""), learner(3, "c")];
    assert_eq!(counted(&[1, 2], &[3]).unwrap(), promoted);
    assert_eq!(counted(&[1], &[2]).unwrap(), [member(1, "a", ""), learner(2, "b")]);
    assert_eq!(counted(&[1, 4], &[2]), None, "member 4 has no row");
}

#[test]
fn the_v2_store_is_encoded_as_older_members_expect() {
    let started =
        Member { client_urls: vec!["http://c".to_owned()], ..member(0xab, "http://p", "m") };
    let membership = V2Membership {
        members: Members::new([started], [MemberId(0xcd)]),
        cluster_version: Some(Version::new(3, 7)),
    };
    let permanent = r#""ExpireTime":"0001-01-01T00:00:00Z""#;
    let dir = |path: &str, index: u8, children: &str| {
        format!(
            r#"{{"Path":"{path}","CreatedIndex":{index},"ModifiedIndex":{index},{permanent},"Value":"","Children":{{{children}}}}}"#
        )
    };
    let leaf = |path: &str, index: u8, value: &str| {
        format!(
            r#"{{"Path":"{path}","CreatedIndex":{index},"ModifiedIndex":{index},{permanent},"Value":"{value}","Children":null}}"#
        )
    };
    let attributes =
        leaf("/0/members/ab/attributes", 1, r#"{\"name\":\"m\",\"clientURLs\":[\"http://c\"]}"#);
    let raft = leaf("/0/members/ab/raftAttributes", 2, r#"{\"peerURLs\":[\"http://p\"]}"#);
    let ab =
        dir("/0/members/ab", 0, &format!(r#""attributes":{attributes},"raftAttributes":{raft}"#));
    let members = dir("/0/members", 0, &format!(r#""ab":{ab}"#));
    let cd = leaf("/0/removed_members/cd", 3, "");
    let removed = dir("/0/removed_members", 2, &format!(r#""cd":{cd}"#));
    let version = leaf("/0/version", 4, "3.7.0");
    let zero = dir(
        "/0",
        0,
        &format!(r#""members":{members},"removed_members":{removed},"version":{version}"#),
    );
    let one = dir("/1", 4, "");
    let root = dir("/", 0, &format!(r#""0":{zero},"1":{one}"#));
    let expected = format!(r#"{{"Root":{root},"CurrentIndex":4,"CurrentVersion":2}}"#);
    assert_eq!(membership.to_json(), expected);
    assert_eq!(V2Membership::from_json(expected.as_bytes()).unwrap(), membership);
}

#[test]
fn data_of_the_v2_api_is_found() {
    let find = |root: &str| {
        let json = format!(r#"{{"Root":{{"Children":{root}}}}}"#);
        path_of_v2_data(json.as_bytes()).unwrap()
    };
    let members = r#""0":{"Children":{"members":{"Children":{}}}}"#;
    let one = |children: &str| format!(r#"{{{members},"1":{{"Children":{children}}}}}"#);
    assert_eq!(find(&one("{}")), None);
    assert_eq!(find(&one("null")), None);
    assert_eq!(find(&one(r#"{"foo":{"Value":"bar"}}"#)).as_deref(), Some("/1/foo"));
    let auth = |users: &str| {
        let users = format!(r#"{{"Children":{users}}}"#);
        let off = r#"{"Value":"false","Children":null}"#;
        format!(r#"{{{members},"2":{{"Children":{{"enabled":{off},"users":{users}}}}}}}"#)
    };
    assert_eq!(find(&auth("{}")), None);
    assert_eq!(find(&auth(r#"{"ann":{}}"#)).as_deref(), Some("/2/users/ann"));
    assert_eq!(path_of_v2_data(V2Membership::default().to_json().as_bytes()).unwrap(), None);
}

#[test]
fn an_invalid_v2_store_is_refused() {
    for json in [
        "",
        "{}",
        r#"{"Root":{"Children":{"0":{"Children":{"members":{"Children":{"zz":{}}}}}}}}"#,
        r#"{"Root":{"Children":{"0":{"Children":{"members":{"Children":{"ab":{}}}}}}}}"#,
        r#"{"Root":{"Children":{"0":{"Children":{"version":{"Value":"x"}}}}}}"#,
    ] {
        assert!(V2Membership::from_json(json.as_bytes()).is_err(), "{json}");
    }
    let empty = V2Membership::from_json(br#"{"Root":{"Path":"/","Children":{}}}"#).unwrap();
    assert_eq!(empty, V2Membership::default());
}

proptest! {
    #[test]
    fn members_round_trip_as_json_and_in_the_v2_store(
        id: u64,
        urls in prop::collection::vec(".*", 1..3),
        name in ".*",
        client_urls in prop::collection::vec(".*", 0..3),
        is_learner: bool,
    ) {
        let member = Member { id: MemberId(id), peer_urls: urls, is_learner, name, client_urls };
        prop_assert_eq!(Member::from_json(member.to_json().as_bytes()), Ok(member.clone()));
        let membership =
            V2Membership { members: Members::new([member], []), cluster_version: None };
        let read = V2Membership::from_json(membership.to_json().as_bytes()).unwrap();
        prop_assert_eq!(read, membership);
    }

    #[test]
    fn arbitrary_bytes_are_decoded_without_panic(bytes: Vec<u8>) {
        let object = bytes.first() == Some(&123);
        prop_assert!(Member::from_json(&bytes).is_err() || object);
        prop_assert!(V2Membership::from_json(&bytes).is_err());
    }
}
