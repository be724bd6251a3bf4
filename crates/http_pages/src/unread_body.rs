//! Bodies of requests that are answered without them, or with no more of them than a few words.
//!
//! Clients lose an answer that comes before they have sent all: the connection is closed behind it, over HTTP/1, and
//! what arrives then resets it; over HTTP/2 some are not prepared for it. So the body is read first, and let go of as it
//! comes, unless it is very long or slow.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Collected, Limited};
use hyper::body::Incoming;

/// What is read of a body that nobody wants.
const PASSED_OVER_BYTES_MAX: usize = 16 << 20;

/// For how long it is waited for.
const PASSED_OVER_WITHIN: Duration = Duration::from_secs(5);

/// Reads a body that nobody wants, unless it is very long.
pub async fn pass_over(mut body: Incoming) {
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

/// Reads a body that is short, and nothing of one that is not, or does not come.
pub async fn read_short(body: Incoming, bytes_max: usize) -> Bytes {
    let read = Limited::new(body, bytes_max).collect();
    match tokio::time::timeout(PASSED_OVER_WITHIN, read).await {
        Ok(Ok(body)) => Collected::to_bytes(body),
        Ok(Err(_)) | Err(_) => Bytes::new(),
    }
}
