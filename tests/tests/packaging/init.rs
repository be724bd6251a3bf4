//! A stand-in for systemd that supports the features used by Quorate's units. It starts a unit's command with its
//! environment, waits for `READY=1`, receives watchdog notifications, stops and masks units, and implements a stand-in
//! for `systemctl`.
//!
//! The settings of a unit are read from its file and from the drop-ins by systemd's rules: a later value takes
//! precedence, and an empty one clears a list. All paths, including the data directory, are within the throw-away root.
//! The resource limits of a unit are ignored (`systemd-analyze` checks them in another test).

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::place::Place;

/// Timeout for starting or stopping a unit.
const DEADLINE: Duration = Duration::from_secs(60);
/// Interval at which waiting on a silent socket is interrupted to check whether the process is alive.
const PAUSE: Duration = Duration::from_millis(20);

/// The merged service section of a unit.
#[derive(Debug, Default)]
pub(crate) struct Unit {
    pub(crate) values: BTreeMap<String, Vec<String>>,
}

impl Unit {
    /// Reads a unit and its drop-ins. Returns `None` if the unit is not installed or is masked.
    pub(crate) fn read(root: &Path, name: &str) -> Option<Self> {
        let own = root.join("etc/systemd/system");
        if std::fs::read_link(own.join(name)).is_ok_and(|to| to == Path::new("/dev/null")) {
            return None;
        }
        let mut text =
            std::fs::read_to_string(root.join("usr/lib/systemd/system").join(name)).ok()?;
        let drop_ins = std::fs::read_dir(own.join(format!("{name}.d"))).into_iter().flatten();
        let mut paths: Vec<PathBuf> = drop_ins.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        for path in paths {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
        let mut unit = Self::default();
        let lines = text.lines().filter(|line| !line.starts_with(['#', ';', '[']));
        for (key, value) in lines.filter_map(|line| line.split_once('=')) {
            let values = unit.values.entry(key.to_owned()).or_default();
            if value.is_empty() {
                values.clear();
            } else {
                values.push(value.to_owned());
            }
        }
        Some(unit)
    }

    /// Returns the last value of a key.
    pub(crate) fn value(&self, key: &str) -> Option<&str> {
        self.values.get(key)?.last().map(String::as_str)
    }

    /// Returns the environment of the process. As in systemd, values from environment files take precedence over values
    /// in the unit.
    fn environment(&self, root: &Path, prefix: &str) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::new();
        let mut set = |line: &str| {
            if let Some((name, value)) = line.split_once('=') {
                let value = value.trim().trim_matches(['"', '\'']).replace("%H", "host");
                variables.insert(name.to_owned(), value);
            }
        };
        let said = self.values.get("Environment").into_iter().flatten();
        said.for_each(|line| set(line.trim_matches('"')));
        for file in self.values.get("EnvironmentFile").into_iter().flatten() {
            let path = file.trim_start_matches('-').replace("%p", prefix);
            let text = std::fs::read_to_string(root.join(path.trim_start_matches('/')));
            let text = text.unwrap_or_default();
            text.lines().filter(|line| !line.starts_with('#')).for_each(&mut set);
        }
        variables
    }
}

/// The init system, with the processes of the running units.
#[derive(Debug)]
pub(crate) struct Init {
    root: PathBuf,
    home: PathBuf,
    running: BTreeMap<String, (Child, UnixDatagram)>,
    /// Recorded `systemctl` commands.
    pub(crate) asked: Vec<String>,
}

impl Init {
    pub(crate) fn new(place: &Place) -> Self {
        let home = place.home().to_owned();
        Self { root: place.root(), home, running: BTreeMap::new(), asked: Vec::new() }
    }

    /// Starts a unit as its file specifies, and waits until it is ready. The error contains the unit's output.
    pub(crate) fn start(&mut self, name: &str) -> Result<(), String> {
        let unit = Unit::read(&self.root, name).ok_or(format!("{name}: not found, or masked"))?;
        assert_eq!(unit.value("Type"), Some("notify"));
        let prefix = name.strip_suffix(".service").unwrap();
        let mut variables = unit.environment(&self.root, prefix);
        let within = |path: &str| self.root.join(path.trim_start_matches('/'));
        for folder in ["ETCD_DATA_DIR", "ETCD_WAL_DIR"] {
            if let Some(path) = variables.get_mut(folder) {
                *path = within(path).to_str().unwrap().to_owned();
            }
        }
        let line = unit.value("ExecStart").unwrap();
        let words = line.split_whitespace().flat_map(|word| match word.strip_prefix('$') {
            Some(name) => variables.get(name).map(String::as_str).unwrap_or_default().split(' '),
            None => word.split(' '),
        });
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        let socket_path = self.home.join(format!("{name}.notify"));
        drop(std::fs::remove_file(&socket_path));
        let socket = UnixDatagram::bind(&socket_path).unwrap();
        socket.set_read_timeout(Some(PAUSE)).unwrap();
        let log_path = self.home.join(format!("{name}.log"));
        let log = std::fs::File::create(&log_path).unwrap();
        let mut command = Command::new(within(words[0]));
        command.args(&words[1..]).env_clear().envs(&variables).current_dir(&self.root);
        command.env("NOTIFY_SOCKET", &socket_path);
        if let Some(limit) = unit.value("WatchdogSec") {
            assert_eq!(limit, "2min");
            command.env("WATCHDOG_USEC", "120000000");
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().map_err(|error| format!("{}: {error}", words[0]))?;
        self.running.insert(name.to_owned(), (child, socket));
        let ready = self.wait_for_notification(name, "READY=1");
        if !ready {
            self.stop(name);
            return Err(std::fs::read_to_string(log_path).unwrap());
        }
        Ok(())
    }

    /// Waits for a notification from a unit. Returns false if the unit exits instead.
    pub(crate) fn wait_for_notification(&mut self, name: &str, expected: &str) -> bool {
        let (child, socket) = self.running.get_mut(name).unwrap();
        let start = Instant::now();
        while child.try_wait().unwrap().is_none() && start.elapsed() < DEADLINE {
            let mut message = [0; 256];
            // The receive timed out without a message.
            let Ok(count) = socket.recv(&mut message) else { continue };
            if String::from_utf8_lossy(&message[..count]).lines().any(|line| line == expected) {
                return true;
            }
        }
        false
    }

    /// Stops a unit if it runs, and waits until it exits.
    pub(crate) fn stop(&mut self, name: &str) {
        if let Some((mut child, _)) = self.running.remove(name) {
            // The process may already have exited.
            drop(Command::new("kill").arg(child.id().to_string()).output());
            let start = Instant::now();
            while child.try_wait().unwrap().is_none() {
                if start.elapsed() > DEADLINE {
                    child.kill().unwrap();
                    panic!("{name} did not stop within {DEADLINE:?}");
                }
                std::thread::sleep(PAUSE);
            }
        }
    }

    pub(crate) fn is_running(&mut self, name: &str) -> bool {
        let found = self.running.get_mut(name);
        found.is_some_and(|(child, _)| child.try_wait().unwrap().is_none())
    }

    /// Executes a `systemctl` command. Returns whether it succeeded.
    fn systemctl(&mut self, line: &str) -> bool {
        self.asked.push(line.to_owned());
        let mut words = line.split(' ').filter(|word| *word != "--quiet");
        let (verb, name) = (words.next().unwrap(), words.next().unwrap_or_default());
        let own = self.root.join("etc/systemd/system").join(name);
        match verb {
            "start" => self.start(name).is_ok(),
            "stop" => {
                self.stop(name);
                true
            }
            "restart" => {
                self.stop(name);
                self.start(name).is_ok()
            }
            "mask" => symlink("/dev/null", own).is_ok(),
            "unmask" => std::fs::remove_file(own).is_ok(),
            "is-active" => self.is_running(name),
            "cat" | "is-enabled" => Unit::read(&self.root, name).is_some(),
            "daemon-reload" | "enable" | "disable" => true,
            other => panic!("unexpected systemctl command: {other}"),
        }
    }

    /// Installs a `systemctl` in the root, and executes its commands until [`Answering::end`].
    pub(crate) fn answer(mut self, place: &Place) -> Answering {
        let [requests, answers] = ["requests", "answers"].map(|name| place.home().join(name));
        let made = Command::new("mkfifo").args([&requests, &answers]).status().unwrap();
        assert!(made.success());
        let (shown, read) = (requests.display(), answers.display());
        place.replace_program(
            "systemctl",
            &format!(
                "echo \"$*\" >'{shown}'\nread -r code <'{read}'\n\
                 [ \"$1\" != is-enabled ] || [ \"$code\" != 0 ] || echo enabled\nexit \"$code\""
            ),
        );
        let from = requests.clone();
        let thread = std::thread::spawn(move || {
            loop {
                let line = std::fs::read_to_string(&from).unwrap();
                if line.trim() == END {
                    return self;
                }
                let code = if self.systemctl(line.trim()) { "0\n" } else { "1\n" };
                std::fs::write(&answers, code).unwrap();
            }
        });
        Answering { thread, requests }
    }
}

impl Drop for Init {
    fn drop(&mut self) {
        for (child, _) in self.running.values_mut() {
            // The process may already have exited.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

const END: &str = "end";

/// An init system that executes `systemctl` commands.
pub(crate) struct Answering {
    thread: JoinHandle<Init>,
    requests: PathBuf,
}

impl Answering {
    /// Stops executing commands, and returns the init system.
    pub(crate) fn end(self) -> Init {
        std::fs::write(self.requests, END).unwrap();
        self.thread.join().unwrap()
    }
}
