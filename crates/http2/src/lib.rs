//! HTTP/2 (RFC 9113) and its header compression (RFC 7541), without I/O: bytes in, events out; commands in, bytes out.
//!
//! ```text
//! connection   the server side of a connection, with its limits
//! head         the head of a request, decoded once and shared
//! hpack        header blocks: decoder with the dynamic table, encoder for responses
//! huffman      the code of strings in header blocks
//! frame        frame headers, kinds, flags and error codes
//! ```
//!
//! # Not here
//!
//! Sockets, tasks and clocks (`net::listen`), gRPC (`grpc`, `edge`).

#![cfg_attr(
    test,
    expect(clippy::cast_possible_truncation, reason = "tests convert only small numbers")
)]

pub mod connection;
pub mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod head;
pub mod hpack;
pub mod huffman;
