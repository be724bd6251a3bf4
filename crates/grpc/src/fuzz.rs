//! Fuzz target: the headers of a gRPC request.

use http::{HeaderName, HeaderValue, Request};

use crate::head::{Encoding, Head};

/// Parses a request made of a method, a target and header lines, one per line. The request must be accepted, or refused
/// with a valid response.
pub fn head(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let (method, target) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let mut request = Request::builder().method(method).uri(target);
    for line in lines {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let (name, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        // The HTTP library refuses invalid headers itself.
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        {
            request = request.header(name, value);
        }
    }
    let Ok(request) = request.body(()) else { return };
    match Head::read(&request) {
        Ok(head) => {
            let lines: usize = request
                .headers()
                .iter()
                .map(|(name, value)| name.as_str().len() + value.len())
                .sum();
            assert!(
                head.bytes >= lines as u64,
                "the counted size {} is less than the {lines} bytes of the headers",
                head.bytes
            );
            assert_eq!(request.method(), http::Method::POST);
            if let Encoding::Unknown(value) = head.encoding {
                assert!(value != "gzip");
            }
        }
        Err(refusal) => {
            let answer = refusal.into_http();
            assert!(
                answer.headers().contains_key("grpc-status"),
                "the refusal has no grpc-status header"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_test_support::mutate::bounded;

    #[test]
    fn any_request_head_is_accepted_or_refused_without_a_panic() {
        let good = b"POST\n/etcdserverpb.KV/Put\ncontent-type:application/grpc\ngrpc-timeout:5S\n\
            grpc-encoding:gzip\nx-bin:AAEC\nuser-agent:grpc-go";
        let odd = b"GET\nhttp://h/x\nhost:a\nhost:b\ngrpc-timeout:99999999H\ncontent-type:application/grpc+x\n\
            y-bin:AA=A\ngrpc-timeout:1\xff";
        let samples = [("good", good.to_vec()), ("odd", odd.to_vec())];
        bounded("grpc_head", &samples, 20_000, super::head);
    }
}
