//! The client ports of a server: gRPC, HTTP and the JSON gateway. They convert requests into calls on the server's
//! handles. The services do not know which data store holds the keys.
//!
//! ```text
//! http ──► json_gateway ──► router ──► services ──► calls
//!    └───► websocket        ▲
//!                         gRPC
//! ```
//!
//! # Not here
//!
//! Accepting connections (`net::listen`), executing requests (`requests::DataStore`), and the peer port (`peer_port`).

#![cfg_attr(test, expect(clippy::cast_possible_wrap, reason = "tests convert only small numbers"))]

mod calls;
mod http;
mod json_gateway;
pub mod methods;
mod router;
mod services;
mod websocket;

/// Entry points of the fuzz targets.
#[cfg(any(test, fuzzing))]
pub mod fuzz {
    pub use crate::calls::request_body::fuzz::body;
    pub use crate::http::fuzz::request;
    pub use crate::websocket::fuzz::frames;
}

pub use http::{Access, Endpoints, HttpService, MemberProbe, Surface};
pub use router::{Observers, Router};
