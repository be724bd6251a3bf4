//! The output formats, one module each.
//!
//! [`Reply`] lists everything that a command can print. Each format is a function that takes a `Reply` and reports an
//! error if the format does not support that kind of reply.

mod access;
mod fields;
mod json;
pub(crate) use json::bytes as json_bytes;
mod protobuf;
mod simple;
mod table;

use quorate_api::etcdserverpb::{
    AlarmResponse, DeleteRangeResponse, DowngradeResponse, HashKvResponse, LeaseGrantResponse,
    LeaseKeepAliveResponse, LeaseLeasesResponse, LeaseRevokeResponse, LeaseTimeToLiveResponse,
    MemberAddResponse, MemberListResponse, MemberPromoteResponse, MemberRemoveResponse,
    MemberUpdateResponse, MoveLeaderResponse, PutResponse, RangeResponse, StatusResponse,
    TxnResponse, WatchResponse,
};

pub(crate) use self::access::Access;
use crate::failure::{Failure, exit};

/// A reply that a command prints.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Put(PutResponse),
    /// Result of a range request. The flag is set if only values are printed.
    Get(RangeResponse, bool),
    Delete(DeleteRangeResponse),
    Txn(TxnResponse),
    Watch(WatchResponse),
    LeaseGrant(LeaseGrantResponse),
    LeaseRevoke(i64, LeaseRevokeResponse),
    LeaseKeepAlive(LeaseKeepAliveResponse),
    /// Remaining time of a lease. The flag is set if its keys were requested.
    LeaseTimeToLive(LeaseTimeToLiveResponse, bool),
    LeaseList(LeaseLeasesResponse),
    MemberAdd(MemberAddResponse),
    MemberRemove(u64, MemberRemoveResponse),
    MemberUpdate(u64, MemberUpdateResponse),
    MemberPromote(u64, MemberPromoteResponse),
    MemberList(MemberListResponse),
    MoveLeader {
        from: u64,
        to: u64,
        response: MoveLeaderResponse,
    },
    /// Result of a downgrade request. The string names the action.
    Downgrade(&'static str, DowngradeResponse),
    Alarm(AlarmResponse),
    Health(Vec<Health>),
    Status(Vec<(String, StatusResponse)>),
    HashKv(Vec<(String, HashKvResponse)>),
    Access(Access),
}

/// The health of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Health {
    pub(crate) endpoint: String,
    pub(crate) healthy: bool,
    pub(crate) took: String,
    /// Error text; empty if the endpoint is healthy.
    pub(crate) error: String,
}

/// A formatted reply.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    /// Text for standard output, as bytes because keys and values may contain any bytes.
    pub(crate) output: Vec<u8>,
    /// Text for standard error.
    pub(crate) errors: String,
}

impl Shown {
    fn line(&mut self, text: impl AsRef<[u8]>) {
        self.output.extend_from_slice(text.as_ref());
        self.output.push(b'\n');
    }
}

/// An output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Simple,
    Fields,
    Json,
    Protobuf,
    Table,
}

impl Format {
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "simple" => Self::Simple,
            "fields" => Self::Fields,
            "json" => Self::Json,
            "protobuf" => Self::Protobuf,
            "table" => Self::Table,
            _ => return None,
        })
    }

    /// Formats a reply. Returns an error if the format does not support it.
    pub(crate) fn render(
        self,
        reply: &Reply,
        is_hex: bool,
        shown: &mut Shown,
    ) -> Result<(), Failure> {
        let (name, covered) = match self {
            Self::Simple => {
                simple::render(reply, is_hex, shown);
                ("simple", true)
            }
            Self::Json => {
                json::render(reply, is_hex, shown);
                ("json", true)
            }
            Self::Fields => ("fields", fields::render(reply, is_hex, shown)),
            Self::Protobuf => ("protobuf", protobuf::render(reply, shown)),
            Self::Table => ("table", table::render(reply, shown)),
        };
        if covered {
            return Ok(());
        }
        Err(Failure::new(exit::BAD_FEATURE, format!("{name} not supported as output format")))
    }
}

/// Columns of replies that are printed as tables.
mod columns {
    use super::{HashKvResponse, Health, MemberListResponse, StatusResponse};
    use crate::gotext::size;

    pub(super) const MEMBERS: [&str; 6] =
        ["ID", "Status", "Name", "Peer Addrs", "Client Addrs", "Is Learner"];
    pub(super) const HEALTH: [&str; 4] = ["endpoint", "health", "took", "error"];
    pub(super) const HASH_KV: [&str; 3] = ["endpoint", "hash", "hash_revision"];
    pub(super) const STATUS: [&str; 16] = [
        "endpoint",
        "ID",
        "version",
        "storage version",
        "db size",
        "in use",
        "percentage not in use",
        "quota",
        "is leader",
        "is learner",
        "raft term",
        "raft index",
        "raft applied index",
        "errors",
        "downgrade target version",
        "downgrade enabled",
    ];

    pub(super) fn members(reply: &MemberListResponse) -> Vec<Vec<String>> {
        let row = |member: &quorate_api::etcdserverpb::Member| {
            let status = if member.name.is_empty() { "unstarted" } else { "started" };
            vec![
                format!("{:x}", member.id),
                status.to_owned(),
                member.name.clone(),
                member.peer_urls.join(","),
                member.client_urls.join(","),
                member.is_learner.to_string(),
            ]
        };
        reply.members.iter().map(row).collect()
    }

    pub(super) fn health(reply: &[Health]) -> Vec<Vec<String>> {
        let row = |health: &Health| {
            let Health { endpoint, healthy, took, error } = health;
            vec![endpoint.clone(), healthy.to_string(), took.clone(), error.clone()]
        };
        reply.iter().map(row).collect()
    }

    pub(super) fn hash_kv(reply: &[(String, HashKvResponse)]) -> Vec<Vec<String>> {
        let row = |(endpoint, hash): &(String, HashKvResponse)| {
            vec![endpoint.clone(), hash.hash.to_string(), hash.hash_revision.to_string()]
        };
        reply.iter().map(row).collect()
    }

    pub(super) fn status(reply: &[(String, StatusResponse)]) -> Vec<Vec<String>> {
        let row = |(endpoint, status): &(String, StatusResponse)| {
            let member_id = status.header.as_ref().map_or(0, |header| header.member_id);
            let bytes = |count: i64| size(u64::try_from(count).unwrap_or_default());
            let used = i128::from(status.db_size_in_use) * 100;
            let used_percent = used.checked_div(status.db_size.into()).unwrap_or(100);
            let downgrade = status.downgrade_info.clone().unwrap_or_default();
            vec![
                endpoint.clone(),
                format!("{member_id:x}"),
                status.version.clone(),
                status.storage_version.clone(),
                bytes(status.db_size),
                bytes(status.db_size_in_use),
                format!("{}%", 100 - used_percent),
                bytes(status.db_size_quota),
                (status.leader == member_id).to_string(),
                status.is_learner.to_string(),
                status.raft_term.to_string(),
                status.raft_index.to_string(),
                status.raft_applied_index.to_string(),
                status.errors.join(", "),
                downgrade.target_version,
                downgrade.enabled.to_string(),
            ]
        };
        reply.iter().map(row).collect()
    }
}

/// Returns the name of an alarm as the protocol spells it.
fn alarm_name(alarm: i32) -> String {
    match quorate_api::etcdserverpb::AlarmType::try_from(alarm) {
        Ok(alarm) => alarm.as_str_name().to_owned(),
        Err(_) => alarm.to_string(),
    }
}

/// Returns the name of an event type as the protocol spells it.
pub(crate) fn event_name(kind: i32) -> String {
    match quorate_api::mvccpb::event::EventType::try_from(kind) {
        Ok(kind) => kind.as_str_name().to_owned(),
        Err(_) => kind.to_string(),
    }
}

#[cfg(test)]
mod tests;
