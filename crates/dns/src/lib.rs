//! Queries SRV records from the system's DNS servers, because the C library does not look up this kind of record.
//!
//! The servers and options are read from `/etc/resolv.conf`. A query is sent over UDP first, and over TCP if the
//! response does not fit. If a server fails or does not answer, the next one is asked. The options set the timeout of
//! a query. No received data causes a panic.
//!
//! # Not here
//!
//! The queried names, and the use of the results: a new member looks up its cluster (`server::bootstrap`), and the
//! client tool (`ctl`), the TCP gateway and the gRPC proxy (`tcp_gateway::discovery`) look up endpoints.

use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, RCODE, TYPE};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

const CONFIGURATION: &str = "/etc/resolv.conf";
/// Maximum number of servers, as in the C library.
const SERVERS_MAX: usize = 3;
/// Maximum size of a response over UDP. Servers send smaller responses by default.
const DATAGRAM_BYTES_MAX: usize = 4096;

/// The address of a service, from an SRV record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Service {
    /// The priority. Services with the lowest value are preferred.
    pub priority: u16,
    /// The relative share of the load among services with equal priority.
    pub weight: u16,
    /// The host, without a trailing dot.
    pub target: String,
    /// The port.
    pub port: u16,
}

/// Returns the error for a name without records.
pub fn no_such_host() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "no such host")
}

/// Queries these DNS servers with the configured search domains, timeout and number of rounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolver {
    servers: Vec<SocketAddr>,
    /// Search domains, which are appended to short names.
    suffixes: Vec<String>,
    timeout: Duration,
    rounds: usize,
}

impl Resolver {
    /// Creates a resolver for the servers in the system configuration, or for a server on this host if none is
    /// configured.
    pub fn of_system() -> Self {
        // A missing file is treated like an empty file, as in the C library.
        Self::parse(&std::fs::read_to_string(CONFIGURATION).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let mut resolver = Self {
            servers: Vec::new(),
            suffixes: Vec::new(),
            timeout: Duration::from_secs(5),
            rounds: 2,
        };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let address = words.next().and_then(|word| word.parse::<IpAddr>().ok());
                    resolver.servers.extend(address.map(|ip| SocketAddr::new(ip, 53)));
                }
                Some("search" | "domain") => {
                    let suffixes = words.map(|word| word.trim_matches('.').to_owned());
                    resolver.suffixes = suffixes.filter(|suffix| !suffix.is_empty()).collect();
                }
                Some("options") => words.for_each(|option| resolver.take_option(option)),
                _ => {}
            }
        }
        if resolver.servers.is_empty() {
            resolver.servers.push(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 53));
        }
        resolver.servers.truncate(SERVERS_MAX);
        resolver
    }

    fn take_option(&mut self, option: &str) {
        let Some((name, value)) = option.split_once(':') else { return };
        let Ok(value) = value.parse::<u64>() else { return };
        match name {
            "timeout" => self.timeout = Duration::from_secs(value.clamp(1, 30)),
            "attempts" => self.rounds = usize::try_from(value.clamp(1, 5)).unwrap_or(1),
            _ => {}
        }
    }

    /// Creates a resolver that asks each of these servers once.
    pub fn at(servers: Vec<SocketAddr>) -> Self {
        Self { servers, suffixes: Vec::new(), timeout: Duration::from_secs(5), rounds: 1 }
    }

    /// Returns the SRV records of a name, at least one, in order of preference.
    ///
    /// # Errors
    ///
    /// No server has SRV records for the name, or no server answers.
    pub async fn services(&self, name: &str) -> io::Result<Vec<Service>> {
        let name = name.trim_end_matches('.');
        let mut outcome = self.services_of_full(name).await;
        for suffix in &self.suffixes {
            match &outcome {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                _ => break,
            }
            let longer = self.services_of_full(&format!("{name}.{suffix}")).await;
            outcome = longer.or(outcome);
        }
        outcome
    }

    async fn services_of_full(&self, name: &str) -> io::Result<Vec<Service>> {
        let mut failure = no_such_host();
        for _ in 0..self.rounds {
            for server in &self.servers {
                match self.ask(*server, name).await {
                    Ok(mut services) if !services.is_empty() => {
                        services.sort_unstable();
                        return Ok(services);
                    }
                    Ok(_) => return Err(no_such_host()),
                    Err(error) => failure = error,
                }
            }
        }
        Err(failure)
    }

    /// Returns the records from one server, or an empty list if the server reports that the name has no records.
    async fn ask(&self, server: SocketAddr, name: &str) -> io::Result<Vec<Service>> {
        let id = RandomState::new().build_hasher().finish().to_le_bytes();
        let id = u16::from_le_bytes([id[0], id[1]]);
        let question = question(id, name)?;
        if let Some(services) = within(self.timeout, by_udp(server, id, &question)).await? {
            return Ok(services);
        }
        within(self.timeout, by_tcp(server, id, &question)).await
    }
}

async fn within<T>(timeout: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let timed_out = || io::Error::new(io::ErrorKind::TimedOut, "i/o timeout");
    tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| Err(timed_out()))
}

fn question(id: u16, name: &str) -> io::Result<Vec<u8>> {
    let invalid = |_| io::Error::new(io::ErrorKind::NotFound, "no such host");
    let name = Name::new(name).map_err(invalid)?;
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    packet.questions.push(Question::new(name, TYPE::SRV.into(), CLASS::IN.into(), false));
    packet.build_bytes_vec().map_err(invalid)
}

/// Queries a server over UDP. Returns `None` if the response does not fit into a datagram.
async fn by_udp(server: SocketAddr, id: u16, question: &[u8]) -> io::Result<Option<Vec<Service>>> {
    let any: SocketAddr =
        if server.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(question).await?;
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let count = socket.recv(&mut buffer).await?;
        match read_answer(id, &buffer[..count]) {
            // Other packets are ignored, and the wait for the response continues.
            Answer::Foreign => {}
            Answer::Truncated => return Ok(None),
            Answer::Failure(error) => return Err(error),
            Answer::Services(services) => return Ok(Some(services)),
        }
    }
}

async fn by_tcp(server: SocketAddr, id: u16, question: &[u8]) -> io::Result<Vec<Service>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.len())
        .expect("the length of a query with one question fits in 16 bits");
    stream.write_all(&[&length.to_be_bytes(), question].concat()).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    match read_answer(id, &answer) {
        Answer::Services(services) => Ok(services),
        Answer::Failure(error) => Err(error),
        Answer::Foreign | Answer::Truncated => Err(misbehaving()),
    }
}

fn misbehaving() -> io::Error {
    io::Error::other("server misbehaving")
}

/// The classification of a received packet.
#[derive(Debug)]
enum Answer {
    /// The packet is not a response to the query.
    Foreign,
    /// The response is truncated.
    Truncated,
    Failure(io::Error),
    Services(Vec<Service>),
}

fn read_answer(id: u16, bytes: &[u8]) -> Answer {
    // A truncated packet may end anywhere, so only its header is examined.
    let Ok(head) = Packet::parse(bytes) else {
        return match bytes {
            [high, low, flags, ..] if [*high, *low] == id.to_be_bytes() && flags & 0x82 == 0x82 => {
                Answer::Truncated
            }
            _ => Answer::Foreign,
        };
    };
    if head.id() != id || !head.has_flags(PacketFlag::RESPONSE) {
        return Answer::Foreign;
    }
    if head.has_flags(PacketFlag::TRUNCATION) {
        return Answer::Truncated;
    }
    match head.rcode() {
        RCODE::NoError => {}
        RCODE::NameError => return Answer::Services(Vec::new()),
        _ => return Answer::Failure(misbehaving()),
    }
    let services = head.answers.iter().filter_map(|record| match &record.rdata {
        RData::SRV(srv) => Some(Service {
            priority: srv.priority,
            weight: srv.weight,
            target: srv.target.to_string().trim_end_matches('.').to_owned(),
            port: srv.port,
        }),
        _ => None,
    });
    // The root domain as a target means that the service does not exist.
    let is_host = |service: &Service| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        !service.target.is_empty() && service.target.bytes().all(plain)
    };
    Answer::Services(services.filter(is_host).collect())
}

#[cfg(test)]
mod tests;
