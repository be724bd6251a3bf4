//! `/debug/pprof/`: profiles of this process for `go tool pprof` and similar tools, enabled by
//! `--enable-pprof` or `--log-level=debug`.
//!
//! Paths, queries, headers and errors are the same as in Go's `net/http/pprof`. Pages that only make sense for Go
//! programs return an error with the reason.
//!
//! # Invariants
//!
//! * Only one CPU profile is taken at a time, for at most [`PROFILE_SECONDS_MAX`]. Profiling ends if the requesting
//!   client disconnects.
//! * Only one request at a time looks up symbols, lists threads, or takes or encodes a heap profile. Further requests
//!   wait for their turn, but not for the period of another profile.
//! * A heap profile over a period has the same maximum duration, and also ends if the requesting client disconnects.
//!
//! # Not here
//!
//! Taking profiles (`profiler`).

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_DISPOSITION, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Method, Request, StatusCode};
use quorate_net::listen::EndsWithClient;
use quorate_net::listen::IncomingBody;
use quorate_net::runtime::blocking;
use quorate_profiler::{
    CpuProfile, HeapView, StartError, heap_now, threads_profile, threads_profile_since,
};
use tokio::sync::Mutex;

use crate::query;
use crate::reply::{self, Reply};
use crate::unread_body::read_short;

/// Maximum duration of a CPU profile, in seconds.
const PROFILE_SECONDS_MAX: u64 = 600;

/// Default duration of a CPU profile, in seconds.
const PROFILE_SECONDS: u64 = 30;

/// Maximum number of addresses in one symbol request.
const ADDRESSES_MAX: usize = 4096;

/// Maximum length of an address list in a POST, in bytes.
const POSTED_BYTES_MAX: usize = 128 << 10;

/// The path prefix of the pages.
const PREFIX: &str = "/debug/pprof/";

/// The header by which tools recognise an error text that is meant for users.
const IS_PPROF: HeaderName = HeaderName::from_static("x-go-pprof");

/// The body of a symbol request, stored as a request extension.
#[derive(Clone, Debug)]
struct Posted(Bytes);

/// Returns whether the response to a request depends on the request's body. If so, [`read_body`] must read the body
/// first.
pub fn takes_body<B>(request: &Request<B>) -> bool {
    request.method() == Method::POST && request.uri().path() == "/debug/pprof/symbol"
}

/// Reads the body of a request for which [`takes_body`] is true, and stores it in the returned request for
/// [`Profiles::answer`].
pub async fn read_body(request: Request<IncomingBody>) -> Request<()> {
    let (mut head, body) = request.into_parts();
    head.extensions.insert(Posted(read_short(body, POSTED_BYTES_MAX).await));
    Request::from_parts(head, ())
}

/// A page, as listed in the index.
struct Page {
    name: &'static str,
    about: &'static str,
}

const PAGES: &[Page] = &[
    Page {
        name: "cmdline",
        about: "The command line of the process, with NUL bytes between the arguments.",
    },
    Page {
        name: "profile",
        about: "CPU time by function and thread, over ?seconds=N (default 30). Read it with go tool pprof.",
    },
    Page {
        name: "heap",
        about: "Memory in use by allocation site, from samples. ?debug=1 returns text, ?seconds=N the change over N \
                seconds.",
    },
    Page { name: "allocs", about: "Like heap, but shows all past allocations by default." },
    Page { name: "symbol", about: "Function names for addresses: ?0x1234+0x5678." },
    Page {
        name: "threadcreate",
        about: "Threads by name and current state. ?debug=1 returns text.",
    },
    Page {
        name: "goroutine",
        about: "Like threadcreate, because this program has threads instead of goroutines.",
    },
];

/// Go's pages without a counterpart here, each with the reason.
const ABSENT: &[(&str, &str)] = &[
    (
        "block",
        "waiting is not sampled; see /debug/pprof/threadcreate, and the histograms in /metrics",
    ),
    (
        "mutex",
        "waiting is not sampled; see /debug/pprof/threadcreate, and the histograms in /metrics",
    ),
    ("trace", "this program has no goroutine scheduler to trace"),
];

/// The profiling pages of this process.
#[derive(Debug, Default)]
pub struct Profiles {
    /// Held while symbols are looked up, threads are listed, or a heap profile is taken or encoded.
    looking: Mutex<()>,
}

impl Profiles {
    /// Returns the response, if the path is one of the pages. `arguments` is the command line of the process.
    pub async fn answer<B>(
        &self,
        path: &str,
        request: &Request<B>,
        arguments: &[String],
    ) -> Option<Reply> {
        if path == PREFIX.trim_end_matches('/') {
            return Some(reply::redirect(request, PREFIX));
        }
        let query = request.uri().query();
        let page = path.strip_prefix(PREFIX)?;
        let mut answer = match page {
            "" => reply::typed("text/html; charset=utf-8", index()),
            "cmdline" => reply::typed(reply::PLAIN_TEXT, arguments.join("\0")),
            "profile" => cpu_profile(request, query).await,
            "heap" | "allocs" => self.heap(page, request, query).await,
            "symbol" => self.symbols(request, query).await,
            "threadcreate" | "goroutine" => self.threads(page, request, query).await,
            other => match ABSENT.iter().find(|(name, _)| *name == other) {
                Some((name, why)) => {
                    refusal(StatusCode::NOT_FOUND, &format!("no {name} profile: {why}"))
                }
                None => refusal(StatusCode::NOT_FOUND, "Unknown profile"),
            },
        };
        let nosniff = HeaderValue::from_static("nosniff");
        answer.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, nosniff);
        Some(answer)
    }

    async fn symbols<B>(&self, request: &Request<B>, query: Option<&str>) -> Reply {
        let posted = request.extensions().get::<Posted>().map(|Posted(body)| body.to_vec());
        let words = match posted {
            Some(body) => String::from_utf8_lossy(&body).into_owned(),
            None => query.unwrap_or_default().to_owned(),
        };
        let hex = |word: &str| {
            let digits = word.trim().trim_start_matches("0x");
            u64::from_str_radix(digits, 16).ok().filter(|address| *address != 0)
        };
        let addresses: Vec<u64> = words.split('+').take(ADDRESSES_MAX).filter_map(hex).collect();
        let mut text = "num_symbols: 1\n".to_owned();
        if !addresses.is_empty() {
            let _alone = self.looking.lock().await;
            let names = blocking(move || {
                let names = quorate_profiler::functions_at(&addresses);
                addresses.into_iter().zip(names)
            });
            for (address, name) in names.await {
                if let Some(name) = name {
                    text.push_str(&format!("{address:#x} {name}\n"));
                }
            }
        }
        reply::typed(reply::PLAIN_TEXT, text)
    }

    async fn heap<B>(&self, page: &str, request: &Request<B>, query: Option<&str>) -> Reply {
        let seconds = match seconds_between(query) {
            Ok(seconds) => seconds,
            Err(text) => return refusal(StatusCode::BAD_REQUEST, &text),
        };
        let (view, name, name_between) = match page {
            "allocs" => (HeapView::Allocated, "allocs", "allocs-delta"),
            _ => (HeapView::InUse, "heap", "heap-delta"),
        };
        let alone = self.looking.lock().await;
        let Some(first) = blocking(heap_now).await else {
            let text = format!("no {page} profile: this program's allocator does not take samples");
            return refusal(StatusCode::NOT_FOUND, &text);
        };
        let Some(seconds) = seconds else {
            return if is_for_people(query) {
                reply::typed(reply::PLAIN_TEXT, blocking(move || first.text()).await)
            } else {
                attachment(name, blocking(move || first.encode(view)).await)
            };
        };
        drop(alone);
        wait(request, seconds).await;
        let _alone = self.looking.lock().await;
        let difference = move || {
            let last = heap_now().expect("sampling never stops once it has started");
            last.since(&first).encode(view)
        };
        attachment(name_between, blocking(difference).await)
    }

    async fn threads<B>(&self, page: &str, request: &Request<B>, query: Option<&str>) -> Reply {
        let seconds = match seconds_between(query) {
            Ok(seconds) => seconds,
            Err(text) => return refusal(StatusCode::BAD_REQUEST, &text),
        };
        let alone = self.looking.lock().await;
        if is_for_people(query) {
            let threads = blocking(quorate_profiler::threads).await;
            let mut text = format!("{page} profile: total {}\n", threads.len());
            for thread in threads {
                text.push_str(&format!("{}\t{}\t{}\n", thread.id, thread.name, thread.state));
            }
            return reply::typed(reply::PLAIN_TEXT, text);
        }
        // The names of Go's profiles, by which tools identify them.
        let (what, name_between) = match page {
            "goroutine" => ("goroutine", "goroutine-delta"),
            _ => ("threadcreate", "threadcreate-delta"),
        };
        let Some(seconds) = seconds else {
            return attachment(what, blocking(move || threads_profile(what)).await);
        };
        let before = blocking(quorate_profiler::threads).await;
        drop(alone);
        wait(request, seconds).await;
        let _alone = self.looking.lock().await;
        let difference = blocking(move || threads_profile_since(what, &before));
        attachment(name_between, difference.await)
    }
}

/// Returns the length of the period, if the request is for a difference over a period. The errors are Go's.
fn seconds_between(query: Option<&str>) -> Result<Option<u64>, String> {
    let refused = |text: &str| Err(text.to_owned());
    let asked = query::values(query, "seconds");
    let Some(asked) = asked.first().filter(|asked| !asked.is_empty()) else { return Ok(None) };
    match asked.parse::<u64>() {
        Ok(seconds) if seconds > PROFILE_SECONDS_MAX => refused(&too_long()),
        Ok(1..) if is_for_people(query) => refused("seconds and debug params are incompatible"),
        Ok(seconds @ 1..) => Ok(Some(seconds)),
        _ => refused("invalid value for \"seconds\" - must be a positive integer"),
    }
}

/// Waits for this duration, or until the client disconnects.
async fn wait<B>(request: &Request<B>, seconds: u64) {
    if let Some(client) = request.extensions().get::<EndsWithClient>() {
        client.ask();
    }
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

fn too_long() -> String {
    format!("profile duration exceeds the maximum of {PROFILE_SECONDS_MAX}s")
}

/// Returns whether the client requests text.
fn is_for_people(query: Option<&str>) -> bool {
    let debug = query::values(query, "debug");
    debug.first().and_then(|level| level.parse::<i64>().ok()).is_some_and(|level| level != 0)
}

async fn cpu_profile<B>(request: &Request<B>, query: Option<&str>) -> Reply {
    let asked = query::values(query, "seconds");
    let asked = asked.first().and_then(|seconds| seconds.parse::<u64>().ok());
    let seconds = asked.filter(|seconds| *seconds > 0).unwrap_or(PROFILE_SECONDS);
    if seconds > PROFILE_SECONDS_MAX {
        return refusal(StatusCode::BAD_REQUEST, &too_long());
    }
    let profile = match CpuProfile::start() {
        Ok(profile) => profile,
        Err(error @ StartError::Unsupported) => {
            return refusal(StatusCode::NOT_IMPLEMENTED, &error.to_string());
        }
        Err(error) => return not_enabled(&error),
    };
    wait(request, seconds).await;
    match blocking(move || profile.finish()).await {
        Ok(bytes) => attachment("profile", bytes),
        Err(error) => not_enabled(&error),
    }
}

/// Returns Go's error for an unavailable profile.
fn not_enabled(error: &dyn std::error::Error) -> Reply {
    let text = format!("Could not enable CPU profiling: {error}");
    refusal(StatusCode::INTERNAL_SERVER_ERROR, &text)
}

fn refusal(status: StatusCode, text: &str) -> Reply {
    let mut reply = reply::error(status, text);
    reply.headers_mut().insert(IS_PPROF, HeaderValue::from_static("1"));
    reply
}

fn attachment(name: &'static str, bytes: Vec<u8>) -> Reply {
    let mut reply = reply::typed("application/octet-stream", bytes);
    let disposition = HeaderValue::try_from(format!("attachment; filename=\"{name}\""));
    let disposition = disposition.expect("the file name is ASCII");
    reply.headers_mut().insert(CONTENT_DISPOSITION, disposition);
    reply
}

fn index() -> String {
    let mut rows = String::new();
    for Page { name, about } in PAGES {
        rows.push_str(&format!(
            "<tr><td><a href=\"{name}\">{name}</a></td><td>{about}</td></tr>\n"
        ));
    }
    for (name, why) in ABSENT {
        rows.push_str(&format!("<tr><td>{name}</td><td>Not available: {why}.</td></tr>\n"));
    }
    format!(
        "<!DOCTYPE html>\n<html><head><title>/debug/pprof/</title></head><body>\n\
         <p>Profiles of this process, which runs Quorate {}</p>\n<table>\n{rows}</table>\n</body></html>\n",
        quorate_version::QUORATE_VERSION
    )
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use quorate_profiler::{SamplingAllocator, sample_heap};

    use super::*;

    #[global_allocator]
    static ALLOCATOR: SamplingAllocator = SamplingAllocator;

    #[inline(never)]
    fn allocate_during_another_request() -> Vec<u8> {
        vec![1; 100 << 20]
    }

    #[tokio::test]
    async fn a_heap_profile_is_taken_after_the_requests_before_it() {
        assert!(sample_heap(), "the sampling allocator is installed");
        let profiles = Profiles::default();
        let other_request = profiles.looking.lock().await;
        let request = Request::get("/debug/pprof/heap?debug=1").body(()).unwrap();
        let mut answer = Box::pin(profiles.answer("/debug/pprof/heap", &request, &[]));
        let early = tokio::time::timeout(Duration::from_millis(200), &mut answer).await;
        assert!(early.is_err(), "the request waits for the other request");
        let held = allocate_during_another_request();
        drop(other_request);
        let body = answer.await.unwrap().into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&body);
        assert!(text.contains("allocate_during_another_request"), "{text}");
        drop(held);
    }
}
