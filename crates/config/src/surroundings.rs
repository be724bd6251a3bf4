//! The world outside the arguments, as reading a configuration sees it.

use std::io;

/// The world outside the arguments.
pub trait Surroundings {
    /// The environment, in its order.
    fn environment(&self) -> Vec<(String, String)>;
    /// The bytes of a file.
    fn read_file(&self, path: &str) -> io::Result<Vec<u8>>;
    /// The address of the interface that the default route leads through.
    fn default_host(&self) -> Result<String, String>;
}
