//! Support for the tests of other crates: `script` runs scenario files, `mutate` runs fuzz targets on randomly
//! changed samples.
//!
//! This crate is a dev-dependency everywhere. It panics when a test fails.

pub mod mutate;
pub mod script;
