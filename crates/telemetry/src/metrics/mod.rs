//! Prometheus series under etcd's names: what is counted, and how `/metrics` prints it.
//!
//! [`Metrics`] is built once and shared. Its fields are typed handles grouped by what they watch:
//! updating one is a relaxed atomic operation or two, without a lock and without a lookup. Values
//! that are views of other state (sizes, revisions, counts of watchers) are not pushed here on
//! every change: whoever owns the state plugs in one function ([`Metrics::watch_state`]) that is
//! asked at each scrape.
//!
//! # Invariants
//!
//! * Families are told sorted by name, each with help and type: as text (0.0.4), or as protobuf messages.
//! * A family without labels is printed from the start; a labelled one when it has its first
//!   series, except the gRPC ones, which exist at zero.
//! * The sum of a histogram's buckets is its count in every scrape.
//!
//! # Not here
//!
//! The HTTP endpoint, and when to count: the call sites know. Which services and features there are:
//! the program says so when it makes [`Metrics`].
//!
//! # Where
//!
//! [`series`] is the table of families; [`grpc`] the ones per method; [`process`] what the kernel
//! knows, [`state`] what the state machine does and [`own`] what is dropped here; [`proxy`] those of another program;
//! [`primitive`] counters, gauges and histograms; [`exposition`] the formats; [`reference`] the page of them all.

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
pub use reference::{ToldSeries, reference, told_series};
pub use series::{
    AuditMetrics, DiskMetrics, HttpMetrics, LeaseMetrics, MvccMetrics, NetworkMetrics, PerKind,
    RequestKind, ServerMetrics, SnapshotMetrics, TracingMetrics,
};
pub use state::StateSample;

use crate::log;
use registry::{Registry, Scrape};

type StateSource = Box<dyn Fn() -> StateSample + Send + Sync>;

/// What a queue or a table holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waiting {
    /// Its series.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// How much it holds: entries, or bytes where its name says so.
    pub count: f64,
}

/// Every series of the process.
pub struct Metrics {
    /// Raft, requests and health.
    pub server: ServerMetrics,
    /// Write-ahead log and backend.
    pub disk: DiskMetrics,
    /// Snapshot files.
    pub snapshot: SnapshotMetrics,
    /// The keyspace.
    pub mvcc: MvccMetrics,
    /// Leases.
    pub lease: LeaseMetrics,
    /// Bytes and peers.
    pub network: NetworkMetrics,
    /// The exposition itself.
    pub http: HttpMetrics,
    /// Spans of calls.
    pub tracing: TracingMetrics,
    /// The audit log.
    pub audit: AuditMetrics,
    /// Calls by method.
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
    /// Makes every series, at zero; those of calls for these services.
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

    /// Plugs in the function that is asked at each scrape for what the state machine knows.
    ///
    /// Until then those series are zero. Only the first call counts.
    pub fn watch_state(&self, source: impl Fn() -> StateSample + Send + Sync + 'static) {
        // A second source would be a second state machine, which a process does not have.
        let first = self.state.set(Box::new(source)).is_ok();
        debug_assert!(first, "a process has one state machine");
    }

    /// Names the cluster version, `3.7`: its series becomes 1, that of any other 0.
    pub fn set_cluster_version(&self, version: &str) {
        self.server.cluster_version.for_each(|series| series.set(0));
        self.server.cluster_version.with(&[version]).set(1);
    }

    /// Says whether a feature is on, and how settled it is.
    pub fn set_feature(&self, name: &str, stage: &str, is_enabled: bool) {
        self.server.feature_enabled.with(&[name, stage]).set(i64::from(is_enabled));
    }

    /// Names this member by its id in hex.
    pub fn set_member_id(&self, id: &str) {
        self.server.id.with(&[id]).set(1);
    }

    /// What each queue and table of the member's own holds at this moment.
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

    /// A scrape as text.
    pub fn render(&self) -> String {
        let text = self.render_as(Format::Text);
        String::from_utf8(text).expect("names, help and labels are text")
    }

    /// A scrape.
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
