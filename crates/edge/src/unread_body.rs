//! Bodies of requests that are answered without them.
//!
//! Over HTTP/2 some clients lose an answer that comes before they have sent all, so a short body is read first.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

/// What is read of a body that nobody wants.
const PASSED_OVER_BYTES_MAX: usize = 64 << 10;

/// For how long it is waited for.
const PASSED_OVER_WITHIN: Duration = Duration::from_secs(1);

/// Reads a body that nobody wants, unless it is long.
pub(crate) async fn pass_over(mut body: Incoming) {
    let read = async {
        let mut passed = 0;
        while passed <= PASSED_OVER_BYTES_MAX
            && let Some(Ok(frame)) = body.frame().await
        {
            passed += frame.data_ref().map_or(0, Bytes::len);
        }
    };
    // Whatever came of it, the answer is sent.
    drop(tokio::time::timeout(PASSED_OVER_WITHIN, read).await);
}
