//! Support for the tests of other crates: `script` runs scenario files, and `mutate` runs fuzz targets on randomly
//! changed samples.
//!
//! Other crates use this crate only as a dev-dependency. Its functions panic when a test fails.

pub mod mutate;
pub mod script;
