//! Reads request bodies that do not affect the response, and short request bodies that do.
//!
//! A client may lose a response that is sent before its request is complete. Over HTTP/1, the server closes the
//! connection after the response, and the kernel resets it if more data arrives. Over HTTP/2, some clients do not
//! support early responses. Therefore the body is read and discarded first, unless it is very long or slow.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Collected, Limited};
use quorate_net::listen::IncomingBody;

/// Maximum number of bytes read from an unneeded body.
const PASSED_OVER_BYTES_MAX: usize = 16 << 20;

/// Maximum time for reading an unneeded body.
const PASSED_OVER_WITHIN: Duration = Duration::from_secs(5);

/// Reads and discards a body, within the limits.
pub async fn pass_over(mut body: IncomingBody) {
    let read = async {
        let mut passed = 0;
        while passed <= PASSED_OVER_BYTES_MAX
            && let Some(Ok(frame)) = body.frame().await
        {
            passed += frame.data_ref().map_or(0, Bytes::len);
        }
    };
    // The response is sent even if the body could not be read completely.
    drop(tokio::time::timeout(PASSED_OVER_WITHIN, read).await);
}

/// Reads a short body. Returns no bytes if the body is too long or does not arrive in time.
pub async fn read_short(body: IncomingBody, bytes_max: usize) -> Bytes {
    let read = Limited::new(body, bytes_max).collect();
    match tokio::time::timeout(PASSED_OVER_WITHIN, read).await {
        Ok(Ok(body)) => Collected::to_bytes(body),
        Ok(Err(_)) | Err(_) => Bytes::new(),
    }
}
