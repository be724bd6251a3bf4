//! What answers tell of leases by the way: the time that is left, the keys that go with one, that one is
//! there already.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{Lease, Verdict, nanos};
use crate::chronicle::FIRST;
use crate::contradiction::{Contradiction, Property};
use crate::operation::{Answer, Outcome, Refusal, Request};
use crate::{Chronicle, History, Rules};

pub(super) fn check(history: &History, rules: &Rules, leases: &BTreeMap<i64, Lease>) -> Verdict {
    let attachments = attachments(&history.chronicle);
    for (at, operation) in history.operations.iter().enumerate() {
        let (id, wrong) = match (&operation.request, &operation.outcome) {
            (
                Request::LeaseTimeToLive { id, .. },
                Outcome::Answered {
                    answer: Answer::LeaseTimeToLive { ttl_secs, granted_ttl_secs, keys },
                    ..
                },
            ) => {
                // Of several lives nobody knows which it is.
                let lease = leases.get(id).filter(|lease| lease.grants.len() == 1);
                let due = lease.and_then(|lease| lease.ttl_secs);
                let is_wrong = due.is_some_and(|due| due != *granted_ttl_secs);
                let had = |keys| ever_had(attachments.get(id).map_or(&[], Vec::as_slice), keys);
                let most = nanos(*granted_ttl_secs).saturating_add(rules.lease_extension);
                let wrong = if is_wrong || nanos(*ttl_secs) > most {
                    Some("was granted for another time")
                } else if keys.as_ref().is_some_and(|keys| !had(keys)) {
                    Some("never had just these keys")
                } else {
                    None
                };
                (id, wrong)
            }
            (
                Request::LeaseGrant { id, .. },
                Outcome::Refused { at: returned, refusal: Refusal::LeaseExists },
            ) => {
                let asked = |grant: &usize| history.operations[*grant].called <= *returned;
                let exists = leases.get(id).is_some_and(|lease| lease.grants.iter().any(asked));
                (id, (!exists).then_some("was asked for by nobody else"))
            }
            (
                Request::Kv(_)
                | Request::Compact { .. }
                | Request::LeaseGrant { .. }
                | Request::LeaseRevoke { .. }
                | Request::LeaseKeepAlive { .. }
                | Request::LeaseTimeToLive { .. },
                _,
            ) => continue,
        };
        if let Some(wrong) = wrong {
            let what = format!("lease {id} {wrong}");
            return Err(Contradiction::new(Property::Answered, what).by(history, &[at]));
        }
    }
    Ok(())
}

/// A key came to a lease, or left it.
struct Attachment<'a> {
    revision: i64,
    key: &'a Bytes,
    is_attached: bool,
}

/// What came to each lease and left it, in order.
fn attachments(chronicle: &Chronicle) -> BTreeMap<i64, Vec<Attachment<'_>>> {
    let mut attachments: BTreeMap<i64, Vec<Attachment<'_>>> = BTreeMap::new();
    for revision in FIRST..=chronicle.last() {
        for event in chronicle.events(revision) {
            let key = &event.kv.key;
            let before = chronicle.at(key, revision - 1).map_or(0, |kv| kv.lease);
            for (lease, is_attached) in [(before, false), (event.kv.lease, true)] {
                if lease != 0 {
                    let attachment = Attachment { revision, key, is_attached };
                    attachments.entry(lease).or_default().push(attachment);
                }
            }
        }
    }
    attachments
}

/// Whether a lease had just these keys at some revision.
fn ever_had(attachments: &[Attachment<'_>], keys: &[Bytes]) -> bool {
    let due: BTreeSet<&Bytes> = keys.iter().collect();
    let mut had: BTreeSet<&Bytes> = BTreeSet::new();
    if due.is_empty() {
        return keys.is_empty();
    }
    for (at, attachment) in attachments.iter().enumerate() {
        if attachment.is_attached {
            had.insert(attachment.key);
        } else {
            had.remove(attachment.key);
        }
        let next = attachments.get(at + 1);
        let is_whole = next.is_none_or(|next| next.revision > attachment.revision);
        if is_whole && had.len() == due.len() && had == due {
            return true;
        }
    }
    false
}
