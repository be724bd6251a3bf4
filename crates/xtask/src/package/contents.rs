//! The contents of the Debian packages and of a container's root file system: the files and their paths.
//!
//! The main package can be installed next to Debian's etcd, as migration in both directions requires, because the two
//! packages have no file name in common. The second package contains only links named `etcd`, `etcdctl` and `etcdutl`,
//! and replaces Debian's package.

use std::path::Path;
use std::process::Command;

use super::deb::Package;
use super::elf::Needs;
use super::tree::Tree;
use super::{SUMMARY, base, gzip};
use crate::workspace::{output, output_bytes, root};

/// The names of etcd's programs. If our program is called by one of these names, it acts as the program of that name.
const NAMES: [&str; 3] = ["etcd", "etcdctl", "etcdutl"];

/// The directory with links named after etcd's programs. Users may add this directory to their `PATH`.
const LINKS: &str = "usr/lib/quorate/bin";

/// Shells and the directories of their completion scripts.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/quorate"),
    ("zsh", "usr/share/zsh/vendor-completions/_quorate"),
    ("fish", "usr/share/fish/vendor_completions.d/quorate.fish"),
];

/// Files of the repository that are installed unchanged: source, destination and mode.
const COPIED: [(&str, &str, u32); 12] = [
    ("packaging/systemd/quorate.service", "usr/lib/systemd/system/quorate.service", 0o644),
    ("packaging/debian/quorate.sysusers", "usr/lib/sysusers.d/quorate.conf", 0o644),
    ("packaging/debian/quorate.default", DEFAULTS, 0o644),
    ("packaging/debian/quorate-takeover", "usr/sbin/quorate-takeover", 0o755),
    ("packaging/debian/copyright", "usr/share/doc/quorate/copyright", 0o644),
    ("README.md", "usr/share/doc/quorate/README.md", 0o644),
    ("docs/runbook.md", "usr/share/doc/quorate/runbook.md", 0o644),
    (
        "packaging/prometheus/quorate.rules.yml",
        "usr/share/doc/quorate/examples/quorate.rules.yml",
        0o644,
    ),
    ("packaging/kubernetes/etcd.yaml", "usr/share/doc/quorate/examples/etcd.yaml", 0o644),
    ("packaging/grafana/quorate.json", "usr/share/doc/quorate/examples/grafana.json", 0o644),
    ("packaging/patroni/patroni.yml", "usr/share/doc/quorate/examples/patroni/patroni.yml", 0o644),
    ("packaging/patroni/try.sh", "usr/share/doc/quorate/examples/patroni/try.sh", 0o755),
];

/// The file with the settings of the systemd unit, which the operator may edit.
const DEFAULTS: &str = "etc/default/quorate";

/// Files of the repository that are installed compressed, as Debian requires.
const COMPRESSED: [(&str, &str); 6] = [
    ("packaging/man/quorate.1", "usr/share/man/man1/quorate.1.gz"),
    ("packaging/man/quorate-ctl.1", "usr/share/man/man1/quorate-ctl.1.gz"),
    ("packaging/man/quorate-utl.1", "usr/share/man/man1/quorate-utl.1.gz"),
    ("packaging/man/quorate-bench.1", "usr/share/man/man1/quorate-bench.1.gz"),
    ("packaging/debian/quorate-takeover.8", "usr/share/man/man8/quorate-takeover.8.gz"),
    ("CHANGELOG.md", "usr/share/doc/quorate/changelog.gz"),
];

const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// The program to pack.
pub(super) struct Program<'a> {
    pub(super) path: &'a Path,
    pub(super) bytes: &'a [u8],
    pub(super) needs: &'a Needs,
    pub(super) version: &'a str,
}

/// Builds the contents of the package `quorate`.
pub(super) fn package(program: &Program<'_>) -> Result<Package, String> {
    let mut files = Tree::default();
    files.file("usr/bin/quorate", 0o755, program.bytes);
    for name in NAMES {
        files.link(&format!("{LINKS}/{name}"), "../../../bin/quorate");
    }
    for (from, to, mode) in COPIED {
        files.file(to, mode, read(from)?);
    }
    for (from, to) in COMPRESSED {
        files.file(to, 0o644, gzip(&read(from)?));
    }
    for (shell, to) in COMPLETIONS {
        let mut command = Command::new(program.path);
        files.file(to, 0o644, output_bytes(command.args(["ctl", "completion", shell]))?);
    }
    let script = |name| Ok((name, read(&format!("packaging/debian/{name}"))?));
    let mut fields = common("quorate", program.needs.architecture, program.version);
    fields.extend([
        ("Installed-Size", files.size_kib().to_string()),
        ("Depends", depends(program.needs)),
        ("Suggests", "prometheus, quorate-as-etcd".to_owned()),
        (
            "Description",
            format!(
                "{SUMMARY}\n \
                 A cluster member, its command-line tool, offline tools for data directories,\n \
                 and a load generator in one program. It takes over data directories and\n \
                 clusters of etcd 3.5 and 3.6, and hands them back: see quorate-takeover(8).\n .\n \
                 Installing the package does not enable or start the service, because a member\n \
                 bootstraps or joins a cluster when it first starts, according to the settings\n \
                 in /etc/default/quorate."
            ),
        ),
    ]);
    let scripts = SCRIPTS.into_iter().map(script).collect::<Result<_, String>>()?;
    Ok(Package { fields, scripts, conffiles: vec!["/etc/default/quorate"], files })
}

/// Builds the contents of the package `quorate-as-etcd`.
pub(super) fn package_of_names(program: &Program<'_>) -> Result<Package, String> {
    let version = program.version;
    let said = output(Command::new(program.path).arg("--version"))?;
    let etcd = said.lines().find_map(|line| line.strip_prefix("etcd Version: "));
    let etcd = etcd.ok_or("the output of --version contains no etcd version")?;
    let mut files = Tree::default();
    for name in NAMES {
        files.link(&format!("usr/bin/{name}"), "quorate");
    }
    files.file(
        "usr/share/doc/quorate-as-etcd/copyright",
        0o644,
        read("packaging/debian/copyright")?,
    );
    let mut fields = common("quorate-as-etcd", "all", version);
    let replaced = "etcd-server, etcd-client, etcd";
    fields.extend([
        ("Installed-Size", files.size_kib().to_string()),
        ("Depends", format!("quorate (= {version})")),
        ("Provides", format!("etcd-server (= {etcd}), etcd-client (= {etcd})")),
        ("Conflicts", replaced.to_owned()),
        ("Replaces", replaced.to_owned()),
        (
            "Description",
            "quorate under the names etcd, etcdctl and etcdutl\n \
             For programs that call etcd's programs by name. This package replaces Debian's\n \
             packages, whose data and settings are kept. It has no service of its own."
                .to_owned(),
        ),
    ]);
    Ok(Package { fields, files, ..Package::default() })
}

/// Returns the root file system of a container, and the version of glibc in it.
pub(super) fn root_of_container(program: &Program<'_>) -> Result<(Tree, Option<String>), String> {
    let mut files = Tree::default();
    files.file("usr/bin/quorate", 0o755, program.bytes);
    // Names for container manifests that run etcd by name. They replace nothing, because the image contains no other
    // etcd. They are not symbolic links, because `docker cp` copies a symbolic link without the program.
    for name in NAMES {
        files.same_file(&format!("usr/local/bin/{name}"), "usr/bin/quorate");
    }
    files.file("usr/share/doc/quorate/copyright", 0o644, read("packaging/debian/copyright")?);
    files.file("usr/share/doc/quorate/LICENSE", 0o644, read("LICENSE")?);
    let version = base::put(&mut files, program.needs)?;
    Ok((files, version))
}

fn common(name: &str, architecture: &str, version: &str) -> Vec<(&'static str, String)> {
    vec![
        ("Package", name.to_owned()),
        ("Version", version.to_owned()),
        ("Architecture", architecture.to_owned()),
        ("Maintainer", "The Quorate authors <maintainers@quorate.invalid>".to_owned()),
        ("Section", "net".to_owned()),
        ("Priority", "optional".to_owned()),
        ("Homepage", env!("CARGO_PKG_REPOSITORY").to_owned()),
    ]
}

fn depends(needs: &Needs) -> String {
    let mut packages = Vec::new();
    if let Some((major, minor)) = needs.glibc {
        packages.push(format!("libc6 (>= {major}.{minor})"));
    }
    if needs.libraries.iter().any(|name| name.starts_with("libgcc_s.")) {
        packages.push("libgcc-s1".to_owned());
    }
    // Each of these packages creates the service user on installation.
    packages.push("systemd | systemd-standalone-sysusers | systemd-sysusers".to_owned());
    packages.join(", ")
}

fn read(path: &str) -> Result<Vec<u8>, String> {
    std::fs::read(root().join(path)).map_err(|error| format!("{path}: {error}"))
}
