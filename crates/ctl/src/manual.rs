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
         sends each request to a server in --endpoints, and to the next one if that server does not respond. It works \
         with etcd and with Quorate.",
        "Commands, flags, output and exit codes are the same as in etcdctl 3.7, so existing scripts work unchanged. \
         Command names may be abbreviated if they remain unambiguous.",
    ],
    environment: &[
        "Every global option can also be set by an environment variable, whose name is ETCDCTL_ followed by the option's \
         name in capitals with underscores, such as ETCDCTL_ENDPOINTS for --endpoints. Setting \
         both the option and the variable is an error.",
    ],
    exits: &[
        ("0", "The command succeeded."),
        ("1", "The cluster refused the request, or an error without a code of its own occurred."),
        ("2", "No connection to a server could be established."),
        ("3", "Standard input is malformed."),
        ("4", "The value of an option is not supported."),
        ("5", "The command was interrupted."),
        ("128", "The command line is invalid."),
    ],
    see_also: &["quorate(1)", "quorate-utl(1)"],
    root: &ROOT,
};
