//! Installation, start, upgrade, removal and purge of the package.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use crate::init::{Init, Unit};
use crate::packed::file;
use crate::place::{Place, is_root};

const SERVICE: &str = "quorate.service";

fn package() -> std::path::PathBuf {
    file("quorate_", ".deb")
}

/// Returns a field of a package file.
fn field(package: &Path, name: &str) -> String {
    let said = Command::new("dpkg-deb").arg("--field").arg(package).arg(name).output().unwrap();
    assert!(said.status.success());
    String::from_utf8(said.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_package_is_installed_started_upgraded_and_removed_without_loss_of_data() {
    let Some(place) = Place::new() else { return };
    place.install(&package());
    let folder = std::fs::metadata(place.path("/var/lib/quorate")).unwrap();
    assert_eq!(folder.permissions().mode() & 0o7777, 0o700);
    let users = std::fs::read_to_string(place.path("/etc/passwd")).unwrap();
    let user = users.lines().find(|line| line.starts_with("quorate:")).unwrap();
    if is_root() {
        assert_eq!(folder.uid().to_string(), user.split(':').nth(2).unwrap());
    }
    let unit = Unit::read(&place.root(), SERVICE).unwrap();
    assert_eq!(unit.value("User"), Some("quorate"));
    assert_eq!(unit.value("StateDirectory"), Some("quorate"));

    // Change the settings as an operator does.
    let settings = place.path("/etc/default/quorate");
    let shipped = std::fs::read_to_string(&settings).unwrap();
    assert!(shipped.lines().all(|line| line.starts_with('#') || line == "DAEMON_ARGS="));
    let own = shipped
        + &place.settings()
        + "DAEMON_ARGS=--auto-compaction-retention=1 --max-snapshots=4\n";
    std::fs::write(&settings, &own).unwrap();
    let mut init = Init::new(&place);
    init.start(SERVICE).unwrap();
    assert!(init.wait_for_notification(SERVICE, "WATCHDOG=1"));
    place.ctl(&["put", "kept", "through everything"]);
    init.stop(SERVICE);

    // An upgrade keeps the changed settings and the data.
    place.install(&package());
    assert_eq!(std::fs::read_to_string(&settings).unwrap(), own);
    init.start(SERVICE).unwrap();
    assert_eq!(place.ctl(&["get", "kept", "--print-value-only"]), "through everything\n");
    init.stop(SERVICE);

    place.dpkg(&["--remove", "quorate"]);
    assert!(!place.path("/usr/bin/quorate").exists());
    assert!(!place.path("/usr/lib/systemd/system/quorate.service").exists());
    assert!(settings.exists());
    let data = place.path("/var/lib/quorate/default/member");
    assert!(data.exists());
    let purged = place.dpkg(&["--purge", "quorate"]);
    assert!(!settings.exists());
    assert!(data.exists(), "the package must not delete a member's data");
    assert!(
        String::from_utf8_lossy(&purged.stderr).contains("contains a member's data and is kept")
    );

    // After the package is installed again, the member still has its data. A purge removes empty folders.
    place.install(&package());
    assert!(data.exists());
    std::fs::remove_dir_all(place.path("/var/lib/quorate/default")).unwrap();
    place.dpkg(&["--purge", "quorate"]);
    assert!(!place.path("/var/lib/quorate").exists());
}

#[test]
fn installed_files_are_where_tools_expect_them() {
    let Some(place) = Place::new() else { return };
    place.install(&package());
    for path in [
        "/usr/share/man/man1/quorate.1.gz",
        "/usr/share/man/man1/quorate-ctl.1.gz",
        "/usr/share/man/man1/quorate-utl.1.gz",
        "/usr/share/man/man1/quorate-bench.1.gz",
        "/usr/share/man/man8/quorate-takeover.8.gz",
        "/usr/share/doc/quorate/changelog.gz",
    ] {
        let unpacked = Command::new("gzip").arg("-dc").arg(place.path(path)).output().unwrap();
        assert!(unpacked.status.success() && unpacked.stdout.len() > 500, "{path}");
    }
    let completion = place.path("/usr/share/bash-completion/completions/quorate");
    let asked = "_quorate_complete; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let line = format!(
        "source '{}'; COMP_WORDS=('{}' ctl endp); COMP_CWORD=2; {asked}",
        completion.display(),
        place.path("/usr/bin/quorate").display()
    );
    let said = Command::new("bash").args(["-c", &line]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "endpoint\n", "{said:?}");
    // The package shares no file name with Debian's etcd, and has etcd's program names in a folder that users can add
    // to `PATH`.
    assert!(!place.path("/usr/bin/etcd").exists());
    let said = Command::new(place.path("/usr/lib/quorate/bin/etcdctl")).arg("version").output();
    assert!(said.unwrap().stdout.starts_with(b"etcdctl version: "));
}

#[test]
fn the_program_names_of_etcd_are_in_a_separate_package() {
    let Some(place) = Place::new() else { return };
    let names = file("quorate-as-etcd_", ".deb");
    place.install(&package());
    place.install(&names);
    let said = Command::new(place.path("/usr/bin/etcdutl")).arg("version").output().unwrap();
    assert!(said.stdout.starts_with(b"etcdutl version: "), "{said:?}");
    assert_eq!(field(&names, "Depends"), format!("quorate (= {})", field(&package(), "Version")));
    let etcd = Command::new(place.path("/usr/bin/etcd")).arg("--version").output().unwrap();
    let etcd = String::from_utf8(etcd.stdout).unwrap();
    let etcd = etcd.lines().next().unwrap().strip_prefix("etcd Version: ").unwrap();
    let provided = format!("etcd-server (= {etcd}), etcd-client (= {etcd})");
    assert_eq!(field(&names, "Provides"), provided);
    for relation in ["Conflicts", "Replaces"] {
        assert!(field(&names, relation).contains("etcd-server, etcd-client"));
        assert_eq!(field(&package(), relation), "");
    }
}

/// The glibc version that the package requires must equal the version that the machine's own tool finds in the program.
#[test]
fn the_package_requires_the_newest_glibc_version_that_the_program_uses() {
    let Some(place) = Place::new() else { return };
    place.install(&package());
    let mut command = Command::new("objdump");
    let Ok(said) = command.arg("-p").arg(place.path("/usr/bin/quorate")).output() else {
        return quorate_tests::skipped(
            "the check of the required glibc version (objdump is not installed)",
        );
    };
    let text = String::from_utf8(said.stdout).unwrap();
    let versions = text.split_whitespace().filter_map(|word| word.strip_prefix("GLIBC_"));
    let numbers = |version: &str| -> Vec<u32> {
        version.split('.').map(|number| number.parse().unwrap()).collect()
    };
    let newest = versions.max_by_key(|version| numbers(version)).unwrap();
    assert!(field(&package(), "Depends").starts_with(&format!("libc6 (>= {newest})")));
}
