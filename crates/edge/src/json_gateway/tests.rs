//! Tests the HTTP statuses of errors, and the read limit of streams with deadlines.

use std::time::Duration;

use quorate_net::listen::ReadLimit;
use tokio::time::Instant;
use tonic::Code;

use super::answer::{UNREAD_TIME_MAX_AFTER_DEADLINE, http_status, read_until};

#[test]
fn every_grpc_code_maps_to_its_http_status() {
    let statuses: Vec<u16> =
        (0..=16).map(|code| http_status(Code::from_i32(code)).as_u16()).collect();
    let expected =
        [200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401];
    assert_eq!(statuses, expected);
}

#[tokio::test(start_paused = true)]
async fn the_client_of_a_stream_may_pause_reading_only_until_the_deadline() {
    let deadline = Instant::now() + Duration::from_secs(5);
    let ReadLimit(policy) = read_until(deadline);
    assert!(policy.required_pace().time > Duration::from_secs(1_000_000_000));
    tokio::time::sleep_until(deadline).await;
    assert_eq!(policy.required_pace().time, UNREAD_TIME_MAX_AFTER_DEADLINE);
}
