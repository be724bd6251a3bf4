//! The HTTP service: checks each request, reads its body, and passes API calls to the console's thread.
//!
//! # Bound
//!
//! * At most [`PAGE_CALLS_MAX`] calls and [`PAGE_STREAMS_MAX`] streams are in progress, and each client may have only a
//!   share of them (`clients`). Further calls and streams are refused.
//! * A client that reads nothing of a pending response for [`STALL_TIME_MAX`] is disconnected.
//! * The body of a request is at most [`BODY_BYTES_MAX`] bytes long, and must arrive within [`BODY_TIME_MAX`].

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, HeaderName, HeaderValue};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use quorate_client::credentials::{Token, token};
use quorate_net::listen::{
    Activity, Ends, EndsWithClient, Http1Service, Http2Service, IncomingBody, Pace, ReadLimit,
};
use tokio::sync::{mpsc, oneshot};

use crate::assets;
use crate::checks::{Hosts, Purpose, check};
use crate::clients::{Client, Origin, Slot, Slots, Users};
use crate::refusal::{Kind, Refusal};
use crate::reply::{self, Reply};
use crate::secret::Secret;

/// Maximum number of API calls in progress.
const PAGE_CALLS_MAX: usize = 32;

/// Maximum number of open streams and downloads.
const PAGE_STREAMS_MAX: usize = 32;

/// Maximum length of a request's body, which is sufficient for a value of 1 MiB in base64.
const BODY_BYTES_MAX: usize = 2 << 20;

/// Maximum time for the body of a request to arrive.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);

/// Maximum time during which a client may read nothing of a pending response.
const STALL_TIME_MAX: Duration = Duration::from_secs(30);

/// Maximum number of jobs that wait for the console's thread. Each job holds a slot for calls or streams, so the queue
/// is never full.
pub(crate) const QUEUE_CALLS_MAX: usize = PAGE_CALLS_MAX + PAGE_STREAMS_MAX;

const TOKEN: HeaderName = HeaderName::from_static("x-quorate-token");
const SECRET: HeaderName = HeaderName::from_static("x-quorate-secret");
const CALLS: &str = "/api/v1/";
const DOWNLOADS: &str = "/download/";

/// The names of the calls whose responses are streams.
const STREAMS: [&str; 2] = ["keys/watch", "keys/prefixes"];

/// An API call or a download to be handled by the console's thread.
#[derive(Debug)]
pub(crate) struct Job {
    /// The name of the call, or the id of a download.
    pub(crate) name: String,
    pub(crate) is_download: bool,
    pub(crate) body: Bytes,
    pub(crate) token: Option<Token>,
    /// Whether the caller has sent the console's secret.
    pub(crate) knows_secret: bool,
    pub(crate) client: Client,
    /// The slot, which is held until the response or the stream has ended.
    pub(crate) slot: Slot,
    pub(crate) reply: oneshot::Sender<Reply>,
}

/// The HTTP service of a console.
#[derive(Clone, Debug)]
pub struct Console {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    hosts: Hosts,
    secret: Option<Secret>,
    jobs: mpsc::Sender<Job>,
    users: Arc<Users>,
    calls: Arc<Slots>,
    streams: Arc<Slots>,
}

impl Console {
    pub(crate) fn new(
        hosts: Hosts,
        secret: Option<Secret>,
        users: Arc<Users>,
        jobs: mpsc::Sender<Job>,
    ) -> Self {
        let (calls, streams) = (Slots::new(PAGE_CALLS_MAX), Slots::new(PAGE_STREAMS_MAX));
        Self { shared: Arc::new(Shared { hosts, secret, jobs, users, calls, streams }) }
    }

    async fn answer(self, request: Request<IncomingBody>) -> Reply {
        let path = request.uri().path();
        let purpose = match path {
            "/" | "/index.html" => Purpose::Page,
            _ if path.starts_with(CALLS) => Purpose::Call,
            _ => Purpose::File,
        };
        if let Err(refused) = check(&request, purpose, &self.shared.hosts) {
            return of_refusal(&refused);
        }
        let outcome = match (purpose, path.strip_prefix(DOWNLOADS)) {
            (Purpose::Call, _) => self.call(request).await,
            (Purpose::File, Some(id)) => {
                let id = id.to_owned();
                self.download(&request, id).await
            }
            (Purpose::Page | Purpose::File, _) => {
                return assets::answer(path, request.headers())
                    .unwrap_or_else(|| of_refusal(&Refusal::new(Kind::NotFound, "no such page")));
            }
        };
        outcome.unwrap_or_else(|refused| of_refusal(&refused))
    }

    async fn call(&self, request: Request<IncomingBody>) -> Result<Reply, Refusal> {
        let name = request.uri().path().strip_prefix(CALLS).unwrap_or_default().to_owned();
        let is_stream = STREAMS.contains(&&*name);
        let token = match request.headers().get(TOKEN).map(HeaderValue::to_str) {
            None | Some(Ok("")) => None,
            Some(Ok(text)) => token(text),
            Some(Err(_)) => {
                let text = "the token contains characters that are not visible ASCII";
                return Err(Refusal::bad_request(text));
            }
        };
        let client = self.client(&request, token.as_ref());
        let slot = self.slots(is_stream).take(&client)?;
        let given = request.headers().get(SECRET).map(HeaderValue::as_bytes);
        let secret = self.shared.secret.as_ref();
        let knows_secret = given.is_some_and(|given| secret.is_some_and(|own| own.is(given)));
        if is_stream {
            end_with_client(&request);
        }
        let body = read(request.into_body()).await?;
        let make = |reply| Job {
            name,
            is_download: false,
            body,
            token,
            knows_secret,
            client,
            slot,
            reply,
        };
        self.ask(make).await
    }

    async fn download(
        &self,
        request: &Request<IncomingBody>,
        id: String,
    ) -> Result<Reply, Refusal> {
        let client = self.client(request, None);
        let slot = self.slots(true).take(&client)?;
        end_with_client(request);
        let make = |reply| Job {
            name: id,
            is_download: true,
            body: Bytes::new(),
            token: None,
            knows_secret: false,
            client,
            slot,
            reply,
        };
        self.ask(make).await
    }

    fn client<B>(&self, request: &Request<B>, token: Option<&Token>) -> Client {
        let ends = request.extensions().get::<Ends>().copied().unwrap_or_default();
        let origin = Origin::of(ends.remote.map(|remote| remote.ip()));
        Client { origin, user: token.and_then(|token| self.shared.users.of(token)) }
    }

    fn slots(&self, is_stream: bool) -> &Arc<Slots> {
        if is_stream { &self.shared.streams } else { &self.shared.calls }
    }

    async fn ask(
        &self,
        make: impl FnOnce(oneshot::Sender<Reply>) -> Job,
    ) -> Result<Reply, Refusal> {
        let gone = || Refusal::new(Kind::Unavailable, "the console is shutting down");
        let (reply, answer) = oneshot::channel();
        self.shared.jobs.try_send(make(reply)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }
}

/// Reads a request body, and enforces the limits on its length and its arrival time.
async fn read<B>(body: B) -> Result<Bytes, Refusal>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match tokio::time::timeout(BODY_TIME_MAX, Limited::new(body, BODY_BYTES_MAX).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let text = format!("the body of a request must not exceed {BODY_BYTES_MAX} bytes");
            Err(Refusal::new(Kind::TooLarge, text))
        }
        Ok(Err(error)) => {
            Err(Refusal::bad_request(format!("the request body could not be read: {error}")))
        }
        Err(_) => Err(Refusal::bad_request("the request body did not arrive in time")),
    }
}

/// Asks for the response to be ended as soon as its client disconnects.
fn end_with_client<B>(request: &Request<B>) {
    if let Some(client) = request.extensions().get::<EndsWithClient>() {
        client.ask();
    }
}

/// Returns the response for an error. If the request's method is not allowed, the response lists the allowed methods.
fn of_refusal(refused: &Refusal) -> Reply {
    let mut reply = reply::refusal(refused);
    if refused.message.starts_with("only GET and HEAD") {
        *reply.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        reply.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    reply
}

impl Http1Service for Console {
    const ANSWERS_HALF_CLOSED: bool = false;
}

impl hyper::service::Service<Request<IncomingBody>> for Console {
    type Response = Reply;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Reply, Infallible>> + Send>>;

    fn call(&self, request: Request<IncomingBody>) -> Self::Future {
        let console = self.clone();
        Box::pin(async move {
            let mut reply = reply::guarded(console.answer(request).await);
            let pace = Pace { bytes: 1, time: STALL_TIME_MAX };
            reply.extensions_mut().insert(ReadLimit(Arc::new(pace)));
            Ok(reply)
        })
    }
}

/// The type of a console's HTTP/2 service. It has no values, because browsers use HTTP/1.
#[derive(Clone, Copy, Debug)]
pub enum NoHttp2 {}

impl hyper::service::Service<Request<IncomingBody>> for NoHttp2 {
    type Response = Reply;
    type Error = Infallible;
    type Future = std::future::Pending<Result<Reply, Infallible>>;

    fn call(&self, _: Request<IncomingBody>) -> Self::Future {
        match *self {}
    }
}

impl Http2Service for NoHttp2 {
    fn for_connection(&self, _: Ends) -> Self {
        *self
    }

    fn activity(&self) -> Activity {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http_body_util::Full;

    use super::*;
    use crate::clients::tests::anonymous;

    #[test]
    fn calls_and_streams_beyond_the_limits_are_refused() {
        let console = Console::new(Hosts::default(), None, Arc::default(), mpsc::channel(1).0);
        for is_stream in [false, true] {
            let slots = console.slots(is_stream);
            let take = |number| std::iter::from_fn(move || slots.take(&anonymous(number)).ok());
            let held: Vec<_> = (0..20).flat_map(take).collect();
            assert_eq!(held.len(), 32);
            assert_eq!(slots.take(&anonymous(20)).unwrap_err().kind, Kind::Busy);
            drop(held);
            assert!(slots.take(&anonymous(20)).is_ok());
        }
    }

    #[test]
    fn a_request_is_attributed_to_its_address_unless_its_token_identifies_a_user() {
        let console = Console::new(Hosts::default(), None, Arc::default(), mpsc::channel(1).0);
        let mut request = Request::new(());
        let remote = Some("10.0.0.7:4000".parse().unwrap());
        request.extensions_mut().insert(Ends { local: None, remote });
        let issued = token("issued").unwrap();
        assert_eq!(console.client(&request, Some(&issued)), anonymous(7));
        console.shared.users.remember(&issued, "ann");
        assert_eq!(console.client(&request, Some(&issued)).user.as_deref(), Some("ann"));
    }

    #[tokio::test]
    async fn an_overlong_body_is_refused() {
        let body = |len: usize| Full::new(Bytes::from(vec![b' '; len]));
        assert_eq!(read(body(BODY_BYTES_MAX)).await.unwrap().len(), BODY_BYTES_MAX);
        let refused = read(body(BODY_BYTES_MAX + 1)).await.unwrap_err();
        assert_eq!(refused.kind, Kind::TooLarge);
    }

    /// A body whose connection is lost.
    struct Lost;

    impl http_body::Body for Lost {
        type Data = Bytes;
        type Error = std::io::Error;

        fn poll_frame(
            self: Pin<&mut Self>,
            _cx: &mut Context<'_>,
        ) -> Poll<Option<Result<http_body::Frame<Bytes>, std::io::Error>>> {
            Poll::Ready(Some(Err(std::io::ErrorKind::ConnectionReset.into())))
        }
    }

    #[tokio::test]
    async fn an_incomplete_body_is_not_reported_as_too_long() {
        let refused = read(Lost).await.unwrap_err();
        assert_eq!(refused.kind, Kind::BadRequest);
        assert!(refused.message.contains("connection reset"), "{}", refused.message);
    }
}
