//! Runs the tool with a local DNS server whose records point to listeners that record incoming connections.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::thread;

use simple_dns::rdata::{RData, SRV};
use simple_dns::{CLASS, Name, Packet, RCODE, ResourceRecord};

use super::*;
use crate::failure::exit;
use crate::runs::run_with;

/// First bytes from an HTTP/2 client without TLS.
const PREFACE: &[u8] = b"PRI * HTTP/2.0";
/// Record type of a TLS handshake, which is the first byte that a TLS client sends.
const HANDSHAKE: u8 = 22;

/// Serves SRV records for these names, each with a port on this host, until the test process ends.
fn serve(records: &[(&str, u16)]) -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    let records: Vec<(String, u16)> =
        records.iter().map(|(name, port)| ((*name).to_owned(), *port)).collect();
    thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((count, peer)) = socket.recv_from(&mut question) {
            socket.send_to(&answer(&question[..count], &records), peer).unwrap();
        }
    });
    address
}

fn at(server: SocketAddr) -> Servers {
    Box::new(move || Resolver::at(vec![server]))
}

fn answer(question: &[u8], records: &[(String, u16)]) -> Vec<u8> {
    let mut packet = Packet::parse(question).unwrap().into_reply();
    let owner = packet.questions[0].qname.clone();
    let (priority, weight) = (0, 0);
    for (_, port) in records.iter().filter(|(name, _)| *name == owner.to_string()) {
        let target = Name::new_unchecked("localhost");
        let srv = RData::SRV(SRV { priority, weight, port: *port, target });
        packet.answers.push(ResourceRecord::new(owner.clone(), CLASS::IN, 60, srv));
    }
    if packet.answers.is_empty() {
        *packet.rcode_mut() = RCODE::NameError;
    }
    packet.build_bytes_vec_compressed().unwrap()
}

/// Starts a member that only records the first bytes from its first client. Also returns the member's port.
fn member() -> (u16, thread::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let first = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = vec![0; 4096];
        let count = stream.read(&mut bytes).unwrap();
        bytes.truncate(count);
        bytes
    });
    (port, first)
}

/// Starts a command in the background. The test does not wait for the command's result.
fn begin(words: &[&str], env: &'static [(&'static str, &'static str)], server: SocketAddr) {
    let get = ["--command-timeout=60s", "--dial-timeout=60s", "get", "k"];
    let words: Vec<String> = [&get, words].concat().into_iter().map(str::to_owned).collect();
    thread::spawn(move || {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        run_with(&words, env, at(server))
    });
}

/// Runs a command with a timeout that is too short for a response.
fn run_briefly(words: &[&str], records: &[(&str, u16)]) -> (u8, String) {
    let get = ["--command-timeout=1ms", "--endpoints=127.0.0.1:1", "get", "k"];
    run_with(&[&get, words].concat(), &[], at(serve(records)))
}

fn contains(bytes: &[u8], name: &str) -> bool {
    bytes.windows(name.len()).any(|window| window == name.as_bytes())
}

#[test]
fn endpoints_are_taken_from_srv_records() {
    let (plain, blue) = ("_etcd-client._tcp.example.com", "_etcd-client-blue._tcp.example.com");
    for (service, words, env) in [
        (plain, &["--discovery-srv=example.com"][..], &[][..]),
        (plain, &["-d", "example.com"], &[]),
        (blue, &["--discovery-srv=example.com", "--discovery-srv-name=blue"], &[]),
        (
            blue,
            &[],
            &[
                ("ETCDCTL_DISCOVERY_SRV", "example.com"),
                ("ETCDCTL_DISCOVERY_SRV_NAME", "blue"),
                // A wrong endpoint that must not be used.
                ("ETCDCTL_ENDPOINTS", "127.0.0.1:1"),
            ],
        ),
    ] {
        let (port, first) = member();
        begin(words, env, serve(&[(service, port)]));
        assert!(first.join().unwrap().starts_with(PREFACE), "{words:?} {env:?}");
    }
}

#[test]
fn the_domain_is_the_tls_server_name_if_dns_is_not_trusted() {
    let (port, first) = member();
    let records =
        [("_etcd-client._tcp.example.com", 1), ("_etcd-client-ssl._tcp.example.com", port)];
    begin(&["--discovery-srv=example.com", "--insecure-discovery=false"], &[], serve(&records));
    let hello = first.join().unwrap();
    assert_eq!(hello.first(), Some(&HANDSHAKE));
    assert!(contains(&hello, "example.com") && !contains(&hello, "localhost"), "{hello:?}");
}

#[test]
fn the_host_name_is_the_tls_server_name_if_dns_is_trusted() {
    let (port, first) = member();
    begin(&["-d", "example.com"], &[], serve(&[("_etcd-client-ssl._tcp.example.com", port)]));
    let hello = first.join().unwrap();
    assert!(contains(&hello, "localhost") && !contains(&hello, "example.com"), "{hello:?}");
}

#[test]
fn a_domain_without_records_is_an_error() {
    let (code, printed) = run_briefly(&["-d", "example.com"], &[]);
    assert_eq!(code, exit::ERROR);
    assert_eq!(
        printed,
        "Error: dns lookup errors: lookup _etcd-client-ssl._tcp.example.com: no such host and \
         lookup _etcd-client._tcp.example.com: no such host\n"
    );
}

#[test]
fn discovered_endpoints_without_tls_are_ignored_if_dns_is_not_trusted() {
    let words = ["-d", "example.com", "--insecure-discovery=false"];
    let (code, printed) = run_briefly(&words, &[("_etcd-client._tcp.example.com", 2)]);
    assert_eq!(code, exit::ERROR);
    let ignored = "ignoring discovered insecure endpoint \"http://localhost:2\"\n";
    assert!(printed.starts_with(ignored), "{printed}");
    assert_eq!(printed.matches("ignoring").count(), 1, "{printed}");
    let (port, first) = member();
    let endpoints = format!("--endpoints=127.0.0.1:{port}");
    let words = [&words[..], &[&endpoints]].concat();
    begin(&words, &[], serve(&[("_etcd-client._tcp.example.com", 2)]));
    assert!(first.join().unwrap().starts_with(PREFACE));
}

#[test]
fn dns_is_not_queried_without_discovery() {
    let servers: Servers = Box::new(|| panic!("DNS must not be queried"));
    let words = ["--endpoints=127.0.0.1:1", "--command-timeout=1ms", "get", "k"];
    let (code, _) = run_with(&words, &[("ETCDCTL_DISCOVERY_SRV", "")], servers);
    assert_eq!(code, exit::ERROR);
}
