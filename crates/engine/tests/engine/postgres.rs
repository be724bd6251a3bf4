//! Starts temporary PostgreSQL servers for the tests.
//!
//! With `QUORATE_CITUS_WORKERS=2`, each server is the coordinator of a Citus database, and two further
//! servers hold the shards. The extension Citus must be installed.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// `initdb` refuses to run as root. If the tests run as root, the server runs as the first of these
/// users that exists. The first user comes with Debian's package, and the second user always exists.
const USERS: [&str; 2] = ["postgres", "nobody"];

/// The options of a server with Citus. The nodes connect to each other without TLS. Otherwise, Citus
/// would turn on TLS for all connections to its nodes.
const CITUS: &str = "-c shared_preload_libraries=citus -c citus.node_conninfo=sslmode=disable";

/// The statement of a session that keeps a table locked.
const LOCKED: &str = "SELECT pg_sleep(600)";

/// A running PostgreSQL server. The server stops when this value is dropped, or when the test process
/// ends.
#[derive(Debug)]
pub(crate) struct Postgres {
    dir: TempDir,
    programs: PathBuf,
    port: u16,
    /// Additional command-line options of the server.
    settings: String,
    server: Option<Child>,
    /// The servers that hold the shards of a Citus database.
    workers: Vec<Self>,
}

/// Returns the server that the tests share. Each test uses a schema of its own. Returns `None` if
/// PostgreSQL is not installed.
pub(crate) fn shared() -> Option<&'static Postgres> {
    static SHARED: OnceLock<Option<(Postgres, Child)>> = OnceLock::new();
    let start = || {
        let postgres = Postgres::start()?;
        let remover = postgres.remove_after_tests();
        Some((postgres, remover))
    };
    SHARED.get_or_init(start).as_ref().map(|(postgres, _)| postgres)
}

impl Postgres {
    /// Creates a database cluster and starts a server for it.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with("", &[])
    }

    /// Creates a database cluster with these files in its directory, and starts a server with these
    /// settings.
    pub(crate) fn start_with(settings: &str, files: &[(&str, &str)]) -> Option<Self> {
        let mut postgres = Self::start_alone(settings, files)?;
        for _ in 0..worker_count() {
            postgres.add_worker();
        }
        Some(postgres)
    }

    /// Starts a worker of this Citus coordinator.
    fn add_worker(&mut self) {
        let worker = Self::start_alone("", &[]).expect("PostgreSQL is installed");
        for server in [&worker, &*self] {
            server.query("CREATE EXTENSION IF NOT EXISTS citus");
        }
        let (own, new) = (self.port, worker.port);
        self.query(&format!("SELECT citus_set_coordinator_host('127.0.0.1', {own})"));
        self.query(&format!("SELECT citus_add_node('127.0.0.1', {new})"));
        self.workers.push(worker);
    }

    fn start_alone(settings: &str, files: &[(&str, &str)]) -> Option<Self> {
        let Some(programs) = programs() else {
            missing();
            return None;
        };
        let mut postgres = Self::without_data(programs, settings);
        let data = postgres.data();
        let created = postgres
            .command("initdb")
            .args([
                "--auth=trust",
                "--no-sync",
                "--encoding=UTF8",
                "--locale=C",
                "-U",
                "quorate",
                "-D",
            ])
            .arg(&data)
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&created.stderr).into_owned();
        assert!(created.status.success(), "initdb failed: {log}");
        for (name, content) in files {
            // The server refuses a private key that other users can read.
            let given = postgres.dir.path().join(name);
            std::fs::write(&given, content).unwrap();
            let script = "cp \"$0\" \"$1\" && chmod 600 \"$1\"";
            let mut copy = postgres.command("sh");
            copy.args(["-c", script]).arg(given).arg(data.join(name));
            assert!(copy.status().unwrap().success());
        }
        postgres.launch();
        Some(postgres)
    }

    fn without_data(programs: PathBuf, settings: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("quorate-postgres").tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let settings = match worker_count() {
            0 => settings.to_owned(),
            _ => format!("{CITUS} {settings}"),
        };
        let (port, workers) = (free_port(), Vec::new());
        Self { dir, programs, port, settings, server: None, workers }
    }

    /// Starts a standby of this server, and waits until this server's commits wait for the standby. This server must
    /// have been started with the setting `synchronous_standby_names=*`.
    pub(crate) fn start_standby(&self) -> Self {
        let mut standby = Self::without_data(self.programs.clone(), "");
        let data = standby.data();
        let copied = standby
            .command("pg_basebackup")
            .args(["-R", "-X", "stream", "-c", "fast", "--no-sync", "-U", "quorate"])
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-D"])
            .arg(&data)
            .output()
            .unwrap();
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        standby.launch();
        let deadline = Instant::now() + Duration::from_secs(60);
        let synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        while self.query(synchronous) != "1" {
            assert!(Instant::now() < deadline, "no standby is synchronous after 60 s");
            std::thread::sleep(Duration::from_millis(50));
        }
        standby
    }

    /// Makes a standby accept writes.
    pub(crate) fn promote(&self) {
        let promoted =
            self.command("pg_ctl").args(["promote", "-w", "-D"]).arg(self.data()).output().unwrap();
        assert!(promoted.status.success(), "{promoted:?}");
    }

    /// Starts a client that locks a table, and waits until the table is locked. The returned process is passed to
    /// [`Self::unlock`].
    pub(crate) fn lock(&self, table: &str) -> Child {
        let text = format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE; {LOCKED}");
        let client = self
            .command("psql")
            .args(["-XAtqc", &text, "-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(["-U", "quorate", "postgres"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let locked = format!(
            "SELECT count(*) FROM pg_locks WHERE granted AND mode = 'AccessExclusiveLock' \
             AND relation = '{table}'::regclass"
        );
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.query(&locked) != "1" {
            assert!(Instant::now() < deadline, "the table is not locked after 60 s");
            std::thread::sleep(Duration::from_millis(50));
        }
        client
    }

    /// Ends the clients that have locked tables. `client` is one of them.
    pub(crate) fn unlock(&self, mut client: Child) {
        self.query(&format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE query LIKE '%{LOCKED}' AND pid <> pg_backend_pid()"
        ));
        let (Ok(_) | Err(_)) = client.wait();
    }

    /// Returns the number of rows of a table.
    pub(crate) fn row_count(&self, table: &str) -> usize {
        self.query(&format!("SELECT count(*) FROM {table}")).parse().unwrap()
    }

    /// Returns the number of sessions that wait for a lock.
    pub(crate) fn waiting_for_locks(&self) -> usize {
        let text = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        self.query(text).parse().unwrap()
    }

    /// Executes a query, and returns the first column of its first row.
    fn query(&self, text: &str) -> String {
        let answered = self
            .command("psql")
            .args(["-XAtqc", text, "-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(["-U", "quorate", "postgres"])
            // The server may be configured to wait for a standby that has not been started yet.
            .env("PGOPTIONS", "-c synchronous_commit=local")
            .output()
            .unwrap();
        assert!(answered.status.success(), "{}", String::from_utf8_lossy(&answered.stderr));
        String::from_utf8_lossy(&answered.stdout).trim().to_owned()
    }

    /// Returns the URL of a keyspace.
    pub(crate) fn url(&self, schema: &str) -> String {
        self.url_through(self.port, schema)
    }

    /// Returns the URL of a keyspace through a proxy.
    pub(crate) fn url_through(&self, port: u16, schema: &str) -> String {
        format!("postgres://quorate@127.0.0.1:{port}/postgres?sslmode=disable&schema={schema}")
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// Kills the server and all its sessions without a warning, and starts it again.
    pub(crate) fn crash_and_restart(&mut self) {
        self.halt();
        self.launch();
    }

    /// Kills the server and all its sessions without a warning.
    pub(crate) fn halt(&mut self) {
        self.signal("immediate");
    }

    /// Returns the servers that hold the shards of a Citus database.
    pub(crate) fn workers(&mut self) -> &mut [Self] {
        &mut self.workers
    }

    /// Starts a process that removes the files of this server and its workers once the test process has ended and the
    /// servers have stopped. A value in a static variable is never dropped, so its directory would remain. The end of the
    /// test process closes the input of the returned process, which must not be dropped before.
    fn remove_after_tests(&self) -> Child {
        let script = "cat >/dev/null; for dir; do while [ -e \"$dir/data/postmaster.pid\" ]; do sleep 0.1; done; \
                      rm -rf \"$dir\"; done";
        let dirs = self.workers.iter().chain([self]).map(|server| server.dir.path());
        Command::new("sh")
            .args(["-c", script, "sh"])
            .args(dirs)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Starts the server from a shell, which stops the server when the shell's standard input is closed. This input is
    /// also closed when the test process ends.
    pub(crate) fn launch(&mut self) {
        let script = "\"$0\" -D \"$1\" -p \"$2\" -c listen_addresses=127.0.0.1 -c unix_socket_directories=\"$3\" \
                      -c fsync=off -c full_page_writes=off -c max_connections=300 $4 >>\"$3/log\" 2>&1 & \
                      server=$!; cat >/dev/null; kill -QUIT $server; wait $server";
        let mut command = self.command("sh");
        let server = command
            .args(["-c", script])
            .arg(self.programs.join("postgres"))
            .arg(self.data())
            .arg(self.port.to_string())
            .arg(self.dir.path())
            .arg(&self.settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.server = Some(server);
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let ready = self
                .command("pg_isready")
                .args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()])
                .status()
                .unwrap();
            if ready.success() {
                return;
            }
            let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "PostgreSQL failed to start within 60 s: {log}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn signal(&mut self, mode: &str) {
        let data = self.data();
        let stopped =
            self.command("pg_ctl").args(["stop", "-m", mode, "-D"]).arg(data).output().unwrap();
        assert!(stopped.status.success(), "{stopped:?}");
        if let Some(mut shell) = self.server.take() {
            drop(shell.stdin.take());
            shell.wait().unwrap();
        }
    }

    /// Returns a command that runs one of the server's programs, or a shell, as a user other than
    /// root.
    fn command(&self, program: &str) -> Command {
        let path = self.programs.join(program);
        let path = if path.is_file() { path } else { PathBuf::from(program) };
        let is_root =
            std::fs::metadata("/proc/self").map(|of| std::os::unix::fs::MetadataExt::uid(&of) == 0);
        let mut command = if is_root.unwrap_or(false) {
            let mut command = Command::new("runuser");
            command.args(["-u", user(), "--"]).arg(path);
            command
        } else {
            Command::new(path)
        };
        command.current_dir(self.dir.path());
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(mut shell) = self.server.take() {
            drop(shell.stdin.take());
            let (Ok(_) | Err(_)) = shell.wait();
        }
    }
}

/// Returns the number of workers of each Citus database. Without workers, the tests run without Citus.
pub(crate) fn worker_count() -> usize {
    std::env::var("QUORATE_CITUS_WORKERS").map_or(0, |count| count.parse().unwrap())
}

fn user() -> &'static str {
    let known = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let is_known = |user: &str| known.lines().any(|line| line.split(':').next() == Some(user));
    USERS.into_iter().find(|user| is_known(user)).unwrap_or(USERS[1])
}

/// Returns the directory with the newest installed server programs.
fn programs() -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("POSTGRES_BIN_DIR") {
        return Some(PathBuf::from(dir));
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<PathBuf> = versions
        .filter_map(|version| Some(version.ok()?.path().join("bin")))
        .filter(|bin| bin.join("initdb").is_file())
        .collect();
    found.sort();
    found.pop()
}

#[expect(clippy::print_stdout, reason = "the test runner reads this line")]
fn missing() {
    let required = std::env::var("QUORATE_REQUIRE").unwrap_or_default();
    let is_required = required.split(',').any(|name| name == "postgres");
    assert!(!is_required, "postgres is required: install PostgreSQL or set POSTGRES_BIN_DIR");
    println!("skipped: PostgreSQL is missing (set POSTGRES_BIN_DIR)");
    std::io::stdout().flush().unwrap();
}

fn free_port() -> u16 {
    std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}
