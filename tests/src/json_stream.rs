//! A request that is answered with a stream of JSON lines.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use crate::DEADLINE;

/// A response in progress. Dropping it closes the connection.
#[derive(Debug)]
pub struct JsonStream {
    reader: BufReader<TcpStream>,
    /// The status code.
    pub status: u16,
    /// Bytes of the next line that have been received so far.
    waiting: Vec<u8>,
}

impl JsonStream {
    /// Sends a complete request, and waits for the header of the response.
    #[must_use]
    pub fn post(port: u16, path: &str, headers: &[(&str, &str)], body: &str) -> Self {
        Self::read_head(Self::send(port, path, headers, body))
    }

    /// Sends a complete request without reading the response.
    #[must_use]
    pub fn send(port: u16, path: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let length = body.len();
        let fields: String =
            headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {length}\r\n\
             {fields}\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    /// Sends the header of a request whose body follows in chunks.
    #[must_use]
    pub fn begin(port: u16, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    /// Sends one chunk of a body.
    pub fn send_chunk(mut stream: &TcpStream, body: &str) {
        stream.write_all(format!("{:x}\r\n{body}\r\n", body.len()).as_bytes()).unwrap();
    }

    /// Reads the header of a response.
    #[must_use]
    pub fn read_head(stream: TcpStream) -> Self {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.unwrap_or_else(|| panic!("not an HTTP response: {line:?}"));
        while line != "\r\n" {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "the response header is incomplete");
        }
        Self { reader, status, waiting: Vec::new() }
    }

    /// Returns the next line, or `None` at the end of the response.
    pub fn next_line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.waiting.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.waiting.drain(..=end).collect();
                return Some(String::from_utf8(line).unwrap());
            }
            let mut size = String::new();
            if self.reader.read_line(&mut size).unwrap() == 0 {
                return None;
            }
            let size = usize::from_str_radix(size.trim(), 16).unwrap();
            let mut chunk = vec![0; size + 2];
            self.reader.read_exact(&mut chunk).unwrap();
            if size == 0 {
                return None;
            }
            chunk.truncate(size);
            self.waiting.extend(chunk);
        }
    }
}
