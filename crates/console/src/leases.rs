//! Leases, and the keys that are attached to them.

use quorate_api::etcdserverpb::{
    LeaseLeasesRequest, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use serde_json::{Value, json};

use crate::cluster::Caller;
use crate::encode::{KEY_BYTES_SHOWN_MAX, base64, lease};
use crate::input::Input;
use crate::refusal::{Kind, Refusal};

/// Maximum number of leases in a page. Reading one lease takes one request.
const LIST_MAX: usize = 100;
const DEFAULT: usize = 50;

/// Maximum number of keys shown for one lease.
const KEYS_MAX: usize = 500;

/// Maximum total length of the keys shown for one lease, in bytes.
const KEYS_BYTES_MAX: usize = 512 << 10;

/// Returns a page of the leases, in the order of their ids.
pub(crate) async fn list(caller: &Caller, input: &Input) -> Result<Value, Refusal> {
    let limit = input.limit(DEFAULT, LIST_MAX)?;
    let after = input.id("cursor")?;
    let list = async |channel, request| caller.client.lease(channel).lease_leases(request).await;
    let listed = caller.read(LeaseLeasesRequest {}, list).await?;
    let mut ids: Vec<u64> = listed.leases.iter().map(|found| found.id.cast_unsigned()).collect();
    ids.sort_unstable();
    let begin = after.map_or(0, |after| ids.partition_point(|id| *id <= after));
    let page = &ids[begin..ids.len().min(begin + limit)];
    let mut entries = Vec::with_capacity(page.len());
    for id in page {
        let id = id.cast_signed();
        entries.push(match time_to_live(caller, id).await {
            Ok(found) => json!({
                "id": lease(id),
                "ttl_secs": found.ttl,
                "granted_ttl_secs": found.granted_ttl,
                "keys": found.keys.len(),
                "error": null,
            }),
            // The lease has expired in the meantime, or the user may not read its keys.
            Err(refused) => json!({
                "id": lease(id),
                "ttl_secs": null,
                "granted_ttl_secs": null,
                "keys": null,
                "error": refused.json(),
            }),
        });
    }
    let is_last = begin + page.len() == ids.len();
    let next = page.last().filter(|_| !is_last).map(|id| lease(id.cast_signed()));
    Ok(json!({ "total": ids.len(), "entries": entries, "next": next }))
}

/// Returns a lease with its keys.
pub(crate) async fn get(caller: &Caller, input: &Input) -> Result<Value, Refusal> {
    let id = input.required_id("id")?.cast_signed();
    let found = time_to_live(caller, id).await?;
    let (mut keys, mut bytes) = (Vec::new(), 0);
    for key in found.keys.iter().take(KEYS_MAX) {
        let shown = &key[..key.len().min(KEY_BYTES_SHOWN_MAX)];
        bytes += shown.len();
        if bytes > KEYS_BYTES_MAX {
            break;
        }
        keys.push(base64(shown));
    }
    Ok(json!({
        "id": lease(id),
        "ttl_secs": found.ttl,
        "granted_ttl_secs": found.granted_ttl,
        "keys": keys,
        "key_count": found.keys.len(),
    }))
}

async fn time_to_live(caller: &Caller, id: i64) -> Result<LeaseTimeToLiveResponse, Refusal> {
    let ask =
        async |channel, request| caller.client.lease(channel).lease_time_to_live(request).await;
    let found = caller.read(LeaseTimeToLiveRequest { id, keys: true }, ask).await?;
    if found.ttl < 0 {
        return Err(Refusal::new(Kind::NotFound, "the lease does not exist; it may have expired"));
    }
    Ok(found)
}
