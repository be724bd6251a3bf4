//! Tests the engine with a real PostgreSQL server, which the tests start themselves.
//!
//! The server's programs come from `POSTGRES_BIN_DIR`, or from Debian's packages. If they are not
//! installed, the tests are skipped, or fail if `QUORATE_REQUIRE` lists `postgres`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cancelled_dumps;
mod differential;
mod faults;
mod losses;
mod memory;
#[expect(dead_code, reason = "only the fault suite starts standbys")]
mod postgres;
mod proxy;
mod requests;
mod servers;
mod stored_spans;
mod support;
mod tls;
