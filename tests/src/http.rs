//! A minimal HTTP/1.1 client.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use crate::DEADLINE;

/// A response.
#[derive(Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Header fields, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, with all chunks joined.
    pub body: Vec<u8>,
}

impl Response {
    /// Returns the body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the value of a header field.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(present, _)| present == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Requests a path of a local server.
#[must_use]
pub fn get(port: u16, path: &str) -> Response {
    request(port, "GET", path, "")
}

/// Sends a request with a body, and reads the complete response.
#[must_use]
pub fn request(port: u16, method: &str, path: &str, body: &str) -> Response {
    request_with(port, method, path, &[], body.as_bytes())
}

/// Sends a request with header fields and any body.
#[must_use]
pub fn request_with(
    port: u16,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Response {
    try_request_with(port, method, path, headers, body).unwrap()
}

/// Sends a request with header fields and any body. Returns an error if the connection fails or is closed before the
/// head of the response is complete.
pub fn try_request_with(
    port: u16,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<Response> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(DEADLINE))?;
    let length = body.len();
    let fields: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\
         Content-Length: {length}\r\n{fields}\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    read_answer(&mut stream)
}

/// Sends a GET request, closes the sending side as some clients do, and reads the response.
#[must_use]
pub fn get_and_shut_down(port: u16, path: &str) -> Response {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    read_answer(&mut stream).unwrap()
}

/// Reads a response, whose length is given by its head or by the end of the connection.
pub fn read_answer(stream: &mut TcpStream) -> io::Result<Response> {
    let (mut answer, mut piece) = (Vec::new(), [0; 16 * 1024]);
    // Some servers take a while to close a connection, so reading stops once the response is complete.
    while !is_complete(&answer) {
        match stream.read(&mut piece)? {
            0 if head_length(&answer).is_none() => return Err(io::ErrorKind::UnexpectedEof.into()),
            0 => break,
            count => answer.extend_from_slice(&piece[..count]),
        }
    }
    Ok(parse(&answer))
}

/// Returns whether a response with a `Content-Length` is complete.
fn is_complete(answer: &[u8]) -> bool {
    let Some(end) = head_length(answer) else { return false };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    length
        .and_then(|length| length.trim().parse::<usize>().ok())
        .is_some_and(|length| answer.len() >= end + 4 + length)
}

/// Returns the length of the head of a response, if it is complete.
fn head_length(answer: &[u8]) -> Option<usize> {
    answer.windows(4).position(|window| window == b"\r\n\r\n")
}

fn parse(answer: &[u8]) -> Response {
    let end = head_length(answer)
        .unwrap_or_else(|| panic!("not an HTTP response: {:?}", String::from_utf8_lossy(answer)));
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let body = &answer[end + 4..];
    let chunked =
        headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let body = if chunked { join_chunks(body) } else { body.to_vec() };
    Response { status: status.unwrap(), headers, body }
}

fn join_chunks(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n").unwrap();
        let size = std::str::from_utf8(&rest[..end]).unwrap();
        let size = usize::from_str_radix(size.split(';').next().unwrap(), 16).unwrap();
        let start = end + 2;
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&rest[start..start + size]);
        rest = &rest[start + size + 2..];
    }
}
