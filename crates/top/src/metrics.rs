//! The metrics of a member that `top` shows. They are read from `/metrics`. Most of the series exist in etcd 3.5 and
//! later. The durations of requests require etcd 3.7 or `--metrics=extensive`, and a few series exist only in Quorate.
//!
//! # Guarantees
//!
//! - Any text is accepted. Unknown or malformed lines are ignored. A missing series is distinguished from a series with
//!   the value 0.

use std::collections::BTreeMap;

/// The kinds of requests, in display order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Reads.
    Range,
    /// Reads whose response is a stream.
    RangeStream,
    /// Writes to one key.
    Put,
    /// Deletions of a range.
    Delete,
    /// Transactions.
    Txn,
    /// Compactions.
    Compact,
    /// Messages on watch streams.
    Watch,
    /// Grants of leases.
    LeaseGrant,
    /// Revocations of leases.
    LeaseRevoke,
    /// Renewals of leases.
    KeepAlive,
    /// All other requests about leases.
    Lease,
    /// Requests about members.
    Cluster,
    /// Maintenance requests.
    Maintenance,
    /// Requests about users and roles, and logins.
    Auth,
}

impl Kind {
    /// Returns the name to display.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Range => "range",
            Self::RangeStream => "range stream",
            Self::Put => "put",
            Self::Delete => "delete",
            Self::Txn => "txn",
            Self::Compact => "compact",
            Self::Watch => "watch",
            Self::LeaseGrant => "lease grant",
            Self::LeaseRevoke => "lease revoke",
            Self::KeepAlive => "keep-alive",
            Self::Lease => "lease other",
            Self::Cluster => "cluster",
            Self::Maintenance => "maintenance",
            Self::Auth => "auth",
        }
    }

    /// Returns the kind of a gRPC method, and whether its requests are messages on a stream.
    fn of_method(service: &str, method: &str) -> Option<(Self, bool)> {
        Some(match (service, method) {
            ("etcdserverpb.KV", "Range") => (Self::Range, false),
            ("etcdserverpb.KV", "RangeStream") => (Self::RangeStream, false),
            ("etcdserverpb.KV", "Put") => (Self::Put, false),
            ("etcdserverpb.KV", "DeleteRange") => (Self::Delete, false),
            ("etcdserverpb.KV", "Txn") => (Self::Txn, false),
            ("etcdserverpb.KV", "Compact") => (Self::Compact, false),
            ("etcdserverpb.Watch", "Watch") => (Self::Watch, true),
            ("etcdserverpb.Lease", "LeaseKeepAlive") => (Self::KeepAlive, true),
            ("etcdserverpb.Lease", "LeaseGrant") => (Self::LeaseGrant, false),
            ("etcdserverpb.Lease", "LeaseRevoke") => (Self::LeaseRevoke, false),
            ("etcdserverpb.Lease", _) => (Self::Lease, false),
            ("etcdserverpb.Cluster", _) => (Self::Cluster, false),
            ("etcdserverpb.Maintenance", _) => (Self::Maintenance, false),
            ("etcdserverpb.Auth", _) => (Self::Auth, false),
            _ => return None,
        })
    }

    /// Returns the kind of an operation, as named in the labels of the server's latency histogram.
    fn of_operation(name: &str) -> Option<Self> {
        Some(match name {
            "Range" => Self::Range,
            "Put" => Self::Put,
            "DeleteRange" => Self::Delete,
            "Txn" | "ReadonlyTxn" => Self::Txn,
            "Compaction" => Self::Compact,
            "LeaseGrant" => Self::LeaseGrant,
            "LeaseRevoke" => Self::LeaseRevoke,
            _ => return None,
        })
    }
}

/// A stage of request processing for which a member reports durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Waiting in the queue before consensus. etcd does not report this stage.
    Queue,
    /// Applying changes to the state machine, without waiting for other members or the disk.
    Apply,
    /// Syncing the write-ahead log.
    Fsync,
    /// Committing to the backend file.
    Commit,
    /// The round trip to another member.
    RoundTrip,
}

impl Stage {
    /// All stages, in display order.
    pub const ALL: [Self; 5] =
        [Self::Queue, Self::Apply, Self::Fsync, Self::Commit, Self::RoundTrip];

    /// Returns the name to display.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Apply => "apply",
            Self::Fsync => "log fsync",
            Self::Commit => "backend commit",
            Self::RoundTrip => "peer round trip",
        }
    }
}

/// Values that only increase while a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counter {
    /// Events sent to watchers.
    Events,
    /// Granted leases.
    LeasesGranted,
    /// Revoked leases.
    LeasesRevoked,
    /// Expired leases.
    LeasesExpired,
    /// Renewals of leases.
    LeasesRenewed,
    /// Bytes received from clients.
    BytesIn,
    /// Bytes sent to clients.
    BytesOut,
    /// Leader changes that the member has seen.
    LeaderChanges,
    /// Proposals that failed.
    FailedProposals,
    /// CPU time of the process, in seconds.
    CpuSeconds,
}

impl Counter {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "etcd_debugging_mvcc_events_total" => Self::Events,
            "etcd_debugging_lease_granted_total" => Self::LeasesGranted,
            "etcd_debugging_lease_revoked_total" => Self::LeasesRevoked,
            "etcd_debugging_server_lease_expired_total" => Self::LeasesExpired,
            "etcd_debugging_lease_renewed_total" => Self::LeasesRenewed,
            "etcd_network_client_grpc_received_bytes_total" => Self::BytesIn,
            "etcd_network_client_grpc_sent_bytes_total" => Self::BytesOut,
            "etcd_server_leader_changes_seen_total" => Self::LeaderChanges,
            "etcd_server_proposals_failed_total" => Self::FailedProposals,
            "process_cpu_seconds_total" => Self::CpuSeconds,
            _ => return None,
        })
    }
}

/// Values that may rise and fall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gauge {
    /// The number of keys.
    Keys,
    /// The number of watchers.
    Watchers,
    /// The number of streams that carry watches.
    WatchStreams,
    /// The number of watchers that are behind.
    SlowWatchers,
    /// The number of events that have not been sent yet.
    PendingEvents,
    /// The number of proposals that have not been applied yet.
    PendingProposals,
    /// The resident memory of the process, in bytes.
    ResidentBytes,
    /// The backend quota, in bytes.
    Quota,
    /// The revision of the last compaction.
    CompactRevision,
    /// The start of the process, in seconds since 1970.
    StartTime,
}

impl Gauge {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "etcd_debugging_mvcc_keys_total" => Self::Keys,
            "etcd_debugging_mvcc_watcher_total" => Self::Watchers,
            "etcd_debugging_mvcc_watch_stream_total" => Self::WatchStreams,
            "etcd_debugging_mvcc_slow_watcher_total" => Self::SlowWatchers,
            "etcd_debugging_mvcc_pending_events_total" => Self::PendingEvents,
            "etcd_server_proposals_pending" => Self::PendingProposals,
            "process_resident_memory_bytes" => Self::ResidentBytes,
            "etcd_server_quota_backend_bytes" => Self::Quota,
            "etcd_debugging_mvcc_compact_revision" => Self::CompactRevision,
            "process_start_time_seconds" => Self::StartTime,
            _ => return None,
        })
    }
}

/// The cumulative count for each bound. The keys are the bit patterns of the bounds in seconds, which sort like the
/// bounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Histogram {
    buckets: BTreeMap<u64, f64>,
}

impl Histogram {
    fn add(&mut self, bound: f64, count: f64) {
        // Bounds are positive, so their bit patterns sort like the bounds.
        *self.buckets.entry(bound.to_bits()).or_default() += count;
    }

    /// Adds the counts of another histogram.
    pub(super) fn merge(&mut self, other: &Self) {
        for (bound, count) in &other.buckets {
            *self.buckets.entry(*bound).or_default() += count;
        }
    }

    /// Returns the counts since an earlier reading; `None` if the process restarted in between.
    pub(super) fn since(&self, earlier: &Self) -> Option<Self> {
        let mut delta = self.clone();
        for (bound, count) in &mut delta.buckets {
            *count -= earlier.buckets.get(bound).copied().unwrap_or_default();
            if *count < 0.0 {
                return None;
            }
        }
        Some(delta)
    }

    /// Returns the number of observations.
    pub(super) fn count(&self) -> f64 {
        self.buckets.last_key_value().map_or(0.0, |(_, count)| *count)
    }

    /// Returns the given quantile in seconds, interpolated linearly between two bounds. A quantile above the last
    /// finite bound is reported as that bound. Returns `None` if there are no observations.
    pub(super) fn quantile(&self, share: f64) -> Option<f64> {
        let rank = self.count() * share;
        if rank <= 0.0 {
            return None;
        }
        let (mut below, mut before) = (0.0, 0.0);
        for (bound, count) in &self.buckets {
            let bound = f64::from_bits(*bound);
            if *count >= rank {
                if bound.is_infinite() || *count <= before {
                    return Some(below);
                }
                return Some(below + (bound - below) * (rank - before) / (count - before));
            }
            (below, before) = (bound, *count);
        }
        Some(below)
    }
}

/// The number of requests of one kind since the member started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Handled {
    pub(super) all: f64,
    pub(super) failed: f64,
}

/// The metrics of a member at one point in time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Metrics {
    pub(super) handled: BTreeMap<Kind, Handled>,
    pub(super) counters: BTreeMap<Counter, f64>,
    pub(super) gauges: BTreeMap<Gauge, f64>,
    /// The durations of complete requests, if the member reports them.
    pub(super) requests: BTreeMap<Kind, Histogram>,
    pub(super) stages: BTreeMap<Stage, Histogram>,
    /// The earliest expiry time of the certificates in each file, in seconds since 1970. The keys are the flags that
    /// name the files.
    pub(super) certificates: BTreeMap<String, f64>,
    /// The member's clock in seconds since 1970, from the head of the response.
    pub(super) clock: Option<f64>,
    /// The durations measured by the gRPC server, which are reported only with `--metrics=extensive`.
    at_the_door: BTreeMap<Kind, Histogram>,
}

impl Metrics {
    /// Parses metrics in the text format of Prometheus.
    pub(super) fn read(text: &str) -> Self {
        let mut metrics = Self::default();
        text.lines().filter(|line| !line.starts_with('#')).for_each(|line| {
            metrics.line(line);
        });
        if !metrics.at_the_door.is_empty() {
            metrics.requests = std::mem::take(&mut metrics.at_the_door);
        }
        metrics
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let (series, value) = line.rsplit_once(' ')?;
        let value: f64 = value.parse().ok().filter(|value: &f64| value.is_finite())?;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        if let Some(counter) = Counter::named(name) {
            *self.counters.entry(counter).or_default() += value;
        } else if let Some(gauge) = Gauge::named(name) {
            self.gauges.insert(gauge, value);
        } else if name == "quorate_certificate_expiration_timestamp_seconds" {
            self.certificates.insert(label(labels, "file")?.to_owned(), value);
        } else if let Some(histogram) = name.strip_suffix("_bucket") {
            self.bucket(histogram, labels, value)?;
        } else {
            self.request(name, labels, value)?;
        }
        Some(())
    }

    fn request(&mut self, name: &str, labels: &str, value: f64) -> Option<()> {
        let of_stream = match name {
            "grpc_server_handled_total" => false,
            "grpc_server_msg_received_total" => true,
            _ => return None,
        };
        let method = (label(labels, "grpc_service")?, label(labels, "grpc_method")?);
        let (kind, is_stream) = Kind::of_method(method.0, method.1)?;
        let handled = self.handled.entry(kind).or_default();
        if of_stream == is_stream {
            handled.all += value;
        }
        if !of_stream && !matches!(label(labels, "grpc_code")?, "OK" | "Canceled") {
            handled.failed += value;
        }
        Some(())
    }

    fn bucket(&mut self, name: &str, labels: &str, count: f64) -> Option<()> {
        let histogram = match name {
            "quorate_proposal_queue_duration_seconds" => self.stages.entry(Stage::Queue),
            "etcd_disk_wal_fsync_duration_seconds" => self.stages.entry(Stage::Fsync),
            "etcd_disk_backend_commit_duration_seconds" => self.stages.entry(Stage::Commit),
            "etcd_network_peer_round_trip_time_seconds" => self.stages.entry(Stage::RoundTrip),
            "etcd_server_apply_duration_seconds" => self.stages.entry(Stage::Apply),
            _ => {
                let (of, kind) = match name {
                    "etcd_server_request_duration_seconds" => {
                        (&mut self.requests, Kind::of_operation(label(labels, "type")?)?)
                    }
                    "grpc_server_handling_seconds" => {
                        let (service, method) =
                            (label(labels, "grpc_service")?, label(labels, "grpc_method")?);
                        // Durations of streams are ignored, because they say nothing about the durations of requests.
                        let kind = Kind::of_method(service, method)?;
                        (&mut self.at_the_door, Some(kind.0).filter(|_| !kind.1)?)
                    }
                    _ => return None,
                };
                let bound = bound(labels)?;
                of.entry(kind).or_default().add(bound, count);
                return Some(());
            }
        };
        histogram.or_default().add(bound(labels)?, count);
        Some(())
    }
}

fn bound(labels: &str) -> Option<f64> {
    match label(labels, "le")? {
        "+Inf" => Some(f64::INFINITY),
        number => number.parse().ok().filter(|bound| *bound > 0.0),
    }
}

/// Returns the value of a label. The values of the labels read here contain no escapes.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = labels;
    loop {
        let (found, tail) = rest.split_once("=\"")?;
        let (value, tail) = tail.split_once('"')?;
        if found.trim_start_matches([',', ' ']) == name {
            return Some(value);
        }
        rest = tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# HELP grpc_server_handled_total Total number of RPCs completed on the server.
grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 10
grpc_server_handled_total{grpc_code=\"Unavailable\",grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 2
grpc_server_handled_total{grpc_code=\"Canceled\",grpc_method=\"Watch\",grpc_service=\"etcdserverpb.Watch\",grpc_type=\"bidi_stream\"} 3
grpc_server_msg_received_total{grpc_method=\"Watch\",grpc_service=\"etcdserverpb.Watch\",grpc_type=\"bidi_stream\"} 7
grpc_server_msg_received_total{grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 12
grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Check\",grpc_service=\"grpc.health.v1.Health\",grpc_type=\"unary\"} 5
etcd_server_request_duration_seconds_bucket{success=\"true\",type=\"Put\",le=\"0.001\"} 1
etcd_server_request_duration_seconds_bucket{success=\"true\",type=\"Put\",le=\"0.002\"} 9
etcd_server_request_duration_seconds_bucket{success=\"true\",type=\"Put\",le=\"+Inf\"} 10
etcd_server_request_duration_seconds_bucket{success=\"false\",type=\"Put\",le=\"+Inf\"} 0
etcd_disk_wal_fsync_duration_seconds_bucket{le=\"0.001\"} 4
etcd_debugging_mvcc_keys_total 1.5e+06
etcd_debugging_mvcc_watcher_total NaN
nonsense{ 5
x
";

    #[test]
    fn known_series_are_read_and_others_are_ignored() {
        let metrics = Metrics::read(TEXT);
        let put = Handled { all: 12.0, failed: 2.0 };
        let watch = Handled { all: 7.0, failed: 0.0 };
        let handled: Vec<_> = metrics.handled.into_iter().collect();
        assert_eq!(handled, [(Kind::Put, put), (Kind::Watch, watch)]);
        assert_eq!(metrics.gauges, BTreeMap::from([(Gauge::Keys, 1_500_000.0)]));
        assert!((metrics.requests[&Kind::Put].count() - 10.0).abs() < 1e-9);
        assert!((metrics.stages[&Stage::Fsync].count() - 4.0).abs() < 1e-9);
        assert!(!metrics.stages.contains_key(&Stage::Commit));
    }

    #[test]
    fn grpc_server_durations_take_precedence_over_internal_durations() {
        let door = "grpc_server_handling_seconds_bucket{grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",\
                    grpc_type=\"unary\",le=\"+Inf\"} 77\n";
        let metrics = Metrics::read(&format!("{TEXT}{door}"));
        assert!((metrics.requests[&Kind::Put].count() - 77.0).abs() < 1e-9);
    }

    fn histogram(buckets: &[(f64, f64)]) -> Histogram {
        let mut histogram = Histogram::default();
        buckets.iter().for_each(|(bound, count)| histogram.add(*bound, *count));
        histogram
    }

    #[test]
    fn quantiles_are_interpolated_between_the_bounds() {
        let check = |buckets: &[(f64, f64)], share: f64, expected: Option<f64>| {
            let found = histogram(buckets).quantile(share);
            let close = match (found, expected) {
                (Some(found), Some(expected)) => (found - expected).abs() < 1e-9,
                (found, expected) => found == expected,
            };
            assert!(close, "{buckets:?} {share}: {found:?}");
        };
        let some = [(1.0, 10.0), (2.0, 20.0), (f64::INFINITY, 20.0)];
        check(&some, 0.5, Some(1.0));
        check(&some, 0.75, Some(1.5));
        check(&some, 0.25, Some(0.5));
        check(&[(1.0, 1.0), (f64::INFINITY, 10.0)], 0.99, Some(1.0));
        check(&[(1.0, 0.0), (f64::INFINITY, 0.0)], 0.5, None);
        check(&[], 0.5, None);
    }

    #[test]
    fn a_histogram_has_no_difference_across_a_restart() {
        let (old, new) =
            (histogram(&[(1.0, 3.0), (2.0, 4.0)]), histogram(&[(1.0, 5.0), (2.0, 9.0)]));
        assert_eq!(new.since(&old), Some(histogram(&[(1.0, 2.0), (2.0, 5.0)])));
        assert_eq!(old.since(&new), None);
        assert_eq!(new.since(&Histogram::default()), Some(new));
    }
}
