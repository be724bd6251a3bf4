//! A throw-away root with dpkg's database, the installed files, and stand-ins for programs that would change the
//! machine.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use quorate_tests::{Kind, Options, Server, skipped};
use tempfile::TempDir;

/// The root, and the ports of one member in it.
pub(crate) struct Place {
    home: TempDir,
    ports: Server,
}

impl Place {
    /// Creates an empty root. Returns `None` if dpkg, or a program that package scripts call, is missing.
    pub(crate) fn new() -> Option<Self> {
        for program in ["dpkg", "dpkg-deb", "systemd-sysusers"] {
            if Command::new(program).arg("--version").output().is_err() {
                skipped(&format!("tests of the package installation ({program} is not installed)"));
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
            // Only root can change the owner of files.
            place.replace_program("chown", "exit 0");
        }
        Some(place)
    }

    /// Installs a stand-in that takes precedence over the machine's program.
    pub(crate) fn replace_program(&self, name: &str, script: &str) {
        let path = self.home.path().join("bin").join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// Returns the folder that contains the root folder and the stand-ins.
    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// Returns the path of the root folder.
    pub(crate) fn root(&self) -> PathBuf {
        self.home.path().join("root")
    }

    /// Converts an absolute path within the root to a path on the machine.
    pub(crate) fn path(&self, absolute: &str) -> PathBuf {
        self.root().join(absolute.trim_start_matches('/'))
    }

    /// Returns the search path: stand-ins, installed programs, and the machine's programs.
    pub(crate) fn search_path(&self) -> String {
        let machine = std::env::var("PATH").unwrap();
        let (bin, root) = (self.home.path().join("bin"), self.root());
        let (bin, root) = (bin.display(), root.display());
        format!("{bin}:{root}/usr/bin:{root}/usr/sbin:{machine}:/usr/sbin:/sbin")
    }

    /// Runs dpkg on the root, including the packages' scripts.
    pub(crate) fn dpkg(&self, args: &[&str]) -> Output {
        let mut command = Command::new("dpkg");
        command.env("PATH", self.search_path()).env("LC_ALL", "C");
        command.arg(format!("--root={}", self.root().display()));
        command.arg(format!("--log={}", self.home.path().join("dpkg.log").display()));
        // The root contains no C library, and the tests may run as any user.
        command.args(["--force-script-chrootless", "--force-not-root", "--force-depends"]);
        let done = command.arg("--force-confold").args(args).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "dpkg {args:?}: {said}");
        done
    }

    /// Installs a package file.
    pub(crate) fn install(&self, package: &Path) {
        self.dpkg(&["--install", package.to_str().unwrap()]);
    }

    /// Returns an operator's settings for a single member with its own ports.
    pub(crate) fn settings(&self) -> String {
        let (client, peer) = (self.url(), self.ports.peer_url());
        format!(
            "ETCD_NAME=host\nETCD_LISTEN_CLIENT_URLS={client}\nETCD_ADVERTISE_CLIENT_URLS=\"{client}\"\n\
             ETCD_LISTEN_PEER_URLS={peer}\nETCD_INITIAL_ADVERTISE_PEER_URLS={peer}\n\
             ETCD_INITIAL_CLUSTER='host={peer}'\n"
        )
    }

    /// Returns the client URL of the member.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.port())
    }

    /// Runs the installed tool against the member. Returns its output.
    pub(crate) fn ctl(&self, args: &[&str]) -> String {
        let mut command = Command::new(self.path("/usr/bin/quorate"));
        command.arg("ctl").args(["--endpoints", &self.url()]).args(args);
        let said = command.output().unwrap();
        assert!(said.status.success(), "{args:?}: {}", String::from_utf8_lossy(&said.stderr));
        String::from_utf8(said.stdout).unwrap()
    }

    /// Waits until the member has a cluster version, and returns it.
    pub(crate) fn cluster_version(&self) -> String {
        let said = quorate_tests::get(self.ports.port(), "/version").text();
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        said["etcdcluster"].as_str().unwrap().to_owned()
    }
}

/// Returns whether the tests run as root.
pub(crate) fn is_root() -> bool {
    let said = Command::new("id").arg("-u").output().unwrap();
    said.stdout == b"0\n"
}
