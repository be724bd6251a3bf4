//! The format for people: keys and values on separate lines, all other replies as sentences.

use quorate_api::etcdserverpb::response_op::Response;
use quorate_api::etcdserverpb::{DeleteRangeResponse, PutResponse, RangeResponse, TxnResponse};
use quorate_api::record::KeyValue;

use super::{Health, Reply, Shown, alarm_name, columns, event_name};

pub(super) fn render(reply: &Reply, is_hex: bool, shown: &mut Shown) {
    match reply {
        Reply::Put(response) => put(response, is_hex, shown),
        Reply::Get(response, value_only) => get(response, is_hex, *value_only, shown),
        Reply::Delete(response) => delete(response, is_hex, shown),
        Reply::Txn(response) => txn(response, is_hex, shown),
        Reply::Watch(response) => {
            for event in &response.events {
                shown.line(event_name(event.r#type));
                for record in event.prev_kv.iter().chain(&event.kv) {
                    pair(record, is_hex, false, shown);
                }
            }
        }
        Reply::LeaseGrant(response) => {
            shown.line(format!("lease {:016x} granted with TTL({}s)", response.id, response.ttl));
        }
        Reply::LeaseRevoke(id, _) => shown.line(format!("lease {id:016x} revoked")),
        Reply::LeaseKeepAlive(response) => {
            shown.line(format!("lease {:016x} keepalived with TTL({})", response.id, response.ttl));
        }
        Reply::LeaseTimeToLive(response, with_keys) => {
            let id = response.id;
            if response.granted_ttl == 0 && response.ttl == -1 {
                return shown.line(format!("lease {id:016x} already expired"));
            }
            let (granted, left) = (response.granted_ttl, response.ttl);
            let text = format!("lease {id:016x} granted with TTL({granted}s), remaining({left}s)");
            shown.output.extend_from_slice(text.as_bytes());
            if *with_keys {
                let keys = response.keys.join(&b' ');
                shown.output.extend_from_slice(b", attached keys([");
                shown.output.extend_from_slice(&keys);
                shown.output.extend_from_slice(b"])");
            }
            shown.line("");
        }
        Reply::LeaseList(response) => {
            shown.line(format!("found {} leases", response.leases.len()));
            response.leases.iter().for_each(|lease| shown.line(format!("{:016x}", lease.id)));
        }
        Reply::Alarm(response) => {
            for alarm in &response.alarms {
                let name = alarm_name(alarm.alarm);
                shown.line(format!("memberID:{} alarm:{name}", alarm.member_id));
            }
        }
        Reply::Health(list) => list.iter().for_each(|health| one_health(health, shown)),
        Reply::MemberList(response) => rows(&columns::members(response), shown),
        Reply::Status(list) => rows(&columns::status(list), shown),
        Reply::HashKv(list) => rows(&columns::hash_kv(list), shown),
        Reply::MoveLeader { from, to, .. } => {
            shown.line(format!("Leadership transferred from {from:x} to {to:x}"));
        }
        Reply::Downgrade(action, response) => {
            let version = &response.version;
            shown.line(format!("Downgrade {action} success, cluster version {version}"));
        }
        Reply::MemberAdd(_)
        | Reply::MemberRemove(..)
        | Reply::MemberUpdate(..)
        | Reply::MemberPromote(..) => membership(reply, shown),
        Reply::Access(reply) => reply.tell(shown),
    }
}

/// Describes a membership change.
fn membership(reply: &Reply, shown: &mut Shown) {
    let (member, change, header) = match reply {
        Reply::MemberAdd(response) => {
            let member = response.member.clone().unwrap_or_default();
            let learner = if member.is_learner { "added as learner to" } else { "added to" };
            (member.id, learner, &response.header)
        }
        Reply::MemberRemove(id, response) => (*id, "removed from", &response.header),
        Reply::MemberUpdate(id, response) => (*id, "updated in", &response.header),
        Reply::MemberPromote(id, response) => (*id, "promoted in", &response.header),
        _ => return,
    };
    let cluster = header.as_ref().map_or(0, |header| header.cluster_id);
    shown.line(format!("Member {member:16x} {change} cluster {cluster:16x}"));
}

fn one_health(health: &Health, shown: &mut Shown) {
    let Health { endpoint, took, error, .. } = health;
    if error.is_empty() {
        let text = "is healthy: successfully committed proposal: took =";
        shown.line(format!("{endpoint} {text} {took}"));
    } else {
        let text = "is unhealthy: failed to commit proposal:";
        shown.errors.push_str(&format!("{endpoint} {text} {error}\n"));
    }
}

fn put(response: &PutResponse, is_hex: bool, shown: &mut Shown) {
    shown.line("OK");
    if let Some(record) = &response.prev_kv {
        pair(record, is_hex, false, shown);
    }
}

fn get(response: &RangeResponse, is_hex: bool, value_only: bool, shown: &mut Shown) {
    response.kvs.iter().for_each(|record| pair(record, is_hex, value_only, shown));
}

fn delete(response: &DeleteRangeResponse, is_hex: bool, shown: &mut Shown) {
    shown.line(response.deleted.to_string());
    response.prev_kvs.iter().for_each(|record| pair(record, is_hex, false, shown));
}

fn txn(response: &TxnResponse, is_hex: bool, shown: &mut Shown) {
    shown.line(if response.succeeded { "SUCCESS" } else { "FAILURE" });
    for operation in &response.responses {
        shown.line("");
        match &operation.response {
            Some(Response::ResponseRange(response)) => get(response, is_hex, false, shown),
            Some(Response::ResponsePut(response)) => put(response, is_hex, shown),
            Some(Response::ResponseDeleteRange(response)) => delete(response, is_hex, shown),
            Some(Response::ResponseTxn(response)) => txn(response, is_hex, shown),
            None => shown.line("unexpected response"),
        }
    }
}

fn pair(record: &KeyValue, is_hex: bool, value_only: bool, shown: &mut Shown) {
    let fields = record.fields();
    let mut line = |bytes: &[u8]| {
        if is_hex {
            shown.line(bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>());
        } else {
            shown.line(bytes);
        }
    };
    if !value_only {
        line(fields.key);
    }
    line(fields.value);
}

fn rows(rows: &[Vec<String>], shown: &mut Shown) {
    rows.iter().for_each(|row| shown.line(row.join(", ")));
}
