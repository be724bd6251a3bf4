//! One run of the tool: its global options, its terminal and its connections to servers.
//!
//! # Invariants
//!
//! * A setting that secures connections is never ignored (see `security`). If the endpoints use TLS, credentials are
//!   not sent in plaintext to an address known only from the member list ([`Session::usable_urls`]). No message
//!   contains the value of an environment variable, because it may be a secret.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use quorate_api::etcdserverpb::{RangeRequest, RangeResponse};
use quorate_cli::start::BROKEN_PIPE;
use quorate_client::credentials::Credentials;
use quorate_client::listed;
use quorate_client::transport::Transport;

use crate::client::{Client, Limits, Logger, Timeouts, Warning};
use crate::credentials;
use crate::discovery::{Discovery, Found, Servers};
use crate::echo::Hidden;
use crate::failure::{Failure, exit};
use crate::flags::{Flag, Kind, Matches};
use crate::gotext;
use crate::log;
use crate::output::{Format, Reply};
use crate::security::{self, ENV_PREFIX, SECURITY_FLAGS};

/// Variables that only `watch` reads.
const WATCH_ENV: [&str; 2] = ["ETCDCTL_WATCH_KEY", "ETCDCTL_WATCH_RANGE_END"];

/// Flags that every command accepts.
pub(crate) const GLOBAL_FLAGS: &[Flag] = &[
    Flag {
        name: "endpoints",
        short: None,
        kind: Kind::List,
        default: "127.0.0.1:2379",
        usage: "gRPC endpoints",
    },
    Flag::bool("debug", "enable client-side debug logging"),
    Flag::text(
        "write-out",
        "simple",
        "set the output format (fields, json, protobuf, simple, table)",
    )
    .short('w'),
    Flag::bool("hex", "print byte strings as hex encoded strings"),
    Flag::duration("dial-timeout", "2s", "dial timeout for client connections"),
    Flag::duration(
        "command-timeout",
        "5s",
        "timeout for short running command (excluding dial timeout)",
    ),
    Flag::duration("keepalive-time", "2s", "keepalive time for client connections"),
    Flag::duration("keepalive-timeout", "6s", "keepalive timeout for client connections"),
    Flag::int(
        "max-request-bytes",
        "client-side request send limit in bytes (if 0, it defaults to 2.0 MiB (2 * 1024 * 1024).)",
    ),
    Flag::int(
        "max-recv-bytes",
        "client-side response receive limit in bytes (if 0, it defaults to \"math.MaxInt32\")",
    ),
];

/// Input and output streams of a run.
pub struct Terminal {
    /// Standard input.
    pub input: Box<dyn BufRead + Send>,
    /// Standard output.
    pub output: Box<dyn Write>,
    /// Standard error.
    pub errors: Box<dyn Write>,
}

impl std::fmt::Debug for Terminal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Terminal").finish_non_exhaustive()
    }
}

/// Answers range requests like a server, or returns an error text.
pub type Ranges = Box<dyn Fn(&RangeRequest) -> Result<RangeResponse, String> + Send>;

/// Opens a file that contains a keyspace. This tool has no code to read such files. The program that embeds the tool
/// may supply it.
pub type OpenFile = fn(&Path) -> Result<Ranges, String>;

/// The environment of a run apart from its terminal: DNS and file access.
pub(crate) struct Surroundings {
    /// DNS servers for discovery.
    pub(crate) servers: Servers,
    pub(crate) open_file: OpenFile,
}

/// One run of a command.
pub(crate) struct Session {
    /// Name under which the tool was called.
    pub(crate) program: String,
    pub(crate) matches: Matches,
    pub(crate) env: BTreeMap<String, OsString>,
    terminal: Rc<RefCell<Terminal>>,
    /// Credentials, read or requested from the user only once.
    credentials: OnceCell<Rc<Credentials>>,
    /// Endpoints, determined only once.
    endpoints: tokio::sync::OnceCell<Vec<String>>,
    surroundings: Surroundings,
}

impl Session {
    /// Combines the command line with the environment. `settable` contains the flags that variables can set. It is
    /// `None` for a local command, which needs neither endpoints nor security settings, so it does not read the
    /// environment.
    pub(crate) fn new(
        program: String,
        settable: Option<Vec<Flag>>,
        mut matches: Matches,
        env: BTreeMap<String, OsString>,
        mut terminal: Terminal,
        surroundings: Surroundings,
    ) -> Result<Self, Failure> {
        if let Some(settable) = settable {
            read_env(&mut matches, &settable, &env, &mut *terminal.errors)?;
            if let Err(failure) = security::check_files(&matches) {
                let text = failure.message.unwrap_or_default();
                // If standard error is closed, the message is lost.
                drop(terminal.errors.write_all(format!("Error: {text}\n").as_bytes()));
                return Err(Failure::silent(failure.code));
            }
            if matches.bool("debug") {
                // If standard error is closed, the message is lost.
                drop(terminal.errors.write_all(settings(&matches).as_bytes()));
            }
        }
        let terminal = Rc::new(RefCell::new(terminal));
        let (credentials, endpoints) = (OnceCell::new(), tokio::sync::OnceCell::new());
        Ok(Self { program, matches, env, terminal, credentials, endpoints, surroundings })
    }

    /// Returns a logged-in client for the configured endpoints.
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        self.client_of(self.endpoints().await?).await
    }

    /// Returns those client URLs of a member to which the credentials may be sent. Returns an error if there are none.
    pub(crate) async fn usable_urls(&self, listed: Vec<String>) -> Result<Vec<String>, Failure> {
        if !self.credentials()?.are_sent() {
            return Ok(listed);
        }
        let (configured, transport) = (self.endpoints().await?, security::transport(&self.matches));
        Ok(listed::for_credentials(&configured, &listed, &transport)?)
    }

    /// Returns whether the requests contain a password or a token.
    pub(crate) fn has_credentials(&self) -> Result<bool, Failure> {
        Ok(self.credentials()?.are_sent())
    }

    /// Returns a logged-in client for the given endpoints.
    pub(crate) async fn client_of(&self, endpoints: Vec<String>) -> Result<Client, Failure> {
        self.prepare(endpoints)?.logged_in().await
    }

    /// Returns a client for the given endpoints that is not logged in yet.
    pub(crate) fn prepare(&self, endpoints: Vec<String>) -> Result<Client, Failure> {
        let transport = security::transport(&self.matches);
        self.prepare_by(endpoints, &transport, self.credentials()?)
    }

    /// Returns a client for the destination cluster, configured by the destination flags. The client is not logged in
    /// yet.
    pub(crate) fn destination(&self, endpoints: Vec<String>) -> Result<Client, Failure> {
        let text = |name| self.matches.text(name);
        let transport = Transport {
            cacert: text("dest-cacert").to_owned(),
            cert: text("dest-cert").to_owned(),
            key: text("dest-key").to_owned(),
            is_demanded: !self.matches.bool("dest-insecure-transport"),
            ..Transport::default()
        };
        let ask = || self.read_secret("Destination Password: ");
        let login = Credentials::login(text("dest-user"), text("dest-password"), ask)?;
        self.prepare_by(endpoints, &transport, Rc::new(login))
    }

    fn prepare_by(
        &self,
        endpoints: Vec<String>,
        transport: &Transport,
        credentials: Rc<Credentials>,
    ) -> Result<Client, Failure> {
        // The format is checked before any request is sent, so that a run with a mistyped format has no effect.
        self.format()?;
        let bytes = |name| usize::try_from(self.matches.int(name)).unwrap_or_default();
        let limits = Limits::new(bytes("max-request-bytes"), bytes("max-recv-bytes"))?;
        let timeouts = Timeouts {
            dial_timeout: self.matches.duration("dial-timeout"),
            keepalive_time: self.matches.duration("keepalive-time"),
            keepalive_timeout: self.matches.duration("keepalive-timeout"),
        };
        let client =
            Client::new(endpoints, transport, credentials, timeouts, limits, self.logger())?;
        Ok(client.repeating())
    }

    fn credentials(&self) -> Result<Rc<Credentials>, Failure> {
        if let Some(known) = self.credentials.get() {
            return Ok(known.clone());
        }
        let ask = || self.read_secret("Password: ");
        let found = Rc::new(credentials::of(&self.matches, ask)?);
        Ok(self.credentials.get_or_init(|| found).clone())
    }

    /// Returns the logger to which a client reports the causes of failed calls and, with `--debug`, its actions.
    fn logger(&self) -> Logger {
        let terminal = self.terminal.clone();
        let warn = Rc::new(move |Warning { caller, message, fields }: &Warning| {
            let errors = &mut *terminal.borrow_mut().errors;
            log::Line {
                level: "warn",
                logger: Some("etcd-client"),
                caller: Some(caller),
                message,
                fields,
            }
            .write(errors);
        });
        if !self.matches.bool("debug") {
            return Logger { warn, ..Logger::default() };
        }
        let terminal = self.terminal.clone();
        let debug = Rc::new(move |message: &str, fields: &[(&str, String)]| {
            let errors = &mut *terminal.borrow_mut().errors;
            log::line(errors, "debug", Some("client"), message, fields);
        });
        Logger { debug, warn }
    }

    /// Returns the endpoints. If discovery is requested and finds endpoints in DNS, returns them; otherwise, returns
    /// the endpoints from the flags.
    pub(crate) async fn endpoints(&self) -> Result<Vec<String>, Failure> {
        self.endpoints.get_or_try_init(async || self.find_endpoints().await).await.cloned()
    }

    async fn find_endpoints(&self) -> Result<Vec<String>, Failure> {
        let given = || self.matches.list("endpoints");
        let Some(discovery) = Discovery::of(&self.matches) else { return Ok(given()) };
        let Found { endpoints, ignored } =
            discovery.endpoints(&(self.surroundings.servers)()).await?;
        for endpoint in ignored {
            let endpoint = gotext::quote(endpoint.as_bytes());
            self.print_error(&format!("ignoring discovered insecure endpoint {endpoint}\n"));
        }
        Ok(if endpoints.is_empty() { given() } else { endpoints })
    }

    /// Opens a file that contains a keyspace.
    pub(crate) fn open_file(&self, path: &Path) -> Result<Ranges, String> {
        (self.surroundings.open_file)(path)
    }

    /// Returns the timeout of a short command.
    pub(crate) fn timeout(&self) -> Duration {
        self.matches.duration("command-timeout")
    }

    pub(crate) fn is_hex(&self) -> bool {
        self.matches.bool("hex")
    }

    pub(crate) fn format(&self) -> Result<Format, Failure> {
        Format::named(self.matches.text("write-out"))
            .ok_or_else(|| Failure::new(exit::BAD_FEATURE, "unsupported output format"))
    }

    /// Prints a reply in the chosen format.
    pub(crate) fn show(&self, reply: &Reply) -> Result<(), Failure> {
        let mut shown = crate::output::Shown::default();
        self.format()?.render(reply, self.is_hex(), &mut shown)?;
        self.print_error(&shown.errors);
        self.print_bytes(&shown.output)
    }

    /// Prints to standard output.
    pub(crate) fn print(&self, text: &str) -> Result<(), Failure> {
        self.print_bytes(text.as_bytes())
    }

    fn print_bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        let output = &mut self.terminal.borrow_mut().output;
        output.write_all(bytes).and_then(|()| output.flush()).map_err(|error| match error.kind() {
            // The reader of the output has closed the pipe.
            ErrorKind::BrokenPipe => Failure::silent(BROKEN_PIPE),
            _ => error.into(),
        })
    }

    /// Prints to standard error.
    pub(crate) fn print_error(&self, text: &str) {
        // If standard error is closed, the message is lost.
        drop(self.terminal.borrow_mut().errors.write_all(text.as_bytes()));
    }

    /// Writes a log line to standard error.
    pub(crate) fn log(&self, level: &str, message: &str, fields: &[(&str, String)]) {
        log::line(&mut *self.terminal.borrow_mut().errors, level, Some("client"), message, fields);
    }

    /// Reads all of standard input.
    pub(crate) fn read_input(&self) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        self.terminal.borrow_mut().input.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads a line of standard input, including its line ending. Returns an empty line at the end of the input.
    pub(crate) fn read_line(&self) -> Result<Vec<u8>, Failure> {
        let mut line = Vec::new();
        self.terminal.borrow_mut().input.read_until(b'\n', &mut line)?;
        Ok(line)
    }

    /// Prompts for a secret with echo disabled. Strips surrounding whitespace.
    pub(crate) fn read_secret(&self, prompt: &str) -> Result<String, String> {
        let hidden = Hidden::begin();
        let asked = self.print(prompt).map_err(|_| "cannot print the password prompt".to_owned());
        let line = asked.and_then(|()| {
            let input = &mut self.terminal.borrow_mut().input;
            hidden.read_line(input).map_err(|error| error.to_string())
        });
        drop(hidden);
        // Echo is off, so the user's line break was not shown.
        drop(self.print("\n"));
        Ok(String::from_utf8_lossy(&line?).trim().to_owned())
    }

    /// Moves standard input out of the session, for a thread that reads it while the command runs.
    pub(crate) fn take_input(&self) -> Box<dyn BufRead + Send> {
        std::mem::replace(&mut self.terminal.borrow_mut().input, Box::new(std::io::empty()))
    }
}

/// Returns the global flags and their values, written as environment variables.
fn settings(matches: &Matches) -> String {
    let line = |flag: &Flag| {
        let value = match flag.kind {
            Kind::Duration => gotext::duration(matches.duration(flag.name)),
            Kind::List => format!("[{}]", matches.text(flag.name)),
            Kind::Bool | Kind::Int | Kind::Uint | Kind::Text | Kind::Bytes => {
                String::from_utf8_lossy(matches.bytes(flag.name)).into_owned()
            }
        };
        format!("{ENV_PREFIX}{}={value}\n", flag.name.to_uppercase().replace('-', "_"))
    };
    let mut lines: Vec<_> = GLOBAL_FLAGS.iter().map(line).collect();
    lines.sort_unstable();
    lines.concat()
}

/// Sets `flags` from the environment. A variable that conflicts with a given flag ends the run. An unknown variable
/// only causes a warning. An invalid value ends the run if the variable sets a security flag. Otherwise it is ignored,
/// with a warning if it is not UTF-8.
fn read_env(
    matches: &mut Matches,
    flags: &[Flag],
    env: &BTreeMap<String, OsString>,
    errors: &mut dyn Write,
) -> Result<(), Failure> {
    for (name, value) in env {
        let Some(rest) = name.strip_prefix(ENV_PREFIX) else { continue };
        let flag_name = rest.to_lowercase().replace('_', "-");
        let upper = rest.chars().all(|c| !c.is_lowercase());
        let flag = flags.iter().find(|flag| flag.name == flag_name).filter(|_| upper);
        let field = ("environment-variable", name.clone());
        match flag {
            Some(flag) if matches.changed(flag.name) => {
                let message = "conflicting environment variable is shadowed by corresponding \
                               command-line flag (either unset environment variable or disable flag))";
                log::line(errors, "fatal", None, message, &[field]);
                return Err(Failure::silent(exit::ERROR));
            }
            Some(_) if value.is_empty() => {}
            Some(flag) => {
                let is_securing = SECURITY_FLAGS.iter().any(|other| other.name == flag.name);
                let is_invalid = matches.give(flag, value.as_bytes()).is_err();
                if is_invalid && is_securing {
                    let message = "environment variable has an invalid value; no request was sent";
                    log::line(errors, "fatal", None, message, &[field]);
                    return Err(Failure::silent(exit::ERROR));
                }
                if is_invalid && value.to_str().is_none() {
                    let message = "environment variable is not UTF-8; it is ignored";
                    log::line(errors, "warn", None, message, &[field]);
                }
            }
            None if WATCH_ENV.contains(&name.as_str()) => {}
            None => {
                let message = "unrecognized environment variable";
                log::line(errors, "warn", None, message, &[field]);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use quorate_cli::command::find;

    use super::*;
    use crate::commands::ROOT;

    #[test]
    fn an_empty_endpoint_list_is_refused() {
        let (code, printed) = crate::runs::run_with(
            &["--endpoints=", "get", "k"],
            &[],
            Box::new(quorate_dns::Resolver::of_system),
        );
        assert_eq!((code, &*printed), (2, "Error: etcdclient: no available endpoints\n"));
    }

    fn read(line: &[&str], env: &[(&str, &[u8])]) -> (Result<Matches, Failure>, String) {
        let line: Vec<_> = line.iter().map(|word| word.as_bytes().to_vec()).collect();
        let found = find(&ROOT, &line).unwrap();
        let mut matches = Matches::parse(&found.flags(), &found.line).unwrap();
        let value = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        let env = env.iter().map(|(key, bytes)| ((*key).to_owned(), value(bytes))).collect();
        let mut errors = Vec::new();
        let settable: Vec<_> = found.inherited_flags().collect();
        let result = read_env(&mut matches, &settable, &env, &mut errors).map(|()| matches);
        (result, String::from_utf8(errors).unwrap())
    }

    #[test]
    fn global_flags_are_read_from_the_environment() {
        let env: [(_, &[u8]); 3] =
            [("ETCDCTL_ENDPOINTS", b"a:1,b:2"), ("ETCDCTL_WRITE_OUT", b"json"), ("HOME", b"/")];
        let (matches, errors) = read(&[], &env);
        let matches = matches.unwrap();
        assert_eq!(matches.list("endpoints"), ["a:1", "b:2"]);
        assert_eq!((matches.text("write-out"), errors.as_str()), ("json", ""));
    }

    #[test]
    fn a_flag_that_is_also_set_by_a_variable_is_refused() {
        let (result, errors) = read(&["--hex"], &[("ETCDCTL_HEX", b"true")]);
        assert_eq!(result.unwrap_err(), Failure::silent(1));
        assert!(errors.contains("conflicting environment variable is shadowed"));
    }

    #[test]
    fn flags_of_a_group_of_commands_are_read_from_the_environment() {
        let env: &[(_, &[u8])] = &[("ETCDCTL_CLUSTER", b"true")];
        for line in ["endpoint health", "endpoint status", "endpoint hashkv"] {
            let words: Vec<_> = line.split(' ').collect();
            let (matches, errors) = read(&words, env);
            assert!(matches.unwrap().bool("cluster"), "{line}");
            assert_eq!(errors, "", "{line}");
            let words = [&words[..], &["--cluster"]].concat();
            assert_eq!(read(&words, env).0.unwrap_err(), Failure::silent(1), "{line}");
        }
        // As in etcdctl, variables do not set the flags of a single command.
        let (matches, errors) = read(&["defrag"], env);
        assert!(!matches.unwrap().bool("cluster"));
        assert!(errors.contains("unrecognized environment variable"), "{errors}");
    }

    #[test]
    fn a_variable_that_is_not_utf8_is_reported() {
        let (matches, errors) = read(&[], &[("ETCDCTL_ENDPOINTS", b"SECRET\xe9")]);
        assert_eq!(matches.unwrap().list("endpoints"), ["127.0.0.1:2379"]);
        assert!(errors.contains("environment variable is not UTF-8"), "{errors}");
        assert!(!errors.contains("SECRET"), "{errors}");
        let (result, errors) = read(&[], &[("ETCDCTL_CACERT", b"SECRET\xe9")]);
        assert_eq!(result.unwrap_err(), Failure::silent(1));
        assert!(errors.contains("no request was sent") && !errors.contains("SECRET"), "{errors}");
    }

    #[test]
    fn settings_are_printed_as_environment_variables() {
        let line = [&b"--endpoints=a:1,b:2"[..], b"--command-timeout=90s", b"--debug"];
        let matches = Matches::parse(GLOBAL_FLAGS, &line.map(<[u8]>::to_vec)).unwrap();
        let shown = settings(&matches);
        let first = "ETCDCTL_COMMAND_TIMEOUT=1m30s\nETCDCTL_DEBUG=true\nETCDCTL_DIAL_TIMEOUT=2s\n";
        assert!(shown.starts_with(first), "{shown}");
        assert!(shown.contains("\nETCDCTL_ENDPOINTS=[a:1,b:2]\n"), "{shown}");
        assert_eq!(shown.lines().count(), GLOBAL_FLAGS.len());
    }

    #[test]
    fn unknown_variables_are_reported_and_an_invalid_timeout_is_ignored() {
        let env: [(_, &[u8]); 4] = [
            ("ETCDCTL_API", b"3"),
            ("ETCDCTL_DIAL_TIMEOUT", b"x"),
            ("ETCDCTL_PASSWRD", b"SECRET"),
            ("ETCDCTL_WATCH_KEY", b"k"),
        ];
        let (matches, errors) = read(&[], &env);
        assert_eq!(matches.unwrap().duration("dial-timeout"), Duration::from_secs(2));
        assert_eq!(errors.lines().count(), 2);
        assert!(errors.contains("\"ETCDCTL_PASSWRD\"") && !errors.contains("SECRET"), "{errors}");
        assert!(errors.contains("\"unrecognized environment variable\""));
        assert!(errors.contains("\"ETCDCTL_API\""));
    }
}
