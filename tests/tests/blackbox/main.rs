//! The black-box tests: everything that a client, an operator or a file can see.
//!
//! One module per concern. See the library beside this for how a test is run.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod audit;
mod auth;
mod auth_tools;
mod bounds;
mod brute_force;
mod certificate_users;
mod cluster_tools;
mod corruption;
mod crash;
mod damage;
mod diff;
mod flag_effects;
mod flags;
mod floods;
mod full_disk;
mod gateway;
mod grpc_edge;
mod grpc_proxy;
mod grpc_proxy_flags;
mod http;
mod interactive;
mod kubernetes;
mod lease;
mod leasing;
mod limits;
mod load;
mod lock_election;
mod lost_log;
mod maintenance;
mod membership;
mod metrics;
mod model;
mod patience;
mod permissions;
mod profiles;
mod quota;
mod range;
mod rebuild;
mod recover;
mod requests;
mod resources;
mod settings;
mod slow_requests;
mod takeover;
mod tcp_gateway;
mod tls;
mod tls_hostile;
mod tls_rotation;
mod tool_checks;
mod tool_endpoints;
mod tool_faults;
mod tool_queues;
mod tool_reasons;
mod tool_top;
mod tools;
mod tracing;
mod txn;
mod utl;
mod watch;
mod watch_flow;
mod websocket;
mod write;
