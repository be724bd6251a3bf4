//! Hand-written correct and incorrect histories, each of which tests one property.

use bytes::Bytes;

use crate::*;

const SECOND: u64 = 1_000_000_000;

/// Builds a history in call order. Moments are in tenths of a second.
#[derive(Default)]
struct Scenario {
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

impl Scenario {
    fn add(&mut self, called: u64, request: Request, outcome: Outcome) -> &mut Self {
        let called = at(called);
        let operation = Operation { client: 0, member: 1, called, request, outcome };
        self.history.operations.push(operation);
        self
    }

    /// Adds an acknowledged put and its revision in the event log.
    fn put(&mut self, called: u64, returned: u64, stored: KeyValue) -> &mut Self {
        let revision = stored.mod_revision;
        let put = Put {
            key: stored.key.clone(),
            value: stored.value.clone(),
            lease: stored.lease,
            ..Put::default()
        };
        self.history.event_log.record(revision, vec![Event::put(stored)]).unwrap();
        self.acknowledged_put(called, returned, put, revision)
    }

    fn acknowledged_put(
        &mut self,
        called: u64,
        returned: u64,
        put: Put,
        revision: i64,
    ) -> &mut Self {
        let response = Response::Kv(KvResponse::Put { previous: None });
        let outcome = Outcome::Succeeded { at: at(returned), revision: Some(revision), response };
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
        let response = KvResponse::Range { kvs: found.to_vec(), count, more: false };
        let outcome = Outcome::Succeeded {
            at: at(returned),
            revision: Some(revision),
            response: Response::Kv(response),
        };
        self.add(called, Request::Kv(KvRequest::Range(range)), outcome)
    }

    fn answered(
        &mut self,
        called: u64,
        returned: u64,
        request: Request,
        response: Response,
    ) -> &mut Self {
        let outcome = Outcome::Succeeded { at: at(returned), revision: None, response };
        self.add(called, request, outcome)
    }

    fn refused(
        &mut self,
        called: u64,
        returned: u64,
        request: Request,
        violation: Refusal,
    ) -> &mut Self {
        let outcome = Outcome::Refused { at: at(returned), refusal: violation };
        self.add(called, request, outcome)
    }

    fn granted(&mut self, called: u64, returned: u64, id: i64, ttl_secs: i64) -> &mut Self {
        let request = Request::LeaseGrant { id, ttl_secs };
        self.answered(called, returned, request, Response::LeaseGranted { id, ttl_secs })
    }

    fn kept(&mut self, called: u64, returned: u64, id: i64, ttl_secs: i64) -> &mut Self {
        let response = Response::LeaseKeptAlive { ttl_secs };
        self.answered(called, returned, Request::LeaseKeepAlive { id }, response)
    }

    fn watched(
        &mut self,
        request: WatchRequest,
        messages: Vec<(Moment, WatchMessage)>,
    ) -> &mut Self {
        let watcher = Watcher { request, messages, ..Watcher::default() };
        self.history.watchers.push(watcher);
        self
    }

    #[track_caller]
    fn passes(&self) {
        if let Err(violation) = check(&self.history, &super::RULES) {
            panic!("{violation}");
        }
    }

    #[track_caller]
    fn violates(&self, property: Property) -> Violation {
        match check(&self.history, &super::RULES) {
            Ok(counts) => panic!("no violation was found: {counts:?}"),
            Err(violation) => {
                assert_eq!(violation.property, property, "{violation}");
                *violation
            }
        }
    }
}

#[test]
fn a_stale_read_is_reported_with_the_newer_observation() {
    let mut scenario = Scenario::default();
    scenario.put(0, 1, kv("a", "1", 2, 2, 1)).put(2, 3, kv("a", "2", 2, 3, 2));
    scenario.read(4, 5, 2, &[kv("a", "1", 2, 2, 1)]);
    let violation = scenario.violates(Property::RealTime);
    assert_eq!(violation.operations, [2, 1]);
}

#[test]
fn a_serializable_read_may_be_stale_but_counts_as_an_observation() {
    let mut scenario = Scenario::default();
    scenario.put(0, 1, kv("a", "1", 2, 2, 1)).put(2, 30, kv("a", "2", 2, 3, 2));
    scenario.read_as(4, 5, 2, &[kv("a", "1", 2, 2, 1)], true).passes();
    // A serializable read observes the write before the write is acknowledged. From then on, every linearizable read
    // must see the write.
    scenario.read_as(6, 7, 3, &[kv("a", "2", 2, 3, 2)], true).passes();
    scenario.read(8, 9, 2, &[kv("a", "1", 2, 2, 1)]).violates(Property::RealTime);
}

#[test]
fn an_acknowledged_write_that_is_missing_from_the_event_log_is_reported_as_lost() {
    let mut scenario = Scenario::default();
    scenario.put(0, 1, kv("a", "1", 2, 2, 1));
    scenario.acknowledged_put(2, 3, put("a", "2"), 3).violates(Property::Durable);
    // The write is also lost if the event log has another event at its revision.
    scenario.put(4, 5, kv("b", "1", 3, 3, 1)).violates(Property::Durable);
}

#[test]
fn a_write_executed_twice_is_reported() {
    let mut scenario = Scenario::default();
    scenario.put(0, 1, kv("a", "1", 2, 2, 1));
    let again = Event::put(kv("a", "1", 2, 3, 2));
    scenario.history.event_log.record(3, vec![again]).unwrap();
    assert_eq!(scenario.violates(Property::SingleCause).operations, [0]);
    // An operation with an unknown outcome explains the second write, but not a third one.
    let unknown = Request::Kv(KvRequest::Put(put("a", "1")));
    scenario.add(2, unknown, Outcome::Unknown).passes();
    let again = Event::put(kv("a", "1", 2, 4, 3));
    scenario.history.event_log.record(4, vec![again]).unwrap();
    scenario.violates(Property::SingleCause);
}

#[test]
fn a_transaction_that_only_has_conditions_must_not_be_stale() {
    let mut scenario = Scenario::default();
    scenario.put(0, 1, kv("a", "1", 2, 2, 1)).put(2, 3, kv("a", "2", 2, 3, 2));
    let compare = Compare {
        keys: KeyRange { key: key("a"), end: Bytes::new() },
        relation: Relation::Equal,
        operand: Operand::Version(1),
    };
    let read = Range { keys: KeyRange::ALL, serializable: true, ..Range::default() };
    let at_revision_2 = |success: Vec<KvRequest>, responses| {
        let request =
            KvRequest::Txn(Txn { compares: vec![compare.clone()], success, failure: vec![] });
        let response = Response::Kv(KvResponse::Txn { succeeded: true, responses });
        (Request::Kv(request), Outcome::Succeeded { at: at(5), revision: Some(2), response })
    };
    let kvs = vec![kv("a", "1", 2, 2, 1)];
    let found = KvResponse::Range { kvs, count: 1, more: false };
    let (request, outcome) = at_revision_2(vec![KvRequest::Range(read)], vec![found]);
    scenario.add(4, request, outcome).passes();
    let (request, outcome) = at_revision_2(vec![], vec![]);
    scenario.add(4, request, outcome).violates(Property::RealTime);
}

#[test]
fn a_revision_cannot_be_observed_before_its_operation_is_called() {
    let mut scenario = Scenario::default();
    scenario.read_as(0, 1, 2, &[kv("a", "1", 2, 2, 1)], true);
    scenario.put(2, 3, kv("a", "1", 2, 2, 1)).violates(Property::RealTime);
}

#[test]
fn a_partially_applied_transaction_is_reported() {
    let mut scenario = Scenario::default();
    let both = vec![KvRequest::Put(put("a", "1")), KvRequest::Put(put("b", "1"))];
    let request = KvRequest::Txn(Txn { compares: vec![], success: both, failure: vec![] });
    let stored = || KvResponse::Put { previous: None };
    let response = KvResponse::Txn { succeeded: true, responses: vec![stored(), stored()] };
    let outcome =
        Outcome::Succeeded { at: at(1), revision: Some(2), response: Response::Kv(response) };
    let half = Event::put(kv("a", "1", 2, 2, 1));
    scenario.history.event_log.record(2, vec![half]).unwrap();
    scenario.add(0, Request::Kv(request), outcome).violates(Property::Durable);
}

#[test]
fn a_lease_that_ends_too_early_after_a_renewal_is_reported() {
    let mut scenario = Scenario::default();
    scenario.granted(0, 1, 7, 2).kept(10, 11, 7, 2);
    let keep = Request::LeaseKeepAlive { id: 7 };
    let mut early = Scenario { history: scenario.history.clone() };
    early.refused(25, 26, keep.clone(), Refusal::LeaseNotFound).violates(Property::LeaseLifetime);
    scenario.refused(31, 32, keep, Refusal::LeaseNotFound).passes();
    // A lease that has ended must not come back.
    scenario.kept(33, 34, 7, 2).violates(Property::LeaseEnd);
}

#[test]
fn a_lease_may_end_as_soon_as_its_revocation_is_requested() {
    let mut scenario = Scenario::default();
    scenario.granted(0, 1, 7, 60).add(2, Request::LeaseRevoke { id: 7 }, Outcome::Unknown);
    let put = Put { lease: 7, ..put("a", "1") };
    let put = Request::Kv(KvRequest::Put(put));
    scenario.refused(3, 4, put, Refusal::LeaseNotFound).passes();
    scenario.put(5, 6, KeyValue { lease: 7, ..kv("a", "1", 2, 2, 1) }).violates(Property::LeaseEnd);
}

#[test]
fn a_key_that_outlives_its_lease_is_reported() {
    let mut scenario = Scenario::default();
    let stored = KeyValue { lease: 7, ..kv("a", "1", 2, 2, 1) };
    scenario.granted(0, 1, 7, 1).put(2, 3, stored.clone()).passes();
    let mut left = Scenario { history: scenario.history.clone() };
    let revoke = Request::LeaseRevoke { id: 7 };
    left.answered(4, 5, revoke, Response::LeaseRevoked).violates(Property::LeaseEnd);
    // The end of the lease explains the deletion. A read after that end must not see the key.
    scenario.history.event_log.record(3, vec![Event::delete(key("a"), 3)]).unwrap();
    scenario.passes();
    scenario.refused(20, 21, Request::LeaseKeepAlive { id: 7 }, Refusal::LeaseNotFound).passes();
    scenario.read(22, 23, 2, &[stored]).violates(Property::LeaseEnd);
}

#[test]
fn the_end_of_a_lease_is_found_after_a_transaction_that_puts_and_deletes_its_key() {
    let mut scenario = Scenario::default();
    scenario.granted(0, 1, 7, 60);
    let nested =
        |request| KvRequest::Txn(Txn { compares: vec![], success: vec![request], failure: vec![] });
    let delete = Delete { keys: KeyRange { key: key("b"), end: Bytes::new() }, prev_kv: false };
    let put = KvRequest::Put(Put { lease: 7, ..put("b", "1") });
    let success = vec![nested(put), nested(KvRequest::Delete(delete))];
    let request = KvRequest::Txn(Txn { compares: vec![], success, failure: vec![] });
    let done = |response| KvResponse::Txn { succeeded: true, responses: vec![response] };
    let responses = vec![
        done(KvResponse::Put { previous: None }),
        done(KvResponse::Delete { deleted: 1, previous: vec![] }),
    ];
    let response = Response::Kv(KvResponse::Txn { succeeded: true, responses });
    let outcome = Outcome::Succeeded { at: at(3), revision: Some(2), response };
    let stored = |name, revision| KeyValue { lease: 7, ..kv(name, "1", revision, revision, 1) };
    let events = vec![Event::put(stored("b", 2)), Event::delete(key("b"), 2)];
    scenario.history.event_log.record(2, events).unwrap();
    scenario.add(2, Request::Kv(request), outcome).put(4, 5, stored("a", 3)).passes();
    // When the lease ends, only one key is still attached to it.
    scenario.history.event_log.record(4, vec![Event::delete(key("a"), 4)]).unwrap();
    scenario.answered(6, 7, Request::LeaseRevoke { id: 7 }, Response::LeaseRevoked).passes();
}

#[test]
fn an_overdue_lease_in_a_fault_free_period_is_reported() {
    let mut scenario = Scenario::default();
    scenario.granted(0, 1, 7, 1).put(2, 3, KeyValue { lease: 7, ..kv("a", "1", 2, 2, 1) });
    let fault_free =
        |until| Some(FaultFree { since: at(10), until: at(until), lease_grace: SECOND });
    let rules = |until| Rules { fault_free: fault_free(until), ..super::RULES };
    assert!(check(&scenario.history, &rules(29)).is_ok());
    let violation =
        check(&scenario.history, &rules(31)).expect_err("an overdue lease must be reported");
    assert_eq!(violation.property, Property::LeaseEnd);
}

#[test]
fn a_deposed_leader_may_renew_within_the_renewal_slack() {
    let mut scenario = Scenario::default();
    scenario.granted(0, 1, 7, 9).answered(
        2,
        3,
        Request::LeaseRevoke { id: 7 },
        Response::LeaseRevoked,
    );
    let (renewal, renewed) =
        (Request::LeaseKeepAlive { id: 7 }, Response::LeaseKeptAlive { ttl_secs: 9 });
    scenario.answered(6, 7, renewal.clone(), renewed.clone()).violates(Property::LeaseEnd);
    let rules = Rules { renewal_slack: 3 * (at(1).0 - at(0).0), ..super::RULES };
    assert!(check(&scenario.history, &rules).is_ok());
    scenario.answered(7, 8, renewal, renewed);
    let violation = check(&scenario.history, &rules)
        .expect_err("a renewal beyond the renewal slack must be reported");
    assert_eq!(violation.property, Property::LeaseEnd);
}

#[test]
fn a_new_leader_may_extend_a_lease_up_to_the_limit() {
    let left = |ttl_secs| Response::LeaseTimeToLive { ttl_secs, granted_ttl_secs: 5, keys: None };
    let asked = Request::LeaseTimeToLive { id: 7, keys: false };
    let mut scenario = Scenario::default();
    scenario.granted(0, 1, 7, 5).answered(2, 3, asked.clone(), left(5)).passes();
    scenario.answered(4, 5, asked.clone(), left(6)).violates(Property::Response);
    let rules = Rules { lease_extension: SECOND, ..super::RULES };
    assert!(check(&scenario.history, &rules).is_ok());
    scenario.answered(6, 7, asked, left(7));
    let violation = check(&scenario.history, &rules)
        .expect_err("a remaining TTL beyond the extension limit must be reported");
    assert_eq!(violation.property, Property::Response);
}

#[test]
fn only_compacted_revisions_are_refused_as_compacted() {
    let range = |revision| {
        Request::Kv(KvRequest::Range(Range { keys: KeyRange::ALL, revision, ..Range::default() }))
    };
    let mut scenario = Scenario::default();
    scenario.put(0, 1, kv("a", "1", 2, 2, 1)).put(2, 3, kv("a", "2", 2, 3, 2));
    let mut early = Scenario { history: scenario.history.clone() };
    early.refused(4, 5, range(2), Refusal::Compacted).violates(Property::Compaction);
    scenario.answered(4, 5, Request::Compact { revision: 3 }, Response::Compacted);
    scenario.refused(6, 7, range(2), Refusal::Compacted).passes();
    let read = KvResponse::Range { kvs: vec![kv("a", "1", 2, 2, 1)], count: 1, more: false };
    let outcome = Outcome::Succeeded { at: at(9), revision: Some(3), response: Response::Kv(read) };
    scenario.add(8, range(2), outcome).violates(Property::Compaction);
}

#[test]
fn a_watcher_of_compacted_revisions_must_be_cancelled() {
    let mut scenario = Scenario::default();
    scenario.put(0, 1, kv("a", "1", 2, 2, 1)).put(2, 3, kv("a", "2", 2, 3, 2));
    scenario.answered(4, 5, Request::Compact { revision: 3 }, Response::Compacted);
    let from = |start_revision| WatchRequest {
        keys: KeyRange::ALL,
        start_revision,
        ..WatchRequest::default()
    };
    let ended = || vec![(at(7), WatchMessage::Compacted { revision: 3 })];
    scenario.watched(from(2), ended()).passes();
    let newest = Event::put(kv("a", "2", 2, 3, 2));
    let skipped = vec![(at(7), WatchMessage::Events { events: vec![newest], is_fragment: false })];
    let mut silent = Scenario { history: scenario.history.clone() };
    silent.watched(from(2), skipped).violates(Property::WatchEvents);
    // A watch that starts at the compacted revision misses no event, so it must not be cancelled.
    scenario.watched(from(3), ended()).violates(Property::Compaction);
}

#[test]
fn a_watch_from_a_future_revision_receives_no_progress_notification_before_it() {
    let mut scenario = Scenario::default();
    scenario.put(0, 1, kv("a", "1", 2, 2, 1));
    let request =
        WatchRequest { keys: KeyRange::ALL, start_revision: 9, ..WatchRequest::default() };
    let messages = vec![(at(5), WatchMessage::Progress { revision: 2 })];
    scenario.watched(request, messages).violates(Property::WatchProgress);
}

#[test]
fn an_event_counts_as_an_observation_of_its_revision() {
    let mut scenario = Scenario::default();
    scenario.put(0, 90, kv("a", "1", 2, 2, 1));
    let events = vec![Event::put(kv("a", "1", 2, 2, 1))];
    let request =
        WatchRequest { keys: KeyRange::ALL, start_revision: 1, ..WatchRequest::default() };
    scenario
        .watched(request, vec![(at(5), WatchMessage::Events { events, is_fragment: false })])
        .passes();
    scenario.read(6, 7, 1, &[]);
    let violation = scenario.violates(Property::RealTime);
    assert_eq!((violation.watcher, &violation.operations[..]), (Some(0), &[1][..]));
}

#[test]
fn conflicting_records_of_a_revision_are_refused() {
    let mut event_log = EventLog::default();
    event_log.record(2, vec![Event::put(kv("a", "1", 2, 2, 1))]).unwrap();
    event_log.record(2, vec![Event::put(kv("a", "1", 2, 2, 1))]).unwrap();
    assert!(matches!(
        event_log.record(2, vec![Event::put(kv("a", "2", 2, 2, 1))]),
        Err(RecordError::Conflicting { revision: 2, .. })
    ));
    assert!(matches!(
        event_log.record(4, vec![Event::delete(key("a"), 4)]),
        Err(RecordError::Gap { revision: 4, last: 2 })
    ));
}
