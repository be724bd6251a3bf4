//! The manifest for a Kubernetes control plane. The test runs the manifest's command unchanged, except for paths and
//! ports, probes the member as the kubelet does, and connects as the API server does, with a certificate.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command};

use quorate_tests::pki::{Authority, Leaf};
use quorate_tests::{Kind, Options, eventually, get};

use crate::container;

/// The arguments that kubeadm 1.34 passes to a first member (`getEtcdCommand`), with their values. `None` means that
/// the value is a path, a name or a URL. One additional flag refuses client certificates on the peer port, because they
/// are signed by the same CA.
const FLAGS: [(&str, Option<&str>); 20] = [
    ("advertise-client-urls", None),
    ("cert-file", None),
    ("client-cert-auth", Some("true")),
    ("data-dir", None),
    ("feature-gates", Some("InitialCorruptCheck=true")),
    ("initial-advertise-peer-urls", None),
    ("initial-cluster", None),
    ("key-file", None),
    ("listen-client-urls", None),
    ("listen-metrics-urls", None),
    ("listen-peer-urls", None),
    ("name", None),
    ("peer-cert-allowed-hostname", Some("localhost")),
    ("peer-cert-file", None),
    ("peer-client-cert-auth", Some("true")),
    ("peer-key-file", None),
    ("peer-trusted-ca-file", None),
    ("snapshot-count", Some("10000")),
    ("trusted-ca-file", None),
    ("watch-progress-notify-interval", Some("5s")),
];

/// The part of the manifest that describes the process.
struct Manifest {
    command: Vec<String>,
    /// Paths of the probes.
    paths: BTreeSet<String>,
    port: u16,
}

impl Manifest {
    fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let text = std::fs::read_to_string(root.join("packaging/kubernetes/etcd.yaml")).unwrap();
        let lines = text.lines().skip_while(|line| line.trim() != "- command:").skip(1);
        let words = lines.map_while(|line| line.strip_prefix("    - "));
        let value = |key: &str| {
            let lines = text.lines().filter_map(|line| line.trim().strip_prefix(key));
            lines.map(str::to_owned).collect::<BTreeSet<_>>()
        };
        assert_eq!(value("port: "), BTreeSet::from(["probe-port".to_owned()]));
        assert_eq!(value("scheme: "), BTreeSet::from(["HTTP".to_owned()]));
        let ports = value("- containerPort: ");
        Self {
            command: words.map(str::to_owned).collect(),
            paths: value("path: /").into_iter().filter(|path| path.ends_with('z')).collect(),
            port: ports.first().unwrap().parse().unwrap(),
        }
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process may already have exited.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn the_manifest_matches_kubeadms_own_manifest() {
    let manifest = Manifest::read();
    let (program, flags) = manifest.command.split_first().unwrap();
    assert_eq!(program, "etcd");
    let said = flags.iter().map(|flag| flag.strip_prefix("--").unwrap().split_once('=').unwrap());
    let said: Vec<(&str, &str)> = said.collect();
    let names: Vec<&str> = said.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, FLAGS.map(|(name, _)| name));
    for ((name, value), (_, expected)) in said.into_iter().zip(FLAGS) {
        assert_eq!(value, expected.unwrap_or(value), "{name}");
    }
    assert_eq!(manifest.paths, ["livez", "readyz"].map(str::to_owned).into());
}

async fn a_member_runs_with_the_manifest(kind: Kind) {
    let manifest = Manifest::read();
    let ports = Options::new(kind).unguarded().prepare();
    let metrics = Options::new(kind).unguarded().prepare();
    let scratch = ports.scratch();
    let keys = scratch.join("pki");
    std::fs::create_dir(&keys).unwrap();
    let authority = Authority::new();
    std::fs::write(keys.join("ca.crt"), authority.pem()).unwrap();
    // The certificates are like kubeadm's: the server's and the peer's certificates contain the node's name and both
    // addresses, and the client's certificate contains no address.
    for (name, hosts) in [
        ("server", &["localhost", "control-plane", "127.0.0.1", "127.0.0.2"][..]),
        ("peer", &["localhost", "control-plane", "127.0.0.1", "127.0.0.2"][..]),
        ("apiserver-etcd-client", &[][..]),
    ] {
        let mut leaf = Leaf::new(name);
        leaf.hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        let signed = authority.sign(&leaf);
        std::fs::write(keys.join(format!("{name}.crt")), signed.cert).unwrap();
        std::fs::write(keys.join(format!("{name}.key")), signed.key).unwrap();
    }

    // Paths and ports are replaced with paths and ports of this machine. The node has an address of its own in addition
    // to the loopback address.
    let (data, keys) = (scratch.join("data"), keys.display().to_string());
    assert_eq!(manifest.port, 2381);
    let substituted = manifest.command.iter().map(|word| {
        word.replace("/etc/kubernetes/pki/etcd", &keys)
            .replace("/var/lib/etcd", data.to_str().unwrap())
            .replace("192.0.2.10", "127.0.0.2")
            .replace(":2379", &format!(":{}", ports.port()))
            .replace(":2380", &format!(":{}", ports.peer_port()))
            .replace(":2381", &format!(":{}", metrics.port()))
    });
    let words: Vec<String> = substituted.collect();
    // The image contains a program with this name, and sets these variables.
    let program = scratch.join(&words[0]);
    symlink(kind.program(), &program).unwrap();
    let log = scratch.join("member.log");
    let mut command = Command::new(program);
    command
        .args(&words[1..])
        .envs(container::environment())
        .stderr(std::fs::File::create(&log).unwrap());
    let mut member = Running(command.spawn().unwrap());

    // The kubelet repeats the startup probe until it succeeds. After that, no probe may fail.
    let probe = |path: &str| get(metrics.port(), &format!("/{path}"));
    eventually("the member is ready", async || {
        let ended = member.0.try_wait().unwrap();
        assert!(ended.is_none(), "{}", std::fs::read_to_string(&log).unwrap());
        std::net::TcpStream::connect(("127.0.0.1", metrics.port())).ok()?;
        (probe("readyz").status == 200).then_some(())
    })
    .await;
    for path in &manifest.paths {
        assert_eq!(probe(path).status, 200, "{path}");
    }

    // Connect to both addresses, with the API server's certificate and without one.
    for address in ["127.0.0.1", "127.0.0.2"] {
        let health = |more: &[String]| {
            let mut tool = Command::new(kind.program());
            tool.args(["ctl", "endpoint", "health", &format!("--cacert={keys}/ca.crt")]);
            tool.arg(format!("--endpoints=https://{address}:{}", ports.port()));
            tool.args(more).output().unwrap()
        };
        let own = format!("{keys}/apiserver-etcd-client");
        let said = health(&[format!("--cert={own}.crt"), format!("--key={own}.key")]);
        assert!(said.status.success(), "{said:?}");
        assert!(!health(&[]).status.success(), "a client without a certificate was accepted");
    }
}

#[test]
fn a_member_runs_with_kubeadms_manifest() {
    quorate_tests::run(Kind::Quorate, a_member_runs_with_the_manifest);
}
