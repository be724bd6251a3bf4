//! Connects to members.

use std::io;
use std::time::Duration;

use quorate_dns::Service;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Timeout for connecting to a member. (etcd's gateway has no timeout of its own and relies on the operating system's.)
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Returns the host and port to connect to.
pub(crate) fn address(service: &Service) -> String {
    match service.target.contains(':') {
        true => format!("[{}]:{}", service.target, service.port),
        false => format!("{}:{}", service.target, service.port),
    }
}

/// Connects to a host and port.
pub(crate) async fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = match timeout(CONNECT_TIME_MAX, TcpStream::connect(address)).await {
        Ok(connected) => connected?,
        Err(_) => return Err(io::ErrorKind::TimedOut.into()),
    };
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_addresses_are_formatted_for_dialing() {
        let of = |target: &str, port| Service {
            priority: 0,
            weight: 0,
            target: target.to_owned(),
            port,
        };
        assert_eq!(address(&of("a.example", 1)), "a.example:1");
        assert_eq!(address(&of("::1", 2)), "[::1]:2");
    }
}
