//! A running `quorate console`, and a client that sends the same requests as the console's page in a browser.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use crate::{DEADLINE, Kind, Port, Response, request_with};

/// A console process. The process is killed when this value is dropped.
#[derive(Debug)]
pub struct Console {
    child: Child,
    port: Port,
    /// The scheme and the address of the page.
    pub url: String,
    secret: Option<String>,
}

impl Console {
    /// Starts a console for these endpoints, with additional flags.
    #[must_use]
    pub fn start(endpoints: &str, flags: &[&str]) -> Self {
        match Self::try_start(endpoints, flags) {
            Ok(console) => console,
            Err(text) => panic!("the console failed to start: {text}"),
        }
    }

    /// Starts a console that may refuse to start. The error is the output of the console.
    pub fn try_start(endpoints: &str, flags: &[&str]) -> Result<Self, String> {
        let port = Port::free();
        let mut command = Command::new(Kind::Quorate.program());
        command.args(["console", "--endpoints", endpoints]).args(flags);
        if !flags.iter().any(|flag| flag.starts_with("--listen")) {
            command.arg(format!("--listen=127.0.0.1:{}", port.number()));
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        match line.strip_prefix("The console is at ") {
            Some(address) => {
                let (url, secret) = match address.trim().split_once("#s=") {
                    Some((url, secret)) => (url, Some(secret.to_owned())),
                    None => (address.trim(), None),
                };
                Ok(Self { child, port, url: url.trim_end_matches('/').to_owned(), secret })
            }
            None => {
                let mut errors = String::new();
                child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
                child.wait().unwrap();
                Err(line + &errors)
            }
        }
    }

    /// Returns the port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns the secret that the page must send, if the console requires one.
    #[must_use]
    pub fn secret(&self) -> Option<&str> {
        self.secret.as_deref()
    }

    /// Returns the id of the process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns a page of this console that is not logged in.
    #[must_use]
    pub fn page(&self) -> ConsolePage {
        ConsolePage { port: self.port(), token: None, secret: self.secret.clone() }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        // The process may already have exited.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A stand-in for the page of a console, which sends the same requests as the page but shows nothing.
#[derive(Clone, Debug)]
pub struct ConsolePage {
    port: u16,
    token: Option<String>,
    secret: Option<String>,
}

impl ConsolePage {
    /// Returns a page that sends its requests to a console on this port.
    #[must_use]
    pub const fn at(port: u16) -> Self {
        Self { port, token: None, secret: None }
    }

    /// Returns the same page with a token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    /// Makes an API call.
    #[must_use]
    pub fn call(&self, name: &str, body: &str) -> Response {
        let origin = format!("http://127.0.0.1:{}", self.port);
        let mut headers = vec![
            ("Content-Type", "application/json"),
            ("X-Quorate-Console", "1"),
            ("Origin", &*origin),
            ("Sec-Fetch-Site", "same-origin"),
        ];
        headers.extend(self.token.as_deref().map(|token| ("X-Quorate-Token", token)));
        headers.extend(self.secret.as_deref().map(|secret| ("X-Quorate-Secret", secret)));
        request_with(self.port, "POST", &format!("/api/v1/{name}"), &headers, body.as_bytes())
    }

    /// Opens a stream, and returns its lines as they arrive. Dropping the iterator closes the connection.
    pub fn lines(&self, name: &str, body: &str) -> impl Iterator<Item = String> + use<> {
        let lines = BufReader::new(self.begin(name, body)).lines().map(Result::unwrap);
        lines.skip_while(|line| !line.is_empty()).skip(1)
    }

    /// Sends an API call, and returns the connection on which the answer will arrive.
    #[must_use]
    pub fn begin(&self, name: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let token = self.token.as_ref().map(|token| format!("X-Quorate-Token: {token}\r\n"));
        let secret = self.secret.as_ref().map(|it| format!("X-Quorate-Secret: {it}\r\n"));
        // The body of an HTTP/1.0 response is not chunked.
        let head = format!(
            "POST /api/v1/{name} HTTP/1.0\r\nHost: 127.0.0.1:{}\r\nContent-Type: application/json\r\n\
             X-Quorate-Console: 1\r\n{}{}Content-Length: {}\r\n\r\n",
            self.port,
            token.unwrap_or_default(),
            secret.unwrap_or_default(),
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        stream
    }
}
