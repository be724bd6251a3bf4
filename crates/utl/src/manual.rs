//! The texts of the manual and reference pages besides the descriptions of commands.

use quorate_cli::manual::Manual;

use crate::command::Run;
use crate::commands::ROOT;

/// The texts of this tool's manual.
pub(crate) const MANUAL: Manual<Run> = Manual {
    name: "quorate-utl",
    program: "quorate utl",
    alias: Some("etcdutl"),
    summary: "look at the files of a member, restore snapshots",
    description: &[
        "Works on files, not on servers: data directories of members that do not run, and snapshots. What Quorate and \
         etcd have written it reads alike.",
        "snapshot restore, recover with --yes, defrag and migrate write; every other command only reads. Commands that \
         etcdutl 3.7 has too have its flags, output and codes.",
    ],
    environment: &[],
    exits: &[
        ("0", "It is done, and nothing is wrong with what was judged."),
        ("1", "It failed, or what was judged is damaged."),
        ("4", "It is not to be had with these options."),
        ("128", "The command line makes no sense."),
    ],
    see_also: &["quorate(1)", "quorate-ctl(1)"],
    root: &ROOT,
};
