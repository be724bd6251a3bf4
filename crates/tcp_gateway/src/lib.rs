//! `etcd gateway`: forwards TCP connections of clients to the members of a cluster.
//!
//! ```text
//! main ─► endpoints (members: from flags, or from SRV records: discovery) ─► proxy (chooses a member for each connection)
//! ```
//!
//! # Guarantees
//!
//! * The forwarded bytes are not inspected, so TLS is end-to-end between client and member.
//! * If a member cannot be reached, the client is connected to another member. The member is skipped until a periodic
//!   check, every `--retry-delay`, can connect to it again.
//! * When one side closes its direction of a connection, the other direction stays open.
//!
//! # Not here
//!
//! Retries of requests, and everything else that requires parsing them (`quorate-grpc-proxy`).

mod dial;
mod discovery;
mod endpoints;
mod proxy;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use quorate_cli::command::Command;
use quorate_cli::flags::{Flag, Kind, Matches};
use quorate_cli::start::begin_of_server;
use quorate_cli::stop;
use quorate_telemetry::{init_system, log};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle};

pub use crate::discovery::{Discovered, Discovery, DiscoveryError};
use crate::endpoints::{EndpointError, Wanted};
use crate::proxy::Proxy;

/// Interval between checks of unreachable members if `--retry-delay` is 0.
const RETRY_DELAY_UNSAID: Duration = Duration::from_secs(300);

type Run = fn(&Matches) -> Result<(), GatewayError>;

const ROOT: Command<Run> = Command {
    usage: "etcd",
    short: "etcd server",
    children: &[&Command {
        usage: "gateway <subcommand>",
        short: "gateway related command",
        children: &[&START],
        ..Command::EMPTY
    }],
    ..Command::EMPTY
};

const START: Command<Run> = Command {
    usage: "start",
    short: "start the gateway",
    own_example: "  # Forward connections to the reachable members
  quorate gateway start --listen-addr 127.0.0.1:23790 --endpoints 10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379

  # Discover the members through DNS
  quorate gateway start --discovery-srv example.com",
    flags: &[
        Flag::text("discovery-srv", "", "DNS domain used to bootstrap initial cluster"),
        Flag::text("discovery-srv-name", "", "service name to query when using DNS discovery"),
        Flag {
            name: "endpoints",
            short: None,
            kind: Kind::List,
            default: "127.0.0.1:2379",
            usage: "comma separated etcd cluster endpoints",
        },
        Flag::bool("insecure-discovery", "accept insecure SRV records"),
        Flag::text("listen-addr", "127.0.0.1:23790", "listen address"),
        Flag::duration("retry-delay", "1m0s", "duration of delay before retrying failed endpoints"),
        Flag::text(
            "trusted-ca-file",
            "",
            "path to the client server TLS CA file for verifying the discovered endpoints when discovery-srv is \
             provided.",
        ),
    ],
    run: Some(start),
    ..Command::EMPTY
};

/// The reason why the gateway does not start. Errors with etcd's text are printed to the same stream as in etcd.
#[derive(Debug, Error)]
enum GatewayError {
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error("listen tcp {0}: {1}")]
    Listen(String, #[source] std::io::Error),
    #[error("failed to start a thread: {0}")]
    Thread(#[source] std::io::Error),
}

/// Runs the program. The first argument is the program name, and the second is `gateway`.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let (mut output, mut errors) = (std::io::stdout(), std::io::stderr());
    let begun = begin_of_server(&ROOT, args, (&mut output, &mut errors));
    let (matches, run) = match begun {
        Ok(begun) => begun,
        Err(code) => return code,
    };
    match run(&matches) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ GatewayError::Endpoint(_)) => {
            log::flush();
            drop(writeln!(output, "{error}"));
            ExitCode::FAILURE
        }
        Err(error @ (GatewayError::Listen(..) | GatewayError::Thread(_))) => {
            log::flush();
            drop(writeln!(errors, "{error}"));
            ExitCode::FAILURE
        }
    }
}

fn start(matches: &Matches) -> Result<(), GatewayError> {
    // Initialising the log to standard error cannot fail.
    drop(log::init(&log::Settings::default()));
    stop::on_signal(log::flush).map_err(GatewayError::Thread)?;
    let runtime = || Builder::new_current_thread().enable_all().build();
    let here = runtime().map_err(GatewayError::Thread)?;
    here.block_on(async {
        let wanted = Wanted::of(matches);
        let endpoints = endpoints::find(&wanted).await?;
        endpoints::refuse_own(&wanted.listen_addr, &endpoints).await?;
        let listener = TcpListener::bind(&wanted.listen_addr).await;
        let listener =
            listener.map_err(|error| GatewayError::Listen(wanted.listen_addr.clone(), error))?;
        let workers = start_workers(runtime)?;
        let retry_delay = match matches.duration("retry-delay") {
            Duration::ZERO => RETRY_DELAY_UNSAID,
            delay => delay,
        };
        let proxy = Proxy::to(endpoints, retry_delay);
        init_system::notify_ready();
        proxy.serve(listener, &workers).await;
        Ok(())
    })
}

/// Starts one thread for each core. Each thread serves its own connections.
fn start_workers(
    runtime: impl Fn() -> std::io::Result<tokio::runtime::Runtime>,
) -> Result<Vec<Handle>, GatewayError> {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let start = |number| {
        let runtime = runtime()?;
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new().name(format!("gateway-{number}"));
        thread.spawn(move || runtime.block_on(std::future::pending::<()>()))?;
        Ok(handle)
    };
    (0..count).map(start).collect::<Result<_, _>>().map_err(GatewayError::Thread)
}

#[cfg(test)]
mod tests {
    use quorate_cli::command::find;
    use quorate_cli::help;

    use super::*;

    #[test]
    fn help_lists_the_flags_of_the_gateway() {
        let line = [b"gateway".to_vec(), b"start".to_vec()];
        let found = find(&ROOT, &line).unwrap();
        let help = help::help("etcd", &found);
        for flag in START.flags {
            assert!(help.contains(&format!("--{}", flag.name)), "{help}");
        }
        assert!(START.flags.is_sorted_by_key(|flag| flag.name));
    }
}
