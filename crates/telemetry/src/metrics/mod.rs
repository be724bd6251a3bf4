//! Prometheus metrics under etcd's names, and the output of `/metrics`.
//!
//! [`Metrics`] is created once and shared. Its fields are typed handles, grouped by subsystem. An update is one or two
//! relaxed atomic operations, without a lock or a lookup. Values derived from other state (sizes, revisions, numbers of
//! watchers) are not updated on each change. Instead, the owner of the state registers one function
//! ([`Metrics::watch_state`]) that is called at each scrape.
//!
//! # Invariants
//!
//! * The output is in text format (0.0.4), or consists of protobuf messages. Families are sorted by name, and each
//!   family has a help text and a type.
//! * A family without labels is exposed from the start. A family with labels is exposed once it has a series. The gRPC
//!   families have series with the value zero from the start.
//! * In every scrape, the sum of a histogram's buckets equals its count.
//!
//! # Not here
//!
//! The HTTP endpoint; the decision of when to count, which the call sites make; and the list of services, which the
//! program passes to [`Metrics::new`].
//!
//! # Modules
//!
//! [`series`] is the table of families; [`grpc`] the families per method; [`process`] the values from the
//! kernel, [`state`] the values of the state machine, and [`own`] the values of the log and the metrics themselves;
//! [`proxy`] the metrics of grpc-proxy; [`primitive`] counters, gauges and histograms; [`exposition`] the
//! formats; [`reference`] the reference page.

mod exposition;
mod grpc;
mod labelled;
mod own;
mod primitive;
mod process;
mod proxy;
mod reference;
mod registry;
mod series;
mod state;
mod view;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::OnceLock;

pub use exposition::Format;
pub use grpc::{CallCounts, GRPC_CODES, GrpcMetrics, GrpcService, MethodMetrics, MetricsLevel};
pub use labelled::Labelled;
pub use primitive::{Counter, Gauge, Histogram};
pub use proxy::ProxyMetrics;
pub use reference::{DocumentedSeries, documented_series, reference};
pub use series::{
    AuditMetrics, DiskMetrics, EngineMetrics, HttpMetrics, LeaseMetrics, MvccMetrics,
    NetworkMetrics, PerKind, RequestKind, ServerMetrics, SnapshotMetrics, TracingMetrics,
};
pub use state::StateSample;

use crate::log;
use registry::{Registry, Scrape};

type StateSource = Box<dyn Fn() -> StateSample + Send + Sync>;

/// The current size of a queue or table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waiting {
    /// The name of the metric.
    pub name: &'static str,
    /// The help text of the metric.
    pub about: &'static str,
    /// The number of entries, or the number of bytes if the metric counts bytes.
    pub count: f64,
}

/// All metrics of a server.
pub struct Metrics {
    /// Metrics of Raft, requests and health.
    pub server: ServerMetrics,
    /// Metrics of the write-ahead log and the backend.
    pub disk: DiskMetrics,
    /// Metrics of snapshot files.
    pub snapshot: SnapshotMetrics,
    /// Metrics of the keyspace.
    pub mvcc: MvccMetrics,
    /// Metrics of leases.
    pub lease: LeaseMetrics,
    /// Metrics of network traffic and peers.
    pub network: NetworkMetrics,
    /// Metrics of requests to the metrics endpoint.
    pub http: HttpMetrics,
    /// Metrics of a server whose data is in a database.
    pub engine: EngineMetrics,
    /// Metrics of trace spans.
    pub tracing: TracingMetrics,
    /// Metrics of the audit log.
    pub audit: AuditMetrics,
    /// Metrics of calls, by method.
    pub grpc: GrpcMetrics,
    registry: Registry,
    state: OnceLock<StateSource>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Creates all metrics with the value zero, including call metrics for these services.
    pub fn new(services: &[GrpcService], level: MetricsLevel) -> Self {
        let mut registry = Registry::default();
        let metrics = Self {
            server: ServerMetrics::new(&mut registry),
            disk: DiskMetrics::new(&mut registry),
            snapshot: SnapshotMetrics::new(&mut registry),
            mvcc: MvccMetrics::new(&mut registry),
            lease: LeaseMetrics::new(&mut registry),
            network: NetworkMetrics::new(&mut registry),
            http: HttpMetrics::new(&mut registry),
            engine: EngineMetrics::new(&mut registry),
            tracing: TracingMetrics::new(&mut registry),
            audit: AuditMetrics::new(&mut registry),
            grpc: GrpcMetrics::new(&mut registry, services, level),
            state: OnceLock::new(),
            registry: {
                series::register_always_zero(&mut registry);
                registry.add_views(state::VIEWS);
                registry.add_views(process::VIEWS);
                registry.add_views(own::VIEWS);
                registry
            },
        };
        metrics.server.version.with(&[quorate_version::ETCD_VERSION]).set(1);
        metrics.server.go_version.with(&[quorate_version::COMPILER]).set(1);
        for code in ["200", "500", "503"] {
            metrics.http.requests.with(&[code]);
        }
        metrics
    }

    /// Registers the function that reads the state machine at each scrape.
    ///
    /// Before the first call, the metrics of the state machine are zero. Only the first call has an effect.
    pub fn watch_state(&self, source: impl Fn() -> StateSample + Send + Sync + 'static) {
        // A second source would mean that the member has two state machines, which is impossible.
        let first = self.state.set(Box::new(source)).is_ok();
        debug_assert!(
            first,
            "a member has one state machine: the metrics of a second one would be missing"
        );
    }

    /// Sets whether a feature is enabled. `stage` is the feature's stage.
    pub fn set_feature(&self, name: &str, stage: &str, is_enabled: bool) {
        self.server.feature_enabled.with(&[name, stage]).set(i64::from(is_enabled));
    }

    /// Sets this member's id, in hex.
    pub fn set_member_id(&self, id: &str) {
        self.server.id.with(&[id]).set(1);
    }

    /// Returns the current size of each queue and table of the member.
    pub fn waiting(&self) -> impl Iterator<Item = Waiting> {
        let state = self.state.get().map(|source| source()).unwrap_or_default();
        let own = |view: &&view::View<StateSample>| {
            view.kind == exposition::Kind::Gauge && view.name.starts_with("quorate_")
        };
        state::VIEWS.iter().filter(own).filter_map(move |view| {
            let count = (view.read)(&state)?;
            Some(Waiting { name: view.name, about: view.help, count })
        })
    }

    /// Returns the output of a scrape as text.
    pub fn render(&self) -> String {
        let text = self.render_as(Format::Text);
        String::from_utf8(text).expect("names, help and labels are valid UTF-8")
    }

    /// Returns the output of a scrape in this format.
    pub fn render_as(&self, format: Format) -> Vec<u8> {
        let state = self.state.get().map(|source| source()).unwrap_or_default();
        let own = own::OwnSample {
            dropped_lines: log::dropped_line_count(),
            largest_family_series: self.registry.largest_family_series(),
        };
        let process = process::ProcessSample::read();
        self.registry.render(&Scrape { state, process, own }, format)
    }
}
