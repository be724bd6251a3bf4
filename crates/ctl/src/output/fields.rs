//! The format for line-oriented scripts: `"Name" : value`, one field per line.

use std::fmt::Display;

use quorate_api::etcdserverpb::response_op::Response;
use quorate_api::etcdserverpb::{
    DeleteRangeResponse, PutResponse, RangeResponse, ResponseHeader, TxnResponse,
};
use quorate_api::record::KeyValue;

use super::access::permission_name;
use super::{Access, Reply, Shown, alarm_name, event_name};
use crate::gotext::quote;

/// Formats a reply. Returns false if the reply is not supported.
pub(super) fn render(reply: &Reply, is_hex: bool, shown: &mut Shown) -> bool {
    let mut fields = Fields { is_hex, shown };
    match reply {
        Reply::Put(response) => fields.put(response),
        Reply::Get(response, _) => fields.get(response),
        Reply::Delete(response) => fields.delete(response),
        Reply::Txn(response) => fields.txn(response),
        Reply::Watch(response) => {
            fields.header(response.header.as_ref());
            for event in &response.events {
                fields.field("Type", event_name(event.r#type));
                event.prev_kv.iter().for_each(|record| fields.record("Prev", record));
                event.kv.iter().for_each(|record| fields.record("", record));
            }
        }
        Reply::LeaseGrant(response) => {
            fields.header(response.header.as_ref());
            fields.lease_id("ID", response.id);
            fields.field("TTL", response.ttl);
        }
        Reply::LeaseRevoke(_, response) => fields.header(response.header.as_ref()),
        Reply::LeaseKeepAlive(response) => {
            fields.header(response.header.as_ref());
            fields.lease_id("ID", response.id);
            fields.field("TTL", response.ttl);
        }
        Reply::LeaseTimeToLive(response, _) => {
            fields.header(response.header.as_ref());
            fields.lease_id("ID", response.id);
            fields.field("TTL", response.ttl);
            fields.field("GrantedTTL", response.granted_ttl);
            response.keys.iter().for_each(|key| fields.field("Key", quote(key)));
        }
        Reply::LeaseList(response) => {
            fields.header(response.header.as_ref());
            response.leases.iter().for_each(|lease| fields.lease_id("ID", lease.id));
        }
        Reply::Alarm(response) => {
            fields.header(response.header.as_ref());
            for alarm in &response.alarms {
                fields.member_id("MemberID", alarm.member_id);
                fields.field("AlarmType", alarm_name(alarm.alarm));
                fields.shown.line("");
            }
        }
        Reply::MemberList(_) | Reply::Health(_) | Reply::Status(_) | Reply::HashKv(_) => {
            fields.cluster(reply);
        }
        Reply::Access(reply) => return fields.access(reply),
        Reply::MemberAdd(_)
        | Reply::MemberRemove(..)
        | Reply::MemberUpdate(..)
        | Reply::MemberPromote(..)
        | Reply::MoveLeader { .. }
        | Reply::Downgrade(..) => return false,
    }
    true
}

struct Fields<'a> {
    is_hex: bool,
    shown: &'a mut Shown,
}

impl Fields<'_> {
    fn field(&mut self, name: &str, value: impl Display) {
        self.shown.line(format!("\"{name}\" : {value}"));
    }

    fn text(&mut self, name: &str, value: &str) {
        self.field(name, quote(value.as_bytes()));
    }

    fn member_id(&mut self, name: &str, id: u64) {
        if self.is_hex {
            self.field(name, format_args!("{id:x}"));
        } else {
            self.field(name, id);
        }
    }

    fn lease_id(&mut self, name: &str, id: i64) {
        if self.is_hex {
            self.field(name, format_args!("{id:016x}"));
        } else {
            self.field(name, id);
        }
    }

    fn header(&mut self, header: Option<&ResponseHeader>) {
        let header = header.cloned().unwrap_or_default();
        self.member_id("ClusterID", header.cluster_id);
        self.member_id("MemberID", header.member_id);
        if header.revision > 0 {
            self.field("Revision", header.revision);
        }
        self.field("RaftTerm", header.raft_term);
    }

    fn record(&mut self, prefix: &str, record: &KeyValue) {
        let fields = record.fields();
        self.field(&format!("{prefix}Key"), quote(fields.key));
        self.field(&format!("{prefix}CreateRevision"), fields.create_revision);
        self.field(&format!("{prefix}ModRevision"), fields.mod_revision);
        self.field(&format!("{prefix}Version"), fields.version);
        self.field(&format!("{prefix}Value"), quote(fields.value));
        self.lease_id(&format!("{prefix}Lease"), fields.lease);
    }

    fn put(&mut self, response: &PutResponse) {
        self.header(response.header.as_ref());
        response.prev_kv.iter().for_each(|record| self.record("Prev", record));
    }

    fn get(&mut self, response: &RangeResponse) {
        self.header(response.header.as_ref());
        response.kvs.iter().for_each(|record| self.record("", record));
        self.field("More", response.more);
        self.field("Count", response.count);
    }

    fn delete(&mut self, response: &DeleteRangeResponse) {
        self.header(response.header.as_ref());
        self.field("Deleted", response.deleted);
        response.prev_kvs.iter().for_each(|record| self.record("Prev", record));
    }

    fn txn(&mut self, response: &TxnResponse) {
        self.header(response.header.as_ref());
        self.field("Succeeded", response.succeeded);
        for operation in &response.responses {
            match &operation.response {
                Some(Response::ResponseRange(response)) => self.get(response),
                Some(Response::ResponsePut(response)) => self.put(response),
                Some(Response::ResponseDeleteRange(response)) => self.delete(response),
                Some(Response::ResponseTxn(response)) => self.txn(response),
                None => self.text("Unknown", "<nil>"),
            }
        }
    }

    /// Formats a reply about users or roles. Returns false if the reply is not supported.
    fn access(&mut self, reply: &Access) -> bool {
        match reply {
            Access::Status(_) | Access::UserGet(..) | Access::UserList(_) => return false,
            Access::RoleGet(_, response) => {
                self.header(reply.header());
                for permission in &response.perm {
                    // The extra space is intentional, because etcdctl prints it as well.
                    let kind = permission_name(permission.perm_type);
                    self.field("PermType", format_args!(" {kind}"));
                    self.field("Key", quote(&permission.key));
                    self.field("RangeEnd", quote(&permission.range_end));
                }
            }
            Access::RoleList(response) => {
                self.header(reply.header());
                let names =
                    response.roles.iter().map(|role| format!(" {}", quote(role.as_bytes())));
                let names: String = names.collect();
                self.shown.line(format!("\"Roles\" :{names}"));
            }
            Access::RoleAdd(..)
            | Access::RoleDelete(..)
            | Access::RoleGrantPermission(..)
            | Access::RoleRevokePermission { .. }
            | Access::UserAdd(..)
            | Access::UserDelete(..)
            | Access::UserChangePassword(_)
            | Access::UserGrantRole { .. }
            | Access::UserRevokeRole { .. } => self.header(reply.header()),
        }
        true
    }

    /// Formats replies about members.
    fn cluster(&mut self, reply: &Reply) {
        match reply {
            Reply::MemberList(response) => {
                self.header(response.header.as_ref());
                for member in &response.members {
                    self.member_id("ID", member.id);
                    self.text("Name", &member.name);
                    member.peer_urls.iter().for_each(|url| self.text("PeerURL", url));
                    member.client_urls.iter().for_each(|url| self.text("ClientURL", url));
                    self.field("IsLearner", member.is_learner);
                    self.shown.line("");
                }
            }
            Reply::Health(list) => {
                for health in list {
                    self.text("Endpoint", &health.endpoint);
                    self.field("Health", health.healthy);
                    self.field("Took", &health.took);
                    self.field("Error", &health.error);
                    self.shown.line("");
                }
            }
            Reply::HashKv(list) => {
                for (endpoint, response) in list {
                    self.header(response.header.as_ref());
                    self.text("Endpoint", endpoint);
                    self.field("Hash", response.hash);
                    self.field("HashRevision", response.hash_revision);
                    self.shown.line("");
                }
            }
            Reply::Status(list) => {
                list.iter().for_each(|(endpoint, response)| self.status(endpoint, response));
            }
            _ => {}
        }
    }

    fn status(&mut self, endpoint: &str, response: &quorate_api::etcdserverpb::StatusResponse) {
        let downgrade = response.downgrade_info.clone().unwrap_or_default();
        self.header(response.header.as_ref());
        self.text("Version", &response.version);
        self.text("StorageVersion", &response.storage_version);
        self.field("DBSize", response.db_size);
        self.field("DBSizeInUse", response.db_size_in_use);
        self.field("DBSizeQuota", response.db_size_quota);
        self.field("Leader", response.leader);
        self.field("IsLearner", response.is_learner);
        self.field("RaftIndex", response.raft_index);
        // Repeats the header's field as etcdctl does, because scripts may count lines.
        self.field("RaftTerm", response.raft_term);
        self.field("RaftAppliedIndex", response.raft_applied_index);
        self.field("Errors", format_args!("[{}]", response.errors.join(" ")));
        self.text("Endpoint", endpoint);
        self.text("DowngradeTargetVersion", &downgrade.target_version);
        self.field("DowngradeEnabled", downgrade.enabled);
        self.shown.line("");
    }
}
