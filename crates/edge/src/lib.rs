//! The client and peer ports of a member. They convert requests into calls on the member's handles: gRPC, HTTP and the
//! JSON gateway for clients, and all requests between members except consensus traffic.
//!
//! ```text
//! http ──► json_gateway ──► router ──► services ──► calls
//!    └───► websocket        ▲                           peer_port (members)
//!                         gRPC
//! ```
//!
//! # Not here
//!
//! Accepting connections (`net::listen`), executing requests (`member`).

mod calls;
mod http;
mod json_gateway;
pub mod methods;
mod peer_port;
mod router;
mod services;
mod snapshot_stream;
mod websocket;

/// Entry points of the fuzz targets.
#[cfg(any(test, fuzzing))]
pub mod fuzz {
    pub use crate::calls::request_body::fuzz::body;
    pub use crate::http::fuzz::request;
    pub use crate::websocket::fuzz::frames;
}

pub use http::{Access, Endpoints, HttpService, MemberProbe, Surface};
pub use peer_port::{ImagePolicy, PeerService};
pub use router::{Observers, Router};
