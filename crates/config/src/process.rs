//! The real surroundings: the environment of this process, and the files and routes of this machine.

use std::io;
use std::net::UdpSocket;

use super::surroundings::Surroundings;

/// The surroundings of the running process.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessSurroundings;

impl Surroundings for ProcessSurroundings {
    fn environment(&self) -> Vec<(String, String)> {
        let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        std::env::vars_os().map(|(name, value)| (lossy(name), lossy(value))).collect()
    }

    fn read_file(&self, path: &str) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    /// Returns the source address that the system would use for the default route. Connecting a datagram socket sends
    /// nothing, so the remote address need not exist. The addresses belong to networks reserved for documentation,
    /// which are reached through the default route.
    fn default_host(&self) -> Result<String, String> {
        let source = |local: &str, remote: &str| -> io::Result<String> {
            let socket = UdpSocket::bind(local)?;
            socket.connect(remote)?;
            Ok(socket.local_addr()?.ip().to_string())
        };
        source("0.0.0.0:0", "192.0.2.1:9")
            .or_else(|_| source("[::]:0", "[2001:db8::1]:9"))
            .map_err(|_| "default host not found".to_owned())
    }
}
