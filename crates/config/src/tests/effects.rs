//! Lists, for each flag, a test of its effect or the reason why the flag has no effect.
//!
//! The listed test must fail if the flag is ignored. A test that only parses the value, or finds it in the log, is not
//! sufficient. The tests in this file fail if a flag has no row, or if a row names a missing test.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::flags::FLAGS;
use super::super::setting::Setting;
use Effect::{Nothing, Test};

#[derive(Clone, Copy)]
enum Effect {
    /// The file and name of a test that fails if the flag is ignored.
    Test(&'static str, &'static str),
    /// The reason why the flag deliberately has no effect.
    Nothing(&'static str),
}

#[rustfmt::skip]
const SHOWN: &[(&str, Effect)] = &[
    ("name", Test("tests/tests/blackbox/maintenance.rs", "members_are_listed")),
    ("data-dir", Test("tests/tests/blackbox/crash.rs", "members_take_snapshots_and_start_from_them")),
    ("wal-dir", Test("tests/tests/blackbox/lost_log.rs", "a_backend_without_its_log_is_refused")),
    ("engine", Test("tests/tests/blackbox/engine.rs", "servers_on_one_database_serve_the_same_keys")),
    ("snapshot-count", Test("tests/tests/blackbox/crash.rs", "members_take_snapshots_and_start_from_them")),
    ("snapshot-catchup-entries", Test("tests/tests/faults/kill.rs", "a_follower_that_fell_behind_gets_a_snapshot")),
    ("heartbeat-interval", Test("tests/tests/blackbox/flag_effects.rs", "heartbeats_are_sent_at_the_configured_interval")),
    ("election-timeout", Test("tests/tests/blackbox/lease.rs", "the_minimum_ttl_depends_on_the_election_timeout")),
    ("listen-peer-urls", Test("tests/tests/blackbox/flag_effects.rs", "peer_certificates_need_an_allowed_name")),
    ("listen-client-urls", Test("tests/tests/blackbox/tls.rs", "one_address_serves_with_and_without_tls")),
    ("max-snapshots", Test("tests/tests/blackbox/crash.rs", "old_snapshot_and_log_files_are_purged")),
    ("max-wals", Test("tests/tests/blackbox/crash.rs", "old_snapshot_and_log_files_are_purged")),
    ("quota-backend-bytes", Test("tests/tests/blackbox/quota.rs", "a_larger_quota_applies_after_a_restart")),
    ("quota-headroom-bytes", Test("tests/tests/blackbox/quota.rs", "headroom_is_reserved_for_operations_that_free_space")),
    ("quota-warning-percent", Test("tests/tests/blackbox/quota.rs", "a_full_store_disarms_its_alarm_if_a_flag_permits_it")),
    ("quota-disarm-percent", Test("tests/tests/blackbox/quota.rs", "a_full_store_disarms_its_alarm_if_a_flag_permits_it")),
    ("backend-bbolt-freelist-type", Nothing("free pages are always tracked in the same way, which is logged")),
    ("memory-mlock", Test("tests/tests/blackbox/settings.rs", "the_backend_file_is_locked_in_memory")),
    ("max-txn-ops", Test("tests/tests/blackbox/flags.rs", "flag_values_are_parsed_as_in_etcd")),
    ("max-request-bytes", Test("tests/tests/blackbox/requests.rs", "a_request_of_the_maximum_size_is_accepted")),
    ("max-concurrent-streams", Test("tests/tests/blackbox/resources.rs", "no_stream_limit_is_announced_unless_one_is_configured")),
    ("max-connections-per-address", Test("tests/tests/blackbox/resources.rs", "connections_from_one_address_are_limited")),
    ("grpc-keepalive-min-time", Test("tests/tests/blackbox/settings.rs", "pings_are_accepted_at_the_configured_minimum")),
    ("initial-advertise-peer-urls", Test("crates/server/src/bootstrap/tests/founding.rs", "contradictory_flags_are_refused_with_etcd_errors")),
    ("initial-cluster", Test("crates/server/src/bootstrap/tests/founding.rs", "every_founder_starts_with_the_same_log_as_in_etcd")),
    ("initial-cluster-state", Test("crates/server/src/bootstrap/tests/joining.rs", "a_joining_member_receives_its_id_from_the_cluster")),
    ("initial-cluster-token", Test("crates/server/src/bootstrap/tests/founding.rs", "an_interrupted_bootstrap_is_not_completed_with_other_flags")),
    ("advertise-client-urls", Test("tests/tests/blackbox/maintenance.rs", "members_are_listed")),
    ("discovery-endpoints", Test("tests/tests/blackbox/flag_effects.rs", "founding_members_use_a_secured_discovery_service")),
    ("discovery-token", Test("tests/tests/blackbox/flag_effects.rs", "founding_members_use_a_secured_discovery_service")),
    ("discovery-fallback", Nothing("the member never becomes a proxy of etcd v2; the value `proxy` is refused, as in etcd")),
    ("discovery-srv", Test("crates/server/src/bootstrap/tests/srv.rs", "srv_records_define_the_founding_members")),
    ("discovery-srv-name", Test("crates/server/src/bootstrap/tests/srv.rs", "srv_records_define_the_founding_members")),
    ("hold-cluster-version", Test("tests/tests/blackbox/membership.rs", "a_cluster_is_downgraded_to_the_oldest_release_and_upgraded_again")),
    ("pre-vote", Test("crates/server/src/bootstrap/tests/restart.rs", "election_flags_are_passed_to_the_node")),
    ("v2-deprecation", Nothing("the value is enforced, which is logged, as in etcd")),
    ("cert-file", Test("tests/tests/blackbox/tls.rs", "one_address_serves_with_and_without_tls")),
    ("key-file", Test("tests/tests/blackbox/tls.rs", "one_address_serves_with_and_without_tls")),
    ("client-cert-auth", Test("tests/tests/blackbox/certificate_users.rs", "the_common_name_of_a_client_certificate_is_the_user")),
    ("client-crl-file", Test("tests/tests/blackbox/tls_hostile.rs", "invalid_client_certificates_are_refused")),
    ("trusted-ca-file", Test("tests/tests/blackbox/tls.rs", "clients_without_a_certificate_are_refused")),
    ("auto-tls", Test("tests/tests/blackbox/tls.rs", "a_self_signed_certificate_is_generated")),
    ("peer-cert-file", Test("tests/tests/blackbox/tls.rs", "members_connect_to_peers_with_tls")),
    ("peer-key-file", Test("tests/tests/blackbox/tls.rs", "members_connect_to_peers_with_tls")),
    ("peer-client-cert-auth", Test("tests/tests/blackbox/flag_effects.rs", "peers_without_a_certificate_are_refused_if_a_flag_requires_one")),
    ("peer-trusted-ca-file", Test("tests/tests/blackbox/tls.rs", "members_connect_to_peers_with_tls")),
    ("peer-auto-tls", Test("tests/tests/blackbox/tls.rs", "certificates_generated_by_etcd_are_reused")),
    ("peer-crl-file", Test("tests/tests/blackbox/flag_effects.rs", "revoked_peer_certificates_are_refused")),
    ("cipher-suites", Test("tests/tests/blackbox/flag_effects.rs", "cipher_suites_that_are_not_selected_are_refused")),
    ("tls-min-version", Test("tests/tests/blackbox/flag_effects.rs", "tls_versions_outside_the_limits_are_refused")),
    ("cors", Test("crates/edge/src/http/tests.rs", "allowed_origins_are_returned_in_cors_headers")),
    ("enable-grpc-gateway", Test("tests/tests/blackbox/gateway.rs", "the_gateway_can_be_disabled")),
    ("host-whitelist", Test("crates/edge/src/http/tests.rs", "hosts_not_on_the_whitelist_are_refused_as_misdirected")),
    ("enable-pprof", Test("tests/tests/blackbox/profiles.rs", "profiles_are_served_only_with_the_flag")),
    ("logger", Nothing("`zap` is the only logger; another value is refused, as in etcd")),
    ("log-outputs", Test("tests/tests/blackbox/settings.rs", "a_full_log_file_is_rotated")),
    ("log-level", Test("tests/tests/blackbox/settings.rs", "log_lines_have_the_configured_level_and_format")),
    ("log-format", Test("tests/tests/blackbox/settings.rs", "log_lines_have_the_configured_level_and_format")),
    ("enable-log-rotation", Test("tests/tests/blackbox/settings.rs", "a_full_log_file_is_rotated")),
    ("log-rotation-config-json", Test("tests/tests/blackbox/settings.rs", "a_full_log_file_is_rotated")),
    ("watch-progress-notify-interval", Test("tests/tests/blackbox/watch_flow.rs", "progress_is_sent_periodically_if_requested")),
    ("bootstrap-defrag-threshold-megabytes", Test("tests/tests/blackbox/settings.rs", "the_backend_is_defragmented_at_start")),
    ("max-learners", Test("crates/server/src/bootstrap/tests/restart.rs", "learners_beyond_the_limit_are_refused")),
    ("downgrade-check-time", Test("tests/tests/blackbox/membership.rs", "the_completion_of_a_downgrade_is_checked_at_the_configured_interval")),
    ("corrupt-check-time", Test("tests/tests/blackbox/corruption.rs", "a_leader_detects_a_corrupt_member")),
    ("compact-hash-check-time", Test("tests/tests/blackbox/corruption.rs", "compaction_hashes_identify_the_corrupt_member")),
    ("feature-gates", Test("tests/tests/blackbox/corruption.rs", "a_corrupt_member_does_not_start")),
    ("auth-token", Test("tests/tests/blackbox/auth.rs", "signed_tokens_are_verified_and_become_invalid_when_users_change")),
    ("auth-token-ttl", Test("tests/tests/blackbox/auth.rs", "an_unused_token_expires_after_its_ttl")),
    ("bcrypt-cost", Test("tests/tests/blackbox/auth.rs", "passwords_are_hashed_with_the_configured_cost")),
    ("force-new-cluster", Test("tests/tests/blackbox/lost_log.rs", "a_member_with_a_higher_commit_index_than_its_cluster_stops")),
    ("config-file", Test("tests/tests/blackbox/flags.rs", "a_configuration_file_replaces_flags_and_environment")),
    ("listen-client-http-urls", Test("tests/tests/blackbox/flag_effects.rs", "separate_listeners_serve_only_metrics_or_http")),
    ("listen-console-url", Test("tests/tests/blackbox/console_users.rs", "a_member_serves_its_own_console")),
    ("console-allow-writes", Test("tests/tests/blackbox/console_users.rs", "a_member_serves_its_own_console")),
    ("listen-metrics-urls", Test("tests/tests/blackbox/flag_effects.rs", "separate_listeners_serve_only_metrics_or_http")),
    ("backend-batch-interval", Test("tests/tests/blackbox/flag_effects.rs", "backend_batches_are_committed_at_their_limit_or_interval")),
    ("backend-batch-limit", Test("tests/tests/blackbox/flag_effects.rs", "backend_batches_are_committed_at_their_limit_or_interval")),
    ("grpc-keepalive-interval", Test("tests/tests/blackbox/flag_effects.rs", "a_client_that_does_not_answer_pings_is_disconnected")),
    ("grpc-keepalive-timeout", Test("tests/tests/blackbox/flag_effects.rs", "a_client_that_does_not_answer_pings_is_disconnected")),
    ("socket-reuse-port", Test("tests/tests/blackbox/flag_effects.rs", "a_port_is_shared_with_reuse_port")),
    ("initial-election-tick-advance", Test("crates/server/src/bootstrap/tests/restart.rs", "election_flags_are_passed_to_the_node")),
    ("raft-read-timeout", Test("tests/tests/blackbox/timeouts.rs", "silent_peers_are_disconnected_after_the_read_timeout")),
    ("raft-write-timeout", Test("tests/tests/blackbox/timeouts.rs", "peers_that_do_not_read_are_disconnected_after_the_write_timeout")),
    ("discovery-request-timeout", Test("tests/tests/blackbox/timeouts.rs", "discovery_requests_time_out")),
    ("discovery-dial-timeout", Test("tests/tests/blackbox/timeouts.rs", "discovery_connections_time_out")),
    ("discovery-keepalive-time", Test("tests/tests/blackbox/timeouts.rs", "a_discovery_service_that_does_not_answer_pings_is_disconnected")),
    ("discovery-keepalive-timeout", Test("tests/tests/blackbox/timeouts.rs", "a_discovery_service_that_does_not_answer_pings_is_disconnected")),
    ("fence-stalled-disk", Test("crates/server/src/bootstrap/tests/restart.rs", "election_flags_are_passed_to_the_node")),
    ("rebuild-corrupt-member", Test("tests/tests/blackbox/rebuild.rs", "a_corrupt_member_is_rebuilt")),
    ("strict-reconfig-check", Test("tests/tests/blackbox/membership.rs", "an_invalid_membership_change_is_refused")),
    ("discovery-insecure-transport", Test("crates/config/src/discovery.rs", "discovery_endpoints_without_a_scheme_use_tls_unless_plaintext_is_allowed")),
    ("discovery-insecure-skip-tls-verify", Test("tests/tests/blackbox/flag_effects.rs", "founding_members_use_a_secured_discovery_service")),
    ("discovery-cert", Test("tests/tests/blackbox/flag_effects.rs", "founding_members_use_a_secured_discovery_service")),
    ("discovery-key", Test("tests/tests/blackbox/flag_effects.rs", "founding_members_use_a_secured_discovery_service")),
    ("discovery-cacert", Test("tests/tests/blackbox/flag_effects.rs", "founding_members_use_a_secured_discovery_service")),
    ("discovery-user", Test("tests/tests/blackbox/flag_effects.rs", "founding_members_use_a_secured_discovery_service")),
    ("discovery-password", Test("tests/tests/blackbox/flag_effects.rs", "founding_members_use_a_secured_discovery_service")),
    ("auto-compaction-retention", Test("tests/tests/faults/soak.rs", "resource_usage_does_not_grow_under_load")),
    ("auto-compaction-mode", Test("crates/config/src/tests.rs", "the_compaction_mode_determines_how_the_retention_is_parsed")),
    ("client-cert-allowed-hostname", Test("tests/tests/blackbox/flag_effects.rs", "client_certificates_need_an_allowed_name")),
    ("peer-client-cert-file", Test("tests/tests/blackbox/flag_effects.rs", "members_use_a_separate_client_certificate_for_peers")),
    ("peer-client-key-file", Test("tests/tests/blackbox/flag_effects.rs", "members_use_a_separate_client_certificate_for_peers")),
    ("peer-cert-allowed-cn", Test("tests/tests/blackbox/flag_effects.rs", "peer_certificates_need_an_allowed_name")),
    ("peer-cert-allowed-hostname", Test("tests/tests/blackbox/flag_effects.rs", "peer_certificates_need_an_allowed_name")),
    ("self-signed-cert-validity", Test("tests/tests/blackbox/flag_effects.rs", "self_signed_certificates_have_the_configured_validity")),
    ("peer-skip-client-san-verification", Test("tests/tests/blackbox/flag_effects.rs", "peers_at_addresses_missing_from_their_certificate_are_accepted_if_a_flag_permits_it")),
    ("tls-max-version", Test("tests/tests/blackbox/flag_effects.rs", "tls_versions_outside_the_limits_are_refused")),
    ("metrics", Test("tests/tests/blackbox/flag_effects.rs", "call_durations_are_measured_with_extensive_metrics")),
    ("warning-apply-duration", Test("tests/tests/blackbox/slow_requests.rs", "slow_requests_are_logged_with_their_text")),
    ("warning-unary-request-duration", Test("tests/tests/blackbox/flag_effects.rs", "slow_calls_are_logged")),
    ("enable-distributed-tracing", Test("tests/tests/blackbox/tracing.rs", "calls_are_traced_if_their_caller_requests_it")),
    ("distributed-tracing-address", Test("tests/tests/blackbox/tracing.rs", "calls_are_traced_if_their_caller_requests_it")),
    ("distributed-tracing-service-name", Test("tests/tests/blackbox/tracing.rs", "calls_are_traced_if_their_caller_requests_it")),
    ("distributed-tracing-instance-id", Test("tests/tests/blackbox/tracing.rs", "calls_are_traced_if_their_caller_requests_it")),
    ("distributed-tracing-sampling-rate", Test("tests/tests/blackbox/tracing.rs", "calls_without_a_trace_are_sampled")),
    ("audit-log", Test("tests/tests/blackbox/audit.rs", "calls_of_every_kind_are_audited")),
    ("audit-rules", Test("tests/tests/blackbox/audit.rs", "audit_rules_select_the_recorded_calls")),
    ("audit-log-rotation-config-json", Test("tests/tests/blackbox/audit.rs", "a_full_audit_file_is_rotated")),
    ("audit-log-overflow", Test("tests/tests/blackbox/audit.rs", "a_blocked_audit_file_causes_dropped_lines_or_refused_calls")),
    ("compaction-batch-limit", Test("tests/tests/blackbox/flag_effects.rs", "compactions_proceed_in_batches_with_pauses")),
    ("compaction-sleep-interval", Test("tests/tests/blackbox/flag_effects.rs", "compactions_proceed_in_batches_with_pauses")),
    ("unsafe-no-fsync", Test("tests/tests/blackbox/flag_effects.rs", "no_file_is_synced_with_unsafe_no_fsync")),
    ("socket-reuse-address", Nothing("all listeners set SO_REUSEADDR, as in Go")),
    ("client-cert-file", Nothing("no connection uses it; etcd uses it for the connection of its JSON gateway")),
    ("client-key-file", Nothing("the key of --client-cert-file, which has no effect")),
    ("version", Test("tests/tests/blackbox/flags.rs", "the_version_is_printed")),
];

#[test]
fn every_flag_has_a_test_of_its_effect_or_a_reason_for_having_none() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let shown: BTreeMap<&str, Effect> = SHOWN.iter().copied().collect();
    assert_eq!(shown.len(), SHOWN.len(), "a flag has two rows");
    for flag in FLAGS.iter().filter(|flag| !matches!(flag.setting, Setting::Ignored)) {
        assert!(shown.contains_key(flag.name), "--{} needs a row", flag.name);
    }
    for (flag, effect) in SHOWN {
        assert!(FLAGS.iter().any(|known| known.name == *flag), "--{flag} is not a flag");
        match effect {
            Test(file, test) => {
                let text = std::fs::read_to_string(root.join(file)).unwrap();
                let is_there = text.contains(&format!("fn {test}("));
                assert!(is_there, "--{flag}: {file} has no test {test}");
            }
            Nothing(reason) => assert!(!reason.is_empty(), "--{flag}"),
        }
    }
}
