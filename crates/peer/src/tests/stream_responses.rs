//! Tests how a member handles stream responses, which a scripted server sends.

use bytes::BytesMut;

use super::*;
use crate::frame::{Encoder, StreamKind};

const HEAD: &str = "HTTP/1.1 200 OK\r\nX-Server-Version: 3.5.16\r\n";

/// Returns the next connection that requests the stream.
async fn next_stream(listener: &TcpListener, kind: StreamKind) -> TcpStream {
    let start = format!("GET {}2 HTTP/1.1\r\n", kind.path());
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        if read_request(&mut stream).await.unwrap_or_default().starts_with(&start) {
            return stream;
        }
    }
}

/// Starts member 2, whose stream timeout is one hour, and a listener in place of member 1.
async fn member_and_listener() -> (TestMember, TcpListener) {
    let two = TestMember::start_in(2, CLUSTER, Duration::from_secs(3600), Dialer::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let other = Member::new(units::MemberId(1), vec![url]);
    two.peers.set_members(&Members::new([other], []));
    (two, listener)
}

#[test]
fn a_stream_is_opened_again_if_the_response_ends_or_is_not_http() {
    block_on(async {
        let (_two, listener) = member_and_listener().await;
        let mut open = Vec::new();
        for response in [
            format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n1\r\n\0\r\n0\r\n\r\n"),
            format!("{HEAD}Content-Length: 0\r\n\r\n"),
            format!("{HEAD}Content-Length: 1\r\n\r\n\0"),
            format!("HTTP/1.1 103 Early Hints\r\n\r\n{HEAD}Content-Length: 0\r\n\r\n"),
            "HTTP/1.1 100\r\n\r\n".repeat(10_000),
            "SSH-2.0-OpenSSH".to_owned(),
            "\0\0\x12\x04".to_owned(),
        ] {
            let mut stream = next_stream(&listener, StreamKind::Append).await;
            // The member may close the connection before it has read everything.
            _ = stream.write_all(response.as_bytes()).await;
            // Keep the connection open, so that its end cannot cause the member to reconnect.
            open.push(stream);
        }
        next_stream(&listener, StreamKind::Append).await;
    });
}

#[test]
fn messages_that_arrive_with_the_head_or_in_parts_are_received() {
    let sent = [answer(1, 2, 0), answer(1, 2, 1), answer(1, 2, 2)];
    let (mut encoder, mut encoded) = (Encoder::new(StreamKind::Message), BytesMut::new());
    sent.iter().for_each(|message| encoder.put(message, &mut encoded));
    let (first, second) = encoded.split_at(encoded.len() / 2);
    let mut response = format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
    for part in [first, second] {
        response.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
        response.extend_from_slice(part);
        response.extend_from_slice(b"\r\n");
    }
    let end_of_first = response.len() - second.len() / 2;
    for cut in [0, 20, response.len() - 1, end_of_first] {
        let (two, _open) = block_on(async {
            let (two, listener) = member_and_listener().await;
            let mut stream = next_stream(&listener, StreamKind::Message).await;
            for part in [&response[..cut], &response[cut..]] {
                stream.write_all(part).await.unwrap();
                stream.flush().await.unwrap();
            }
            (two, stream)
        });
        assert_eq!(two.receive(3), sent);
    }
}

#[test]
fn a_long_error_page_does_not_report_the_removal_of_this_member() {
    for (body_bytes, is_removal) in [(100, true), (70_000, false)] {
        let head = format!(
            "HTTP/1.1 403 Forbidden\r\nX-Server-Version: 3.5.16\r\nContent-Length: {body_bytes}\r\n\r\n"
        );
        let response = [head.into_bytes(), vec![b'x'; body_bytes]].concat();
        let (two, _listener) = block_on(async {
            let (two, listener) = member_and_listener().await;
            let mut stream = next_stream(&listener, StreamKind::Append).await;
            // The member closes the connection before it has read a page that is too long.
            _ = stream.write_all(&response).await;
            // The member has processed the response when it opens the stream again.
            next_stream(&listener, StreamKind::Append).await;
            (two, listener)
        });
        two.reports.add(Report::End);
        let is_reported = two.wait_for(|report| match report {
            Report::Removal => Some(true),
            Report::End => Some(false),
            _ => None,
        });
        assert_eq!(is_reported, is_removal, "{body_bytes}");
    }
}
