//! Runs loads against real etcd with authentication. `ETCD_BIN_DIR` is the directory with etcd's programs.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking")]

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

struct Server {
    process: Child,
    endpoint: String,
    bin: PathBuf,
    _dir: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error is ignored, because the process may have exited already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

impl Server {
    fn start() -> Option<Self> {
        let Some(bin) = std::env::var_os("ETCD_BIN_DIR").map(PathBuf::from) else {
            let required = std::env::var("QUORATE_REQUIRE").unwrap_or_default();
            assert!(!required.contains("etcd"), "ETCD_BIN_DIR is required but not set");
            println!("skipped: ETCD_BIN_DIR (the folder with etcd and etcdctl) is not set");
            return None;
        };
        let (endpoint, peer) = (free_address(), format!("http://{}", free_address()));
        let client = format!("http://{endpoint}");
        let dir = tempfile::tempdir().unwrap();
        let process = Command::new(bin.join("etcd"))
            .arg("--data-dir")
            .arg(dir.path().join("data"))
            .args(["--bcrypt-cost=4", "--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client, "--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Some(Self { process, endpoint, bin, _dir: dir })
    }

    fn ctl(&self, line: &str) -> bool {
        let mut command = Command::new(self.bin.join("etcdctl"));
        command.env_clear().args(["--endpoints", &self.endpoint]).args(line.split(' '));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.status().unwrap().success()
    }

    /// Runs a load, and returns whether every operation succeeded.
    fn bench(&self, line: &str) -> bool {
        let words =
            format!("bench --endpoints {} --json --total 50 --clients 5 {line}", self.endpoint);
        let code = quorate_bench::main(words.split(' ').map(OsString::from));
        format!("{code:?}") == format!("{:?}", ExitCode::SUCCESS)
    }
}

#[test]
fn loads_log_in_if_authentication_is_enabled() {
    let Some(server) = Server::start() else { return };
    let deadline = Instant::now() + Duration::from_secs(30);
    while !server.ctl("user add root:r00t") {
        assert!(Instant::now() < deadline, "the server did not start in time");
    }
    // With authentication disabled, the login is skipped.
    assert!(server.bench("--user root:r00t put"));
    assert!(server.ctl("auth enable"));
    for load in ["put", "range", "txn", "list --walk --limit 10", "lease-grant", "lease-keepalive"]
    {
        assert!(server.bench(&format!("--user root:r00t {load}")), "{load}");
        assert!(server.bench(&format!("--user root --password r00t {load}")), "{load}");
        // etcd 3.5 does not check permissions for lease grants.
        assert!(load.starts_with("lease") || !server.bench(load), "{load}");
    }
    assert!(server.bench("--user root:r00t watch --watchers 10 --streams 2"));
    assert!(server.bench("--user root:r00t --keys 100 kubernetes --watchers 2"));
    for line in ["--user root:wrong put", "--user root put"] {
        assert!(!server.bench(line), "{line}");
    }
}
