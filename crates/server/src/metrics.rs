//! Creates a member's metrics, with all gRPC methods and feature gates.

use quorate_config::{Config, FeatureGate};
use quorate_edge::methods;
use quorate_telemetry::metrics::Metrics;

/// Returns all metrics at zero, except the metrics that show the configuration.
pub(crate) fn for_config(config: &Config) -> Metrics {
    let metrics = Metrics::new(&methods::counted(), config.metrics);
    for gate in FeatureGate::ALL {
        let is_enabled = config.feature_gates.is_enabled(*gate);
        metrics.set_feature(gate.name(), gate.stage().name(), is_enabled);
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_service_and_feature_gate_has_its_metric_series() {
        let text = for_config(&Config::default()).render();
        let count = |head: &str| text.lines().filter(|line| line.starts_with(head)).count();
        // 42 methods of etcd's services and 3 of the health service.
        assert_eq!(count("grpc_server_started_total{"), 45);
        assert_eq!(count("grpc_server_handled_total{"), 45 * 17);
        assert_eq!(count("etcd_server_feature_enabled{"), 11);
        let fast = "etcd_server_feature_enabled{name=\"FastLeaseKeepAlive\",stage=\"BETA\"} 1\n";
        assert!(text.contains(fast));
    }
}
