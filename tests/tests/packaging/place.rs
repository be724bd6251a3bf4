//! A throw-away root: dpkg's records, what is installed, and stand-ins for programs that would touch the machine.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use quorate_tests::{Kind, Options, Server, skipped};
use tempfile::TempDir;

/// The root, and ports for one member in it.
pub(crate) struct Place {
    home: TempDir,
    ports: Server,
}

impl Place {
    /// A root with nothing in it; none where dpkg or what its scripts call is missing.
    pub(crate) fn new() -> Option<Self> {
        for program in ["dpkg", "dpkg-deb", "systemd-sysusers"] {
            if Command::new(program).arg("--version").output().is_err() {
                skipped(&format!("no {program} here: packages are not installed"));
                return None;
            }
        }
        let home = TempDir::new().unwrap();
        let root = home.path().join("root");
        for folder in ["info", "updates", "triggers"] {
            std::fs::create_dir_all(root.join("var/lib/dpkg").join(folder)).unwrap();
        }
        std::fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
        std::fs::create_dir(home.path().join("bin")).unwrap();
        let ports = Options::new(Kind::Quorate).unguarded().prepare();
        let place = Self { home, ports };
        if !is_root() {
            // Nobody can give files away but root.
            place.stand_in("chown", "exit 0");
        }
        Some(place)
    }

    /// Puts a program before those of the machine.
    pub(crate) fn stand_in(&self, name: &str, script: &str) {
        let path = self.home.path().join("bin").join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// The folder that all of it lies in.
    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// Where `/` is.
    pub(crate) fn root(&self) -> PathBuf {
        self.home.path().join("root")
    }

    /// A path of the root, said as it is within.
    pub(crate) fn path(&self, absolute: &str) -> PathBuf {
        self.root().join(absolute.trim_start_matches('/'))
    }

    /// The programs that are found: stand-ins, those installed, and the machine's.
    pub(crate) fn search_path(&self) -> String {
        let machine = std::env::var("PATH").unwrap();
        let (bin, root) = (self.home.path().join("bin"), self.root());
        let (bin, root) = (bin.display(), root.display());
        format!("{bin}:{root}/usr/bin:{root}/usr/sbin:{machine}:/usr/sbin:/sbin")
    }

    /// Runs dpkg on the root, with the packages' scripts.
    pub(crate) fn dpkg(&self, args: &[&str]) -> Output {
        let mut command = Command::new("dpkg");
        command.env("PATH", self.search_path()).env("LC_ALL", "C");
        command.arg(format!("--root={}", self.root().display()));
        command.arg(format!("--log={}", self.home.path().join("dpkg.log").display()));
        // The root has no C library, and who tests may be anybody.
        command.args(["--force-script-chrootless", "--force-not-root", "--force-depends"]);
        let done = command.arg("--force-confold").args(args).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "dpkg {args:?}: {said}");
        done
    }

    /// Installs a package's file.
    pub(crate) fn install(&self, package: &Path) {
        self.dpkg(&["--install", package.to_str().unwrap()]);
    }

    /// The settings that an operator makes: a member that stands alone, on ports of its own.
    pub(crate) fn settings(&self) -> String {
        let (client, peer) = (self.url(), self.ports.peer_url());
        format!(
            "ETCD_NAME=host\nETCD_LISTEN_CLIENT_URLS={client}\nETCD_ADVERTISE_CLIENT_URLS=\"{client}\"\n\
             ETCD_LISTEN_PEER_URLS={peer}\nETCD_INITIAL_ADVERTISE_PEER_URLS={peer}\n\
             ETCD_INITIAL_CLUSTER='host={peer}'\n"
        )
    }

    /// Where the member is asked.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.port())
    }

    /// Asks the member by the tool that is installed, and returns what it prints.
    pub(crate) fn ctl(&self, args: &[&str]) -> String {
        let mut command = Command::new(self.path("/usr/bin/quorate"));
        command.arg("ctl").args(["--endpoints", &self.url()]).args(args);
        let said = command.output().unwrap();
        assert!(said.status.success(), "{args:?}: {}", String::from_utf8_lossy(&said.stderr));
        String::from_utf8(said.stdout).unwrap()
    }

    /// The version of the member's cluster, once it is settled.
    pub(crate) fn cluster_version(&self) -> String {
        let said = quorate_tests::get(self.ports.port(), "/version").text();
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        said["etcdcluster"].as_str().unwrap().to_owned()
    }
}

/// Whether the tests are run by root.
pub(crate) fn is_root() -> bool {
    let said = Command::new("id").arg("-u").output().unwrap();
    said.stdout == b"0\n"
}
