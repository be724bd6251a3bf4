//! Fills the cache with responses while they are forwarded to the client.

use std::sync::Arc;

use bytes::{Buf as _, BytesMut};
use quorate_grpc::framing::{HEAD_BYTES, whole_message};
use quorate_grpc::observed::{Observed, Observer};
use quorate_telemetry::metrics::ProxyMetrics;
use tonic::Code;
use tonic::body::Body;

use crate::byte_limit::Share;
use crate::cache::{Cache, CacheKey, CachedAnswer, ENTRY_BYTES_MAX, Filling};
use crate::leasing::Latest;
use crate::span::Span;

/// A request that was sent to a member and whose response may be cached. Dropping this value without
/// a response also unregisters the request from the cache.
#[derive(Debug)]
pub(crate) struct CacheFill {
    cache: Arc<Cache>,
    metrics: Arc<ProxyMetrics>,
    filling: Filling,
    cache_key: CacheKey,
    asked_revision: i64,
    latest: Option<Arc<Latest>>,
}

impl Drop for CacheFill {
    fn drop(&mut self) {
        self.cache.give_up(&self.filling);
    }
}

impl CacheFill {
    pub(crate) fn begin(
        (cache, metrics): (&Arc<Cache>, &Arc<ProxyMetrics>),
        span: Span,
        cache_key: CacheKey,
        asked_revision: i64,
        latest: Option<Arc<Latest>>,
    ) -> Self {
        let filling = cache.begin(span, cache_key.caller.clone());
        let (cache, metrics) = (Arc::clone(cache), Arc::clone(metrics));
        Self { cache, metrics, filling, cache_key, asked_revision, latest }
    }

    /// Caches the response.
    pub(crate) fn keep(&self, cached: CachedAnswer) {
        self.cache.keep(&self.filling, self.cache_key.clone(), self.asked_revision, cached);
        report_load(&self.cache, &self.metrics);
    }

    /// Returns a body that caches the response once all of it has been forwarded.
    pub(crate) fn cache_body(self, inner: Body) -> Body {
        let held = Some((BytesMut::new(), self.cache.copies.take_regardless(0)));
        Observed::of_body(inner, CachingBody { held, fill: self })
    }
}

/// Sets the metrics of the cache size.
pub(crate) fn report_load(cache: &Cache, metrics: &ProxyMetrics) {
    let (count, bytes) = cache.load();
    metrics.cache_keys.set_unsigned(count as u64);
    metrics.cache_bytes.set_unsigned(bytes as u64);
}

#[derive(Debug)]
struct CachingBody {
    /// Bytes forwarded so far; `None` once the response is too long to cache or no more bytes may be held.
    held: Option<(BytesMut, Share)>,
    fill: CacheFill,
}

impl Observer for CachingBody {
    fn passed(&mut self, data: &[u8]) {
        let Some((held, share)) = &mut self.held else { return };
        if held.len() + data.len() > ENTRY_BYTES_MAX || !share.grow(data.len()) {
            self.held = None;
        } else {
            held.extend_from_slice(data);
            if let Some(latest) = &self.fill.latest
                && latest.see_frame(held)
            {
                self.fill.latest = None;
            }
        }
    }

    fn ended(&mut self, code: Code, _message: &str) {
        let Some((mut held, _)) = self.held.take().filter(|_| code == Code::Ok) else { return };
        let is_compressed = held.first().is_none_or(|flag| *flag != 0);
        if !is_compressed && whole_message(&held).is_some() {
            held.advance(HEAD_BYTES);
            // The revision can be 0, because it is used only if revisions must not decrease, and then responses are
            // decoded before they are forwarded.
            self.fill.keep(CachedAnswer { answer: held.freeze(), revision: 0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::call::Caller;
    use crate::framing::answer;
    use crate::span::Spans;

    async fn pass(cache: &Arc<Cache>, message: Bytes, is_outdated: bool) -> Option<Bytes> {
        let metrics = Arc::new(ProxyMetrics::new(&[]));
        let span = || Span::new(&Bytes::from_static(b"a"), &Bytes::new());
        let cache_key = CacheKey { caller: Caller::default(), request: Bytes::from_static(b"?") };
        let fill = CacheFill::begin((cache, &metrics), span(), cache_key.clone(), 0, None);
        let body = fill.cache_body(answer(message.clone()).into_body());
        if is_outdated {
            cache.outdate(&Spans::new(vec![span()]));
        }
        let passed = body.collect().await.unwrap().to_bytes();
        assert_eq!(passed.slice(HEAD_BYTES..), message);
        let cached = cache.get(&cache_key).map(|cached| cached.answer);
        cache.outdate(&Spans::new(vec![span()]));
        cached
    }

    #[tokio::test]
    async fn forwarded_responses_are_cached_unless_outdated_or_too_long() {
        let cache = Arc::new(Cache::default());
        let short = Bytes::from_static(b"answer");
        assert_eq!(pass(&cache, short.clone(), false).await, Some(short.clone()));
        assert_eq!(pass(&cache, short, true).await, None);
        let long = Bytes::from(vec![0; ENTRY_BYTES_MAX]);
        assert_eq!(pass(&cache, long, false).await, None);
    }

    #[tokio::test]
    async fn the_copies_of_responses_that_are_being_forwarded_are_bounded() {
        let (cache, metrics) = (Arc::new(Cache::default()), Arc::new(ProxyMetrics::new(&[])));
        let long = Bytes::from(vec![0; ENTRY_BYTES_MAX - 100]);
        let cache_key = |number: usize| CacheKey {
            caller: Caller::default(),
            request: number.to_string().into(),
        };
        let begin = |number: usize| {
            let span = Span::of(Bytes::from_static(b"a"));
            let fill = CacheFill::begin((&cache, &metrics), span, cache_key(number), 0, None);
            fill.cache_body(answer(long.clone()).into_body())
        };
        let mut bodies: Vec<Body> = (0..20).map(begin).collect();
        for body in &mut bodies {
            // The prefix and the message are forwarded, but not the end of the response.
            for _ in 0..2 {
                body.frame().await.unwrap().unwrap();
            }
        }
        assert!(cache.copies.used() <= cache.copies.max());
        for body in bodies {
            body.collect().await.unwrap();
        }
        assert!(cache.get(&cache_key(0)).is_some());
        assert!(cache.get(&cache_key(19)).is_none());
        assert_eq!(cache.copies.used(), 0);
    }
}
