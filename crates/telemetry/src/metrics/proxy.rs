//! The metrics of `grpc-proxy`: cached and merged requests, and calls by method.
//!
//! Names and types are etcd's, except that the names of Quorate's own metrics begin with `quorate_`.

use std::fmt;
use std::sync::Arc;

use super::exposition::Format;
use super::grpc::{GrpcMetrics, GrpcService, MetricsLevel};
use super::primitive::{Counter, Gauge};
use super::process;
use super::registry::{Registry, Scrape};

/// All metrics of a proxy.
pub struct ProxyMetrics {
    /// The number of range requests answered from the cache.
    pub cache_hits: Arc<Gauge>,
    /// The number of responses in the cache.
    pub cache_keys: Arc<Gauge>,
    /// The size of cached responses and their requests, in bytes.
    pub cache_bytes: Arc<Gauge>,
    /// The number of cacheable range requests that the cache could not answer.
    pub cache_misses: Arc<Gauge>,
    /// The number of watchers that share a watch on a member, not counting the first watcher of each watch.
    pub watchers_coalescing: Arc<Gauge>,
    /// The number of responses that a member did not have to send because watchers share a watch.
    pub events_coalescing: Arc<Counter>,
    /// The number of watchers that left a shared watch because their clients were too slow.
    pub watchers_behind: Arc<Counter>,
    /// The number of keep-alives that were merged into another keep-alive.
    pub keep_alives_coalescing: Arc<Counter>,
    /// The number of keys that the proxy owns.
    pub owned_keys: Arc<Gauge>,
    /// The size of the owned keys and their records, in bytes.
    pub owned_bytes: Arc<Gauge>,
    /// The number of range requests and transactions answered from owned keys.
    pub owned_reads: Arc<Counter>,
    /// Metrics of calls, by method.
    pub grpc: GrpcMetrics,
    registry: Registry,
}

impl fmt::Debug for ProxyMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyMetrics").finish_non_exhaustive()
    }
}

impl ProxyMetrics {
    /// Creates all metrics with the value zero, including call metrics for these services.
    pub fn new(services: &[GrpcService]) -> Self {
        let mut registry = Registry::default();
        let mut gauge = |name, help| registry.share(name, help, Gauge::default());
        let cache_hits =
            gauge("etcd_grpc_proxy_cache_hits_total", "Ranges answered from the cache.");
        let cache_keys = gauge("etcd_grpc_proxy_cache_keys_total", "Ranges in the cache.");
        let cache_bytes = gauge("quorate_grpc_proxy_cache_bytes", "Bytes in the cache.");
        let cache_misses =
            gauge("etcd_grpc_proxy_cache_misses_total", "Ranges that were not in the cache.");
        let watchers_coalescing = gauge(
            "etcd_grpc_proxy_watchers_coalescing_total",
            "Watchers that share a watch on a member, not counting the first watcher of each watch.",
        );
        let owned_keys = gauge("quorate_grpc_proxy_owned_keys", "Keys that the proxy owns.");
        let owned_bytes =
            gauge("quorate_grpc_proxy_owned_bytes", "Bytes of owned keys and their records.");
        let mut counter = |name, help| registry.share(name, help, Counter::default());
        let events_coalescing = counter(
            "etcd_grpc_proxy_events_coalescing_total",
            "Responses to the watchers of a shared watch, not counting the first watcher.",
        );
        let watchers_behind = counter(
            "quorate_grpc_proxy_watchers_behind_total",
            "Watchers that left a shared watch because their clients were slow.",
        );
        let keep_alives_coalescing = counter(
            "quorate_grpc_proxy_keep_alives_coalescing_total",
            "Lease keep-alives that the proxy merged into another keep-alive.",
        );
        let owned_reads = counter(
            "quorate_grpc_proxy_owned_reads_total",
            "Ranges and transactions answered from owned keys.",
        );
        let grpc = GrpcMetrics::new(&mut registry, services, MetricsLevel::Basic);
        registry.add_views(process::VIEWS);
        Self {
            cache_hits,
            cache_keys,
            cache_bytes,
            cache_misses,
            watchers_coalescing,
            events_coalescing,
            watchers_behind,
            keep_alives_coalescing,
            owned_keys,
            owned_bytes,
            owned_reads,
            grpc,
            registry,
        }
    }

    /// Returns the output of a scrape as text.
    pub fn render(&self) -> String {
        let process = process::ProcessSample::read();
        let scrape = Scrape { process, ..Scrape::default() };
        String::from_utf8(self.registry.render(&scrape, Format::Text))
            .expect("names, help and labels are valid UTF-8")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_contains_the_series_of_the_proxy_and_its_process() {
        let services = [GrpcService { name: "a.B", methods: vec![("C", "unary")] }];
        let metrics = ProxyMetrics::new(&services);
        metrics.cache_hits.inc();
        metrics.grpc.at(0, 0).started.inc();
        let text = metrics.render();
        for line in [
            "# TYPE etcd_grpc_proxy_cache_hits_total gauge",
            "etcd_grpc_proxy_cache_hits_total 1",
            "# TYPE etcd_grpc_proxy_events_coalescing_total counter",
            "grpc_server_started_total{grpc_method=\"C\",grpc_service=\"a.B\",grpc_type=\"unary\"} 1",
            "# TYPE process_open_fds gauge",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}
