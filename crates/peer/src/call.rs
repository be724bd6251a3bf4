//! A single request to a peer's HTTP port, with its complete response.
//!
//! Occasional requests (members, versions, hashes, forwarded promotions) each use a connection of their own. Frequent
//! requests use pooled connections, and continuous traffic uses streams.
//!
//! # Bounds
//!
//! The caller limits the length of the response and the duration of the call.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, Connection};
use hyper_util::rt::TokioIo;
use quorate_gotext::quote::go_dial_reason;
use quorate_tls::tls_reason;

use crate::dialer::{Dialer, PeerStream, Target, connection_reason};
use crate::pool::{self, ConnectionPool};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The URL is invalid.
    #[error("{0}: not a valid peer URL")]
    Url(String),
    /// The connection failed, for this reason.
    #[error("{0}")]
    Dial(String),
    /// The connection was closed, or the peer's answer was not valid HTTP.
    #[error("{url}: {reason}")]
    Http {
        /// The URL of the call.
        url: String,
        /// The error of the connection or from the HTTP library.
        reason: String,
    },
    /// The response is longer than the limit.
    #[error("{url}: the response is longer than {bytes_max} bytes")]
    TooLong {
        /// The URL of the call.
        url: String,
        /// The maximum length of the response in bytes.
        bytes_max: usize,
    },
    /// The response is incomplete.
    #[error("{url}: the response is incomplete: {reason}")]
    Body {
        /// The URL of the call.
        url: String,
        /// The error from the HTTP library.
        reason: String,
    },
    /// The call did not complete within its timeout.
    #[error("{url}: context deadline exceeded")]
    Deadline {
        /// The URL of the call.
        url: String,
    },
}

impl CallError {
    /// Returns the error for a connection that could not be established.
    pub(crate) fn dial(url: &str, target: &Target, error: &io::Error) -> Self {
        Self::Dial(match tls_reason(error) {
            Some(reason) => format!("{url}: {reason}"),
            None => go_dial_reason(target, error),
        })
    }

    /// Returns the error for a call that failed on an established connection.
    pub(crate) fn http(url: &str, error: &hyper::Error) -> Self {
        Self::Http { url: url.to_owned(), reason: connection_reason(error) }
    }
}

/// A request to a peer URL, with the limits for its response.
#[derive(Clone, Debug)]
pub struct Call {
    /// The method, usually GET.
    pub method: Method,
    /// A peer URL, as members advertise it.
    pub base: String,
    /// The path, starting with `/`.
    pub path: String,
    /// Headers except `host`.
    pub headers: Vec<(&'static str, String)>,
    /// The body; may be empty.
    pub body: Bytes,
    /// The timeout of the whole call.
    pub timeout: Duration,
    /// The maximum length of the response in bytes.
    pub bytes_max: usize,
}

impl Call {
    /// Returns a GET request for `path` whose response may be at most 1 MiB long.
    pub fn get(base: &str, path: &str, timeout: Duration) -> Self {
        Self {
            method: Method::GET,
            base: base.to_owned(),
            path: path.to_owned(),
            headers: Vec::new(),
            body: Bytes::new(),
            timeout,
            bytes_max: 1 << 20,
        }
    }

    /// Makes the call. Any complete response is returned as `Ok`, even if its status is an error.
    pub async fn send(self, dialer: &Dialer) -> Result<Response<Bytes>, CallError> {
        let (url, timeout) = (format!("{}{}", self.base, self.path), self.timeout);
        match tokio::time::timeout(timeout, self.send_without_timeout(&url, dialer)).await {
            Ok(answer) => answer,
            Err(_) => Err(CallError::Deadline { url }),
        }
    }

    /// Makes the call over a pooled connection. The peer may receive the request twice.
    pub async fn send_over(
        self,
        pool: &ConnectionPool,
        dialer: &Dialer,
    ) -> Result<Response<Bytes>, CallError> {
        let (url, timeout) = (format!("{}{}", self.base, self.path), self.timeout);
        match tokio::time::timeout(timeout, self.send_pooled(&url, pool, dialer)).await {
            Ok(answer) => answer,
            Err(_) => Err(CallError::Deadline { url }),
        }
    }

    /// Makes the call and returns the response with a streaming body. Neither a timeout nor a length limit applies to
    /// the body.
    pub(crate) async fn open(self, dialer: &Dialer) -> Result<Response<Incoming>, CallError> {
        let (url, timeout) = (format!("{}{}", self.base, self.path), self.timeout);
        let opening = async {
            let target = target(&url, &self.base)?;
            let (mut sender, connection) = connect(dialer, &target, &url).await?;
            // The reader of the body also receives connection errors, so this task ignores them.
            tokio::spawn(async move { drop(connection.await) });
            let request = self.request(&url, target.authority())?;
            sender.send_request(request).await.map_err(|error| CallError::http(&url, &error))
        };
        match tokio::time::timeout(timeout, opening).await {
            Ok(answer) => answer,
            Err(_) => Err(CallError::Deadline { url }),
        }
    }

    async fn send_without_timeout(
        self,
        url: &str,
        dialer: &Dialer,
    ) -> Result<Response<Bytes>, CallError> {
        let target = target(url, &self.base)?;
        let (mut sender, connection) = connect(dialer, &target, url).await?;
        let authority = target.authority().to_owned();
        let mut answer = std::pin::pin!(self.exchange(url, authority, &mut sender));
        // The connection makes progress only while it is polled. It ends when the response is complete.
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            biased;
            answered = &mut answer => answered,
            ended = &mut connection => match ended {
                Ok(()) => answer.await,
                Err(error) => Err(CallError::http(url, &error)),
            },
        }
    }

    async fn send_pooled(
        self,
        url: &str,
        pool: &ConnectionPool,
        dialer: &Dialer,
    ) -> Result<Response<Bytes>, CallError> {
        let target = target(url, &self.base)?;
        let authority = target.authority().to_owned();
        if let Some(mut sender) = pool.take(&self.base)
            && sender.ready().await.is_ok()
        {
            match self.exchange(url, authority.clone(), &mut sender).await {
                // The peer closed the idle connection just as it was reused, so the call is repeated on a new
                // connection.
                Err(CallError::Http { .. }) => {}
                answered => {
                    if answered.is_ok() {
                        pool.put(self.base, sender);
                    }
                    return answered;
                }
            }
        }
        let (mut sender, connection) = connect(dialer, &target, url).await?;
        // The caller that waits for the response also receives connection errors, so this task ignores them.
        tokio::spawn(async move { drop(connection.await) });
        let answer = self.exchange(url, authority, &mut sender).await?;
        pool.put(self.base, sender);
        Ok(answer)
    }

    fn request(&self, url: &str, authority: &str) -> Result<Request<Full<Bytes>>, CallError> {
        let mut request = Request::builder()
            .method(self.method.clone())
            .uri(&self.path)
            .header(header::HOST, authority);
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        request.body(Full::new(self.body.clone())).map_err(|_| CallError::Url(url.to_owned()))
    }

    async fn exchange(
        &self,
        url: &str,
        authority: String,
        sender: &mut pool::Sender,
    ) -> Result<Response<Bytes>, CallError> {
        let request = self.request(url, &authority)?;
        let answer = sender.send_request(request).await;
        let (head, body) = answer.map_err(|error| CallError::http(url, &error))?.into_parts();
        let body = Limited::new(body, self.bytes_max).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                CallError::TooLong { url: url.to_owned(), bytes_max: self.bytes_max }
            } else {
                CallError::Body { url: url.to_owned(), reason: error.to_string() }
            }
        })?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }
}

fn target(url: &str, base: &str) -> Result<Target, CallError> {
    Target::of(base).ok_or_else(|| CallError::Url(url.to_owned()))
}

async fn connect(
    dialer: &Dialer,
    target: &Target,
    url: &str,
) -> Result<(pool::Sender, Connection<TokioIo<PeerStream>, Full<Bytes>>), CallError> {
    let connected = dialer.connect(target, None).await;
    let stream = connected.map_err(|error| CallError::dial(url, target, &error))?;
    let opened = http1::handshake(TokioIo::new(stream)).await;
    opened.map_err(|error| CallError::http(url, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Accepts one connection and sends these bytes as the response. Returns the request.
    async fn answer(listener: tokio::net::TcpListener, bytes: &'static [u8]) -> Vec<u8> {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = vec![0; 4096];
        let count = stream.read(&mut asked).await.unwrap();
        asked.truncate(count);
        stream.write_all(bytes).await.unwrap();
        asked
    }

    async fn call(bytes: &'static [u8], bytes_max: usize) -> (String, Result<Bytes, CallError>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let mut call = Call::get(&base, "/members", Duration::from_secs(5));
        call.bytes_max = bytes_max;
        call.headers.push(("x-etcd-cluster-id", "abc".to_owned()));
        let dialer = Dialer::default();
        let (asked, answered) = tokio::join!(answer(listener, bytes), call.send(&dialer));
        (String::from_utf8(asked).unwrap(), answered.map(Response::into_body))
    }

    #[tokio::test]
    async fn a_call_returns_the_whole_response_body() {
        let (asked, answered) = call(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", 5).await;
        assert!(asked.starts_with("GET /members HTTP/1.1\r\nhost: 127.0.0.1:"), "{asked}");
        assert!(asked.contains("x-etcd-cluster-id: abc\r\n"), "{asked}");
        assert_eq!(answered.unwrap(), "hello");
    }

    #[tokio::test]
    async fn overlong_and_incomplete_responses_are_refused() {
        let (_, answered) = call(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", 4).await;
        assert!(matches!(answered, Err(CallError::TooLong { bytes_max: 4, .. })), "{answered:?}");
        let (_, answered) = call(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello", 99).await;
        assert!(
            matches!(answered, Err(CallError::Body { .. } | CallError::Http { .. })),
            "{answered:?}"
        );
    }

    /// Answers two requests on each connection and then closes it. Returns the number of connections used for this many
    /// requests.
    async fn answer_twice_each(listener: tokio::net::TcpListener, requests: usize) -> usize {
        let (mut connections, mut answered) = (0, 0);
        while answered < requests {
            let (mut stream, _) = listener.accept().await.unwrap();
            connections += 1;
            for _ in 0..2.min(requests - answered) {
                let mut asked = vec![0; 4096];
                assert!(stream.read(&mut asked).await.unwrap() > 0);
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
                answered += 1;
            }
        }
        connections
    }

    #[tokio::test]
    async fn a_pooled_connection_is_reused_until_the_peer_closes_it() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let pool = ConnectionPool::default();
        let asking = async {
            for _ in 0..5 {
                let call = Call::get(&base, "/leases", Duration::from_secs(5));
                assert_eq!(
                    call.send_over(&pool, &Dialer::default()).await.unwrap().into_body(),
                    "ok"
                );
            }
        };
        let (connections, ()) = tokio::join!(answer_twice_each(listener, 5), asking);
        assert_eq!(connections, 3);
    }

    #[tokio::test]
    async fn invalid_peer_urls_are_not_called() {
        for base in ["ftp://127.0.0.1:1", "unix://", "nonsense"] {
            let call = Call::get(base, "/", Duration::from_secs(1));
            let answered = call.send(&Dialer::default()).await;
            assert!(matches!(answered, Err(CallError::Url(_))), "{base}: {answered:?}");
        }
    }
}
