//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{StringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::endpoint::{Address, Security};
use crate::secret::Secret;

/// Puts load on an etcd-compatible server and reports latency, throughput, and what it cost the server.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "bench",
    bin_name = "quorate bench",
    no_binary_name = true,
    arg_required_else_help = true,
    after_help = "Examples:
  # 100,000 puts, 100 at a time
  quorate bench put --clients 100 --total 100000

  # Reads at a fixed rate for a minute, with the server's CPU and memory
  quorate bench range --rate 1000 --duration 1m --pid $(pidof quorate)

  # The load of a Kubernetes API server
  quorate bench kubernetes --keys 1000 --duration 1m"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) options: Options,
    #[command(subcommand)]
    pub(crate) load: Load,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Servers, as host:port or URLs (http, https, unix, unixs); connections are dealt among them
    #[arg(long, global = true, env = "ETCDCTL_ENDPOINTS", value_delimiter = ',')]
    #[arg(default_value = "127.0.0.1:2379")]
    pub(crate) endpoints: Vec<Address>,
    /// Certificates of authorities that servers are trusted by
    #[arg(long, global = true, env = "ETCDCTL_CACERT", hide_env_values = true)]
    pub(crate) cacert: Option<PathBuf>,
    /// Certificate to show to servers
    #[arg(long, global = true, env = "ETCDCTL_CERT", hide_env_values = true)]
    pub(crate) cert: Option<PathBuf>,
    /// Its key
    #[arg(long, global = true, env = "ETCDCTL_KEY", hide_env_values = true)]
    pub(crate) key: Option<PathBuf>,
    /// Trust every server that speaks TLS
    #[arg(long, global = true, env = "ETCDCTL_INSECURE_SKIP_TLS_VERIFY")]
    pub(crate) insecure_skip_tls_verify: bool,
    /// User to log in as, name[:password]; once for each connection, before the run
    #[arg(long, global = true, env = "ETCDCTL_USER", hide_env_values = true)]
    #[arg(value_parser = secret())]
    pub(crate) user: Option<Secret>,
    /// Password of the user, if it does not go with the name
    #[arg(long, global = true, env = "ETCDCTL_PASSWORD", hide_env_values = true)]
    #[arg(value_parser = secret())]
    pub(crate) password: Option<Secret>,
    /// Requests in flight
    #[arg(long, global = true, default_value_t = 100)]
    pub(crate) clients: usize,
    /// Connections that the clients share
    #[arg(long, global = true, default_value_t = 10)]
    pub(crate) connections: usize,
    /// Threads that drive the connections
    #[arg(long, global = true, default_value_t = 1)]
    pub(crate) threads: usize,
    /// Operations
    #[arg(long, global = true)]
    pub(crate) total: Option<u64>,
    /// How long to run, such as 10s, 500ms or 2m [default: 10s unless --total is given]
    #[arg(long, global = true, value_parser = duration)]
    pub(crate) duration: Option<Duration>,
    /// Operations per second; latency then counts from when each was due
    #[arg(long, global = true, value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// How many keys there are
    #[arg(long, global = true, default_value_t = 100_000)]
    pub(crate) keys: u64,
    /// Length of a key in bytes
    #[arg(long, global = true, default_value_t = 16)]
    pub(crate) key_size: usize,
    /// What keys begin with
    #[arg(long, global = true, default_value = "bench/")]
    pub(crate) prefix: String,
    /// Length of a value in bytes
    #[arg(long, global = true, default_value_t = 256)]
    pub(crate) value_size: usize,
    /// Seed of keys and values
    #[arg(long, global = true, default_value_t = 1)]
    pub(crate) seed: u64,
    /// A server process whose CPU and memory to report; may be repeated
    #[arg(long = "pid", global = true)]
    pub(crate) pids: Vec<u32>,
    /// Report as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl Options {
    /// How connections are secured.
    pub(crate) fn security(&self) -> Security {
        Security {
            cacert: self.cacert.clone(),
            cert: self.cert.clone(),
            key: self.key.clone(),
            trusts_all: self.insecure_skip_tls_verify,
        }
    }
}

/// Loads.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Load {
    /// Write single keys
    Put {
        /// Which key comes next
        #[arg(long, value_enum, default_value_t = OrderName::Random)]
        order: OrderName,
    },
    /// Write every key once
    Fill {
        /// Which key comes next
        #[arg(long, value_enum, default_value_t = OrderName::Sequential)]
        order: OrderName,
    },
    /// Read single keys
    Range {
        /// Read what one member has, without asking the others
        #[arg(long)]
        serializable: bool,
        /// Which key comes next
        #[arg(long, value_enum, default_value_t = OrderName::Random)]
        order: OrderName,
    },
    /// Read many keys in one call
    List(ListArgs),
    /// Compare and write a key in a transaction
    Txn,
    /// Read and write single keys
    Mixed {
        /// Percent of operations that read
        #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u64).range(0..=100))]
        reads: u64,
        /// Read what one member has, without asking the others
        #[arg(long)]
        serializable: bool,
    },
    /// Ask what the API server of Kubernetes asks: objects read, changed by optimistic transactions and listed in pages
    /// at one revision, heartbeats of nodes, events with a lease, and compaction, while others watch; the report has
    /// each call by itself
    Kubernetes(KubernetesArgs),
    /// Watch keys with many watchers while writing them
    Watch(WatchArgs),
    /// One watcher, and the way of an event to it [default rate: 100]
    WatchLatency,
    /// Grant leases
    LeaseGrant {
        /// Seconds until a lease expires
        #[arg(long, default_value_t = 60)]
        ttl: i64,
    },
    /// Make connections, each up to the server's greeting: with TLS, handshakes
    Connect,
    /// Keep leases alive: one lease and one stream per client
    LeaseKeepalive {
        /// Seconds until a lease expires
        #[arg(long, default_value_t = 60)]
        ttl: i64,
    },
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ListArgs {
    /// Keys in a reply, at most; 0 for all of the range
    #[arg(long, default_value_t = 0)]
    pub(crate) limit: u32,
    /// Keys in the range; 0 for all from the start key to the last
    #[arg(long, default_value_t = 0)]
    pub(crate) span: u64,
    /// Go through all keys page by page, at the revision of the first page
    #[arg(long, requires = "limit", conflicts_with = "span")]
    pub(crate) walk: bool,
    /// Begin the walk at this page
    #[arg(long, default_value_t = 0, requires = "walk")]
    pub(crate) first_page: u64,
    /// Read what one member has, without asking the others
    #[arg(long)]
    pub(crate) serializable: bool,
    /// Leave the values out of the replies
    #[arg(long)]
    pub(crate) keys_only: bool,
    /// Reply with the number of keys alone
    #[arg(long)]
    pub(crate) count_only: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct KubernetesArgs {
    /// Watchers of everything that is written below the prefix, told of progress
    #[arg(long, default_value_t = 10)]
    pub(crate) watchers: u64,
    /// Objects on a page of a list
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) page: u32,
    /// How often history is compacted, up to where it stood the time before
    #[arg(long, default_value = "5m", value_parser = duration)]
    pub(crate) compact_every: Duration,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct WatchArgs {
    /// Watchers
    #[arg(long, default_value_t = 1000)]
    pub(crate) watchers: u64,
    /// Streams that the watchers share
    #[arg(long, default_value_t = 10)]
    pub(crate) streams: usize,
    /// Keys that are watched and written in turn
    #[arg(long, default_value_t = 1)]
    pub(crate) watched_keys: u64,
    /// Connections that carry the watch streams
    #[arg(long, default_value_t = 10)]
    pub(crate) watch_connections: usize,
}

/// Order of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OrderName {
    Random,
    Sequential,
}

/// Takes any text, and shows none.
fn secret() -> impl TypedValueParser<Value = Secret> {
    StringValueParser::new().map(Secret::from)
}

/// Reads a duration of one unit.
fn duration(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let seconds = match unit {
        "ms" => 0.001,
        "s" | "" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("a duration is a number and ms, s, m or h".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| "a duration begins with a number".to_owned())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|error| error.to_string())
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if rate > 0.0 && f64::is_finite(rate) => Ok(rate),
        _ => Err("a rate is a number above zero".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("7"), Ok(Duration::from_secs(7)));
        assert!(duration("7x").is_err() && duration("s").is_err());
        assert!(rate("0").is_err() && rate("-1").is_err() && rate("2.5") == Ok(2.5));
    }
}
