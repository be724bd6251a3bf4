//! The generator's own gRPC client: the part of HTTP/2 that unary calls and message streams need.
//!
//! A general-purpose client spends 18-30 microseconds of CPU time on a call. The server under test may spend less time
//! than that on the call, and on a shared machine the client's CPU time is not available to the server. This client
//! spends 1-3 microseconds: requests are written as bytes into one output buffer, replies are parsed in place in the
//! input buffer, and a single read and a single write serve all calls that are ready.
//!
//! ```text
//! connection  streams, flow control and gRPC framing, without I/O
//!   frame     HTTP/2 frame headers
//!   hpack     header blocks, both directions (RFC 7541)
//!     huffman strings inside header blocks
//! ```
//!
//! # Invariants
//!
//! * The code does no I/O and reads no clock.
//! * The server's flow-control windows and limits are respected. Our own windows are as large as the protocol allows,
//!   so that the generator never slows down a server.
//!
//! # Not here
//!
//! Sockets and pacing (`engine`), the contents of messages (`template`), and TLS.

pub(crate) mod connection;
mod frame;
mod hpack;
mod huffman;

pub(crate) use connection::{Status, WireError};
