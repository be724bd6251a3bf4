//! Tests that errors have the correct HTTP statuses.

use tonic::Code;

use super::answer::http_status;

#[test]
fn every_grpc_code_maps_to_its_http_status() {
    let statuses: Vec<u16> =
        (0..=16).map(|code| http_status(Code::from_i32(code)).as_u16()).collect();
    let expected =
        [200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401];
    assert_eq!(statuses, expected);
}
