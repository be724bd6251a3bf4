//! Texts of the manual and reference pages, except the descriptions of commands.

use quorate_cli::manual::Manual;

use crate::command::Run;
use crate::commands::ROOT;

/// Texts of this tool's manual.
pub(crate) const MANUAL: Manual<Run> = Manual {
    name: "quorate-ctl",
    program: "quorate ctl",
    alias: Some("etcdctl"),
    summary: "command-line client for clusters of Quorate and etcd",
    description: &[
        "Reads, writes and watches keys, holds locks and leases, and manages members, users, roles and alarms. It \
         sends each request to a server in --endpoints, and to the next one if that server does not answer. It works \
         with etcd and with Quorate.",
        "Commands, flags, output and exit codes are those of etcdctl 3.7, so scripts for it need not be changed. Names \
         of commands may be abbreviated as long as they are unambiguous.",
    ],
    environment: &[
        "Every global option can be set by an environment variable instead: ETCDCTL_ and its name in capitals with \
         underscores, such as ETCDCTL_ENDPOINTS for --endpoints. An option that is given both ways is refused.",
    ],
    exits: &[
        ("0", "The command succeeded."),
        ("1", "The cluster refused the request, or an error without a code of its own occurred."),
        ("2", "No connection could be made."),
        ("3", "Standard input is malformed."),
        ("4", "The options cannot be combined."),
        ("5", "The command was interrupted."),
        ("128", "The command line is invalid."),
    ],
    see_also: &["quorate(1)", "quorate-utl(1)"],
    root: &ROOT,
};
