//! Tests with a local DNS server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use simple_dns::ResourceRecord;
use simple_dns::rdata::SRV;
use tokio::net::TcpListener;

use super::*;

/// How a test server responds to queries.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Behaviour {
    Answers,
    /// Over UDP, the server only reports that the response is truncated.
    Truncates,
    Fails,
    /// The server sends unrelated packets before the response.
    SendsUnrelatedPackets,
}

/// A server with records for `_x._tcp.example.com`, on the same port over UDP and TCP. The server answers while its
/// futures are polled.
struct Server {
    behaviour: Behaviour,
    udp: UdpSocket,
    tcp: TcpListener,
    asked_by_tcp: AtomicUsize,
}

impl Server {
    async fn new(behaviour: Behaviour) -> Self {
        loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()).await {
                return Self { behaviour, udp, tcp, asked_by_tcp: AtomicUsize::new(0) };
            }
        }
    }

    fn address(&self) -> SocketAddr {
        self.udp.local_addr().unwrap()
    }

    async fn serve_udp(&self) {
        loop {
            let mut buffer = [0; 512];
            let (count, peer) = self.udp.recv_from(&mut buffer).await.unwrap();
            let question = &buffer[..count];
            if self.behaviour == Behaviour::SendsUnrelatedPackets {
                let mut foreign = answer(question, self.behaviour);
                foreign[0] ^= 1;
                for packet in [&b"x"[..], &foreign, question] {
                    self.udp.send_to(packet, peer).await.unwrap();
                }
            }
            self.udp.send_to(&answer(question, self.behaviour), peer).await.unwrap();
        }
    }

    async fn serve_tcp(&self) {
        loop {
            let (mut stream, _) = self.tcp.accept().await.unwrap();
            self.asked_by_tcp.fetch_add(1, Ordering::Relaxed);
            let mut question = vec![0; usize::from(stream.read_u16().await.unwrap())];
            stream.read_exact(&mut question).await.unwrap();
            let answer = answer(&question, Behaviour::Answers);
            stream.write_u16(u16::try_from(answer.len()).unwrap()).await.unwrap();
            stream.write_all(&answer).await.unwrap();
        }
    }
}

fn answer(question: &[u8], behaviour: Behaviour) -> Vec<u8> {
    let mut packet = Packet::parse(question).unwrap().into_reply();
    let asked = packet.questions[0].clone();
    assert_eq!((asked.qtype, asked.qclass), (TYPE::SRV.into(), CLASS::IN.into()));
    match behaviour {
        Behaviour::Fails => *packet.rcode_mut() = RCODE::ServerFailure,
        Behaviour::Truncates => packet.set_flags(PacketFlag::TRUNCATION),
        Behaviour::Answers | Behaviour::SendsUnrelatedPackets
            if asked.qname.to_string() == "_x._tcp.example.com" =>
        {
            for (priority, target, port) in [(2, "late.example.com", 3), (1, "b.example.com", 2)] {
                let target = Name::new_unchecked(target);
                let srv = RData::SRV(SRV { priority, weight: 0, port, target });
                let owner = asked.qname.clone();
                packet.answers.push(ResourceRecord::new(owner, CLASS::IN, 60, srv));
            }
        }
        Behaviour::Answers | Behaviour::SendsUnrelatedPackets => {
            *packet.rcode_mut() = RCODE::NameError;
        }
    }
    packet.build_bytes_vec_compressed().unwrap()
}

/// Queries servers with these behaviours for the records of a name. Returns the result, and the number of TCP queries
/// to each server.
async fn ask(behaviours: &[Behaviour], name: &str) -> (Result<Vec<String>, String>, Vec<usize>) {
    let mut servers = Vec::new();
    let mut serving = tokio::task::JoinSet::new();
    for behaviour in behaviours {
        let server = Arc::new(Server::new(*behaviour).await);
        let (udp, tcp) = (Arc::clone(&server), Arc::clone(&server));
        serving.spawn(async move { udp.serve_udp().await });
        serving.spawn(async move { tcp.serve_tcp().await });
        servers.push(server);
    }
    let resolver = Resolver {
        servers: servers.iter().map(|server| server.address()).collect(),
        suffixes: vec!["org".to_owned(), "example.com".to_owned()],
        timeout: Duration::from_secs(5),
        rounds: 1,
    };
    let found = resolver.services(name).await.map_err(|error| error.to_string());
    let shown = |service: Service| format!("{}:{}", service.target, service.port);
    let found = found.map(|services| services.into_iter().map(shown).collect());
    let asked = servers.iter().map(|server| server.asked_by_tcp.load(Ordering::Relaxed)).collect();
    (found, asked)
}

#[tokio::test]
async fn srv_records_are_queried_over_tcp_or_from_another_server_if_necessary() {
    let found = Ok(vec!["b.example.com:2".to_owned(), "late.example.com:3".to_owned()]);
    for (behaviours, name, by_tcp) in [
        (&[Behaviour::Answers][..], "_x._tcp.example.com", vec![0]),
        (&[Behaviour::Answers], "_x._tcp.example.com.", vec![0]),
        (&[Behaviour::Answers], "_x._tcp", vec![0]),
        (&[Behaviour::SendsUnrelatedPackets], "_x._tcp.example.com", vec![0]),
        (&[Behaviour::Truncates], "_x._tcp.example.com", vec![1]),
        (&[Behaviour::Fails, Behaviour::Truncates], "_x._tcp.example.com", vec![0, 1]),
    ] {
        assert_eq!(ask(behaviours, name).await, (found.clone(), by_tcp), "{behaviours:?} {name}");
    }
}

#[tokio::test]
async fn missing_names_and_failed_lookups_return_errors() {
    let too_long = "x".repeat(64);
    for (behaviour, name, expected) in [
        (Behaviour::Answers, "_y._tcp.example.com", "no such host"),
        (Behaviour::Answers, too_long.as_str(), "no such host"),
        (Behaviour::Fails, "_x._tcp.example.com", "server misbehaving"),
    ] {
        assert_eq!(ask(&[behaviour], name).await.0, Err(expected.to_owned()));
    }
}

#[test]
fn the_servers_are_read_from_resolv_conf() {
    let text = "# comment\nnameserver 10.0.0.1\nnameserver fe80::1%eth0\nnameserver ::1\n\
                search a.com. b.com\noptions ndots:5 timeout:2 attempts:99 rotate\n";
    let resolver = Resolver::parse(text);
    assert_eq!(resolver.servers, ["10.0.0.1:53".parse().unwrap(), "[::1]:53".parse().unwrap()]);
    assert_eq!(resolver.suffixes, ["a.com", "b.com"]);
    assert_eq!((resolver.timeout, resolver.rounds), (Duration::from_secs(2), 5));
    assert_eq!(Resolver::parse("").servers, ["127.0.0.1:53".parse().unwrap()]);
}

proptest::proptest! {
    #[test]
    fn parsing_any_packet_does_not_panic(id: u16, bytes: Vec<u8>, mask in 0_usize..512) {
        read_answer(id, &bytes);
        // A valid response with one damaged byte exercises more of the parser than random bytes do.
        let mut packet = answer(&question(id, "_x._tcp.example.com").unwrap(), Behaviour::Answers);
        let place = mask % packet.len();
        packet[place] ^= bytes.first().copied().unwrap_or(0xff);
        read_answer(id, &packet);
        read_answer(id, &packet[..place]);
    }
}
