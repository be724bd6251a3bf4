//! The environment of the program, as needed for reading a configuration.

use std::io;

/// The environment of the program.
pub trait Surroundings {
    /// The environment variables, in order.
    fn environment(&self) -> Vec<(String, String)>;
    /// Reads a file.
    fn read_file(&self, path: &str) -> io::Result<Vec<u8>>;
    /// The address of the interface of the default route.
    fn default_host(&self) -> Result<String, String>;
}
