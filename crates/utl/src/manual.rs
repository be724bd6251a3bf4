//! Texts of the manual and reference pages, except the descriptions of commands.

use quorate_cli::manual::Manual;

use crate::command::Run;
use crate::commands::ROOT;

/// Texts of this tool's manual.
pub(crate) const MANUAL: Manual<Run> = Manual {
    name: "quorate-utl",
    program: "quorate utl",
    alias: Some("etcdutl"),
    summary: "inspect a member's files, and restore snapshots",
    description: &[
        "Works on files rather than servers: data directories of stopped members, and snapshots. It reads files \
         written by Quorate or by etcd.",
        "Only snapshot restore, recover with --yes, defrag and migrate write files, and import writes to a database; \
         all other commands only read files. Commands that also exist in etcdutl 3.7 have the same flags, output and exit codes as in etcdutl.",
    ],
    environment: &[],
    exits: &[
        ("0", "Success, and no damage was found."),
        ("1", "An error occurred, or damage was found."),
        ("4", "The output format is not supported."),
        ("128", "The command line is invalid."),
    ],
    see_also: &["quorate(1)", "quorate-ctl(1)"],
    root: &ROOT,
};
