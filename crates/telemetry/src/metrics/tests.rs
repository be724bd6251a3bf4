//! Tests the output of a scrape.

use std::collections::BTreeMap;
use std::time::Duration;

use super::exposition::number;
use super::own::OwnSample;
use super::registry::Scrape;
use super::{
    Format, GrpcService, Histogram, MethodMetrics, Metrics, MetricsLevel, RequestKind, StateSample,
};

fn services() -> Vec<GrpcService> {
    let service = |name, methods: &[_]| GrpcService { name, methods: methods.to_vec() };
    vec![
        service("etcdserverpb.KV", &[("Range", "unary"), ("Put", "unary")]),
        service("etcdserverpb.Watch", &[("Watch", "bidi_stream")]),
        service("v3lockpb.Lock", &[("Lock", "unary")]),
    ]
}

fn metrics(level: MetricsLevel) -> Metrics {
    Metrics::new(&services(), level)
}

fn method<'a>(metrics: &'a Metrics, service: &str, method: &str) -> &'a MethodMetrics {
    let services = services();
    let service_at = services.iter().position(|one| one.name == service).unwrap();
    let methods = &services[service_at].methods;
    let method_at = methods.iter().position(|(name, _)| *name == method).unwrap();
    metrics.grpc.at(service_at, method_at)
}

/// Returns the lines of one family in a scrape, without the HELP and TYPE lines.
fn family(text: &str, name: &str) -> Vec<String> {
    let head = format!("# TYPE {name} ");
    let after = text.split_once(&head).unwrap_or_else(|| panic!("the metrics contain no {name}")).1;
    after.lines().skip(1).take_while(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn numbers_are_printed_as_in_prometheus() {
    for (value, text) in [
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (-3.0, "-3"),
        (0.001, "0.001"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (8.192, "8.192"),
        (999_999.0, "999999"),
        (1_000_000.0, "1e+06"),
        (2_147_483_648.0, "2.147483648e+09"),
        (1.844_674_407_370_955_2e19, "1.8446744073709552e+19"),
        (1e100, "1e+100"),
        (0.1 + 0.2, "0.30000000000000004"),
        (f64::INFINITY, "+Inf"),
        (f64::NEG_INFINITY, "-Inf"),
        (f64::NAN, "NaN"),
    ] {
        assert_eq!(number(value), text);
    }
}

/// The names of etcd's metric families, each with its type or with the reason why Quorate does not have it.
const FAMILIES: &str = include_str!("../../testdata/families.txt");

#[test]
fn metric_names_and_types_match_etcd_or_are_marked_as_our_own() {
    let metrics = metrics(MetricsLevel::Extensive);
    let lines = FAMILIES.lines().filter(|line| !line.starts_with('#'));
    let rows: Vec<(&str, &str)> = lines.map(|line| line.split_once(' ').unwrap()).collect();
    assert!(rows.is_sorted(), "the table is sorted");
    let wanted: BTreeMap<&str, &str> =
        rows.into_iter().filter(|(_, kind)| !kind.starts_with("absent: ")).collect();
    let is_ours = |name: &str| name.starts_with("quorate_");
    let present: BTreeMap<&str, &str> = metrics
        .registry
        .declared()
        .filter(|family| !is_ours(family.name))
        .map(|family| (family.name, family.kind.name()))
        .collect();
    assert_eq!(present, wanted);
}

#[test]
fn metric_families_are_sorted_and_have_help_and_type() {
    let text = metrics(MetricsLevel::Extensive).render();
    let helps: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP "))
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    assert!(helps.is_sorted(), "{helps:?}");
    assert!(helps.len() > 80, "{}", helps.len());
    let types = text.lines().filter(|line| line.starts_with("# TYPE ")).count();
    assert_eq!(types, helps.len());
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (_, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
}

#[test]
fn histograms_are_cumulative_and_have_a_sum() {
    let metrics = metrics(MetricsLevel::Basic);
    let fsync = &metrics.disk.wal_fsync;
    for micros in [1_000, 1_001, 2_000, 9_000_000] {
        fsync.observe(Duration::from_micros(micros));
    }
    let lines = family(&metrics.render(), "etcd_disk_wal_fsync_duration_seconds");
    assert_eq!(lines.len(), 14 + 1 + 2);
    assert_eq!(lines[0], "etcd_disk_wal_fsync_duration_seconds_bucket{le=\"0.001\"} 1");
    assert_eq!(lines[1], "etcd_disk_wal_fsync_duration_seconds_bucket{le=\"0.002\"} 3");
    assert_eq!(lines[13], "etcd_disk_wal_fsync_duration_seconds_bucket{le=\"8.192\"} 3");
    assert_eq!(lines[14], "etcd_disk_wal_fsync_duration_seconds_bucket{le=\"+Inf\"} 4");
    assert_eq!(lines[15], "etcd_disk_wal_fsync_duration_seconds_sum 9.004001");
    assert_eq!(lines[16], "etcd_disk_wal_fsync_duration_seconds_count 4");
}

#[test]
fn histogram_bounds_are_the_same_as_in_etcd() {
    let bounds = |histogram: &Histogram| -> Vec<String> {
        histogram.snapshot().0.iter().map(|(bound, _)| number(*bound)).collect()
    };
    let metrics = metrics(MetricsLevel::Basic);
    let range = bounds(metrics.server.range_duration.with(&["true"]));
    assert_eq!(range.first().map(String::as_str), Some("0.0001"));
    assert_eq!(range.last().map(String::as_str), Some("52.4288"));
    let pause = bounds(&metrics.mvcc.index_compaction_pause);
    assert_eq!((pause[0].as_str(), pause[13].as_str()), ("0.5", "4096"));
    let total = bounds(&metrics.mvcc.compaction_total);
    assert_eq!((total[0].as_str(), total[13].as_str()), ("100", "819200"));
    let ttl = bounds(&metrics.lease.ttl);
    assert_eq!((ttl[0].as_str(), ttl[23].as_str()), ("1", "8.388608e+06"));
    metrics.lease.ttl.observe_number(60);
    let lines = family(&metrics.render(), "etcd_debugging_lease_ttl_total");
    assert!(lines.contains(&"etcd_debugging_lease_ttl_total_bucket{le=\"64\"} 1".to_owned()));
    assert!(lines.contains(&"etcd_debugging_lease_ttl_total_sum 60".to_owned()));
}

#[test]
fn every_method_has_a_zero_series_for_every_code() {
    let metrics = metrics(MetricsLevel::Basic);
    let text = metrics.render();
    // The lock service is missing, because it is exposed only from its first call.
    assert_eq!(family(&text, "grpc_server_started_total").len(), 3);
    assert_eq!(family(&text, "grpc_server_handled_total").len(), 3 * 17);
    assert!(!text.contains("grpc_server_handling_seconds"));
    assert!(!text.contains("v3lockpb"));
    assert!(text.contains(
        "grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Watch\",\
         grpc_service=\"etcdserverpb.Watch\",grpc_type=\"bidi_stream\"} 0\n"
    ));
    method(&metrics, "v3lockpb.Lock", "Lock").started.inc();
    assert!(metrics.render().contains("grpc_service=\"v3lockpb.Lock\",grpc_type=\"unary\"} 1\n"));
}

#[test]
fn calls_are_counted_by_code() {
    let metrics = metrics(MetricsLevel::Extensive);
    let put = method(&metrics, "etcdserverpb.KV", "Put");
    put.started.inc();
    put.handled(11, Duration::from_millis(3));
    put.handled(99, Duration::from_millis(300));
    let text = metrics.render();
    let labels = "grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"";
    for line in [
        format!("grpc_server_started_total{{{labels}}} 1"),
        format!("grpc_server_handled_total{{grpc_code=\"OutOfRange\",{labels}}} 1"),
        format!("grpc_server_handled_total{{grpc_code=\"Unknown\",{labels}}} 1"),
        format!("grpc_server_handling_seconds_bucket{{{labels},le=\"0.005\"}} 1"),
        format!("grpc_server_handling_seconds_bucket{{{labels},le=\"0.5\"}} 2"),
        format!("grpc_server_handling_seconds_count{{{labels}}} 2"),
    ] {
        assert!(text.contains(&line), "{line}");
    }
}

#[test]
fn labelled_families_appear_with_their_first_series() {
    let metrics = metrics(MetricsLevel::Basic);
    let name = "etcd_server_apply_duration_seconds";
    assert!(!metrics.render().contains(name));
    metrics.server.apply_duration.observe(RequestKind::Put, true, Duration::from_micros(50));
    metrics.server.client_requests.with(&["a\"b\\c\nd", "unary"]).inc();
    let text = metrics.render();
    assert_eq!(
        family(&text, name)[0],
        "etcd_server_apply_duration_seconds_bucket\
         {op=\"Put\",success=\"true\",version=\"v3\",le=\"0.0001\"} 1"
    );
    assert!(text.contains(
        "etcd_server_client_requests_total\
         {client_api_version=\"a\\\"b\\\\c\\nd\",type=\"unary\"} 1\n"
    ));
}

#[test]
fn only_the_current_series_of_a_family_are_1() {
    let metrics = metrics(MetricsLevel::Basic);
    metrics.server.cluster_version.set_only(&[["3.6"]]);
    metrics.server.cluster_version.set_only(&[["3.7"]]);
    assert_eq!(
        family(&metrics.render(), "etcd_cluster_version"),
        [
            "etcd_cluster_version{cluster_version=\"3.6\"} 0",
            "etcd_cluster_version{cluster_version=\"3.7\"} 1"
        ]
    );
}

#[test]
fn state_machine_metrics_are_read_at_each_scrape() {
    let metrics = metrics(MetricsLevel::Basic);
    let line = |metrics: &Metrics| {
        family(&metrics.render(), "etcd_debugging_mvcc_current_revision").remove(0)
    };
    assert_eq!(line(&metrics), "etcd_debugging_mvcc_current_revision 0");
    let revision = std::sync::atomic::AtomicI64::new(6);
    metrics.watch_state(move || {
        let current_revision = revision.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        StateSample { current_revision, ..StateSample::default() }
    });
    assert_eq!(line(&metrics), "etcd_debugging_mvcc_current_revision 7");
    assert_eq!(line(&metrics), "etcd_debugging_mvcc_current_revision 8");
}

#[test]
fn dropped_log_lines_and_series_counts_are_exposed() {
    let metrics = metrics(MetricsLevel::Basic);
    let line = |metrics: &Metrics| {
        family(&metrics.render(), "quorate_metrics_largest_family_series").remove(0)
    };
    // The largest family so far counts metrics requests, with one series for each of three codes.
    assert_eq!(line(&metrics), "quorate_metrics_largest_family_series 3");
    for number in 0..7 {
        metrics.server.client_requests.with(&[&number.to_string(), "unary"]).inc();
    }
    assert_eq!(line(&metrics), "quorate_metrics_largest_family_series 7");
    let own = OwnSample { dropped_lines: 5, ..OwnSample::default() };
    let text = metrics.registry.render(&Scrape { own, ..Scrape::default() }, Format::Text);
    let text = String::from_utf8(text).unwrap();
    let dropped = family(&text, "quorate_logger_lines_dropped_total");
    assert_eq!(dropped, ["quorate_logger_lines_dropped_total 5"]);
}

#[test]
fn feature_gates_and_the_server_version_are_exposed_as_series() {
    let metrics = metrics(MetricsLevel::Basic);
    metrics.set_feature("Slow", "ALPHA", false);
    metrics.set_feature("Fast", "BETA", true);
    let text = metrics.render();
    assert_eq!(
        family(&text, "etcd_server_feature_enabled"),
        [
            "etcd_server_feature_enabled{name=\"Fast\",stage=\"BETA\"} 1",
            "etcd_server_feature_enabled{name=\"Slow\",stage=\"ALPHA\"} 0",
        ]
    );
    assert!(text.contains("etcd_server_version{server_version=\"3.7.1\"} 1\n"));
    let codes = ["200", "500", "503"];
    let series = family(&text, "promhttp_metric_handler_requests_total");
    assert_eq!(series.len(), codes.len());
    assert!(text.contains("\nprocess_resident_memory_bytes "));
}
