//! Where a server listens.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::str::FromStr;

use crate::error::BenchError;

/// A `host:port`, which may be written as an `http://` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    authority: String,
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let authority = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        if authority.contains("://") || !authority.contains(':') {
            return Err("an endpoint is host:port or http://host:port".to_owned());
        }
        Ok(Self { authority: authority.to_owned() })
    }
}

impl Endpoint {
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    /// Opens a connection on the runtime that will drive it.
    pub(crate) async fn dial(&self) -> io::Result<tokio::net::TcpStream> {
        let socket = tokio::net::TcpStream::connect(&self.authority).await?;
        socket.set_nodelay(true)?;
        Ok(socket)
    }

    /// Opens a connection that an asynchronous runtime can take over.
    pub(crate) fn connect(&self) -> Result<TcpStream, BenchError> {
        let connect = || {
            let addresses: Vec<_> = self.authority.to_socket_addrs()?.collect();
            let socket = TcpStream::connect(&addresses[..])?;
            socket.set_nodelay(true)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        connect().map_err(|source| BenchError::Connect { endpoint: self.authority.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_plain_addresses_only() {
        for (text, authority) in [("[::1]:2379", "[::1]:2379"), ("http://a:1/", "a:1")] {
            assert_eq!(text.parse::<Endpoint>().unwrap().authority(), authority);
        }
        assert!("https://a:1".parse::<Endpoint>().is_err());
        assert!("localhost".parse::<Endpoint>().is_err());
    }
}
