//! Members in separate network namespaces, connected by a bridge whose links can go down.
//!
//! A link that goes down loses packets but does not close connections. Clients use a Unix socket, so that they reach a
//! member even while its link is down.
//!
//! The namespaces disappear when the process that created them exits. Creating namespaces needs no privileges on the
//! machine.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::{Client, Kind, Options, Server, skipped};

/// Peer port of each member. The ports do not conflict, because every member has its own namespace.
const PEER_PORT: u16 = 2380;

/// A bridge, and the network namespaces of the members that it connects.
#[derive(Debug)]
pub struct Bridge {
    holder: Child,
    count: usize,
    peer_scheme: &'static str,
    sockets: TempDir,
}

impl Bridge {
    /// Creates a bridge for this number of members, with or without TLS between them. Returns `None` if the machine
    /// cannot create network namespaces.
    #[must_use]
    pub fn new(count: usize, is_secured: bool) -> Option<Self> {
        let mut script = "mount -t tmpfs none /run && mkdir -p /run/netns \
                          && ip link add bridge type bridge && ip link set bridge up"
            .to_owned();
        for member in 0..count {
            let address = address(member);
            script += &format!(
                " && ip netns add m{member} \
                 && ip link add v{member} type veth peer name eth0 netns m{member} \
                 && ip link set v{member} master bridge up \
                 && ip -netns m{member} link set lo up \
                 && ip -netns m{member} addr add {address}/24 dev eth0 \
                 && ip -netns m{member} link set eth0 up"
            );
        }
        script += " && echo ready && read _";
        let mut holder = Command::new("unshare")
            .args(["--user", "--map-root-user", "--net", "--mount", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut line = String::new();
        BufReader::new(holder.stdout.take()?).read_line(&mut line).ok()?;
        let peer_scheme = if is_secured { "https" } else { "http" };
        let bridge = Self { holder, count, peer_scheme, sockets: TempDir::new().unwrap() };
        if line.trim() != "ready" {
            skipped("tests with links that go down (no network namespaces can be created)");
            return None;
        }
        Some(bridge)
    }

    /// Returns a server that will run in the member's namespace. The server has not been launched yet.
    #[must_use]
    pub fn member(&self, member: usize, change: impl FnOnce(Options) -> Options) -> Server {
        let peer_url = |member| format!("{}://{}:{PEER_PORT}", self.peer_scheme, address(member));
        let all: Vec<String> =
            (0..self.count).map(|member| format!("m{member}={}", peer_url(member))).collect();
        let namespace = format!("--net=/run/netns/m{member}");
        let holder = self.holder.id().to_string();
        let words = [
            &["nsenter", "--preserve-credentials", "--user", "--mount", "--target", &holder][..],
            &["nsenter", &namespace],
        ]
        .concat();
        let url = peer_url(member);
        let options = Options::new(Kind::Quorate)
            .unguarded()
            .no_addresses()
            .wrapper(&words)
            .flag(format!("--name=m{member}"))
            .flag(format!(
                "--data-dir={}",
                self.sockets.path().join(format!("d{member}")).display()
            ))
            .flag(format!("--listen-client-urls={}", self.client_url(member)))
            .flag(format!("--advertise-client-urls=http://{}:2379", address(member)))
            .flag(format!("--listen-peer-urls={url}"))
            .flag(format!("--initial-advertise-peer-urls={url}"))
            .flag(format!("--initial-cluster={}", all.join(",")))
            .flag(format!("--peer-auto-tls={}", self.peer_scheme == "https"));
        change(options).prepare()
    }

    /// Returns a client of a member. The client has its own connection.
    #[must_use]
    pub fn client(&self, member: usize) -> Client {
        Client::at(&self.client_url(member))
    }

    /// Brings a member's link down or up.
    pub fn set_link(&self, member: usize, is_up: bool) {
        let state = if is_up { "up" } else { "down" };
        let holder = self.holder.id().to_string();
        let status = Command::new("nsenter")
            .args(["--preserve-credentials", "--user", "--net", "--target", &holder])
            .args(["ip", "link", "set", &format!("v{member}"), state])
            .status();
        assert!(status.unwrap().success(), "cannot set the link of m{member} to {state}");
    }

    fn client_url(&self, member: usize) -> String {
        format!("unix://{}", self.sockets.path().join(format!("m{member}")).display())
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        // The process may already have exited.
        drop(self.holder.kill());
        drop(self.holder.wait());
    }
}

fn address(member: usize) -> String {
    format!("10.0.0.{}", 10 + member)
}
