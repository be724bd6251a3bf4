//! `top`: its flags and what its help says. What it does is in `crate::top`.

use crate::command::{Command, group};
use crate::flags::Flag;
use crate::top;

pub(crate) const TOP: Command = Command {
    usage: "top [options]",
    short: "Shows what members, requests and prefixes of a cluster are at, again and again",
    long: "\
Shows what members, requests and prefixes of a cluster are at, again and again: on the whole screen of a terminal, or as
text without control characters where standard output is none, or as one JSON object a line with --write-out=json. Keys
choose what is seen; h lists them. No command of etcdctl is like it; it works with etcd 3.5 and later as well.

Members are found by the member list, of whichever member answers. Rates and latencies come from what they serve under
/metrics where they serve clients; latencies of requests only etcd 3.7 has there, or --metrics=extensive. \"-\" is what a
member does not tell.

The cluster hardly feels it. A refresh asks each member where it stands, who the members are and for its metrics. Leases
are listed every 10s, or 120s once they are more than 10000. Keys are counted by prefix, exactly, by small questions
with pauses that are ten times as long as the answers took, and again after a pause ten times as long as all of that;
what they take up is estimated of the keys that are seen on the way. What is written is told by a watch, until it has
told of 5000 changes or 1 MiB within one interval; then it rests, up to 5s. A user has to be allowed to read the keys
of --prefix for that.",
    group: Some(group::MAINTENANCE),
    flags: &[
        Flag::bool("batch", "Print instead of drawing, as where standard output is no terminal"),
        Flag::duration("interval", "2s", "How often it is refreshed"),
        Flag::uint("iterations", "0", "How often it is printed before it ends; 0 for no end"),
        Flag::bool("no-count", "Do not count keys"),
        Flag::bool("no-watch", "Do not watch what is written"),
        Flag::bool("once", "Print it once, after an interval, and end"),
        Flag::text("prefix", "", "Look only at keys with this prefix, and at prefixes below it"),
        Flag::uint("prefix-depth", "2", "How many separators make a prefix, one that keys begin with aside"),
        Flag::text("separator", "/", "What separates the parts of keys"),
        Flag::text(
            "sort",
            "bytes",
            "What comes first: bytes, keys, writes or prefix among prefixes; name, requests, latency, db or lag among members",
        ),
    ],
    is_own: true,
    run: Some(|session| Box::pin(top::run(session))),
    ..Command::EMPTY
};
