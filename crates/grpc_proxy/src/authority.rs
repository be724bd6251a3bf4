//! Whether members ask who their clients are: what this proxy answers by itself depends on it.
//!
//! An answer from the cache, or about a key that this proxy owns, is as good as a member's only while a member would give
//! it to the same client. A request with a token is checked at a member each time (`kv`). Requests without one are not,
//! while authentication is off. So a member is asked, again and again, whether it still answers without a token. Once it
//! refuses, all that is kept is dropped, and nothing is owned.
//!
//! # Bound
//!
//! After authentication was turned on by another way than this proxy, an answer from here may be up to [`INTERVAL`] late,
//! and the time that a member takes to answer.

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

/// Between two questions to a member.
const INTERVAL: Duration = Duration::from_millis(250);

/// How long a member may take to answer; then another one is asked.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// Asks as long as the proxy is there, while there is anything that it would answer by itself.
pub(crate) async fn keep_asking(upstream: Arc<Upstream>, kv: Kv, leasing: Option<Arc<Leasing>>) {
    let mut was_refused = false;
    loop {
        sleep(INTERVAL).await;
        let has_session = leasing.as_ref().is_some_and(|leasing| leasing.has_session());
        if !has_session && kv.keeps_nothing() {
            continue;
        }
        let is_refused = is_refused(&upstream).await;
        if is_refused && !was_refused {
            log::info!(
                "members ask who their clients are: dropping what was kept for clients without a user"
            );
        }
        was_refused = is_refused;
        if is_refused {
            kv.drop_answers_for_nobody();
            if let Some(leasing) = &leasing {
                leasing.end_for_authentication();
            }
        }
    }
}

/// Whether a member refuses a linearizable read of one key without a user. A member that does not answer says nothing.
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
