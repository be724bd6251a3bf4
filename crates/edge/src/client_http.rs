//! The HTTP endpoints for clients, on a connection: what `http` asks of the member, and the service that
//! listeners call.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use quorate_api::etcdserverpb::AlarmType;
use quorate_state::mvcc::RangeQuery;

use crate::http::{Endpoints, HealthAlarm, Probe, Surface};
use quorate_member::leadership::LeaderWatch;
use quorate_member::{Handles, Profile, Reader, RequestError};
use quorate_net::listen;

/// Answers what the endpoints want to know.
#[derive(Debug)]
pub struct MemberProbe {
    profile: Arc<Profile>,
    reader: Arc<Reader>,
    leader: LeaderWatch,
}

impl MemberProbe {
    /// Asks this member.
    pub fn new(handles: &Handles) -> Self {
        Self {
            profile: Arc::clone(&handles.profile),
            reader: Arc::clone(&handles.reader),
            leader: LeaderWatch::new(handles),
        }
    }
}

impl Probe for MemberProbe {
    fn alarms(&self) -> Vec<HealthAlarm> {
        let facts = self.profile.facts();
        facts
            .alarms
            .of_kind(AlarmType::None as i32)
            .map(|alarm| match AlarmType::try_from(alarm.kind) {
                Ok(AlarmType::Nospace) => HealthAlarm::NoSpace,
                Ok(AlarmType::Corrupt) => HealthAlarm::Corrupt,
                Ok(AlarmType::None) | Err(_) => HealthAlarm::Unknown,
            })
            .collect()
    }

    async fn has_leader(&self) -> bool {
        self.leader.require_leader().await.is_ok()
    }

    fn is_learner(&self) -> bool {
        self.profile.is_learner()
    }

    async fn read(&self, is_serializable: bool) -> Result<(), String> {
        let read = async {
            if !is_serializable {
                self.reader.read_barrier().await?;
            }
            // The empty key is nobody's: the read passes through everything and finds nothing.
            let query = RangeQuery { limit: 1, keys_only: true, ..RangeQuery::default() };
            self.reader.range(&query).map(drop)
        };
        read.await.map_err(|error: RequestError| error.to_string())
    }

    fn request_timeout(&self) -> Duration {
        self.profile.limits().request_timeout
    }

    fn server_version(&self) -> String {
        self.profile.version_text()
    }

    fn cluster_version(&self) -> Option<String> {
        self.profile.facts().versions.cluster().map(|version| version.to_string())
    }

    fn storage_version(&self) -> Option<String> {
        self.profile.standing().storage_version().map(|version| version.to_string())
    }

    fn raft_status(&self) -> String {
        let standing = self.profile.standing();
        format!(
            "{{\"id\":\"{:x}\",\"term\":{},\"commit\":{},\"applied\":{},\"lead\":\"{:x}\",\
             \"raftState\":\"{}\"}}",
            self.profile.id(),
            standing.applied_term(),
            standing.committed(),
            standing.applied(),
            standing.leader(),
            if standing.leads() { "StateLeader" } else { "StateFollower" },
        )
    }
}

/// The endpoints as a service of one listener.
#[derive(Clone, Debug)]
pub struct HttpService {
    endpoints: Arc<Endpoints<MemberProbe>>,
    surface: Surface,
}

impl HttpService {
    /// These endpoints, as far as such a listener shows them.
    pub const fn new(endpoints: Arc<Endpoints<MemberProbe>>, surface: Surface) -> Self {
        Self { endpoints, surface }
    }
}

impl listen::Http1Service for HttpService {
    // As Go's server: some clients shut their side down after the request.
    const ANSWERS_HALF_CLOSED: bool = true;
}

impl hyper::service::Service<Request<Incoming>> for HttpService {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (endpoints, surface) = (Arc::clone(&self.endpoints), self.surface);
        let is_tls = request.extensions().get::<listen::Encrypted>().is_some();
        Box::pin(async move { Ok(endpoints.answer(&request, surface, is_tls).await) })
    }
}
