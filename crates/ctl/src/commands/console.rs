//! `console`: the help text, and the adapter between the session and the crate `console`, which implements the command.

use quorate_client::Timeouts;
use quorate_console::{Cluster, FLAGS, ListenFlags, serve};

use crate::command::{Command, group};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::security::transport;
use crate::session::Session;

pub(crate) const CONSOLE: Command = Command {
    usage: "console [options]",
    short: "Serves a web page for viewing and operating a cluster",
    long: "Serves a web page for viewing and operating a cluster, until the process receives a signal. `quorate console`
is the same command. etcdctl has no such command, but this one works with etcd 3.5 and later as well.

The console is a client of the cluster and has no permissions of its own. If authentication is enabled, each person logs
in on the page as a user and has the permissions of that user; --user, --password and --auth-jwt-token are refused. If
authentication is disabled, the console can be used only on a loopback address, or with client certificates
(--trusted-ca-file). On a loopback address, the page then also requires a secret if the console connects to the
cluster with a client certificate (--cert) or over a Unix socket, or if --allowed-hosts names a proxy. The address that
the command prints contains this secret.

Without --allow-writes, the page is read-only.",
    own_example: "  # Show a cluster at http://127.0.0.1:2383/
  quorate console --endpoints 10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379

  # Operate a cluster with TLS
  quorate console --endpoints https://10.0.0.1:2379 --cacert ca.pem --allow-writes",
    group: Some(group::MAINTENANCE),
    flags: FLAGS,
    is_own: true,
    run: Some(|session| Box::pin(run(session))),
    ..Command::EMPTY
};

async fn run(session: &Session) -> Result<(), Failure> {
    if !session.matches.args.is_empty() {
        return Err(Failure::bad_args("console command accepts no arguments"));
    }
    for name in ["user", "password", "auth-jwt-token"] {
        if !session.matches.text(name).is_empty() {
            return Err(Failure::bad_args(format!(
                "the console has no user of its own, so --{name} is refused; each person logs in on the page"
            )));
        }
    }
    let flags = ListenFlags::of(&session.matches)?;
    let cluster = Cluster {
        endpoints: session.endpoints().await?,
        transport: transport(&session.matches),
        timeouts: Timeouts {
            dial_timeout: session.matches.duration("dial-timeout"),
            keepalive_time: session.matches.duration("keepalive-time"),
            keepalive_timeout: session.matches.duration("keepalive-timeout"),
        },
    };
    let interrupt = Interrupt::listen()?;
    let running = Box::pin(serve(&flags, cluster)).await;
    let running = running.map_err(|error| Failure::error(error.to_string()))?;
    session.print(&format!("The console is at {}\n", running.url))?;
    interrupt.wait().await;
    Ok(())
}
