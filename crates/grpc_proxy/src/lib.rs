//! `etcd grpc-proxy`: forwards client calls to the members of a cluster.
//!
//! ```text
//! main ─► line (flags) ─► start ─► router (dispatch) ─► relay (forwards unchanged)
//!                            │                     ├──► kv (namespace, cache, leasing)
//!                            │                     ├──► watch, lease (merge streams of many clients; outbox)
//!                            │                     └──► cluster (lists proxies instead of members)
//!                            └───► http (health, metrics)               │
//!                                                         upstream (connections to members: target, unread)
//! ```
//!
//! # Not here
//!
//! Listening and protocol detection (`net`), TLS (`tls`), SRV records (`tcp_gateway`).

mod authority;
mod byte_limit;
mod cache;
mod cache_fill;
mod call;
mod cluster;
mod framing;
mod http;
mod kv;
mod lease;
mod leasing;
mod line;
mod message_log;
mod namespace;
mod outbox;
mod relay;
mod request_body;
mod router;
mod security;
mod span;
mod start;
mod target;
mod unread;
mod upstream;
mod watch;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use quorate_cli::command::Command;
use quorate_cli::flags::Matches;
use quorate_cli::start::begin_of_server;
use quorate_telemetry::log;
use thiserror::Error;

use crate::line::{FLAGS, LineError, Options};
use crate::start::StartError;

type Run = fn(&Matches) -> Result<(), ProxyError>;

const ROOT: Command<Run> = Command {
    usage: "etcd",
    short: "etcd server",
    children: &[&Command {
        usage: "grpc-proxy <subcommand>",
        short: "grpc-proxy related command",
        children: &[&START],
        ..Command::EMPTY
    }],
    ..Command::EMPTY
};

const START: Command<Run> = Command {
    usage: "start",
    short: "start the grpc proxy",
    own_example: "  # Serve clients on this machine on behalf of a cluster
  quorate grpc-proxy start --listen-addr 127.0.0.1:23790 --endpoints 10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379

  # Show clients only the keys under app/, without the prefix
  quorate grpc-proxy start --endpoints 10.0.0.1:2379 --namespace app/",
    flags: FLAGS,
    run: Some(start),
    ..Command::EMPTY
};

/// The reason why the proxy cannot start.
#[derive(Debug, Error)]
enum ProxyError {
    #[error(transparent)]
    Line(#[from] LineError),
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Runs the program. The first argument is the program name, and the second argument is `grpc-proxy`.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let (mut output, mut errors) = (std::io::stdout(), std::io::stderr());
    let begun = begin_of_server(&ROOT, args, (&mut output, &mut errors));
    let (matches, run) = match begun {
        Ok(begun) => begun,
        Err(code) => return code,
    };
    match run(&matches) {
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            log::flush();
            drop(writeln!(errors, "{error}"));
            ExitCode::FAILURE
        }
    }
}

fn start(matches: &Matches) -> Result<(), ProxyError> {
    let options = Options::of(matches)?;
    let level = if options.is_debugged { log::Level::Debug } else { log::Level::Info };
    // Initialisation cannot fail if the log is written to standard error.
    drop(log::init(&log::Settings { level, ..log::Settings::default() }));
    Ok(start::run(&options)?)
}

#[cfg(test)]
mod tests {
    use quorate_cli::command::find;
    use quorate_cli::help;

    use super::*;

    #[test]
    fn help_lists_the_flags_of_the_proxy() {
        let line = [b"grpc-proxy".to_vec(), b"start".to_vec()];
        let found = find(&ROOT, &line).unwrap();
        let help = help::help("etcd", &found);
        for flag in FLAGS {
            assert!(help.contains(&format!("--{}", flag.name)), "{help}");
        }
    }
}
