//! The interface to the environment of the program, as needed for reading a configuration.

use std::io;

/// The environment of the program.
pub trait Surroundings {
    /// Returns the environment variables, in order.
    fn environment(&self) -> Vec<(String, String)>;
    /// Returns the contents of a file.
    fn read_file(&self, path: &str) -> io::Result<Vec<u8>>;
    /// Returns the address of the interface that has the default route.
    fn default_host(&self) -> Result<String, String>;
}
