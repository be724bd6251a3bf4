//! The generator's own gRPC client: the part of HTTP/2 that unary calls and message streams need.
//!
//! A general-purpose client spends 18-30 microseconds of CPU time on a call, which may be more than the server
//! under test spends, and on one machine it takes that time away from the server. This client spends 1-3
//! microseconds: requests are written into one output buffer as bytes, replies are parsed in place in the input
//! buffer, and one read and one write serve every call that is ready.
//!
//! ```text
//! connection  streams, flow control, gRPC framing; bytes in, events and bytes out; no sockets
//!   frame     HTTP/2 frame headers
//!   hpack     header blocks, both directions (RFC 7541)
//!     huffman strings inside header blocks
//! ```
//!
//! # Invariants
//!
//! * The code does no I/O and reads no clock.
//! * The server's flow-control windows and limits are respected. Our own windows are as large as the protocol
//!   allows, so that the generator never slows a server down.
//!
//! # Not here
//!
//! Sockets and pacing (`engine`), the content of messages (`template`), and TLS.

pub(crate) mod connection;
mod frame;
mod hpack;
mod huffman;

pub(crate) use connection::{Status, WireError};
