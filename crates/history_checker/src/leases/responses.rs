//! Checks what responses report about leases: the remaining time, the attached keys, and the existence of a lease.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{Lease, Verdict, nanos};
use crate::event_log::{FIRST, KeyLeases};
use crate::operation::{Outcome, Refusal, Request, Response};
use crate::violation::{Property, Violation};
use crate::{EventLog, History, Rules};

pub(super) fn check(history: &History, rules: &Rules, leases: &BTreeMap<i64, Lease>) -> Verdict {
    let attachments = attachments(&history.event_log);
    for (at, operation) in history.operations.iter().enumerate() {
        let (id, wrong) = match (&operation.request, &operation.outcome) {
            (
                Request::LeaseTimeToLive { id, .. },
                Outcome::Succeeded {
                    response: Response::LeaseTimeToLive { ttl_secs, granted_ttl_secs, keys },
                    ..
                },
            ) => {
                // If an id was granted several times, the lease that the response refers to is unknown, so its granted
                // TTL is not checked.
                let lease = leases.get(id).filter(|lease| lease.grants.len() == 1);
                let due = lease.and_then(|lease| lease.ttl_secs);
                let is_wrong = due.is_some_and(|due| due != *granted_ttl_secs);
                let had = |keys| ever_had(attachments.get(id).map_or(&[], Vec::as_slice), keys);
                let most = nanos(*granted_ttl_secs).saturating_add(rules.lease_extension);
                let wrong = if is_wrong || nanos(*ttl_secs) > most {
                    Some("was returned with a wrong TTL")
                } else if keys.as_ref().is_some_and(|keys| !had(keys)) {
                    Some("never had exactly the returned keys")
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
                (
                    id,
                    (!exists).then_some("was reported to exist, but no other operation granted it"),
                )
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
            let description = format!("lease {id} {wrong}");
            return Err(Violation::new(Property::Response, description).by(history, &[at]));
        }
    }
    Ok(())
}

/// A change to a lease's keys: a key was attached or detached.
struct Attachment<'a> {
    revision: i64,
    key: &'a Bytes,
    is_attached: bool,
}

/// Returns the attachments and detachments of each lease, in order.
fn attachments(event_log: &EventLog) -> BTreeMap<i64, Vec<Attachment<'_>>> {
    let mut leases = KeyLeases::default();
    let mut attachments: BTreeMap<i64, Vec<Attachment<'_>>> = BTreeMap::new();
    for revision in FIRST..=event_log.last() {
        for event in event_log.events(revision) {
            let key = &event.kv.key;
            for (lease, is_attached) in [(leases.apply(event), false), (event.kv.lease, true)] {
                if lease != 0 {
                    let attachment = Attachment { revision, key, is_attached };
                    attachments.entry(lease).or_default().push(attachment);
                }
            }
        }
    }
    attachments
}

/// Returns whether exactly these keys were attached to a lease at some revision.
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
