//! Implements the gRPC library's service traits: each method authorizes its request and passes it to the service.
//!
//! # Invariants
//!
//! * A method that is not listed here returns "unimplemented", because the library's servers are built from [`Guarded`]
//!   services. Only the health service, which has no requirements, is not guarded.
//! * The requirement of a method is read from the table (`methods`) at compile time. Compilation fails if a method has
//!   no entry.

use std::sync::Arc;

use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::{
    auth_server::Auth, cluster_server::Cluster, kv_server::Kv, lease_server::Lease,
    maintenance_server::Maintenance,
};
use quorate_api::v3electionpb as el;
use quorate_api::v3electionpb::election_server::Election;
use quorate_api::v3lockpb as lk;
use quorate_api::v3lockpb::lock_server::Lock;
use quorate_requests::access::AccessControl;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::auth::AuthService;
use super::cluster::ClusterService;
use super::election::ElectionService;
use super::kv::Kv as KvService;
use super::lease::LeaseService;
use super::lock::LockService;
use super::maintenance::MaintenanceService;
use crate::calls::authorized::authorize;
use crate::methods::{Needs, needs_of};

/// A service with access control.
#[derive(Debug)]
pub(crate) struct Guarded<S> {
    access_control: Arc<AccessControl>,
    service: Arc<S>,
}

impl<S> Guarded<S> {
    pub(crate) fn new(access_control: &Arc<AccessControl>, service: Arc<S>) -> Self {
        Self { access_control: Arc::clone(access_control), service }
    }
}

/// Implements a service's trait for the guarded service.
macro_rules! guarded {
    ($list:ident: $service:literal, $trait:path, $handler:ty {
        $($name:literal $method:ident: $request:ty => $response:ty;)*
    }) => {
        #[tonic::async_trait]
        impl $trait for Guarded<$handler> {
            $(async fn $method(
                &self,
                request: Request<$request>,
            ) -> Result<Response<$response>, Status> {
                const NEEDS: Needs = needs_of($service, $name);
                self.service.$method(authorize(&self.access_control, NEEDS, request)?).await
            })*
        }

        #[cfg(test)]
        const $list: (&str, &[&str]) = ($service, &[$($name),*]);
    };
}

guarded! { KV: "etcdserverpb.KV", Kv, KvService {
    "Range" range: pb::RangeRequest => pb::RangeResponse;
    "RangeStream" range_stream: pb::RangeRequest => BoxStream<pb::RangeStreamResponse>;
    "Put" put: pb::PutRequest => pb::PutResponse;
    "DeleteRange" delete_range: pb::DeleteRangeRequest => pb::DeleteRangeResponse;
    "Txn" txn: pb::TxnRequest => pb::TxnResponse;
    "Compact" compact: pb::CompactionRequest => pb::CompactionResponse;
}}

guarded! { LEASE: "etcdserverpb.Lease", Lease, LeaseService {
    "LeaseGrant" lease_grant: pb::LeaseGrantRequest => pb::LeaseGrantResponse;
    "LeaseRevoke" lease_revoke: pb::LeaseRevokeRequest => pb::LeaseRevokeResponse;
    "LeaseTimeToLive" lease_time_to_live: pb::LeaseTimeToLiveRequest => pb::LeaseTimeToLiveResponse;
    "LeaseLeases" lease_leases: pb::LeaseLeasesRequest => pb::LeaseLeasesResponse;
}}

guarded! { CLUSTER: "etcdserverpb.Cluster", Cluster, ClusterService {
    "MemberAdd" member_add: pb::MemberAddRequest => pb::MemberAddResponse;
    "MemberRemove" member_remove: pb::MemberRemoveRequest => pb::MemberRemoveResponse;
    "MemberUpdate" member_update: pb::MemberUpdateRequest => pb::MemberUpdateResponse;
    "MemberList" member_list: pb::MemberListRequest => pb::MemberListResponse;
    "MemberPromote" member_promote: pb::MemberPromoteRequest => pb::MemberPromoteResponse;
}}

guarded! { MAINTENANCE: "etcdserverpb.Maintenance", Maintenance, MaintenanceService {
    "Alarm" alarm: pb::AlarmRequest => pb::AlarmResponse;
    "Status" status: pb::StatusRequest => pb::StatusResponse;
    "Defragment" defragment: pb::DefragmentRequest => pb::DefragmentResponse;
    "Hash" hash: pb::HashRequest => pb::HashResponse;
    "HashKV" hash_kv: pb::HashKvRequest => pb::HashKvResponse;
    "Snapshot" snapshot: pb::SnapshotRequest => BoxStream<pb::SnapshotResponse>;
    "MoveLeader" move_leader: pb::MoveLeaderRequest => pb::MoveLeaderResponse;
    "Downgrade" downgrade: pb::DowngradeRequest => pb::DowngradeResponse;
}}

guarded! { AUTH: "etcdserverpb.Auth", Auth, AuthService {
    "AuthEnable" auth_enable: pb::AuthEnableRequest => pb::AuthEnableResponse;
    "AuthDisable" auth_disable: pb::AuthDisableRequest => pb::AuthDisableResponse;
    "AuthStatus" auth_status: pb::AuthStatusRequest => pb::AuthStatusResponse;
    "Authenticate" authenticate: pb::AuthenticateRequest => pb::AuthenticateResponse;
    "UserAdd" user_add: pb::AuthUserAddRequest => pb::AuthUserAddResponse;
    "UserGet" user_get: pb::AuthUserGetRequest => pb::AuthUserGetResponse;
    "UserList" user_list: pb::AuthUserListRequest => pb::AuthUserListResponse;
    "UserDelete" user_delete: pb::AuthUserDeleteRequest => pb::AuthUserDeleteResponse;
    "UserChangePassword" user_change_password:
        pb::AuthUserChangePasswordRequest => pb::AuthUserChangePasswordResponse;
    "UserGrantRole" user_grant_role: pb::AuthUserGrantRoleRequest => pb::AuthUserGrantRoleResponse;
    "UserRevokeRole" user_revoke_role:
        pb::AuthUserRevokeRoleRequest => pb::AuthUserRevokeRoleResponse;
    "RoleAdd" role_add: pb::AuthRoleAddRequest => pb::AuthRoleAddResponse;
    "RoleGet" role_get: pb::AuthRoleGetRequest => pb::AuthRoleGetResponse;
    "RoleList" role_list: pb::AuthRoleListRequest => pb::AuthRoleListResponse;
    "RoleDelete" role_delete: pb::AuthRoleDeleteRequest => pb::AuthRoleDeleteResponse;
    "RoleGrantPermission" role_grant_permission:
        pb::AuthRoleGrantPermissionRequest => pb::AuthRoleGrantPermissionResponse;
    "RoleRevokePermission" role_revoke_permission:
        pb::AuthRoleRevokePermissionRequest => pb::AuthRoleRevokePermissionResponse;
}}

guarded! { LOCK: "v3lockpb.Lock", Lock, LockService {
    "Lock" lock: lk::LockRequest => lk::LockResponse;
    "Unlock" unlock: lk::UnlockRequest => lk::UnlockResponse;
}}

guarded! { ELECTION: "v3electionpb.Election", Election, ElectionService {
    "Campaign" campaign: el::CampaignRequest => el::CampaignResponse;
    "Proclaim" proclaim: el::ProclaimRequest => el::ProclaimResponse;
    "Leader" leader: el::LeaderRequest => el::LeaderResponse;
    "Observe" observe: el::LeaderRequest => BoxStream<el::LeaderResponse>;
    "Resign" resign: el::ResignRequest => el::ResignResponse;
}}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_grpc::methods::{Kind, SERVICES};

    /// Stream methods, whose messages are authorized one by one as they are read.
    const STREAMS: [&str; 2] = ["Watch", "LeaseKeepAlive"];

    #[test]
    fn every_method_with_an_access_requirement_is_guarded() {
        let lists = [KV, LEASE, CLUSTER, MAINTENANCE, AUTH, LOCK, ELECTION];
        for service in SERVICES {
            let list = lists.iter().find(|(name, _)| *name == service.name);
            for method in service.methods {
                let is_guarded = list.is_some_and(|(_, names)| names.contains(&method.name));
                let is_exempt = match method.kind {
                    Kind::BidiStream => STREAMS.contains(&method.name),
                    Kind::Unary | Kind::ServerStream => {
                        needs_of(service.name, method.name) == Needs::Nothing
                    }
                };
                assert!(is_guarded || is_exempt, "{}/{}", service.name, method.name);
            }
        }
    }
}
