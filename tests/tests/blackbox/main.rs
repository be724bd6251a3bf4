//! Black-box tests of the behaviour that clients and operators can observe, and of the files that a server writes.
//!
//! There is one module per topic. The library of this package describes how the tests run.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "tests convert only small numbers"
)]
#![expect(clippy::unwrap_used, reason = "a failing step must fail the test")]

mod audit;
mod auth;
mod auth_tools;
mod bounds;
mod brute_force;
mod certificate_users;
mod cluster_tools;
mod console;
mod console_hostile;
mod console_users;
mod corruption;
mod crash;
mod damage;
mod diff;
mod engine;
mod flag_effects;
mod flags;
mod floods;
mod full_disk;
mod gateway;
mod grpc_edge;
mod grpc_frames;
mod grpc_proxy;
mod grpc_proxy_flags;
mod grpc_proxy_users;
mod http;
mod interactive;
mod kubernetes;
mod late_messages;
mod lease;
mod leasing;
mod limits;
mod load;
mod lock_election;
mod log_lines;
mod lost_log;
mod maintenance;
mod membership;
mod metrics;
mod model;
mod permissions;
mod plaintext_members;
mod profiles;
mod quota;
mod range;
mod rebuild;
mod recover;
mod requests;
mod resources;
mod restored;
mod settings;
mod slow_requests;
mod takeover;
mod tcp_gateway;
mod timeouts;
mod tls;
mod tls_hostile;
mod tls_rotation;
mod tool_bytes;
mod tool_checks;
mod tool_endpoints;
mod tool_faults;
mod tool_queues;
mod tool_reasons;
mod tool_top;
mod tool_watches;
mod tools;
mod tracing;
mod txn;
mod utl;
mod watch;
mod watch_flow;
mod websocket;
mod write;
