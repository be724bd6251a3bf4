//! Tests each rule for leases separately, and compares the expiry queue with a model that scans
//! every lease.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use proptest::prelude::*;

use super::*;

const NO_KEYS: [(&[u8], LeaseId); 0] = [];

fn lessor(options: LessorOptions) -> Lessor {
    Lessor::recover([], NO_KEYS, options)
}

fn granted(lessor: &mut Lessor, id: i64, ttl_secs: i64, now: u64) {
    lessor.grant(LeaseId(id), ttl_secs, Millis(now)).unwrap();
}

fn keys(lessor: &Lessor, id: i64) -> Vec<Vec<u8>> {
    lessor.keys(LeaseId(id)).unwrap().iter().map(|key| key.to_vec()).collect()
}

#[test]
fn lease_grants_check_the_id_and_limit_the_ttl() {
    let mut lessor = lessor(LessorOptions::default());
    let mut grant = |id, ttl_secs| lessor.grant(LeaseId(id), ttl_secs, Millis(0));
    assert_eq!(grant(0, 10), Err(LeaseRefusal::NotFound));
    assert_eq!(grant(1, TTL_SECS_MAX + 1), Err(LeaseRefusal::TtlTooLarge));
    assert_eq!(grant(1, TTL_SECS_MAX).unwrap().ttl_secs, TTL_SECS_MAX);
    assert_eq!(grant(1, 10), Err(LeaseRefusal::Exists));
    assert_eq!(grant(-7, -1).unwrap().ttl_secs, 2);
    assert_eq!(grant(i64::MIN, 0).unwrap().ttl_secs, 2);
}

#[test]
fn a_lease_record_is_encoded_as_in_etcd() {
    let record = LeaseRecord { id: LeaseId(-2), ttl_secs: 300, remaining_secs: 0 };
    assert_eq!(&LeaseRecord::key(record.id)[..], b"\xff\xff\xff\xff\xff\xff\xff\xfe");
    let value = b"\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x10\xac\x02";
    assert_eq!(&record.encode()[..], value);
    assert_eq!(LeaseRecord::decode(value), Some(record));
    assert_eq!(LeaseRecord::decode(b"\x08"), None);
}

#[test]
fn a_key_is_attached_to_at_most_one_lease() {
    let mut lessor = lessor(LessorOptions::default());
    granted(&mut lessor, 1, 10, 0);
    granted(&mut lessor, 2, 10, 0);
    for key in [b"c".as_slice(), b"a", b"b"] {
        lessor.attach(key, LeaseId(1));
    }
    assert_eq!(keys(&lessor, 1), [b"a", b"b", b"c"]);
    lessor.attach(b"b", LeaseId(2));
    assert_eq!(keys(&lessor, 1), [b"a", b"c"]);
    assert_eq!(keys(&lessor, 2), [b"b"]);
    lessor.attach(b"a", LeaseId::NONE);
    lessor.detach(b"never attached");
    assert_eq!(keys(&lessor, 1), [b"c"]);
    assert_eq!(lessor.lease_of(b"a"), LeaseId::NONE);
    assert!(lessor.revoke(LeaseId(1)));
    assert!(!lessor.revoke(LeaseId(1)));
    assert_eq!(lessor.lease_of(b"c"), LeaseId::NONE);
    assert_eq!(lessor.lease_of(b"b"), LeaseId(2));
}

#[test]
fn recovery_raises_short_ttls_and_clears_deadlines() {
    let records = [
        LeaseRecord { id: LeaseId(1), ttl_secs: 1, remaining_secs: 0 },
        LeaseRecord { id: LeaseId(2), ttl_secs: 100, remaining_secs: 40 },
    ];
    let attachments = [(b"k".as_slice(), LeaseId(2)), (b"lost", LeaseId(3))];
    let lessor = Lessor::recover(records, attachments, LessorOptions::default());
    let leases = lessor.reader();
    assert_eq!(keys(&lessor, 2), [b"k"]);
    assert_eq!(lessor.lease_of(b"lost"), LeaseId::NONE);
    let status = leases.time_to_live(LeaseId(1), Millis(0)).unwrap();
    assert_eq!(status, TimeToLive { granted_secs: 2, remaining_secs: None });
    assert_eq!(leases.expired(1, Millis(u64::MAX), 10), []);
    assert_eq!(leases.renew(LeaseId(1), 1, Millis(0)), Renewal::NotPrimary);

    leases.promote(1, 1000, Millis(5000));
    let left = |id| leases.time_to_live(LeaseId(id), Millis(5000)).unwrap().remaining_secs;
    assert_eq!((left(1), left(2)), (Some(2), Some(40)));
    assert_eq!(leases.list(), [LeaseId(1), LeaseId(2)]);
    leases.demote();
    assert_eq!(left(1), None);
}

#[test]
fn a_renewal_restarts_and_returns_the_granted_ttl() {
    let mut lessor = lessor(LessorOptions::default());
    let leases = lessor.reader();
    leases.promote(1, 0, Millis(0));
    granted(&mut lessor, 1, 10, 0);
    let left = |now| leases.time_to_live(LeaseId(1), Millis(now)).unwrap().remaining_secs;
    let lefts = [0, 1, 999, 1_000, 8_999, 9_000].map(left);
    assert_eq!(lefts, [9, 9, 9, 8, 1, 0].map(Some), "a new lease has less than its TTL");
    assert_eq!(leases.renew(LeaseId(1), 1, Millis(9_999)), Renewal::Renewed { ttl_secs: 10 });
    assert_eq!(leases.expired(1, Millis(19_998), 10), []);
    assert_eq!(leases.expired(1, Millis(19_999), 10), [LeaseId(1)]);
    assert_eq!(leases.renew(LeaseId(1), 1, Millis(19_999)), Renewal::Expired);
    assert_eq!(leases.renew(LeaseId(9), 1, Millis(0)), Renewal::NotFound);
    let late = leases.time_to_live(LeaseId(1), Millis(21_500)).unwrap();
    assert_eq!(late.remaining_secs, Some(-1));
}

#[test]
fn the_expiry_scan_returns_an_expired_lease_again_until_it_is_revoked() {
    let mut lessor = lessor(LessorOptions::default());
    let leases = lessor.reader();
    leases.promote(1, 0, Millis(0));
    granted(&mut lessor, 1, 10, 0);
    assert_eq!(leases.expired(1, Millis(10_000), 10), [LeaseId(1)]);
    assert_eq!(leases.expired(1, Millis(16_999), 10), []);
    assert_eq!(leases.expired(1, Millis(17_000), 10), [LeaseId(1)]);
    lessor.revoke(LeaseId(1));
    assert_eq!(leases.expired(1, Millis(99_000), 10), []);
}

#[test]
fn a_lease_that_the_expiry_scan_has_returned_is_not_renewed() {
    let mut lessor = lessor(LessorOptions::default());
    let leases = lessor.reader();
    leases.promote(1, 0, Millis(0));
    for id in [1, 2] {
        granted(&mut lessor, id, 10, 0);
    }
    assert_eq!(leases.expired(1, Millis(10_000), 1), [LeaseId(1)]);
    assert!(leases.has_expired(LeaseId(1), 1));
    // These renewals read the clock before the scan did.
    assert_eq!(leases.renew(LeaseId(1), 1, Millis(9_999)), Renewal::Expired);
    assert_eq!(leases.renew(LeaseId(2), 1, Millis(9_999)), Renewal::Renewed { ttl_secs: 10 });
    assert!(!leases.has_expired(LeaseId(2), 1));

    lessor.revoke(LeaseId(1));
    granted(&mut lessor, 1, 10, 10_001);
    assert!(!leases.has_expired(LeaseId(1), 1), "the id belongs to a new lease");
    assert_eq!(leases.renew(LeaseId(1), 1, Millis(10_002)), Renewal::Renewed { ttl_secs: 10 });

    assert_eq!(leases.expired(1, Millis(30_000), 1).len(), 1);
    leases.promote(2, 0, Millis(30_000));
    for id in [1, 2].map(LeaseId) {
        assert!(!leases.has_expired(id, 1) && !leases.has_expired(id, 2));
        assert_eq!(leases.renew(id, 2, Millis(30_001)), Renewal::Renewed { ttl_secs: 10 });
    }
}

#[test]
fn a_wait_for_revocation_ends_when_the_lease_or_the_leadership_ends() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&count));
    let cx = Context::from_waker(&waker);
    let mut lessor = lessor(LessorOptions::default());
    let leases = lessor.reader();
    leases.promote(1, 0, Millis(0));
    granted(&mut lessor, 1, 10, 0);
    granted(&mut lessor, 2, 10, 0);
    assert_eq!(leases.poll_gone(LeaseId(1), &cx), Poll::Pending);
    assert_eq!(leases.poll_gone(LeaseId(1), &cx), Poll::Pending);
    assert_eq!(leases.poll_gone(LeaseId(2), &cx), Poll::Pending);
    lessor.revoke(LeaseId(1));
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
    assert_eq!(leases.poll_gone(LeaseId(1), &cx), Poll::Ready(()));
    leases.demote();
    assert_eq!(count.0.load(Ordering::Relaxed), 2);
    assert_eq!(leases.poll_gone(LeaseId(2), &cx), Poll::Ready(()));
}

#[test]
fn lease_deadlines_are_set_once_per_term() {
    let mut lessor = lessor(LessorOptions::default());
    lessor.grant(LeaseId(1), 10, Millis(0)).unwrap();
    let leases = lessor.reader();
    leases.promote(3, 0, Millis(0));
    leases.promote(3, 0, Millis(9_000));
    assert_eq!(
        leases.expired(3, Millis(10_000), 10),
        [LeaseId(1)],
        "a repeated promotion in the same term does not extend the lease"
    );
    assert_eq!(leases.term(), Some(3));
    leases.promote(5, 0, Millis(10_000));
    assert_eq!(leases.renew(LeaseId(1), 3, Millis(11_000)), Renewal::NotPrimary);
    assert_eq!(leases.expired(3, Millis(30_000), 10), []);
    assert_eq!(leases.due_checkpoints(3, Millis(30_000), 10), []);
    assert_eq!(leases.expired(5, Millis(30_000), 10), [LeaseId(1)]);
}

#[test]
fn a_new_primary_spreads_coinciding_expiries() {
    let records = (1..=2000).map(|id| LeaseRecord {
        id: LeaseId(id),
        ttl_secs: if id <= 1990 { 10 } else { 500 },
        remaining_secs: 0,
    });
    let lessor = Lessor::recover(records, NO_KEYS, LessorOptions::default());
    let leases = lessor.reader();
    leases.promote(1, 1000, Millis(0));
    let count_at = |now| leases.expired(1, Millis(now), 5000).len();
    assert_eq!(count_at(10_999), 0);
    assert_eq!(count_at(11_000), 750);
    assert_eq!(count_at(12_000), 750);
    assert_eq!(count_at(13_000), 490);
    assert_eq!(leases.list().last(), Some(&LeaseId(2000)));
}

#[test]
fn long_leases_are_checkpointed() {
    let options = LessorOptions { checkpoints: true, ..LessorOptions::default() };
    let mut lessor = lessor(options);
    let leases = lessor.reader();
    leases.promote(1, 0, Millis(0));
    granted(&mut lessor, 1, 1000, 0);
    granted(&mut lessor, 2, 300, 0);
    assert_eq!(leases.due_checkpoints(1, Millis(299_999), 10), []);
    let due = leases.due_checkpoints(1, Millis(300_500), 10);
    assert_eq!(due, [Checkpoint { id: LeaseId(1), remaining_secs: 700 }]);

    let stored = lessor.checkpoint(LeaseId(1), 700, Millis(300_600)).unwrap();
    assert_eq!((stored.ttl_secs, stored.remaining_secs), (1000, 700));
    assert_eq!(lessor.checkpoint(LeaseId(9), 1, Millis(0)), None);
    assert_eq!(leases.renew(LeaseId(1), 1, Millis(300_700)), Renewal::CheckpointFirst);
    lessor.checkpoint(LeaseId(1), 0, Millis(300_800));
    assert_eq!(leases.renew(LeaseId(1), 1, Millis(300_900)), Renewal::Renewed { ttl_secs: 1000 });

    // The lease was renewed within the last second, so there is nothing to store, but the
    // checkpoint becomes due again later.
    assert_eq!(leases.renew(LeaseId(1), 1, Millis(600_500)), Renewal::Renewed { ttl_secs: 1000 });
    assert_eq!(leases.due_checkpoints(1, Millis(600_500), 10), []);
    assert_eq!(leases.due_checkpoints(1, Millis(900_600), 10).len(), 1);
}

#[test]
fn a_renewed_lease_expires_after_its_checkpointed_lifetime() {
    let mut lessor = lessor(LessorOptions::default());
    let leases = lessor.reader();
    leases.promote(1, 0, Millis(0));
    granted(&mut lessor, 1, 1000, 0);
    lessor.checkpoint(LeaseId(1), 50, Millis(0));
    assert_eq!(leases.renew(LeaseId(1), 1, Millis(0)), Renewal::Renewed { ttl_secs: 1000 });
    // The expiry recorded in the queue was later than the new expiry.
    assert_eq!(leases.expired(1, Millis(50_000), 10), [LeaseId(1)]);
}

#[test]
fn renewals_and_revocations_do_not_accumulate_queue_entries() {
    let mut lessor = lessor(LessorOptions::default());
    let leases = lessor.reader();
    leases.promote(1, 0, Millis(0));
    granted(&mut lessor, 1, 3600, 0);
    for now in 1..10_000 {
        assert_eq!(leases.renew(LeaseId(1), 1, Millis(now)), Renewal::Renewed { ttl_secs: 3600 });
        granted(&mut lessor, 2, 3600, now);
        lessor.revoke(LeaseId(2));
    }
    assert!(leases.queue_len() < 1100, "{}", leases.queue_len());
}

#[derive(Clone, Debug)]
enum Step {
    Grant(i64, i64),
    Renew(i64),
    Revoke(i64),
    Checkpoint(i64, i64),
    Pass(u64),
    Scan(usize),
    Promote,
    Demote,
}

fn step() -> impl Strategy<Value = Step> {
    let id = 1..30i64;
    prop_oneof![
        4 => (id.clone(), 2..20i64).prop_map(|(id, ttl)| Step::Grant(id, ttl)),
        6 => id.clone().prop_map(Step::Renew),
        1 => id.clone().prop_map(Step::Revoke),
        1 => (id, 0..10i64).prop_map(|(id, left)| Step::Checkpoint(id, left)),
        6 => (0..4000u64).prop_map(Step::Pass),
        6 => (1..6usize).prop_map(Step::Scan),
        1 => Just(Step::Promote),
        1 => Just(Step::Demote),
    ]
}

#[derive(Clone, Debug, Default)]
struct ModelLease {
    ttl_secs: i64,
    remaining_secs: i64,
    expiry: Option<u64>,
    handed_out: Option<u64>,
}

impl ModelLease {
    fn restart(&mut self, from: u64) {
        let secs = if self.remaining_secs > 0 { self.remaining_secs } else { self.ttl_secs };
        self.expiry = Some(from + secs.cast_unsigned() * 1000);
        self.handed_out = None;
    }

    fn due(&self, now: u64) -> bool {
        self.expiry.is_some_and(|expiry| expiry <= now)
            && self.handed_out.is_none_or(|at| at + 7000 <= now)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_expiry_queue_finds_the_same_leases_as_a_full_scan(steps in prop::collection::vec(step(), 1..120)) {
        let mut lessor = lessor(LessorOptions::default());
        let leases = lessor.reader();
        let mut model: BTreeMap<i64, ModelLease> = BTreeMap::new();
        let (mut now, mut primary, mut term) = (0, false, 0);
        for step in steps {
            match step {
                Step::Grant(id, ttl_secs) => {
                    let result = lessor.grant(LeaseId(id), ttl_secs, Millis(now));
                    prop_assert_eq!(result.is_ok(), !model.contains_key(&id));
                    model.entry(id).or_insert_with(|| {
                        let mut lease = ModelLease { ttl_secs, ..ModelLease::default() };
                        if primary {
                            lease.restart(now);
                        }
                        lease
                    });
                }
                Step::Renew(id) => {
                    let expected = match model.get_mut(&id) {
                        _ if !primary => Renewal::NotPrimary,
                        None => Renewal::NotFound,
                        Some(lease) if lease.expiry.unwrap() <= now => Renewal::Expired,
                        Some(lease) => {
                            lease.restart(now);
                            Renewal::Renewed { ttl_secs: lease.ttl_secs }
                        }
                    };
                    prop_assert_eq!(leases.renew(LeaseId(id), term, Millis(now)), expected);
                }
                Step::Revoke(id) => {
                    prop_assert_eq!(lessor.revoke(LeaseId(id)), model.remove(&id).is_some());
                }
                Step::Checkpoint(id, remaining_secs) => {
                    let known = lessor.checkpoint(LeaseId(id), remaining_secs, Millis(now));
                    prop_assert_eq!(known.is_some(), model.contains_key(&id));
                    if let Some(lease) = model.get_mut(&id) {
                        lease.remaining_secs = remaining_secs;
                    }
                }
                Step::Pass(millis) => now += millis,
                Step::Scan(count_max) => {
                    let due: Vec<i64> =
                        model.iter().filter(|(_, l)| l.due(now)).map(|(id, _)| *id).collect();
                    let found = leases.expired(term, Millis(now), count_max);
                    prop_assert_eq!(found.len(), due.len().min(count_max));
                    for LeaseId(id) in found {
                        prop_assert!(due.contains(&id));
                        model.get_mut(&id).unwrap().handed_out = Some(now);
                    }
                }
                Step::Promote => {
                    primary = true;
                    term += 1;
                    leases.promote(term, 500, Millis(now));
                    model.values_mut().for_each(|lease| lease.restart(now + 500));
                }
                Step::Demote => {
                    primary = false;
                    leases.demote();
                    model.values_mut().for_each(|lease| {
                        lease.expiry = None;
                        lease.handed_out = None;
                    });
                }
            }
        }
    }
}

#[test]
fn one_check_covers_all_keys_of_a_lease_in_a_permitted_range() {
    let mut lessor = lessor(LessorOptions::default());
    granted(&mut lessor, 7, 60, 0);
    for key in ["a", "a1", "a2", "b", "c1", "c2"] {
        lessor.attach(key.as_bytes(), LeaseId(7));
    }
    let leases = lessor.reader();
    let check = |ranges: &[(&'static str, Bound<&'static str>)]| {
        let mut asked = Vec::new();
        let outcome = leases.check_keys(LeaseId(7), |key| {
            let key = String::from_utf8(key.to_vec()).unwrap();
            let found = ranges.iter().find(|(start, _)| *start == key);
            asked.push(key);
            found.map(|(_, end)| end.map(str::as_bytes)).ok_or(())
        });
        (outcome, asked.join(" "))
    };
    let (before_b, only_b) = (("a", Bound::Excluded("b")), ("b", Bound::Included("b")));
    assert_eq!(check(&[("a", Bound::Unbounded)]), (Ok(()), "a".into()));
    assert_eq!(check(&[before_b, only_b, ("c1", Bound::Excluded("d"))]), (Ok(()), "a b c1".into()));
    assert_eq!(check(&[before_b, only_b]), (Err(()), "a b c1".into()));
    assert_eq!(leases.check_keys(LeaseId(8), |_| Err(())), Ok(()));
}
