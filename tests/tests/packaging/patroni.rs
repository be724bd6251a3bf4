//! PostgreSQL under Patroni, on members that are migrated, killed and restarted. The test runs the script that is
//! provided for users.
//!
//! The script succeeds only if PostgreSQL's leader, its timeline and every write have survived the changes that must
//! not affect them. The test passes the paths of the programs and an unprivileged user to the script.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use quorate_tests::{Kind, Options, eventually, is_long, run_cluster_within, skipped};

use crate::place::is_root;

/// User id of the machine's unprivileged account.
const NOBODY: u32 = 65_534;

/// Timeout of the script.
const LIMIT: Duration = Duration::from_secs(240);

/// Programs that the script calls, and the Python that Debian's Patroni uses.
const PROGRAMS: [&str; 6] = [
    "/usr/bin/python3",
    "/usr/bin/psql",
    "/usr/bin/curl",
    "/usr/bin/openssl",
    "/usr/bin/setpriv",
    "/usr/bin/timeout",
];

/// Returns the folder of Patroni if everything that it needs is installed. The error states what is missing.
fn patroni() -> Result<PathBuf, String> {
    let root =
        std::env::var_os("PATRONI_DIR").map(PathBuf::from).ok_or("PATRONI_DIR is not set")?;
    if let Some(missing) = PROGRAMS.iter().find(|program| !Path::new(program).exists()) {
        return Err(format!("{missing} is missing"));
    }
    let servers = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let has_server = servers.into_iter().any(|entry| entry.path().join("bin/postgres").exists());
    if has_server { Ok(root) } else { Err("PostgreSQL is not installed".to_owned()) }
}

/// Copies files and folders to a place that all users can read.
fn copied(from: &[&Path], into: &Path) {
    let copied = Command::new("cp").arg("-rL").args(from).arg(into).status().unwrap();
    let opened = Command::new("chmod").args(["-R", "a+rX"]).arg(into).status().unwrap();
    assert!(copied.success() && opened.success());
}

/// Returns the command lines of running processes that contain the path `programs`.
fn command_lines_with(programs: &Path) -> Vec<String> {
    let programs = programs.to_str().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = processes
        .filter_map(|process| std::fs::read_to_string(process.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(programs)).map(|line| line.replace('\0', " ")).collect()
}

async fn postgresql_stays_up_while_members_change(kind: Kind) {
    let patroni = match patroni() {
        Ok(patroni) => patroni,
        Err(why) => return skipped(&format!("tests of PostgreSQL under Patroni ({why})")),
    };
    let places: Vec<_> = (0..6).map(|_| Options::new(kind).unguarded().prepare()).collect();
    let ports = places.iter().flat_map(|place| [place.port(), place.peer_port()]);
    let ports: Vec<String> = ports.map(|port| port.to_string()).collect();

    let home = places[0].scratch();
    std::fs::set_permissions(home, PermissionsExt::from_mode(0o755)).unwrap();
    let programs = home.join("programs");
    std::fs::create_dir(&programs).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let kit = root.join("packaging/patroni");
    let etcd = Kind::etcd_program("etcd");
    let (quorate, usr) = (kind.program(), patroni.join("usr"));
    let mut wanted = vec![quorate.as_path(), &usr, &kit];
    wanted.extend(etcd.as_deref());
    copied(&wanted, &programs);
    let folder = home.join("folder");
    std::fs::create_dir(&folder).unwrap();

    let mut command = Command::new("/usr/bin/timeout");
    command.args(["--kill-after=10", &(LIMIT.as_secs() - 20).to_string()]);
    if is_root() {
        chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
        let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
        command.arg("setpriv").args(ids).arg("--clear-groups");
    }
    command.arg(programs.join("patroni/try.sh")).arg(&folder).current_dir(&folder).env_clear();
    let shown = programs.display();
    command.env("PATH", format!("{shown}/usr/bin:/usr/local/bin:/usr/bin:/bin"));
    command.env("PYTHONPATH", format!("{shown}/usr/lib/python3/dist-packages"));
    command.env("HOME", &folder).env("QUORATE", programs.join("quorate"));
    command.env("PORTS", ports.join(" ")).env("TLS", "1");
    if etcd.is_some() {
        command.env("ETCD", programs.join("etcd")).env("USERS", "1");
    }
    if is_long() {
        command.env("LONG", "1");
    }
    let said = command.output().unwrap();
    let [stdout, stderr] = [&said.stdout, &said.stderr].map(|said| String::from_utf8_lossy(said));
    let log = |name: &str| {
        let text = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    };
    let logs =
        || ["p0.log", "p1.log", "m0.log", "m1.log", "m2.log", "writer.log", "engine.log"].map(log);
    assert!(said.status.success(), "{stdout}\n{stderr}\n{}", logs().join("\n"));
    // The script has reached its last step, so no essential step was skipped.
    let last = if is_long() { "done: p0 on timeline 3" } else { "done: p1 on timeline 2" };
    assert!(stdout.contains(last), "{stdout}");
    assert_eq!(stdout.contains("m2 is Quorate: p0 on timeline 1, as before"), etcd.is_some());
    // A put that was in progress ends on its own.
    eventually("the end of all copied programs", async || {
        command_lines_with(&programs).is_empty().then_some(())
    })
    .await;
}

#[test]
fn postgresql_under_patroni_survives_migrated_and_killed_members() {
    run_cluster_within(LIMIT, Kind::Quorate, postgresql_stays_up_while_members_change);
}
