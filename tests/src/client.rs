//! A client that hides nothing: the published stubs, with errors as the server gave them.

use std::marker::PhantomData;

use bytes::{Buf as _, BufMut as _, Bytes};
use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::auth_client::AuthClient;
use quorate_api::etcdserverpb::cluster_client::ClusterClient;
use quorate_api::etcdserverpb::kv_client::KvClient;
use quorate_api::etcdserverpb::lease_client::LeaseClient;
use quorate_api::etcdserverpb::maintenance_client::MaintenanceClient;
use quorate_api::etcdserverpb::watch_client::WatchClient;
use quorate_api::healthpb::health_client::HealthClient;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

/// Checks that a request was refused, with this code and exactly this text.
#[track_caller]
pub fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, text: &str) {
    match answer {
        Err(status) => assert_eq!((status.code(), status.message()), (code, text)),
        Ok(answer) => panic!("expected {code:?} {text}, got {answer:?}"),
    }
}

/// One connection to one server.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
}

macro_rules! calls {
    ($($(#[doc = $doc:literal])* $name:ident: $service:ident, $request:ty => $response:ty;)*) => {
        $(
            $(#[doc = $doc])*
            pub async fn $name(&self, request: $request) -> Result<$response, Status> {
                self.$service().$name(request).await.map(tonic::Response::into_inner)
            }
        )*
    };
}

impl Client {
    /// A client that connects when it is first used.
    #[must_use]
    pub fn new(port: u16) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
        Self { channel: endpoint.connect_lazy() }
    }

    /// The connection, for a stub with settings of its own.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// KV stub.
    #[must_use]
    pub fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel()).max_decoding_message_size(usize::MAX)
    }

    /// Watch stub.
    #[must_use]
    pub fn watch(&self) -> WatchClient<Channel> {
        WatchClient::new(self.channel()).max_decoding_message_size(usize::MAX)
    }

    /// Lease stub.
    #[must_use]
    pub fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel()).max_decoding_message_size(usize::MAX)
    }

    /// Maintenance stub.
    #[must_use]
    pub fn maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.channel())
    }

    /// Cluster stub.
    #[must_use]
    pub fn cluster(&self) -> ClusterClient<Channel> {
        ClusterClient::new(self.channel())
    }

    /// Auth stub.
    #[must_use]
    pub fn auth(&self) -> AuthClient<Channel> {
        AuthClient::new(self.channel())
    }

    /// Stub of the standard health service.
    #[must_use]
    pub fn health(&self) -> HealthClient<Channel> {
        HealthClient::new(self.channel())
    }

    calls! {
        /// Range.
        range: kv, pb::RangeRequest => pb::RangeResponse;
        /// Put.
        put: kv, pb::PutRequest => pb::PutResponse;
        /// `DeleteRange`.
        delete_range: kv, pb::DeleteRangeRequest => pb::DeleteRangeResponse;
        /// Txn.
        txn: kv, pb::TxnRequest => pb::TxnResponse;
        /// Compact.
        compact: kv, pb::CompactionRequest => pb::CompactionResponse;
        /// `LeaseGrant`.
        lease_grant: lease, pb::LeaseGrantRequest => pb::LeaseGrantResponse;
        /// `LeaseRevoke`.
        lease_revoke: lease, pb::LeaseRevokeRequest => pb::LeaseRevokeResponse;
        /// `LeaseTimeToLive`.
        lease_time_to_live: lease, pb::LeaseTimeToLiveRequest => pb::LeaseTimeToLiveResponse;
        /// `LeaseLeases`.
        lease_leases: lease, pb::LeaseLeasesRequest => pb::LeaseLeasesResponse;
        /// Alarm.
        alarm: maintenance, pb::AlarmRequest => pb::AlarmResponse;
        /// Status.
        status: maintenance, pb::StatusRequest => pb::StatusResponse;
        /// Defragment.
        defragment: maintenance, pb::DefragmentRequest => pb::DefragmentResponse;
        /// Hash.
        hash: maintenance, pb::HashRequest => pb::HashResponse;
        /// `HashKV`.
        hash_kv: maintenance, pb::HashKvRequest => pb::HashKvResponse;
        /// `MoveLeader`.
        move_leader: maintenance, pb::MoveLeaderRequest => pb::MoveLeaderResponse;
        /// `MemberAdd`.
        member_add: cluster, pb::MemberAddRequest => pb::MemberAddResponse;
        /// `MemberRemove`.
        member_remove: cluster, pb::MemberRemoveRequest => pb::MemberRemoveResponse;
        /// `MemberPromote`.
        member_promote: cluster, pb::MemberPromoteRequest => pb::MemberPromoteResponse;
        /// `MemberUpdate`.
        member_update: cluster, pb::MemberUpdateRequest => pb::MemberUpdateResponse;
        /// `MemberList`.
        member_list: cluster, pb::MemberListRequest => pb::MemberListResponse;
    }

    /// All messages of a `RangeStream`.
    pub async fn range_stream(
        &self,
        request: pb::RangeRequest,
    ) -> Result<Vec<pb::RangeResponse>, Status> {
        let stream = self.kv().range_stream(request).await?.into_inner();
        let messages = collect(stream).await?;
        Ok(messages.into_iter().map(|message| message.range_response.unwrap()).collect())
    }

    /// All messages of a Snapshot.
    pub async fn snapshot(&self) -> Result<Vec<pb::SnapshotResponse>, Status> {
        collect(self.maintenance().snapshot(pb::SnapshotRequest {}).await?.into_inner()).await
    }

    /// The current revision.
    pub async fn revision(&self) -> i64 {
        let answer = self.range(crate::key("\0")).await.unwrap();
        answer.header.unwrap().revision
    }

    /// Writes a key and returns the revision that made it.
    pub async fn write(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> i64 {
        self.put(crate::put(key, value)).await.unwrap().header.unwrap().revision
    }

    /// A key's value, if it is there.
    pub async fn read(&self, key: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        let answer = self.range(crate::key(key)).await.unwrap();
        answer.kvs.first().map(|record| record.value().to_vec())
    }

    /// Compacts to a revision.
    pub async fn compact_to(&self, revision: i64) -> pb::CompactionResponse {
        self.compact(pb::CompactionRequest { revision, physical: true }).await.unwrap()
    }

    /// Renews a lease once, and says for how long it lives then: 0 if it is gone.
    pub async fn renew(&self, id: i64) -> Result<i64, Status> {
        let request = tokio_stream::once(pb::LeaseKeepAliveRequest { id });
        let mut answers = self.lease().lease_keep_alive(request).await?.into_inner();
        let answer = answers.message().await?;
        Ok(answer.ok_or_else(|| Status::unavailable("the stream ended"))?.ttl)
    }

    /// Grants a lease with an id and returns that id.
    pub async fn grant(&self, id: i64, ttl: i64) -> i64 {
        self.lease_grant(pb::LeaseGrantRequest { id, ttl }).await.unwrap().id
    }

    /// Calls any method with any bytes, and returns the bytes of the answer.
    pub async fn raw(&self, method: &'static str, body: impl AsRef<[u8]>) -> Result<Bytes, Status> {
        let mut grpc = tonic::client::Grpc::new(self.channel());
        grpc.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
        let path = tonic::codegen::http::uri::PathAndQuery::from_static(method);
        let request = tonic::Request::new(crate::bytes(body));
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

/// A codec that takes bytes for messages.
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
