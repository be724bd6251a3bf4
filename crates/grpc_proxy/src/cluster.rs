//! Lists the proxies of a cluster to clients in place of the members. This module registers this proxy and discovers
//! the other proxies.
//!
//! A proxy is registered as a key under `--resolver-prefix`. Its value has the format of etcd's naming library, and its
//! lease stays alive while the proxy runs. Quorate's and etcd's proxies read each other's registrations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use parking_lot::Mutex;
use prost::{Message, Name};
use quorate_api::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, Member,
    MemberListRequest, MemberListResponse, PutRequest, PutResponse, RangeRequest, RangeResponse,
};
use quorate_grpc::methods;
use quorate_telemetry::log;
use tokio::time::sleep;
use tonic::Status;

use crate::framing;
use crate::lease::Leases;
use crate::line::Registration;
use crate::namespace::Namespace;
use crate::relay;
use crate::upstream::Upstream;

/// Pause between two attempts to register.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Number of renewals of a session within its TTL.
const RENEWALS_PER_TTL: u32 = 3;

/// The registered proxies and this proxy's own registration.
#[derive(Debug)]
pub(crate) struct Cluster {
    upstream: Arc<Upstream>,
    namespace: Option<Namespace>,
    /// The address advertised by this proxy; empty if clients see the members themselves.
    advertised: String,
    registration: Option<Registration>,
    /// The registered proxies, by key.
    proxies: Mutex<BTreeMap<Vec<u8>, Proxy>>,
}

/// A registered proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Proxy {
    address: String,
    name: String,
}

impl Cluster {
    pub(crate) fn new(
        upstream: Arc<Upstream>,
        namespace: Option<Namespace>,
        advertised: String,
        registration: Option<Registration>,
    ) -> Self {
        Self { upstream, namespace, advertised, registration, proxies: Mutex::default() }
    }

    /// Returns the member list for clients, or `None` if clients receive the members' own list.
    pub(crate) fn members(&self) -> Option<MemberListResponse> {
        if self.advertised.is_empty() {
            return None;
        }
        let member = |proxy: &Proxy| Member {
            name: proxy.name.clone(),
            client_urls: vec![proxy.address.clone()],
            ..Member::default()
        };
        let proxies = self.proxies.lock();
        let mut members: Vec<Member> = proxies.values().map(member).collect();
        if members.is_empty() {
            // Until other proxies are known, the list contains only this proxy.
            members.push(member(&Proxy { address: self.advertised.clone(), name: host_name() }));
        }
        Some(MemberListResponse { members, ..MemberListResponse::default() })
    }

    /// Keeps this proxy registered while it runs.
    pub(crate) async fn stay_registered(self: Arc<Self>, leases: Arc<Leases>) {
        let Some(registration) = self.registration.clone() else { return };
        loop {
            match self.register(&registration).await {
                Ok(lease) => {
                    log::info!(
                        "registered session with lease",
                        "addr" = self.advertised,
                        "lease-ttl" = registration.ttl_secs
                    );
                    self.renew(&leases, lease, &registration).await;
                    log::warn!("session expired; possible network partition or server restart");
                    log::warn!("creating a new session to rejoin");
                }
                Err(status) => {
                    log::warn!("failed to create a session", "error" = status.message());
                }
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    async fn register(&self, registration: &Registration) -> Result<i64, Status> {
        let grant = LeaseGrantRequest { ttl: registration.ttl_secs, id: 0 };
        let granted: LeaseGrantResponse =
            self.ask("/etcdserverpb.Lease/LeaseGrant", &grant).await?;
        let metadata = serde_json::json!({ "name": host_name() }).to_string();
        let value = serde_json::json!({ "Op": 0, "Addr": self.advertised, "Metadata": metadata });
        let mut put = PutRequest {
            key: format!("{}/{}", registration.prefix, self.advertised).into(),
            value: value.to_string().into(),
            lease: granted.id,
            ..PutRequest::default()
        };
        if let Some(namespace) = &self.namespace {
            namespace.put(&mut put)?;
        }
        let _: PutResponse = self.ask("/etcdserverpb.KV/Put", &put).await?;
        Ok(granted.id)
    }

    /// Renews the lease until it expires or is revoked.
    async fn renew(&self, leases: &Arc<Leases>, lease: i64, registration: &Registration) {
        let secs = u64::try_from(registration.ttl_secs).unwrap_or(1);
        let period = Duration::from_secs(secs) / RENEWALS_PER_TTL;
        loop {
            sleep(period).await;
            leases.renew_own(lease).await;
            let asked = LeaseTimeToLiveRequest { id: lease, keys: false };
            let left = self.ask("/etcdserverpb.Lease/LeaseTimeToLive", &asked).await;
            // The lease may still be alive even if no member answers, so renewal continues.
            if left.is_ok_and(|left: LeaseTimeToLiveResponse| left.ttl <= 0) {
                return;
            }
        }
    }

    /// Polls the registrations of all proxies.
    pub(crate) async fn poll_proxies(self: Arc<Self>) {
        let Some(registration) = self.registration.clone() else { return };
        loop {
            match self.find_proxies(&registration).await {
                Ok(found) => *self.proxies.lock() = found,
                Err(status) => log::debug!(
                    "failed to read the registrations of the proxies",
                    "prefix" = registration.prefix,
                    "error" = status.message()
                ),
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    async fn find_proxies(
        &self,
        registration: &Registration,
    ) -> Result<BTreeMap<Vec<u8>, Proxy>, Status> {
        // Selects the keys that start with the prefix and `/`. `0` is the next byte after `/`.
        let mut range = RangeRequest {
            key: format!("{}/", registration.prefix).into(),
            range_end: format!("{}0", registration.prefix).into(),
            serializable: true,
            ..RangeRequest::default()
        };
        if let Some(namespace) = &self.namespace {
            namespace.range(&mut range)?;
        }
        let found: RangeResponse = self.ask("/etcdserverpb.KV/Range", &range).await?;
        let proxies = found.kvs.iter().filter_map(|record| {
            let fields = record.fields();
            Some((fields.key.to_vec(), Proxy::read(fields.value)?))
        });
        Ok(proxies.collect())
    }

    /// Polls the member list of the cluster and dials the client URLs in it.
    pub(crate) async fn sync_endpoints(self: Arc<Self>, interval: Duration) {
        loop {
            sleep(interval).await;
            let asked = MemberListRequest::default();
            let listed = self.ask("/etcdserverpb.Cluster/MemberList", &asked).await;
            let listed: MemberListResponse = match listed {
                Ok(listed) => listed,
                Err(status) => {
                    log::warn!("Auto sync endpoints failed.", "error" = status.message());
                    continue;
                }
            };
            // Learners refuse almost all requests, and members that have not started have no client URLs.
            let members = listed.members.into_iter().filter(|member| !member.is_learner);
            let urls: Vec<String> = members.flat_map(|member| member.client_urls).collect();
            if urls.is_empty() || urls == self.upstream.endpoints() {
                continue;
            }
            match self.upstream.set_endpoints(&urls) {
                Ok(()) => log::info!("endpoints have changed", "endpoints" = urls),
                Err(error) => {
                    log::warn!("Auto sync endpoints failed.", "error" = error.to_string());
                }
            }
        }
    }

    async fn ask<M: Message, R: Message + Name + Default + 'static>(
        &self,
        path: &str,
        message: &M,
    ) -> Result<R, Status> {
        let message: Bytes = message.encode_to_vec().into();
        let method = methods::named(path);
        let answer = relay::ask(&self.upstream, method, HeaderMap::new(), message).await?;
        framing::decode(answer)
    }
}

impl Proxy {
    /// Parses a registration. Returns `None` if the value has a different format.
    fn read(value: &[u8]) -> Option<Self> {
        let value: serde_json::Value = serde_json::from_slice(value).ok()?;
        let metadata = value.get("Metadata")?.as_str()?;
        let metadata: serde_json::Value = serde_json::from_str(metadata).ok()?;
        Some(Self {
            address: value.get("Addr")?.as_str()?.to_owned(),
            name: metadata.get("name")?.as_str()?.to_owned(),
        })
    }
}

/// Returns the host name of this machine.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registration_of_etcds_proxy_is_parsed() {
        let value = br#"{"Op":0,"Addr":"127.0.0.1:23790","Metadata":"{\"name\":\"host\"}"}"#;
        let proxy = Proxy { address: "127.0.0.1:23790".to_owned(), name: "host".to_owned() };
        assert_eq!(Proxy::read(value), Some(proxy));
        for other in [&b""[..], b"{}", br#"{"Addr":"a","Metadata":null}"#] {
            assert_eq!(Proxy::read(other), None);
        }
    }
}
