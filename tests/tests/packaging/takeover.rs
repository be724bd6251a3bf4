//! `quorate-takeover` takes over Debian's etcd, which was installed with its unit and its settings, and hands it back.

use std::os::unix::fs::symlink;
use std::process::{Command, Output};

use quorate_tests::{Kind, skipped};

use crate::init::{Init, Unit};
use crate::packed::file;
use crate::place::Place;

const ETCD: &str = "etcd.service";
const QUORATE: &str = "quorate.service";
const SETTINGS: &str = "/etc/default/etcd";
const DROP_IN: &str = "/etc/systemd/system/quorate.service.d/takeover.conf";

/// A root with both programs installed and etcd running.
struct Machine {
    place: Place,
    init: Option<Init>,
}

impl Machine {
    /// Starts etcd in a new root. Returns `None` if Debian's etcd is not installed.
    fn new(more_settings: &str) -> Option<Self> {
        let place = Place::new()?;
        if !Kind::Etcd.is_present() {
            return None;
        }
        let program = Kind::etcd_program("etcd").unwrap();
        let unit = program.ancestors().nth(2).unwrap().join("lib/systemd/system/etcd.service");
        if !unit.is_file() {
            skipped("tests of the takeover (etcd is not installed from Debian's package)");
            return None;
        }
        place.install(&file("quorate_", ".deb"));
        std::fs::copy(&unit, place.path("/usr/lib/systemd/system/etcd.service")).unwrap();
        symlink(program, place.path("/usr/bin/etcd")).unwrap();
        std::fs::create_dir_all(place.path("/etc/systemd/system")).unwrap();
        std::fs::create_dir_all(place.path("/var/lib/etcd")).unwrap();
        let settings = place.settings() + more_settings;
        std::fs::write(place.path(SETTINGS), settings).unwrap();
        let mut init = Init::new(&place);
        init.start(ETCD).unwrap();
        Some(Self { place, init: Some(init) })
    }

    fn takeover(&mut self, args: &[&str]) -> Output {
        let answering = self.init.take().unwrap().answer(&self.place);
        let mut command = Command::new(self.place.path("/usr/sbin/quorate-takeover"));
        command.env("PATH", self.place.search_path()).args(args);
        let done = command.env("QUORATE_TAKEOVER_ROOT", self.place.root()).output().unwrap();
        self.init = Some(answering.end());
        for name in ["requests", "answers"] {
            std::fs::remove_file(self.place.home().join(name)).unwrap();
        }
        done
    }

    #[track_caller]
    fn succeeds(&mut self, args: &[&str]) -> String {
        let done = self.takeover(args);
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    #[track_caller]
    fn fails(&mut self, args: &[&str], because: &str) {
        let done = self.takeover(args);
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains(because), "{args:?}: {said}");
    }

    #[track_caller]
    fn assert_runs(&mut self, name: &str) {
        let init = self.init.as_mut().unwrap();
        for unit in [ETCD, QUORATE] {
            assert_eq!(init.is_running(unit), unit == name, "{unit}: {:?}", init.asked);
        }
    }

    #[track_caller]
    fn assert_holds(&self, key: &str, value: &str) {
        let said = self.place.ctl(&["get", key, "--print-value-only"]);
        assert_eq!(said, format!("{value}\n"));
    }

    fn is_there(&self, path: &str) -> bool {
        std::fs::symlink_metadata(self.place.path(path)).is_ok()
    }
}

#[test]
fn debians_etcd_is_taken_over_and_handed_back() {
    // The data is in Debian's default directory, or in an operator's directory that a flag names.
    for folder in ["/var/lib/etcd/default", "/srv/etcd"] {
        let more = match folder {
            "/var/lib/etcd/default" => String::new(),
            _ => format!("ETCD_DATA_DIR='{folder}'\n"),
        };
        let Some(mut machine) = Machine::new(&more) else { return };
        let settings = std::fs::read(machine.place.path(SETTINGS)).unwrap();
        machine.place.ctl(&["put", "from", "etcd"]);

        machine.succeeds(&["take"]);
        machine.assert_runs(QUORATE);
        machine.assert_holds("from", "etcd");
        assert_eq!(machine.place.cluster_version(), "3.5.0");
        machine.place.ctl(&["put", "from", "quorate"]);
        let unit = Unit::read(&machine.place.root(), QUORATE).unwrap();
        assert_eq!(unit.value("User"), Some("etcd"));
        assert_eq!(
            unit.value("StateDirectory"),
            None,
            "systemd must not change owners in this directory"
        );
        assert_eq!(unit.value("ReadWritePaths"), Some(format!("\"{folder}\"").as_str()));
        assert!(Unit::read(&machine.place.root(), ETCD).is_none(), "etcd.service is masked");
        assert!(machine.succeeds(&["status"]).contains("the cluster version is held"));
        machine.fails(&["take"], "quorate has already replaced etcd");
        check_unit(&machine.place);

        machine.succeeds(&["back"]);
        machine.assert_runs(ETCD);
        machine.assert_holds("from", "quorate");
        assert!(
            !machine.is_there(DROP_IN) && !machine.is_there("/etc/systemd/system/etcd.service")
        );
        assert_eq!(std::fs::read(machine.place.path(SETTINGS)).unwrap(), settings);
        assert!(!machine.is_there("/var/lib/quorate/default"));
        assert_eq!(machine.succeeds(&["status"]), "quorate has not replaced etcd\n");
    }
}

#[test]
fn a_cluster_cannot_be_handed_back_after_its_version_hold_is_released() {
    let Some(mut machine) = Machine::new("") else { return };
    machine.fails(&["release"], "quorate has not replaced etcd");
    machine.fails(&["back"], "quorate has not replaced etcd");
    machine.succeeds(&["take"]);
    machine.succeeds(&["release"]);
    machine.assert_runs(QUORATE);
    let start = std::time::Instant::now();
    while machine.place.cluster_version() != "3.7.0" {
        assert!(start.elapsed() < quorate_tests::DEADLINE, "the cluster version did not rise");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    machine.fails(&["back"], "was released");
    machine.fails(&["release"], "not held");
    machine.assert_runs(QUORATE);
    assert!(machine.succeeds(&["status"]).contains("is not held"));
}

#[test]
fn etcd_starts_with_its_data_after_a_purge() {
    let Some(mut machine) = Machine::new("") else { return };
    machine.place.ctl(&["put", "from", "etcd"]);
    machine.succeeds(&["take"]);
    let init = machine.init.as_mut().unwrap();
    init.stop(QUORATE);
    assert!(init.start(ETCD).is_err(), "etcd.service is masked");
    let tool = machine.place.home().join("quorate");
    std::fs::copy(machine.place.path("/usr/bin/quorate"), &tool).unwrap();
    let purged = machine.place.dpkg(&["--purge", "quorate"]);
    assert!(String::from_utf8_lossy(&purged.stderr).contains("unmask --now etcd.service"));
    assert!(!machine.is_there(DROP_IN));
    machine.init.as_mut().unwrap().start(ETCD).unwrap();
    std::fs::copy(&tool, machine.place.path("/usr/bin/quorate")).unwrap();
    machine.assert_holds("from", "etcd");
}

#[test]
fn etcd_is_restarted_after_a_failed_takeover() {
    // The first flag exists in etcd 3.5, but was removed in etcd 3.7.
    let Some(mut machine) = Machine::new("DAEMON_ARGS=\"--enable-v2=false --max-snapshots 3\"\n")
    else {
        return;
    };
    machine.place.ctl(&["put", "from", "etcd"]);
    machine.fails(&["take"], "starting etcd again");
    machine.assert_runs(ETCD);
    machine.assert_holds("from", "etcd");
    assert!(!machine.is_there(DROP_IN));
}

#[test]
fn settings_that_cannot_be_carried_over_prevent_the_takeover() {
    let Some(mut machine) = Machine::new("") else { return };
    let settings = std::fs::read_to_string(machine.place.path(SETTINGS)).unwrap();
    let said = [
        ("DAEMON_ARGS=--config-file /etc/etcd.yml\n", "configuration file"),
        ("ETCD_CONFIG_FILE=/etc/etcd.yml\n", "configuration file"),
        // The value is not treated as a glob pattern.
        ("DAEMON_ARGS=\"--cors=* --config-file=/etc/*\"\n", "configuration file"),
        ("ETCD_DATA_DIR=data\n", "not an absolute path"),
        ("DAEMON_ARGS=\"--data-dir=/nowhere\"\n", "folder not found: /nowhere"),
        ("ETCD_WAL_DIR='/nowhere/wal'\n", "folder not found: /nowhere/wal"),
        ("ETCD_DATA_DIR=/var/lib/%H\n", "a special meaning"),
    ];
    for (more, because) in said {
        std::fs::write(machine.place.path(SETTINGS), format!("{settings}{more}")).unwrap();
        machine.fails(&["take"], because);
        machine.assert_runs(ETCD);
    }
    std::fs::write(machine.place.path(SETTINGS), settings).unwrap();
    machine.fails(&["take", "--hold-cluster-version", "3.4"], "upgrade etcd to 3.5 first");
    std::fs::create_dir(machine.place.path("/etc/systemd/system/etcd.service.d")).unwrap();
    machine.fails(&["take"], "files in /etc/systemd/system modify etcd.service");
    assert_eq!(machine.takeover(&["take", "it"]).status.code(), Some(2));
    assert_eq!(machine.takeover(&[]).status.code(), Some(2));
    machine.assert_runs(ETCD);

    // The takeover is refused if Quorate's unit already runs, with data of its own.
    std::fs::remove_dir(machine.place.path("/etc/systemd/system/etcd.service.d")).unwrap();
    let init = machine.init.as_mut().unwrap();
    init.stop(ETCD);
    std::fs::write(machine.place.path("/etc/default/quorate"), machine.place.settings()).unwrap();
    init.start(QUORATE).unwrap();
    machine.fails(&["take"], "is already running");
    machine.assert_runs(QUORATE);
    assert!(!machine.is_there(DROP_IN));
}

/// Checks that systemd accepts the file that the command has written.
fn check_unit(place: &Place) {
    let folder = place.home().join("units");
    let drop_ins = folder.join("quorate.service.d");
    drop(std::fs::remove_dir_all(&folder));
    std::fs::create_dir_all(&drop_ins).unwrap();
    let unit = std::fs::read_to_string(place.path("/usr/lib/systemd/system/quorate.service"));
    let program = place.path("/usr/bin/quorate");
    let unit = unit.unwrap().replace("/usr/bin/quorate", program.to_str().unwrap());
    let path = folder.join(QUORATE);
    std::fs::write(&path, unit).unwrap();
    std::fs::copy(place.path(DROP_IN), drop_ins.join("takeover.conf")).unwrap();
    let checked = Command::new("systemd-analyze").args(["--man=no", "verify"]).arg(&path).output();
    let Ok(checked) = checked else {
        return skipped("the check of the takeover's unit (systemd-analyze is not installed)");
    };
    let said = String::from_utf8_lossy(&checked.stderr);
    let of_ours: Vec<&str> = said.lines().filter(|line| line.contains("quorate")).collect();
    assert!(of_ours.is_empty(), "{said}");
}
