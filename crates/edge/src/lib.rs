//! The ports of a member: converts requests to calls of the member's handles. It serves gRPC, HTTP and the
//! JSON gateway for clients, and the requests between members besides consensus.
//!
//! ```text
//! http ──► json_gateway ──► router ──► services ──► calls
//!    └───► websocket          gRPC, too                 peer_port (members)
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

/// Fuzz targets.
#[cfg(any(test, fuzzing))]
pub mod fuzz {
    pub use crate::calls::request_body::fuzz::body;
    pub use crate::http::fuzz::request;
    pub use crate::websocket::fuzz::frames;
}

pub use http::{Access, Endpoints, HttpService, MemberProbe, Surface};
pub use peer_port::{ImagePolicy, PeerService};
pub use router::{Observers, Router};
