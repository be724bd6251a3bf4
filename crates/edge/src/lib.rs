//! The doors to a member: gRPC, HTTP and the JSON gateway for clients, and what members ask one another besides consensus. From bytes to
//! the member's handles, and back.
//!
//! # Not here
//!
//! Accepting connections (`net::listen`), and what a request does (`member`).

mod client_http;
mod gateway;
mod grpc;
mod http;
mod log_level;
pub mod methods;
mod peer_port;
mod snapshot_stream;
mod websocket;

/// Targets of the fuzzer.
#[cfg(any(test, fuzzing))]
pub mod fuzz {
    pub use crate::grpc::fuzz::body;
    pub use crate::http::fuzz::request;
    pub use crate::websocket::fuzz::frames;
}

pub use client_http::{HttpService, MemberProbe};
pub use grpc::{Observers, Router};
pub use http::{Access, Endpoints, Surface};
pub use peer_port::{ImagePolicy, PeerService};
