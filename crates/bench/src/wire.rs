//! The generator's own gRPC client: HTTP/2 over plain TCP, just as much of it as unary calls and
//! message streams need.
//!
//! A general client spends 18-30 microseconds of CPU on a call, more than the server under test may
//! spend on answering it, and on one machine that cost comes out of the server's share. This one spends
//! 1-3: requests are written into one output buffer as bytes, replies are looked at where they lie in
//! the input buffer, and one read and one write serve every call that is ready.
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
//! * Nothing here does input or output or reads a clock.
//! * Flow-control windows and limits set by the server are respected; ours are as large as the protocol
//!   allows, so that the generator never holds a server back.
//!
//! # Not here
//!
//! Sockets and pacing (`engine`), what the messages say (`template`), TLS.

pub(crate) mod connection;
mod frame;
mod hpack;
mod huffman;

pub(crate) use connection::{Status, WireError};
