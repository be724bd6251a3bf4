//! Downloads Debian packages: etcd (for the interoperability tests), Patroni (which is tested with our server),
//! promtool (which tests the alert rules), PostgreSQL (which stores the data of servers with `--engine`) and Chromium
//! (in which the web console's page is tested). axe-core, which checks the accessibility of that page, comes from npm.
//!
//! The machine's apt downloads the packages of the requested suite from the configured mirror. Apt runs with a separate
//! root under the target directory, so that the system's package lists, cache and hooks are not touched and no
//! permissions are needed. A downloaded package is reused without network access.
//!
//! A missing apt or an unreachable mirror does not make the tests fail: the tests that need the missing program are
//! skipped, and the output reports the reason.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::{output, target};
use crate::{Outcome, say};

/// Debian's stable release when this was written, with etcd 3.5.16.
pub(crate) const DEFAULT_SUITE: &str = "trixie";

/// The last Debian release whose Prometheus package contains `promtool`.
const PROMTOOL_SUITE: &str = "bookworm";

const SUITES: [&str; 3] = ["trixie", "bookworm", "sid"];
const PACKAGES: [&str; 2] = ["etcd-server", "etcd-client"];
/// Patroni and the packages that it imports. The C modules among them are built only for the Python version of
/// the machine's Debian release.
const PATRONI: [&str; 15] = [
    "patroni",
    "python3-cdiff",
    "python3-click",
    "python3-colorama",
    "python3-dateutil",
    "python3-dnspython",
    "python3-etcd",
    "python3-pkg-resources",
    "python3-prettytable",
    "python3-psutil",
    "python3-psycopg2",
    "python3-six",
    "python3-urllib3",
    "python3-wcwidth",
    "python3-yaml",
];
/// The browser, its driver, and a font. All packages on which they depend are downloaded as well.
const CHROMIUM: [&str; 3] = ["chromium", "chromium-driver", "fonts-dejavu-core"];
/// The programs with which the tests create and run a PostgreSQL server.
const POSTGRES_PROGRAMS: [&str; 6] =
    ["initdb", "postgres", "pg_ctl", "pg_isready", "pg_basebackup", "psql"];
/// The accessibility checker, as an npm package with its version.
const AXE: &str = "axe-core@4.10.3";
const KEYRINGS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
];

/// Prints the directory with the suite's binaries, or the reason why they are unavailable.
#[expect(clippy::print_stdout, reason = "the directory is the output of the command")]
pub(crate) fn run(args: &[String]) -> Outcome {
    let suite = args.first().map_or(DEFAULT_SUITE, String::as_str);
    if suite == "patroni" {
        println!("{}", patroni()?.display());
        return Ok(());
    }
    if suite == "promtool" {
        println!("{}", promtool()?.display());
        return Ok(());
    }
    if suite == "chromium" {
        let Browser { chromium, driver } = chromium()?;
        println!("{}\n{}", chromium.display(), driver.display());
        return Ok(());
    }
    if suite == "postgres" {
        println!("{}", postgres()?.display());
        return Ok(());
    }
    if suite == "axe" {
        println!("{}", axe()?.display());
        return Ok(());
    }
    if !SUITES.contains(&suite) {
        return Err(format!(
            "unknown suite {suite}: choose one of {}, patroni, promtool, postgres, chromium, or axe",
            SUITES.join(", ")
        ));
    }
    match etcd(suite) {
        Ok(folder) => println!("{}", folder.display()),
        Err(why) => println!("{}", skipped(&why)),
    }
    Ok(())
}

/// Returns the notice about skipped tests.
pub(crate) fn skipped(why: &str) -> String {
    format!("provision: etcd is not available, so the interoperability tests are skipped: {why}")
}

/// Returns the directory with `etcd`, `etcdctl` and `etcdutl` of a Debian suite. They are downloaded if the directory
/// does not exist.
pub(crate) fn etcd(suite: &str) -> Result<PathBuf, String> {
    let home = target()?.join("provisioned");
    let note = home.join(format!("{suite}.version"));
    if let Ok(version) = std::fs::read_to_string(&note) {
        let folder = binaries(&home.join(version.trim()));
        if folder.join("etcd").is_file() {
            return Ok(folder);
        }
    }
    let version = from_a_mirror(&home, suite, |apt| etcd_of(apt, &home, suite))?;
    let written = std::fs::write(&note, &version);
    written.map_err(|error| format!("{}: {error}", note.display()))?;
    Ok(binaries(&home.join(version)))
}

/// Returns the name of the machine's Debian release.
fn release() -> Result<String, String> {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let field = |name: &str| release.lines().find_map(|line| line.strip_prefix(name));
    let suite = field("VERSION_CODENAME=").filter(|_| field("ID=") == Some("debian"));
    Ok(suite.ok_or("this machine does not run Debian")?.to_owned())
}

/// A browser and the program that drives it.
#[derive(Debug)]
pub(crate) struct Browser {
    pub(crate) chromium: PathBuf,
    pub(crate) driver: PathBuf,
}

/// Returns Chromium and its driver. If the machine does not have them, downloads them from its Debian release, with all
/// packages that they need.
pub(crate) fn chromium() -> Result<Browser, String> {
    let of = |folder: &Path| Browser {
        chromium: folder.join("chromium"),
        driver: folder.join("chromedriver"),
    };
    let installed = of(Path::new("/usr/bin"));
    if installed.chromium.is_file() && installed.driver.is_file() {
        return Ok(installed);
    }
    let suite = release()?;
    let home = target()?.join("provisioned");
    let place = home.join(format!("chromium-and-libraries-{suite}"));
    if !place.exists() {
        from_a_mirror(&home, &suite, |apt| {
            let options = ["install", "--download-only", "--no-install-recommends", "--yes"];
            apt.run(&[&options[..], &CHROMIUM].concat())?;
            let unpacked = home.join(format!("unpacking.{}", std::process::id()));
            for package in apt.cached()? {
                output(Command::new("dpkg").arg("-x").arg(package).arg(&unpacked))?;
            }
            let programs = [
                ("chromium", "usr/lib/chromium/chromium"),
                ("chromedriver", "usr/bin/chromedriver"),
            ];
            for (name, program) in programs {
                start_script(&unpacked, &place, name, program)?;
            }
            std::fs::rename(&unpacked, &place)
                .map_err(|error| format!("{}: {error}", place.display()))
        })?;
    }
    Ok(of(&place))
}

/// Returns the folder with the programs of a PostgreSQL server. If the machine has no server, downloads one from
/// the machine's Debian release, with all packages that it needs.
pub(crate) fn postgres() -> Result<PathBuf, String> {
    if let Some(installed) = newest_postgres(Path::new("/usr/lib/postgresql")) {
        return Ok(installed);
    }
    let suite = release()?;
    let home = target()?.join("provisioned");
    let place = home.join(format!("postgresql-with-tools-{suite}"));
    if !place.exists() {
        from_a_mirror(&home, &suite, |apt| {
            let options = ["install", "--download-only", "--no-install-recommends", "--yes"];
            apt.run(&[&options[..], &["postgresql"]].concat())?;
            let unpacked = home.join(format!("unpacking.{}", std::process::id()));
            for package in apt.cached()? {
                output(Command::new("dpkg").arg("-x").arg(package).arg(&unpacked))?;
            }
            let programs = newest_postgres(&unpacked.join("usr/lib/postgresql"))
                .ok_or("the packages contain no PostgreSQL server")?;
            let inside = programs.strip_prefix(&unpacked).map_err(|error| error.to_string())?;
            for name in POSTGRES_PROGRAMS {
                let program = inside.join(name);
                start_script(&unpacked, &place, name, &program.to_string_lossy())?;
            }
            std::fs::rename(&unpacked, &place)
                .map_err(|error| format!("{}: {error}", place.display()))
        })?;
    }
    Ok(place)
}

/// Returns the folder with the newest server programs, given a folder that has a subfolder for each version.
fn newest_postgres(versions: &Path) -> Option<PathBuf> {
    let found = std::fs::read_dir(versions).ok()?.filter_map(|entry| {
        let entry = entry.ok()?;
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        let programs = entry.path().join("bin");
        programs.join("initdb").is_file().then_some((version, programs))
    });
    found.max().map(|(_, programs)| programs)
}

/// Writes a script that runs an unpacked program with its libraries.
fn start_script(unpacked: &Path, place: &Path, name: &str, program: &str) -> Outcome {
    use std::os::unix::fs::PermissionsExt as _;

    let root = place.display();
    let libraries = format!("{}-linux-gnu", std::env::consts::ARCH);
    // A library in a folder of its own is otherwise found only if its package is installed on the machine.
    let folders = [
        format!("{root}/usr/lib/{libraries}"),
        format!("{root}/lib/{libraries}"),
        format!("{root}/usr/lib/{libraries}/pulseaudio"),
    ]
    .join(":");
    let text = format!(
        "#!/bin/sh\nLD_LIBRARY_PATH={folders}\nexport LD_LIBRARY_PATH\nexec {root}/{program} \"$@\"\n"
    );
    let path = unpacked.join(name);
    let write = || -> std::io::Result<()> {
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
    };
    write().map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns the path of axe-core, which is downloaded with npm if it does not exist.
pub(crate) fn axe() -> Result<PathBuf, String> {
    let place = target()?.join("provisioned").join(AXE);
    let script = place.join("package").join("axe.min.js");
    if !script.is_file() {
        std::fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
        let packed =
            output(Command::new("npm").args(["pack", "--silent", AXE]).current_dir(&place))?;
        let file = packed.lines().last().unwrap_or_default().trim().to_owned();
        output(Command::new("tar").arg("-xzf").arg(file).current_dir(&place))?;
    }
    if script.is_file() { Ok(script) } else { Err(format!("{}: missing", script.display())) }
}

/// Returns the directory into which the Patroni packages of the machine's release are unpacked. They are downloaded if
/// the directory does not exist.
pub(crate) fn patroni() -> Result<PathBuf, String> {
    let suite = release()?;
    let home = target()?.join("provisioned");
    let place = home.join(format!("patroni-{suite}"));
    if !place.exists() {
        from_a_mirror(&home, &suite, |apt| {
            let unpacked = unpack(apt, &home, &PATRONI)?;
            std::fs::rename(unpacked, &place)
                .map_err(|error| format!("{}: {error}", place.display()))
        })?;
    }
    Ok(place)
}

/// Returns the path of `promtool` from Debian's Prometheus package, which is downloaded if it does not exist.
pub(crate) fn promtool() -> Result<PathBuf, String> {
    let home = target()?.join("provisioned");
    let place = home.join(format!("prometheus-{PROMTOOL_SUITE}"));
    if !place.exists() {
        from_a_mirror(&home, PROMTOOL_SUITE, |apt| {
            let unpacked = unpack(apt, &home, &["prometheus"])?;
            std::fs::rename(unpacked, &place)
                .map_err(|error| format!("{}: {error}", place.display()))
        })?;
    }
    let program = binaries(&place).join("promtool");
    if program.is_file() { Ok(program) } else { Err(format!("{}: missing", program.display())) }
}

/// Calls a function with an apt configured for each of the machine's mirrors in turn, until a call succeeds.
fn from_a_mirror<T>(
    home: &Path,
    suite: &str,
    fetch: impl Fn(&Apt) -> Result<T, String>,
) -> Result<T, String> {
    let apt = Apt::new(&home.join("apt").join(suite))?;
    let mut complaints = String::new();
    for mirror in mirrors()? {
        let listed = apt.use_source(&mirror, suite).and_then(|()| apt.run(&["update"]));
        match listed.and_then(|()| fetch(&apt)) {
            Ok(fetched) => return Ok(fetched),
            Err(complaint) => {
                writeln!(complaints, "{complaint}").expect("writing to a string cannot fail");
            }
        }
    }
    if complaints.is_empty() {
        complaints.push_str("apt has no package sources configured");
    }
    Err(complaints.trim_end().to_owned())
}

fn binaries(unpacked: &Path) -> PathBuf {
    unpacked.join("usr").join("bin")
}

/// Returns the package mirrors configured in the machine's apt, in order.
fn mirrors() -> Result<Vec<String>, String> {
    let listing = output(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(REPO_URI)",
        "Created-By: Packages",
    ]))?;
    let mut found: Vec<String> = Vec::new();
    for line in listing.lines().filter(|line| !line.is_empty()) {
        if !found.iter().any(|present| present == line) {
            found.push(line.to_owned());
        }
    }
    Ok(found)
}

/// Downloads and unpacks packages into a temporary directory.
fn unpack(apt: &Apt, home: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    apt.run(&[&["download"], packages].concat())?;
    let unpacked = home.join(format!("unpacking.{}", std::process::id()));
    for package in packages {
        output(Command::new("dpkg").arg("-x").arg(apt.downloaded(package)?).arg(&unpacked))?;
    }
    Ok(unpacked)
}

/// Downloads and unpacks etcd. Returns its version without Debian's suffix.
fn etcd_of(apt: &Apt, home: &Path, suite: &str) -> Result<String, String> {
    let unpacked = unpack(apt, home, &PACKAGES)?;
    let file = apt.downloaded(PACKAGES[0])?;
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned());
    // `etcd-server_3.5.16-4_amd64.deb`
    let field = name.as_deref().and_then(|name| name.split('_').nth(1)).unwrap_or_default();
    let version = field.split(['-', '+', '~']).next().map(str::to_owned);
    let version = version
        .filter(|version| !version.is_empty())
        .ok_or("apt listed a package without a version")?;
    output(Command::new(binaries(&unpacked).join("etcd")).arg("--version"))?;
    let place = home.join(&version);
    let moved = match std::fs::remove_dir_all(&place) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => std::fs::rename(&unpacked, &place),
    };
    moved.map_err(|error| format!("{}: {error}", place.display()))?;
    say(&format!("provision: etcd {version} from {suite}"));
    Ok(version)
}

/// An apt installation with its own root, configuration and cache.
struct Apt {
    root: PathBuf,
}

impl Apt {
    fn new(root: &Path) -> Result<Self, String> {
        // The network settings of the machine's apt (proxies, certificates) are kept, and its other settings are
        // ignored.
        let mut config = String::new();
        for line in output(Command::new("apt-config").args(["dump", "Acquire"]))?.lines() {
            if !line.starts_with("Acquire::IndexTargets") {
                writeln!(config, "{line}").expect("writing to a string cannot fail");
            }
        }
        let shown = root.display();
        for (name, value) in [
            ("Dir::Etc::main", "/dev/null".to_owned()),
            ("Dir::Etc::parts", "/dev/null".to_owned()),
            ("Dir::Etc::sourceparts", "/dev/null".to_owned()),
            ("Dir::Etc::preferencesparts", "/dev/null".to_owned()),
            ("Dir::Etc::sourcelist", format!("{shown}/sources.list")),
            ("Dir::State", format!("{shown}/state")),
            ("Dir::State::status", format!("{shown}/status")),
            ("Dir::Cache", format!("{shown}/cache")),
            ("Acquire::Languages", "none".to_owned()),
            ("Acquire::Retries", "2".to_owned()),
            ("APT::Sandbox::User", "root".to_owned()),
        ] {
            writeln!(config, "{name} \"{value}\";").expect("writing to a string cannot fail");
        }
        let prepare = || -> std::io::Result<()> {
            std::fs::create_dir_all(root.join("state/lists/partial"))?;
            std::fs::create_dir_all(root.join("cache/archives/partial"))?;
            std::fs::write(root.join("status"), "")?;
            std::fs::write(root.join("apt.conf"), config)
        };
        prepare().map_err(|error| format!("{shown}: {error}"))?;
        Ok(Self { root: root.to_owned() })
    }

    fn use_source(&self, mirror: &str, suite: &str) -> Result<(), String> {
        let options = KEYRINGS
            .iter()
            .find(|path| Path::new(path).exists())
            .map_or(String::new(), |path| format!("[signed-by={path}] "));
        let path = self.root.join("sources.list");
        std::fs::write(&path, format!("deb {options}{mirror} {suite} main\n"))
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    fn run(&self, args: &[&str]) -> Result<(), String> {
        let mut command = Command::new("apt-get");
        command.env("APT_CONFIG", self.root.join("apt.conf")).env("LC_ALL", "C");
        // By default, apt only logs a warning about a package list that cannot be downloaded. With this setting, apt
        // fails.
        command.arg("-qq").arg("-o").arg("APT::Update::Error-Mode=any");
        output(command.args(args).current_dir(&self.root)).map(drop)
    }

    /// Returns the packages that `install --download-only` has downloaded.
    fn cached(&self) -> Result<Vec<PathBuf>, String> {
        let folder = self.root.join("cache/archives");
        let entries = std::fs::read_dir(&folder).map_err(|error| error.to_string())?;
        let paths = entries.filter_map(Result::ok).map(|entry| entry.path());
        Ok(paths.filter(|path| path.extension().is_some_and(|it| it == "deb")).collect())
    }

    /// Returns the newest downloaded file of a package.
    fn downloaded(&self, package: &str) -> Result<PathBuf, String> {
        let prefix = format!("{package}_");
        let entries = std::fs::read_dir(&self.root).map_err(|error| error.to_string())?;
        entries
            .filter_map(Result::ok)
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
            .max_by_key(|entry| entry.metadata().and_then(|data| data.modified()).ok())
            .map(|entry| entry.path())
            .ok_or(format!("apt did not download {package}"))
    }
}
