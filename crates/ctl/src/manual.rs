//! The texts of the manual and reference pages besides the descriptions of commands.

use quorate_cli::manual::Manual;

use crate::command::Run;
use crate::commands::ROOT;

/// The texts of this tool's manual.
pub(crate) const MANUAL: Manual<Run> = Manual {
    name: "quorate-ctl",
    program: "quorate ctl",
    alias: Some("etcdctl"),
    summary: "ask a cluster of Quorate or etcd, and look after it",
    description: &[
        "Reads and writes keys, watches them, holds locks and leases, and looks after members, users, roles and alarms. \
         It asks the servers of --endpoints, another one when the first does not answer, and speaks to etcd as to Quorate.",
        "Commands and flags, their output and their codes are those of etcdctl 3.7: scripts for it need no change. Names \
         of commands may be shortened as long as it is clear which is meant.",
    ],
    environment: &[
        "Every option that all commands take may be given as a variable instead: ETCDCTL_ and its name in capitals with \
         underscores, ETCDCTL_ENDPOINTS for --endpoints. An option that is given both ways is refused.",
    ],
    exits: &[
        ("0", "It is done."),
        ("1", "The cluster refused it, or something failed that has no code of its own."),
        ("2", "No connection could be made."),
        ("3", "What was read from standard input makes no sense."),
        ("4", "It is not to be had with these options."),
        ("5", "It was interrupted."),
        ("128", "The command line makes no sense."),
    ],
    see_also: &["quorate(1)", "quorate-utl(1)"],
    root: &ROOT,
};
