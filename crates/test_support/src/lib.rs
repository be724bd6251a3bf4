//! Support for the tests of other crates: `script` runs scenario files, `mutate` runs fuzz targets on samples that are
//! changed at random.
//!
//! This crate is a dev-dependency everywhere. It panics where a test fails.

pub mod mutate;
pub mod script;
