//! Tests of the engine against a real PostgreSQL server, which they start themselves.
//!
//! The programs of the server come from `POSTGRES_BIN_DIR`, or from Debian's packages. Without them,
//! the tests are skipped, and fail if `QUORATE_REQUIRE` lists `postgres`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod differential;
mod faults;
mod losses;
mod postgres;
mod proxy;
mod requests;
mod servers;
mod support;
mod tls;
