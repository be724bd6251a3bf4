//! Histories that a person can read, good and bad, one promise at a time.

use bytes::Bytes;

use crate::*;

const SECOND: u64 = 1_000_000_000;

/// Tells a history in the order of its lines; moments are tenths of seconds.
#[derive(Default)]
struct Tale {
    history: History,
}

fn at(tenths: u64) -> Moment {
    Moment(tenths * (SECOND / 10))
}

fn key(name: &str) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

fn put(name: &str, value: &str) -> Put {
    Put { key: key(name), value: key(value), ..Put::default() }
}

fn kv(name: &str, value: &str, create: i64, revision: i64, version: i64) -> KeyValue {
    KeyValue {
        key: key(name),
        value: key(value),
        create_revision: create,
        mod_revision: revision,
        version,
        lease: 0,
    }
}

impl Tale {
    fn add(&mut self, called: u64, request: Request, outcome: Outcome) -> &mut Self {
        let called = at(called);
        let operation = Operation { client: 0, member: 1, called, request, outcome };
        self.history.operations.push(operation);
        self
    }

    /// A put that is there at this revision, and was acknowledged.
    fn put(&mut self, called: u64, returned: u64, stored: KeyValue) -> &mut Self {
        let revision = stored.mod_revision;
        let put = Put {
            key: stored.key.clone(),
            value: stored.value.clone(),
            lease: stored.lease,
            ..Put::default()
        };
        self.history.chronicle.tell(revision, vec![Event::put(stored)]).unwrap();
        self.acknowledged_put(called, returned, put, revision)
    }

    fn acknowledged_put(
        &mut self,
        called: u64,
        returned: u64,
        put: Put,
        revision: i64,
    ) -> &mut Self {
        let answer = Answer::Kv(KvAnswer::Put { previous: None });
        let outcome = Outcome::Answered { at: at(returned), revision: Some(revision), answer };
        self.add(called, Request::Kv(KvRequest::Put(put)), outcome)
    }

    fn read(&mut self, called: u64, returned: u64, revision: i64, found: &[KeyValue]) -> &mut Self {
        self.read_as(called, returned, revision, found, false)
    }

    fn read_as(
        &mut self,
        called: u64,
        returned: u64,
        revision: i64,
        found: &[KeyValue],
        serializable: bool,
    ) -> &mut Self {
        let range = Range { keys: KeyRange::ALL, serializable, ..Range::default() };
        let count = found.len() as i64;
        let answer = KvAnswer::Range { kvs: found.to_vec(), count, more: false };
        let outcome = Outcome::Answered {
            at: at(returned),
            revision: Some(revision),
            answer: Answer::Kv(answer),
        };
        self.add(called, Request::Kv(KvRequest::Range(range)), outcome)
    }

    fn answered(
        &mut self,
        called: u64,
        returned: u64,
        request: Request,
        answer: Answer,
    ) -> &mut Self {
        let outcome = Outcome::Answered { at: at(returned), revision: None, answer };
        self.add(called, request, outcome)
    }

    fn refused(&mut self, called: u64, returned: u64, request: Request, why: Refusal) -> &mut Self {
        let outcome = Outcome::Refused { at: at(returned), refusal: why };
        self.add(called, request, outcome)
    }

    fn granted(&mut self, called: u64, returned: u64, id: i64, ttl_secs: i64) -> &mut Self {
        let request = Request::LeaseGrant { id, ttl_secs };
        self.answered(called, returned, request, Answer::LeaseGranted { id, ttl_secs })
    }

    fn kept(&mut self, called: u64, returned: u64, id: i64, ttl_secs: i64) -> &mut Self {
        let answer = Answer::LeaseKeptAlive { ttl_secs };
        self.answered(called, returned, Request::LeaseKeepAlive { id }, answer)
    }

    fn watched(&mut self, request: WatchRequest, told: Vec<(Moment, Told)>) -> &mut Self {
        let watcher = Watcher { request, told, ..Watcher::default() };
        self.history.watchers.push(watcher);
        self
    }

    #[track_caller]
    fn good(&self) {
        if let Err(why) = check(&self.history, &super::RULES) {
            panic!("{why}");
        }
    }

    #[track_caller]
    fn bad(&self, property: Property) -> Contradiction {
        match check(&self.history, &super::RULES) {
            Ok(counts) => panic!("it passes: {counts:?}"),
            Err(why) => {
                assert_eq!(why.property, property, "{why}");
                *why
            }
        }
    }
}

#[test]
fn a_stale_read_names_what_was_known() {
    let mut tale = Tale::default();
    tale.put(0, 1, kv("a", "1", 2, 2, 1)).put(2, 3, kv("a", "2", 2, 3, 2));
    tale.read(4, 5, 2, &[kv("a", "1", 2, 2, 1)]);
    let why = tale.bad(Property::RealTime);
    assert_eq!(why.operations, [2, 1]);
}

#[test]
fn a_serializable_read_may_be_stale_and_still_makes_its_revision_known() {
    let mut tale = Tale::default();
    tale.put(0, 1, kv("a", "1", 2, 2, 1)).put(2, 30, kv("a", "2", 2, 3, 2));
    tale.read_as(4, 5, 2, &[kv("a", "1", 2, 2, 1)], true).good();
    // Before the write has its answer another has seen it: then it is there for all.
    tale.read_as(6, 7, 3, &[kv("a", "2", 2, 3, 2)], true).good();
    tale.read(8, 9, 2, &[kv("a", "1", 2, 2, 1)]).bad(Property::RealTime);
}

#[test]
fn an_acknowledged_write_that_is_not_there_is_lost() {
    let mut tale = Tale::default();
    tale.put(0, 1, kv("a", "1", 2, 2, 1));
    tale.acknowledged_put(2, 3, put("a", "2"), 3).bad(Property::Durable);
    // Or something else has come to its place.
    tale.put(4, 5, kv("b", "1", 3, 3, 1)).bad(Property::Durable);
}

#[test]
fn a_write_that_was_carried_out_twice_is_nobodys() {
    let mut tale = Tale::default();
    tale.put(0, 1, kv("a", "1", 2, 2, 1));
    let again = Event::put(kv("a", "1", 2, 3, 2));
    tale.history.chronicle.tell(3, vec![again]).unwrap();
    assert_eq!(tale.bad(Property::Explained).operations, [0]);
    // One without an answer explains it, once.
    let unknown = Request::Kv(KvRequest::Put(put("a", "1")));
    tale.add(2, unknown, Outcome::Unknown).good();
    let again = Event::put(kv("a", "1", 2, 4, 3));
    tale.history.chronicle.tell(4, vec![again]).unwrap();
    tale.bad(Property::Explained);
}

#[test]
fn what_nobody_had_asked_for_yet_cannot_be_seen() {
    let mut tale = Tale::default();
    tale.read_as(0, 1, 2, &[kv("a", "1", 2, 2, 1)], true);
    tale.put(2, 3, kv("a", "1", 2, 2, 1)).bad(Property::RealTime);
}

#[test]
fn half_a_transaction_is_found() {
    let mut tale = Tale::default();
    let both = vec![KvRequest::Put(put("a", "1")), KvRequest::Put(put("b", "1"))];
    let request = KvRequest::Txn(Txn { compares: vec![], success: both, failure: vec![] });
    let stored = || KvAnswer::Put { previous: None };
    let answer = KvAnswer::Txn { succeeded: true, answers: vec![stored(), stored()] };
    let outcome = Outcome::Answered { at: at(1), revision: Some(2), answer: Answer::Kv(answer) };
    let half = Event::put(kv("a", "1", 2, 2, 1));
    tale.history.chronicle.tell(2, vec![half]).unwrap();
    tale.add(0, Request::Kv(request), outcome).bad(Property::Durable);
}

#[test]
fn a_lease_that_was_kept_alive_lasts() {
    let mut tale = Tale::default();
    tale.granted(0, 1, 7, 2).kept(10, 11, 7, 2);
    let keep = Request::LeaseKeepAlive { id: 7 };
    let mut early = Tale { history: tale.history.clone() };
    early.refused(25, 26, keep.clone(), Refusal::LeaseNotFound).bad(Property::LeaseKept);
    tale.refused(31, 32, keep, Refusal::LeaseNotFound).good();
    // And it does not come back.
    tale.kept(33, 34, 7, 2).bad(Property::LeaseEnded);
}

#[test]
fn a_lease_whose_end_was_asked_for_may_end_at_once() {
    let mut tale = Tale::default();
    tale.granted(0, 1, 7, 60).add(2, Request::LeaseRevoke { id: 7 }, Outcome::Unknown);
    let put = Put { lease: 7, ..put("a", "1") };
    let put = Request::Kv(KvRequest::Put(put));
    tale.refused(3, 4, put, Refusal::LeaseNotFound).good();
    tale.put(5, 6, KeyValue { lease: 7, ..kv("a", "1", 2, 2, 1) }).bad(Property::LeaseEnded);
}

#[test]
fn keys_go_with_their_lease() {
    let mut tale = Tale::default();
    let stored = KeyValue { lease: 7, ..kv("a", "1", 2, 2, 1) };
    tale.granted(0, 1, 7, 1).put(2, 3, stored.clone()).good();
    let mut left = Tale { history: tale.history.clone() };
    let revoke = Request::LeaseRevoke { id: 7 };
    left.answered(4, 5, revoke, Answer::LeaseRevoked).bad(Property::LeaseEnded);
    // Its end explains that the key is gone; who knows of the end does not see the key.
    tale.history.chronicle.tell(3, vec![Event::delete(key("a"), 3)]).unwrap();
    tale.good();
    tale.refused(20, 21, Request::LeaseKeepAlive { id: 7 }, Refusal::LeaseNotFound).good();
    tale.read(22, 23, 2, &[stored]).bad(Property::LeaseEnded);
}

#[test]
fn a_lease_that_nobody_keeps_ends_when_all_is_calm() {
    let mut tale = Tale::default();
    tale.granted(0, 1, 7, 1).put(2, 3, KeyValue { lease: 7, ..kv("a", "1", 2, 2, 1) });
    let calm = |until| Some(Calm { since: at(10), until: at(until), lease_grace: SECOND });
    let rules = |until| Rules { calm: calm(until), ..super::RULES };
    assert!(check(&tale.history, &rules(29)).is_ok());
    let why = check(&tale.history, &rules(31)).expect_err("it is overdue");
    assert_eq!(why.property, Property::LeaseEnded);
}

#[test]
fn a_leader_that_does_not_know_better_may_renew_for_a_while() {
    let mut tale = Tale::default();
    tale.granted(0, 1, 7, 9).answered(2, 3, Request::LeaseRevoke { id: 7 }, Answer::LeaseRevoked);
    let (renewal, renewed) =
        (Request::LeaseKeepAlive { id: 7 }, Answer::LeaseKeptAlive { ttl_secs: 9 });
    tale.answered(6, 7, renewal.clone(), renewed.clone()).bad(Property::LeaseEnded);
    let rules = Rules { renewal_slack: 3 * (at(1).0 - at(0).0), ..super::RULES };
    assert!(check(&tale.history, &rules).is_ok());
    tale.answered(7, 8, renewal, renewed);
    let why = check(&tale.history, &rules).expect_err("it should know by now");
    assert_eq!(why.property, Property::LeaseEnded);
}

#[test]
fn a_new_leader_may_lengthen_a_lease_by_so_much_and_no_more() {
    let left = |ttl_secs| Answer::LeaseTimeToLive { ttl_secs, granted_ttl_secs: 5, keys: None };
    let asked = Request::LeaseTimeToLive { id: 7, keys: false };
    let mut tale = Tale::default();
    tale.granted(0, 1, 7, 5).answered(2, 3, asked.clone(), left(5)).good();
    tale.answered(4, 5, asked.clone(), left(6)).bad(Property::Answered);
    let rules = Rules { lease_extension: SECOND, ..super::RULES };
    assert!(check(&tale.history, &rules).is_ok());
    tale.answered(6, 7, asked, left(7));
    let why = check(&tale.history, &rules).expect_err("it is longer than that");
    assert_eq!(why.property, Property::Answered);
}

#[test]
fn what_was_compacted_is_refused_and_nothing_else() {
    let range = |revision| {
        Request::Kv(KvRequest::Range(Range { keys: KeyRange::ALL, revision, ..Range::default() }))
    };
    let mut tale = Tale::default();
    tale.put(0, 1, kv("a", "1", 2, 2, 1)).put(2, 3, kv("a", "2", 2, 3, 2));
    let mut early = Tale { history: tale.history.clone() };
    early.refused(4, 5, range(2), Refusal::Compacted).bad(Property::Compacted);
    tale.answered(4, 5, Request::Compact { revision: 3 }, Answer::Compacted);
    tale.refused(6, 7, range(2), Refusal::Compacted).good();
    let read = KvAnswer::Range { kvs: vec![kv("a", "1", 2, 2, 1)], count: 1, more: false };
    let outcome = Outcome::Answered { at: at(9), revision: Some(3), answer: Answer::Kv(read) };
    tale.add(8, range(2), outcome).bad(Property::Compacted);
}

#[test]
fn a_watcher_that_fell_behind_a_compaction_is_told_so() {
    let mut tale = Tale::default();
    tale.put(0, 1, kv("a", "1", 2, 2, 1)).put(2, 3, kv("a", "2", 2, 3, 2));
    tale.answered(4, 5, Request::Compact { revision: 3 }, Answer::Compacted);
    let from = |start_revision| WatchRequest {
        keys: KeyRange::ALL,
        start_revision,
        ..WatchRequest::default()
    };
    let ended = || vec![(at(7), Told::Compacted { revision: 3 })];
    tale.watched(from(2), ended()).good();
    let newest = Event::put(kv("a", "2", 2, 3, 2));
    let skipped = vec![(at(7), Told::Events { events: vec![newest], is_fragment: false })];
    let mut silent = Tale { history: tale.history.clone() };
    silent.watched(from(2), skipped).bad(Property::Watched);
    // From the compacted revision on, nothing is missing.
    tale.watched(from(3), ended()).bad(Property::Compacted);
}

#[test]
fn a_watcher_of_the_future_hears_of_no_progress_before() {
    let mut tale = Tale::default();
    tale.put(0, 1, kv("a", "1", 2, 2, 1));
    let request =
        WatchRequest { keys: KeyRange::ALL, start_revision: 9, ..WatchRequest::default() };
    let told = vec![(at(5), Told::Progress { revision: 2 })];
    tale.watched(request, told).bad(Property::Progress);
}

#[test]
fn an_event_makes_its_revision_known() {
    let mut tale = Tale::default();
    tale.put(0, 90, kv("a", "1", 2, 2, 1));
    let events = vec![Event::put(kv("a", "1", 2, 2, 1))];
    let request =
        WatchRequest { keys: KeyRange::ALL, start_revision: 1, ..WatchRequest::default() };
    tale.watched(request, vec![(at(5), Told::Events { events, is_fragment: false })]).good();
    tale.read(6, 7, 1, &[]);
    let why = tale.bad(Property::RealTime);
    assert_eq!((why.watcher, &why.operations[..]), (Some(0), &[1][..]));
}

#[test]
fn members_that_differ_are_noticed_at_once() {
    let mut chronicle = Chronicle::default();
    chronicle.tell(2, vec![Event::put(kv("a", "1", 2, 2, 1))]).unwrap();
    chronicle.tell(2, vec![Event::put(kv("a", "1", 2, 2, 1))]).unwrap();
    assert!(matches!(
        chronicle.tell(2, vec![Event::put(kv("a", "2", 2, 2, 1))]),
        Err(Disagreement::Different { revision: 2, .. })
    ));
    assert!(matches!(
        chronicle.tell(4, vec![Event::delete(key("a"), 4)]),
        Err(Disagreement::Gap { revision: 4, last: 2 })
    ));
}
