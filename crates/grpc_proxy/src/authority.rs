//! Detects when the members turn authentication on, because the proxy must then stop answering anonymous clients
//! itself.
//!
//! The proxy may answer a client from the cache, or from the record of an owned key, only while a member would also
//! answer that client. A request that carries a token is always checked by a member (`kv`). Requests without a token
//! are not checked while authentication is off, so the proxy polls a member with an anonymous read, to detect that
//! authentication has been turned on. Once a member refuses that read, the proxy drops all owned keys and the responses
//! cached for anonymous clients.
//!
//! # Bound
//!
//! If authentication is turned on by a request that does not pass through this proxy, the proxy may answer anonymous
//! clients for up to [`INTERVAL`] plus the response time of a member.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use prost::Message as _;
use quorate_api::etcdserverpb::RangeRequest;
use quorate_grpc::methods;
use quorate_telemetry::log;
use tokio::time::{sleep, timeout};
use tonic::Code;

use crate::kv::Kv;
use crate::leasing::Leasing;
use crate::relay;
use crate::upstream::Upstream;

/// Pause between two polls.
const INTERVAL: Duration = Duration::from_millis(250);

/// Maximum time for a member to answer before another member is polled.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// Polls a member while the proxy runs. Polling pauses while the proxy has no cached responses and no owned keys.
pub(crate) async fn poll_authentication(
    upstream: Arc<Upstream>,
    kv: Kv,
    leasing: Option<Arc<Leasing>>,
) {
    let mut was_refused = false;
    loop {
        sleep(INTERVAL).await;
        let has_session = leasing.as_ref().is_some_and(|leasing| leasing.has_session());
        if !has_session && kv.is_cache_empty() {
            continue;
        }
        let is_refused = is_refused(&upstream).await;
        if is_refused && !was_refused {
            log::info!(
                "authentication is enabled: dropping all owned keys and the responses cached for anonymous clients"
            );
        }
        was_refused = is_refused;
        if is_refused {
            kv.drop_anonymous_answers();
            if let Some(leasing) = &leasing {
                leasing.end_for_authentication();
            }
        }
    }
}

/// Returns whether a member refuses an anonymous linearizable read of one key. A missing response does not count as a
/// refusal.
async fn is_refused(upstream: &Upstream) -> bool {
    let request = RangeRequest {
        key: Bytes::from_static(b"\0"),
        count_only: true,
        ..RangeRequest::default()
    };
    let message: Bytes = request.encode_to_vec().into();
    let method = methods::named("/etcdserverpb.KV/Range");
    let asking = relay::ask(upstream, method, HeaderMap::new(), message);
    match timeout(ANSWER_TIME_MAX, asking).await {
        Ok(Err(status)) => matches!(
            status.code(),
            Code::PermissionDenied | Code::Unauthenticated | Code::InvalidArgument
        ),
        Ok(Ok(_)) | Err(_) => false,
    }
}
