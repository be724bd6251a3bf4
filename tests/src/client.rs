//! A client that calls the generated stubs directly and returns the server's errors unchanged.

use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::{Arc, RwLock};

use bytes::{Buf as _, BufMut as _, Bytes};
use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::auth_client::AuthClient;
use quorate_api::etcdserverpb::cluster_client::ClusterClient;
use quorate_api::etcdserverpb::kv_client::KvClient;
use quorate_api::etcdserverpb::lease_client::LeaseClient;
use quorate_api::etcdserverpb::maintenance_client::MaintenanceClient;
use quorate_api::etcdserverpb::watch_client::WatchClient;
use quorate_api::healthpb::health_client::HealthClient;
use quorate_api::v3electionpb::election_client::ElectionClient;
use quorate_api::v3lockpb::lock_client::LockClient;
use quorate_api::{v3electionpb, v3lockpb};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::{AsciiMetadataValue, MetadataMap};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Extensions, Request, Status, Streaming};

/// Asserts that a request was refused with this code and exactly this text.
#[track_caller]
pub fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, text: &str) {
    match answer {
        Err(status) => assert_eq!((status.code(), status.message()), (code, text)),
        Ok(answer) => panic!("expected {code:?} {text}, got {answer:?}"),
    }
}

/// A token that is set once the server is ready, and that all of its clients use from then on.
pub(crate) type SharedToken = Arc<RwLock<Option<AsciiMetadataValue>>>;

/// One connection to one server.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    /// Credentials sent with each request.
    token: SharedToken,
}

macro_rules! calls {
    ($($(#[doc = $doc:literal])* $name:ident: $service:ident, $request:ty => $response:ty;)*) => {
        $(
            $(#[doc = $doc])*
            pub async fn $name(&self, request: $request) -> Result<$response, Status> {
                let request = self.signed(request);
                self.$service().$name(request).await.map(tonic::Response::into_inner)
            }
        )*
    };
}

impl Client {
    /// Creates a client that connects on first use.
    #[must_use]
    pub fn new(port: u16) -> Self {
        Self::with_shared_token(port, SharedToken::default())
    }

    /// Creates a client of the server at this URL, which may be the URL of a Unix socket.
    pub(crate) fn at(url: &str) -> Self {
        let channel = Endpoint::from_shared(url.to_owned()).unwrap().connect_lazy();
        Self { channel, token: SharedToken::default() }
    }

    /// Creates a client that connects from another address of this machine.
    #[must_use]
    pub fn from_address(port: u16, address: IpAddr) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
        let channel = endpoint.local_address(Some(address)).connect_lazy();
        Self { channel, token: SharedToken::default() }
    }

    /// Creates a client with a token that may be set later.
    pub(crate) fn with_shared_token(port: u16, token: SharedToken) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
        Self { channel: endpoint.connect_lazy(), token }
    }

    /// Returns a client that sends a token on the same connection.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        let token = Arc::new(RwLock::new(Some(token.parse().unwrap())));
        Self { channel: self.channel(), token }
    }

    /// Logs a user in, and returns a client for the user on the same connection.
    pub async fn log_in(&self, name: &str, password: &str) -> Result<Self, Status> {
        let (name, password) = (name.to_owned(), password.to_owned());
        let request = pb::AuthenticateRequest { name, password };
        Ok(self.with_token(&self.authenticate(request).await?.token))
    }

    /// Returns the metadata to send with each request.
    #[must_use]
    pub fn metadata(&self) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        if let Some(token) = &*self.token.read().unwrap() {
            metadata.insert("token", token.clone());
        }
        metadata
    }

    /// Adds the metadata to a request.
    pub fn signed<T>(&self, message: T) -> Request<T> {
        Request::from_parts(self.metadata(), Extensions::default(), message)
    }

    /// Returns the connection, for stubs with their own settings.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Returns the KV stub.
    #[must_use]
    pub fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel()).max_decoding_message_size(usize::MAX)
    }

    /// Returns the Watch stub.
    #[must_use]
    pub fn watch(&self) -> WatchClient<Channel> {
        WatchClient::new(self.channel()).max_decoding_message_size(usize::MAX)
    }

    /// Returns the Lease stub.
    #[must_use]
    pub fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel()).max_decoding_message_size(usize::MAX)
    }

    /// Returns the Maintenance stub.
    #[must_use]
    pub fn maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.channel())
    }

    /// Returns the Cluster stub.
    #[must_use]
    pub fn cluster(&self) -> ClusterClient<Channel> {
        ClusterClient::new(self.channel())
    }

    /// Returns the Auth stub.
    #[must_use]
    pub fn auth(&self) -> AuthClient<Channel> {
        AuthClient::new(self.channel())
    }

    /// Returns the stub of the standard health service.
    #[must_use]
    pub fn health(&self) -> HealthClient<Channel> {
        HealthClient::new(self.channel())
    }

    /// Returns the Lock stub.
    #[must_use]
    pub fn locks(&self) -> LockClient<Channel> {
        LockClient::new(self.channel())
    }

    /// Returns the Election stub.
    #[must_use]
    pub fn elections(&self) -> ElectionClient<Channel> {
        ElectionClient::new(self.channel()).max_decoding_message_size(usize::MAX)
    }

    calls! {
        /// Calls `Range`.
        range: kv, pb::RangeRequest => pb::RangeResponse;
        /// Calls `Put`.
        put: kv, pb::PutRequest => pb::PutResponse;
        /// Calls `DeleteRange`.
        delete_range: kv, pb::DeleteRangeRequest => pb::DeleteRangeResponse;
        /// Calls `Txn`.
        txn: kv, pb::TxnRequest => pb::TxnResponse;
        /// Calls `Compact`.
        compact: kv, pb::CompactionRequest => pb::CompactionResponse;
        /// Calls `LeaseGrant`.
        lease_grant: lease, pb::LeaseGrantRequest => pb::LeaseGrantResponse;
        /// Calls `LeaseRevoke`.
        lease_revoke: lease, pb::LeaseRevokeRequest => pb::LeaseRevokeResponse;
        /// Calls `LeaseTimeToLive`.
        lease_time_to_live: lease, pb::LeaseTimeToLiveRequest => pb::LeaseTimeToLiveResponse;
        /// Calls `LeaseLeases`.
        lease_leases: lease, pb::LeaseLeasesRequest => pb::LeaseLeasesResponse;
        /// Calls `Alarm`.
        alarm: maintenance, pb::AlarmRequest => pb::AlarmResponse;
        /// Calls `Status`.
        status: maintenance, pb::StatusRequest => pb::StatusResponse;
        /// Calls `Defragment`.
        defragment: maintenance, pb::DefragmentRequest => pb::DefragmentResponse;
        /// Calls `Hash`.
        hash: maintenance, pb::HashRequest => pb::HashResponse;
        /// Calls `HashKV`.
        hash_kv: maintenance, pb::HashKvRequest => pb::HashKvResponse;
        /// Calls `MoveLeader`.
        move_leader: maintenance, pb::MoveLeaderRequest => pb::MoveLeaderResponse;
        /// Calls `MemberAdd`.
        member_add: cluster, pb::MemberAddRequest => pb::MemberAddResponse;
        /// Calls `MemberRemove`.
        member_remove: cluster, pb::MemberRemoveRequest => pb::MemberRemoveResponse;
        /// Calls `MemberPromote`.
        member_promote: cluster, pb::MemberPromoteRequest => pb::MemberPromoteResponse;
        /// Calls `MemberUpdate`.
        member_update: cluster, pb::MemberUpdateRequest => pb::MemberUpdateResponse;
        /// Calls `MemberList`.
        member_list: cluster, pb::MemberListRequest => pb::MemberListResponse;
        /// Calls `Downgrade`.
        downgrade: maintenance, pb::DowngradeRequest => pb::DowngradeResponse;
        /// Calls `Authenticate`.
        authenticate: auth, pb::AuthenticateRequest => pb::AuthenticateResponse;
        /// Calls `AuthEnable`.
        auth_enable: auth, pb::AuthEnableRequest => pb::AuthEnableResponse;
        /// Calls `AuthDisable`.
        auth_disable: auth, pb::AuthDisableRequest => pb::AuthDisableResponse;
        /// Calls `AuthStatus`.
        auth_status: auth, pb::AuthStatusRequest => pb::AuthStatusResponse;
        /// Calls `UserAdd`.
        user_add: auth, pb::AuthUserAddRequest => pb::AuthUserAddResponse;
        /// Calls `UserGet`.
        user_get: auth, pb::AuthUserGetRequest => pb::AuthUserGetResponse;
        /// Calls `UserList`.
        user_list: auth, pb::AuthUserListRequest => pb::AuthUserListResponse;
        /// Calls `UserDelete`.
        user_delete: auth, pb::AuthUserDeleteRequest => pb::AuthUserDeleteResponse;
        /// Calls `UserChangePassword`.
        user_change_password: auth,
            pb::AuthUserChangePasswordRequest => pb::AuthUserChangePasswordResponse;
        /// Calls `UserGrantRole`.
        user_grant_role: auth, pb::AuthUserGrantRoleRequest => pb::AuthUserGrantRoleResponse;
        /// Calls `UserRevokeRole`.
        user_revoke_role: auth, pb::AuthUserRevokeRoleRequest => pb::AuthUserRevokeRoleResponse;
        /// Calls `RoleAdd`.
        role_add: auth, pb::AuthRoleAddRequest => pb::AuthRoleAddResponse;
        /// Calls `RoleGet`.
        role_get: auth, pb::AuthRoleGetRequest => pb::AuthRoleGetResponse;
        /// Calls `RoleList`.
        role_list: auth, pb::AuthRoleListRequest => pb::AuthRoleListResponse;
        /// Calls `RoleDelete`.
        role_delete: auth, pb::AuthRoleDeleteRequest => pb::AuthRoleDeleteResponse;
        /// Calls `RoleGrantPermission`.
        role_grant_permission: auth,
            pb::AuthRoleGrantPermissionRequest => pb::AuthRoleGrantPermissionResponse;
        /// Calls `RoleRevokePermission`.
        role_revoke_permission: auth,
            pb::AuthRoleRevokePermissionRequest => pb::AuthRoleRevokePermissionResponse;
        /// Calls `Lock`.
        lock: locks, v3lockpb::LockRequest => v3lockpb::LockResponse;
        /// Calls `Unlock`.
        unlock: locks, v3lockpb::UnlockRequest => v3lockpb::UnlockResponse;
        /// Calls `Campaign`.
        campaign: elections, v3electionpb::CampaignRequest => v3electionpb::CampaignResponse;
        /// Calls `Proclaim`.
        proclaim: elections, v3electionpb::ProclaimRequest => v3electionpb::ProclaimResponse;
        /// Calls `Leader`.
        leader: elections, v3electionpb::LeaderRequest => v3electionpb::LeaderResponse;
        /// Calls `Resign`.
        resign: elections, v3electionpb::ResignRequest => v3electionpb::ResignResponse;
    }

    /// Calls `RangeStream` and returns all messages.
    pub async fn range_stream(
        &self,
        request: pb::RangeRequest,
    ) -> Result<Vec<pb::RangeResponse>, Status> {
        let stream = self.kv().range_stream(self.signed(request)).await?.into_inner();
        let messages = collect(stream).await?;
        Ok(messages.into_iter().map(|message| message.range_response.unwrap()).collect())
    }

    /// Calls `Snapshot` and returns all messages.
    pub async fn snapshot(&self) -> Result<Vec<pb::SnapshotResponse>, Status> {
        let request = self.signed(pb::SnapshotRequest {});
        collect(self.maintenance().snapshot(request).await?.into_inner()).await
    }

    /// Returns the current revision.
    pub async fn revision(&self) -> i64 {
        let answer = self.range(crate::key("\0")).await.unwrap();
        answer.header.unwrap().revision
    }

    /// Writes a key and returns the new revision.
    pub async fn write(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> i64 {
        self.put(crate::put(key, value)).await.unwrap().header.unwrap().revision
    }

    /// Returns a key's value, or `None` if the key does not exist.
    pub async fn read(&self, key: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        let answer = self.range(crate::key(key)).await.unwrap();
        answer.kvs.first().map(|record| record.value().to_vec())
    }

    /// Compacts to a revision.
    pub async fn compact_to(&self, revision: i64) -> pb::CompactionResponse {
        self.compact(pb::CompactionRequest { revision, physical: true }).await.unwrap()
    }

    /// Renews a lease once and returns its TTL, which is 0 if the lease does not exist.
    pub async fn renew(&self, id: i64) -> Result<i64, Status> {
        let request = self.signed(tokio_stream::once(pb::LeaseKeepAliveRequest { id }));
        let mut answers = self.lease().lease_keep_alive(request).await?.into_inner();
        let answer = answers.message().await?;
        Ok(answer.ok_or_else(|| Status::unavailable("the stream ended"))?.ttl)
    }

    /// Grants a lease with an id, and returns the id.
    pub async fn grant(&self, id: i64, ttl: i64) -> i64 {
        self.lease_grant(pb::LeaseGrantRequest { id, ttl }).await.unwrap().id
    }

    /// Calls a method with an encoded message, valid or not, and returns the bytes of the answer.
    pub async fn raw(&self, method: &'static str, body: impl AsRef<[u8]>) -> Result<Bytes, Status> {
        let mut grpc = tonic::client::Grpc::new(self.channel());
        grpc.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
        let path = tonic::codegen::http::uri::PathAndQuery::from_static(method);
        let request = self.signed(crate::bytes(body));
        let answer = grpc.unary(request, path, RawCodec::default()).await?;
        Ok(answer.into_inner())
    }
}

async fn collect<T>(mut stream: Streaming<T>) -> Result<Vec<T>, Status> {
    let mut messages = Vec::new();
    while let Some(message) = stream.message().await? {
        messages.push(message);
    }
    Ok(messages)
}

/// A codec whose messages are plain bytes.
#[derive(Debug, Default)]
pub struct RawCodec {
    marker: PhantomData<()>,
}

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buf.put(item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buf.copy_to_bytes(buf.remaining())))
    }
}
