//! The command line: loads, flags and environment variables, parsed into a [`Cli`].

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use quorate_cli::command::{Command, find};
use quorate_cli::flags::{Flag, Kind, Matches};
use quorate_cli::gotext::{parse_duration, parse_uint, quote};
use quorate_cli::help;
use quorate_cli::start::{Begun, Names, begin};

use crate::endpoint::{Address, Security};
use crate::secret::Secret;

/// The exit code for an invalid command line.
const MISTAKE: u8 = 2;

const NAMES: Names = Names { of_etcd: "", own: "quorate bench" };

/// The action that a command performs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leads {
    /// Runs a load. The function in this variant parses the load's flags.
    Load(fn(&Matches) -> Result<Load, String>),
    /// Prints the help for a command.
    Help,
}

/// A parsed command line.
#[derive(Clone, Debug)]
pub(crate) struct Cli {
    pub(crate) options: Options,
    pub(crate) load: Load,
}

/// The options common to all loads.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) endpoints: Vec<Address>,
    pub(crate) cacert: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) insecure_skip_tls_verify: bool,
    pub(crate) user: Option<Secret>,
    pub(crate) password: Option<Secret>,
    pub(crate) clients: usize,
    pub(crate) connections: usize,
    pub(crate) threads: usize,
    pub(crate) total: Option<u64>,
    pub(crate) duration: Option<Duration>,
    pub(crate) rate: Option<f64>,
    pub(crate) keys: u64,
    pub(crate) key_size: usize,
    pub(crate) prefix: String,
    pub(crate) value_size: usize,
    pub(crate) seed: u64,
    pub(crate) pids: Vec<u32>,
    pub(crate) json: bool,
}

/// A load and its own options.
#[derive(Clone, Debug)]
pub(crate) enum Load {
    Put { order: OrderName },
    Fill { order: OrderName },
    Range { serializable: bool, order: OrderName },
    List(ListArgs),
    Txn,
    Mixed { reads: u64, serializable: bool },
    Kubernetes(KubernetesArgs),
    Watch(WatchArgs),
    WatchLatency,
    LeaseGrant { ttl: i64 },
    Connect,
    LeaseKeepalive { ttl: i64 },
}

#[derive(Clone, Debug)]
pub(crate) struct ListArgs {
    pub(crate) limit: u32,
    pub(crate) span: u64,
    pub(crate) walk: bool,
    pub(crate) first_page: u64,
    pub(crate) serializable: bool,
    pub(crate) keys_only: bool,
    pub(crate) count_only: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct KubernetesArgs {
    pub(crate) watchers: u64,
    pub(crate) page: u32,
    pub(crate) compact_every: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct WatchArgs {
    pub(crate) watchers: u64,
    pub(crate) streams: usize,
    pub(crate) watched_keys: u64,
    pub(crate) watch_connections: usize,
}

/// The order in which keys are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderName {
    Random,
    Sequential,
}

const fn text(name: &'static str, default: &'static str, usage: &'static str) -> Flag {
    Flag::text(name, default, usage)
}

const OPTIONS: &[Flag] = &[
    Flag {
        name: "endpoints",
        short: None,
        kind: Kind::List,
        default: "127.0.0.1:2379",
        usage: "Servers, as host:port or URLs (http, https, unix, unixs); the connections are distributed over the servers \
         [variable: ETCDCTL_ENDPOINTS]",
    },
    text("cacert", "", "Certificates of trusted authorities [variable: ETCDCTL_CACERT]"),
    text("cert", "", "Client certificate [variable: ETCDCTL_CERT]"),
    text("key", "", "Private key of the client certificate [variable: ETCDCTL_KEY]"),
    Flag::bool(
        "insecure-skip-tls-verify",
        "Do not verify server certificates [variable: ETCDCTL_INSECURE_SKIP_TLS_VERIFY]",
    ),
    text(
        "user",
        "",
        "User to log in as (name[:password]); each connection logs in before the run [variable: ETCDCTL_USER]",
    ),
    text(
        "password",
        "",
        "Password of the user, if --user does not contain it [variable: ETCDCTL_PASSWORD]",
    ),
    Flag::uint("clients", "100", "Number of requests in flight"),
    Flag::uint("connections", "10", "Number of connections that the clients share"),
    Flag::uint("threads", "1", "Number of threads that drive the connections"),
    Flag::uint("total", "0", "Operations"),
    text(
        "duration",
        "",
        "Duration of the run, such as 10s, 500ms or 2m (10s by default, unless the number of operations is limited)",
    ),
    text(
        "rate",
        "",
        "Operations per second; latency is then measured from the due time of each operation",
    ),
    Flag::uint("keys", "100000", "Number of keys"),
    Flag::uint("key-size", "16", "Length of a key in bytes"),
    text("prefix", "bench/", "Prefix of the keys"),
    Flag::uint("value-size", "256", "Length of a value in bytes"),
    Flag::uint("seed", "1", "Seed for the random keys and values"),
    Flag {
        name: "pid",
        short: None,
        kind: Kind::List,
        default: "",
        usage: "Id of a server process whose CPU time and memory are reported; may be repeated",
    },
    Flag::bool("json", "Print the report as JSON"),
];

/// Flags that can also be set by environment variables. The command line takes precedence.
const VARIABLES: [(&str, &str); 7] = [
    ("endpoints", "ETCDCTL_ENDPOINTS"),
    ("cacert", "ETCDCTL_CACERT"),
    ("cert", "ETCDCTL_CERT"),
    ("key", "ETCDCTL_KEY"),
    ("insecure-skip-tls-verify", "ETCDCTL_INSECURE_SKIP_TLS_VERIFY"),
    ("user", "ETCDCTL_USER"),
    ("password", "ETCDCTL_PASSWORD"),
];

const RANDOM_ORDER: Flag = text("order", "random", "Order of keys: random or sequential");
const SEQUENTIAL_ORDER: Flag = Flag { default: "sequential", ..RANDOM_ORDER };
const SERIALIZABLE: Flag =
    Flag::bool("serializable", "Serializable reads: one member answers from its own state");
const TTL: Flag = Flag { default: "60", ..Flag::int("ttl", "Seconds until a lease expires") };

const fn load(
    usage: &'static str,
    short: &'static str,
    flags: &'static [Flag],
    read: fn(&Matches) -> Result<Load, String>,
) -> Command<Leads> {
    Command { usage, short, flags, run: Some(Leads::Load(read)), ..Command::EMPTY }
}

const PUT: Command<Leads> = load("put", "Write single keys", &[RANDOM_ORDER], |matches| {
    Ok(Load::Put { order: order(matches)? })
});

const FILL: Command<Leads> = load("fill", "Write every key once", &[SEQUENTIAL_ORDER], |matches| {
    Ok(Load::Fill { order: order(matches)? })
});

const RANGE: Command<Leads> =
    load("range", "Read single keys", &[SERIALIZABLE, RANDOM_ORDER], |matches| {
        let serializable = matches.bool("serializable");
        Ok(Load::Range { serializable, order: order(matches)? })
    });

const LIST: Command<Leads> = load(
    "list",
    "Read many keys in one call",
    &[
        Flag::uint("limit", "0", "Maximum number of keys in a response; 0 for the whole range"),
        Flag::uint(
            "span",
            "0",
            "Number of keys in the range; 0 for all keys from the start key to the last",
        ),
        Flag::bool("walk", "Read all keys page by page, at the revision of the first page"),
        Flag::uint("first-page", "0", "Begin the walk at this page"),
        SERIALIZABLE,
        Flag::bool("keys-only", "Omit the values from the responses"),
        Flag::bool("count-only", "Return only the number of keys"),
    ],
    list,
);

const TXN: Command<Leads> =
    load("txn", "Compare and write a key in a transaction", &[], |_| Ok(Load::Txn));

const MIXED: Command<Leads> = load(
    "mixed",
    "Read and write single keys",
    &[Flag::uint("reads", "80", "Percentage of operations that read"), SERIALIZABLE],
    |matches| {
        let reads = bounded(matches, "reads", 0, 100)?;
        Ok(Load::Mixed { reads, serializable: matches.bool("serializable") })
    },
);

const KUBERNETES: Command<Leads> = Command {
    long: "Generate the requests of a Kubernetes API server: objects are read, updated by optimistic transactions \
     and listed in pages at one revision; nodes send heartbeats; events have a lease; history is compacted; and \
     watchers receive all changes. The report lists each kind of call",
    ..load(
        "kubernetes",
        "Generate the requests of a Kubernetes API server",
        &[
            Flag::uint(
                "watchers",
                "10",
                "Number of watchers of all keys under the prefix, with progress notifications",
            ),
            Flag::uint("page", "500", "Number of objects per page when listing"),
            text(
                "compact-every",
                "5m",
                "Interval between compactions; each compacts to the revision that was current one interval earlier",
            ),
        ],
        kubernetes,
    )
};

const WATCH: Command<Leads> = load(
    "watch",
    "Watch keys with many watchers while writing them",
    &[
        Flag::uint("watchers", "1000", "Watchers"),
        Flag::uint("streams", "10", "Number of streams that the watchers share"),
        Flag::uint("watched-keys", "1", "Number of watched keys, which are written in turn"),
        Flag::uint("watch-connections", "10", "Number of connections that carry the watch streams"),
    ],
    |matches| {
        Ok(Load::Watch(WatchArgs {
            watchers: matches.uint("watchers"),
            streams: size(matches, "streams"),
            watched_keys: matches.uint("watched-keys"),
            watch_connections: size(matches, "watch-connections"),
        }))
    },
);

const WATCH_LATENCY: Command<Leads> = load(
    "watch-latency",
    "Measure the latency of events to one watcher, at --rate 100 by default",
    &[],
    |_| Ok(Load::WatchLatency),
);

const LEASE_GRANT: Command<Leads> = load("lease-grant", "Grant leases", &[TTL], |matches| {
    Ok(Load::LeaseGrant { ttl: matches.int("ttl") })
});

const CONNECT: Command<Leads> = load(
    "connect",
    "Open connections, and measure the time until the server's first frame, including the TLS handshake",
    &[],
    |_| Ok(Load::Connect),
);

const LEASE_KEEPALIVE: Command<Leads> = load(
    "lease-keepalive",
    "Keep leases alive: one lease and one stream per client",
    &[TTL],
    |matches| Ok(Load::LeaseKeepalive { ttl: matches.int("ttl") }),
);

const HELP: Command<Leads> = Command {
    usage: "help [command]",
    short: "Help about any command",
    run: Some(Leads::Help),
    ..Command::EMPTY
};

pub(crate) const ROOT: Command<Leads> = Command {
    usage: "bench",
    short: "Generates load on an etcd-compatible server, and reports latency, throughput and the cost for the server.",
    own_example: "  # 100,000 puts, 100 at a time
  quorate bench put --clients 100 --total 100000

  # Reads at a fixed rate for a minute, with the server's CPU and memory
  quorate bench range --rate 1000 --duration 1m --pid $(pidof quorate)

  # The load of a Kubernetes API server
  quorate bench kubernetes --keys 1000 --duration 1m",
    inherited: OPTIONS,
    children: &[
        &PUT,
        &FILL,
        &RANGE,
        &LIST,
        &TXN,
        &MIXED,
        &KUBERNETES,
        &WATCH,
        &WATCH_LATENCY,
        &LEASE_GRANT,
        &CONNECT,
        &LEASE_KEEPALIVE,
        &HELP,
    ],
    failure_code: Some(MISTAKE),
    ..Command::EMPTY
};

/// Parses a command line whose first word is the program's name. `variable` reads an environment variable. If the
/// command line is invalid or asks for help, the function prints the error or the help and returns the exit code.
pub(crate) fn read(
    args: impl IntoIterator<Item = OsString>,
    variable: impl Fn(&str) -> Option<String>,
    (output, errors): (&mut dyn Write, &mut dyn Write),
) -> Result<Cli, u8> {
    let unknown = |program: &str, word: &str| ROOT.unknown(program, word);
    let Begun { program, found, matches, run } =
        begin(NAMES, &ROOT, args, unknown, (&mut *output, &mut *errors))?;
    let load = match run {
        Leads::Load(load) => load,
        Leads::Help => return Err(show_help(program, &matches, (output, errors))),
    };
    read_load(matches, load, variable).map_err(|wrong| {
        let usage = help::usage(program, &found);
        refuse(errors, &format!("Error: {wrong}\n{usage}\n"))
    })
}

fn read_load(
    mut matches: Matches,
    load: fn(&Matches) -> Result<Load, String>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Cli, String> {
    if let Some(more) = matches.args.first() {
        return Err(format!("unexpected argument {}", quote(more)));
    }
    for (name, key) in VARIABLES {
        let flag = OPTIONS.iter().find(|flag| flag.name == name);
        let flag = flag.expect("every environment variable sets a flag that all loads have");
        if !matches.changed(name)
            && let Some(value) = variable(key).filter(|value| !value.is_empty())
        {
            matches.give(flag, value.as_bytes()).map_err(|wrong| format!("{key}: {wrong}"))?;
        }
    }
    Ok(Cli { options: Options::of(&matches)?, load: load(&matches)? })
}

/// Prints the help for the command named in the arguments, and returns the exit code.
fn show_help(
    program: &str,
    matches: &Matches,
    (output, errors): (&mut dyn Write, &mut dyn Write),
) -> u8 {
    match find(&ROOT, &matches.args) {
        Ok(found) => {
            let written = output.write_all(help::help(program, &found).as_bytes());
            u8::from(written.is_err())
        }
        Err(word) => refuse(errors, &format!("Error: {}\n", ROOT.unknown(program, &word))),
    }
}

/// Prints an error about the command line, and returns the exit code.
fn refuse(errors: &mut dyn Write, text: &str) -> u8 {
    // If standard error is closed, only the exit code reports the error.
    drop(errors.write_all(text.as_bytes()));
    MISTAKE
}

impl Options {
    fn of(matches: &Matches) -> Result<Self, String> {
        let given = |name: &str| Some(matches.text(name)).filter(|text| !text.is_empty());
        let path = |name: &str| given(name).map(PathBuf::from);
        let secret =
            |name: &str| matches.changed(name).then(|| Secret::from(matches.text(name).to_owned()));
        let endpoint = |text: &String| {
            text.parse::<Address>().map_err(|reason| invalid("endpoints", text, &reason))
        };
        let pid = |text: &String| {
            let number = parse_uint(text, 10).map_err(|reason| invalid("pid", text, &reason))?;
            u32::try_from(number).map_err(|_| invalid("pid", text, "the number is too large"))
        };
        let pids = given("pid").map(|_| matches.list("pid")).unwrap_or_default();
        Ok(Self {
            endpoints: matches.list("endpoints").iter().map(endpoint).collect::<Result<_, _>>()?,
            cacert: path("cacert"),
            cert: path("cert"),
            key: path("key"),
            insecure_skip_tls_verify: matches.bool("insecure-skip-tls-verify"),
            user: secret("user"),
            password: secret("password"),
            clients: size(matches, "clients"),
            connections: size(matches, "connections"),
            threads: size(matches, "threads"),
            total: matches.changed("total").then(|| matches.uint("total")),
            duration: given("duration").map(|_| duration(matches, "duration")).transpose()?,
            rate: given("rate").map(rate).transpose()?,
            keys: matches.uint("keys"),
            key_size: size(matches, "key-size"),
            prefix: matches.text("prefix").to_owned(),
            value_size: size(matches, "value-size"),
            seed: matches.uint("seed"),
            pids: pids.iter().map(pid).collect::<Result<_, _>>()?,
            json: matches.bool("json"),
        })
    }

    /// Returns the TLS settings for connections to the servers.
    pub(crate) fn security(&self) -> Security {
        Security {
            cacert: self.cacert.clone(),
            cert: self.cert.clone(),
            key: self.key.clone(),
            trusts_all: self.insecure_skip_tls_verify,
        }
    }
}

fn list(matches: &Matches) -> Result<Load, String> {
    if matches.bool("walk") && !matches.changed("limit") {
        return Err("--walk needs --limit".to_owned());
    }
    if matches.bool("walk") && matches.changed("span") {
        return Err("--walk and --span cannot be combined".to_owned());
    }
    if matches.changed("first-page") && !matches.bool("walk") {
        return Err("--first-page needs --walk".to_owned());
    }
    let limit = bounded(matches, "limit", 0, u32::MAX.into())?;
    Ok(Load::List(ListArgs {
        limit: u32::try_from(limit).expect("the maximum was checked"),
        span: matches.uint("span"),
        walk: matches.bool("walk"),
        first_page: matches.uint("first-page"),
        serializable: matches.bool("serializable"),
        keys_only: matches.bool("keys-only"),
        count_only: matches.bool("count-only"),
    }))
}

fn kubernetes(matches: &Matches) -> Result<Load, String> {
    let page = bounded(matches, "page", 1, u32::MAX.into())?;
    Ok(Load::Kubernetes(KubernetesArgs {
        watchers: matches.uint("watchers"),
        page: u32::try_from(page).expect("the maximum was checked"),
        compact_every: duration(matches, "compact-every")?,
    }))
}

fn order(matches: &Matches) -> Result<OrderName, String> {
    match matches.text("order") {
        "random" => Ok(OrderName::Random),
        "sequential" => Ok(OrderName::Sequential),
        other => Err(invalid("order", other, "the order must be random or sequential")),
    }
}

fn bounded(matches: &Matches, name: &str, min: u64, max: u64) -> Result<u64, String> {
    let value = matches.uint(name);
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(invalid(name, matches.text(name), &format!("the value must be between {min} and {max}")))
}

fn size(matches: &Matches, name: &str) -> usize {
    usize::try_from(matches.uint(name)).unwrap_or(usize::MAX)
}

/// Parses a duration in Go's syntax. A plain number is in seconds.
fn duration(matches: &Matches, name: &str) -> Result<Duration, String> {
    let text = matches.text(name);
    let seconds = if text.ends_with(|last: char| last.is_ascii_digit()) { "s" } else { "" };
    parse_duration(&format!("{text}{seconds}")).map_err(|reason| invalid(name, text, &reason))
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if rate > 0.0 && f64::is_finite(rate) => Ok(rate),
        _ => Err(invalid("rate", text, "a rate must be greater than zero")),
    }
}

/// Returns the error for an invalid value, worded like the other command line errors.
fn invalid(name: &str, value: &str, reason: &str) -> String {
    format!("invalid argument {} for \"--{name}\" flag: {reason}", quote(value.as_bytes()))
}

/// Parses a command line for tests, with these environment variables. An error consists of the exit code and the
/// printed text.
#[cfg(test)]
pub(crate) fn read_line(line: &str, variables: &[(&str, &str)]) -> Result<Cli, (u8, String)> {
    let args = std::iter::once("quorate").chain(line.split_whitespace()).map(OsString::from);
    let variable = |key: &str| {
        let found = variables.iter().find(|(known, _)| *known == key);
        found.map(|(_, value)| (*value).to_owned())
    };
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    read(args, variable, (&mut output, &mut errors)).map_err(|code| {
        // Help is printed to standard output, errors to standard error.
        assert!(output.is_empty() || errors.is_empty());
        assert_eq!(code == 0, errors.is_empty());
        (code, String::from_utf8([output, errors].concat()).unwrap())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str, variables: &[(&str, &str)]) -> Options {
        read_line(line, variables).unwrap().options
    }

    fn mistake(line: &str) -> String {
        let (code, said) = read_line(line, &[]).unwrap_err();
        assert_eq!(code, 2, "{line}: {said}");
        said
    }

    #[test]
    fn every_load_is_parsed_with_its_defaults() {
        for child in ROOT.children.iter().filter(|child| child.name() != "help") {
            let Cli { options, .. } = read_line(child.name(), &[]).unwrap();
            assert_eq!((options.clients, options.total, options.duration), (100, None, None));
            assert!(options.pids.is_empty() && options.user.is_none());
        }
        let Load::Fill { order } = read_line("fill", &[]).unwrap().load else { panic!() };
        assert_eq!(order, OrderName::Sequential);
        let Load::Mixed { reads, .. } = read_line("mixed", &[]).unwrap().load else { panic!() };
        assert_eq!(reads, 80);
    }

    #[test]
    fn options_are_accepted_before_and_after_the_load() {
        let options = options("--keys=5 put --total 0 --pid 7 --pid=8 --json --rate 2.5", &[]);
        assert_eq!((options.keys, options.total, options.rate), (5, Some(0), Some(2.5)));
        assert!(options.pids == [7, 8] && options.json);
    }

    #[test]
    fn environment_variables_set_flags_that_are_not_given() {
        let variables = [
            ("ETCDCTL_ENDPOINTS", "a:1,b:2"),
            ("ETCDCTL_USER", "u:p"),
            ("ETCDCTL_CACERT", ""),
            ("ETCDCTL_INSECURE_SKIP_TLS_VERIFY", "true"),
        ];
        let read = options("put", &variables);
        assert_eq!(read.endpoints, ["a:1".parse().unwrap(), "b:2".parse().unwrap()]);
        assert_eq!(read.user, Some(Secret::from("u:p".to_owned())));
        assert!(read.cacert.is_none() && read.insecure_skip_tls_verify);
        let read = options("put --endpoints c:3", &variables);
        assert_eq!(read.endpoints, ["c:3".parse().unwrap()]);
        let wrong = read_line("put", &[("ETCDCTL_INSECURE_SKIP_TLS_VERIFY", "x")]).unwrap_err();
        assert!(wrong.1.contains("ETCDCTL_INSECURE_SKIP_TLS_VERIFY"), "{}", wrong.1);
    }

    #[test]
    fn durations_without_a_unit_are_seconds() {
        for (text, expected) in [("500ms", 500), ("1.5m", 90_000), ("7", 7_000), ("1m30s", 90_000)]
        {
            let read = options(&format!("put --duration {text}"), &[]);
            assert_eq!(read.duration, Some(Duration::from_millis(expected)), "{text}");
        }
    }

    #[test]
    fn usage_errors_exit_with_code_2() {
        for (line, said) in [
            ("", "Available Commands:"),
            ("--keys 5", "Available Commands:"),
            ("frobnicate", "unknown command \"frobnicate\" for \"quorate bench\""),
            ("help frobnicate", "unknown command \"frobnicate\""),
            ("put --frob", "unknown flag: --frob"),
            ("put key", "unexpected argument \"key\""),
            ("put --keys x", "for \"--keys\" flag"),
            ("put --order up", "the order must be random or sequential"),
            ("put --duration 7x", "for \"--duration\" flag"),
            ("put --duration s", "for \"--duration\" flag"),
            ("put --rate 0", "a rate must be greater than zero"),
            ("put --rate -1", "a rate must be greater than zero"),
            ("put --pid 4294967296", "for \"--pid\" flag"),
            ("put --endpoints ftp://a:1", "for \"--endpoints\" flag"),
            ("mixed --reads 101", "between 0 and 100"),
            ("kubernetes --page 0", "between 1 and"),
            ("list --walk", "--walk needs --limit"),
            ("list --walk --limit 5 --span 5", "cannot be combined"),
            ("list --first-page 5", "--first-page needs --walk"),
        ] {
            let refusal = mistake(line);
            assert!(refusal.contains(said), "{line}: {refusal}");
        }
    }

    #[test]
    fn help_lists_loads_and_options() {
        for line in ["--help", "help", "put --help", "help put", "-h"] {
            let (code, help) = read_line(line, &[]).unwrap_err();
            assert_eq!(code, 0, "{line}");
            assert!(
                OPTIONS.iter().all(|flag| help.contains(&format!("--{}", flag.name))),
                "{help}"
            );
            let loads = ROOT.children.iter().all(|child| help.contains(child.short));
            assert_eq!(loads, !line.contains("put"), "{help}");
            assert_eq!(help.contains("--order string"), line.contains("put"), "{help}");
        }
    }

    #[test]
    fn no_error_message_contains_the_password() {
        for line in ["put --user=root:SECRET --frob", "put -uroot:SECRET", "put --user=u:SECRET x"]
        {
            assert!(!mistake(line).contains("SECRET"), "{line}");
        }
    }
}
