//! Compares the output of commands about users, roles and logins with etcdctl's output.

use super::{Pair, Server, bin_dir};

/// Commands about users and roles while authentication is disabled. `|` separates a command line from its input.
const MANAGEMENT: &[&str] = &[
    "auth status",
    "auth status -w json",
    "auth status -w fields",
    "auth status -w table",
    "auth status x",
    "auth enable",
    "auth enable x",
    "auth disable x",
    "user list",
    "user list -w json",
    "user add",
    "user add a b",
    "user add root | SECRET SECRET",
    "user add root | SECRET\nSECRET\n",
    "user add root | SECRET\nSECRET\n",
    "user add alice | SECRET\nOTHER\n",
    "user add alice | \n",
    "user add alice |",
    "user add alice --interactive=false | SECRET and more\n",
    "user add bob:SECRET:2",
    "user add :SECRET",
    "user add carol --new-user-password SECRET",
    "user add dave:x --new-user-password SECRET -w json",
    "user add erin --no-password -w fields",
    "user add frank:x --no-password",
    "user add gina:SECRET -w table",
    "user add heidi --interactive=false | \n",
    "user add heidi --interactive=false |",
    "user list",
    "user list -w json",
    "user list -w fields",
    "user list x",
    "user get alice",
    "user get nobody",
    "user get",
    "user passwd alice | NEW\nNEW\n",
    "user passwd alice --interactive=false -w json | NEW\n",
    "user passwd bob --interactive=false -w fields | NEW\n",
    "user passwd nobody --interactive=false | NEW\n",
    "user passwd erin --interactive=false | NEW\n",
    "user passwd",
    "user delete heidi",
    "user delete heidi",
    "user delete gina -w json",
    "user delete frank -w fields",
    "user delete",
    "role list",
    "role add reader",
    "role add reader",
    "role add writer -w json",
    "role add both -w fields",
    "role add gone",
    "role add",
    "role list",
    "role list -w json",
    "role list -w fields",
    "role list -w table",
    "role list x",
    "role get reader",
    "role grant-permission reader read k",
    "role grant-permission reader READ a c",
    "role grant-permission writer write dir/ --prefix -w json",
    "role grant-permission both readwrite z --from-key -w fields",
    "role grant-permission both readwrite é",
    "role grant-permission reader exec k",
    "role grant-permission reader read",
    "role grant-permission reader read c a",
    "role grant-permission reader read a --prefix --from-key",
    "role grant-permission reader read a b --prefix",
    "role grant-permission reader read a b --from-key",
    "role grant-permission nobody read a",
    "role get reader",
    "role get reader -w json",
    "role get reader -w fields",
    "role get reader -w table",
    "role get writer",
    "role get both",
    "role get both -w fields",
    "role get root",
    "role get",
    "role revoke-permission reader k",
    "role revoke-permission reader k",
    "role revoke-permission reader a c",
    "role revoke-permission writer dir/ --prefix",
    "role revoke-permission both z --from-key -w json",
    "role revoke-permission both é -w fields",
    "role revoke-permission both",
    "role delete gone",
    "role delete gone",
    "role delete both -w json",
    "role delete",
    "role grant-permission reader read k",
    "role grant-permission writer readwrite w --prefix",
    "user grant-role alice reader",
    "user grant-role alice reader",
    "user grant-role alice writer -w json",
    "user grant-role alice nothing",
    "user grant-role nobody reader -w fields",
    "user grant-role alice",
    "user get alice",
    "user get alice --detail",
    "user get alice --detail -w json",
    "user get alice -w json",
    "user get alice -w fields",
    "user revoke-role alice writer",
    "user revoke-role alice writer",
    "user revoke-role alice",
    "user grant-role bob writer",
    "auth status",
    "auth enable",
    "user get root --user root:SECRET",
];

/// Commands that each user may or may not run once authentication is enabled.
const LOGINS: &[&str] = &[
    "auth status",
    "get k",
    "put k v",
    "--user root:SECRET put k v",
    "--user root:SECRET auth status -w json",
    "--user root:WRONG get k",
    "--user nobody:WRONG get k",
    "--user root:WRONG put k v",
    "--user root:WRONG lease grant 60",
    "--user root:WRONG lease list",
    "--user root:WRONG snapshot save <DIR>/never",
    "--user root:WRONG watch k",
    "--user root:WRONG user list",
    "--user root:WRONG defrag",
    "--user root:WRONG endpoint status",
    "--user root get k | SECRET\n",
    "--user root get k | WRONG\n",
    "--user root get k |",
    "--user root --password SECRET get k",
    "--user root:SECRET --password SECRET get k",
    "--user root: get k",
    "--user : get k",
    "--password SECRET get k",
    "--user alice:NEW get k",
    "--user alice:NEW get k -w json",
    "--user alice:NEW get l",
    "--user alice:NEW put k v",
    "--user alice:NEW user get alice",
    "--user alice:NEW user get bob",
    "--user alice:NEW user list",
    "--user alice:NEW role get reader",
    "--user alice:NEW role get writer",
    "--user alice:NEW compaction 1",
    "--user alice:NEW member list -w simple",
    "--user alice:NEW alarm list",
    "--user alice:NEW alarm disarm",
    "--user alice:NEW auth disable",
    "--user alice:NEW watch l",
    "--user bob:NEW put w/1 v",
    "--user bob:NEW get w --prefix",
    "--user bob:NEW get w --from-key",
    "--user bob:NEW del w --prefix",
    "--user root:SECRET user delete root",
    "--user root:SECRET role delete root",
    "--user root:SECRET user revoke-role root root",
    "--user root:SECRET role get root -w json",
    "--user root:SECRET get --prefix",
    "--user root:SECRET member remove 123",
    "--user erin get k | \n",
    "--user erin:SECRET get k",
    "--user root:SECRET auth enable",
    "--user root:SECRET auth disable",
    "--user root:SECRET get k",
    "--user root:WRONG get k",
    "auth disable",
];

/// Splits a line into its words and its input.
fn parts(line: &str) -> (Vec<&str>, String) {
    let (words, input) = line.split_once('|').unwrap_or((line, ""));
    (words.split_whitespace().collect(), input.trim_start().replace("\\n", "\n"))
}

#[test]
fn users_and_roles_are_managed_as_in_etcdctl() {
    let Some(bin) = bin_dir() else { return };
    let mut pair = Pair::start(bin);
    for line in MANAGEMENT.iter().chain(LOGINS) {
        let (words, input) = parts(line);
        pair.check(&words, &input);
    }
    pair.check_no_differences();
}

#[test]
fn protobuf_output_matches_etcdctl() {
    let Some(bin) = bin_dir() else { return };
    let server = Server::start(&bin);
    for line in ["user add alice:SECRET", "role add r", "role grant-permission r read a --prefix"] {
        let (words, input) = parts(line);
        assert_eq!(server.ours(&words, &input).code, 0);
    }
    assert_eq!(server.ours(&["user", "grant-role", "alice", "r"], "").code, 0);
    for line in ["auth status", "user list", "user get alice", "role list", "role get r"] {
        let (mut words, _) = parts(line);
        words.extend(["-w", "protobuf"]);
        let (ours, theirs) = (server.ours(&words, ""), server.real(&bin, &words, ""));
        assert_eq!(ours, theirs, "{line}");
        assert!(ours.output.len() > 10, "{ours:?}");
    }
}

#[test]
fn credentials_are_read_from_the_environment() {
    let Some(bin) = bin_dir() else { return };
    let mut pair = Pair::start(bin);
    for line in ["user add root:SECRET", "auth enable"] {
        pair.check(&parts(line).0, "");
    }
    let whole = [("ETCDCTL_USER", "root:SECRET")];
    let halves = [("ETCDCTL_USER", "root"), ("ETCDCTL_PASSWORD", "SECRET")];
    let wrong = [("ETCDCTL_USER", "root"), ("ETCDCTL_PASSWORD", "WRONG")];
    for env in [&whole[..], &halves, &wrong, &halves[..1], &halves[1..]] {
        pair.check_with(&["put", "k", "v"], "SECRET\n", env);
        pair.check_with(&["lease", "list"], "", env);
    }
    pair.check_with(&["get", "k", "--user=root:SECRET"], "", &whole);
    pair.check_no_differences();
}

#[test]
fn access_responses_follow_etcd_3_7_where_it_differs_from_3_5() {
    let Some(bin) = bin_dir() else { return };
    let server = Server::start(&bin);
    let run = |line: &str| server.plain(server.ours(&parts(line).0, ""));
    for line in ["user add root:SECRET", "auth enable"] {
        assert_eq!(run(line).code, 0);
    }
    // The root role has all permissions, but older servers do not report them.
    let outcome = run("--user root:SECRET role get root");
    let all = "Role root\nKV Read:\n\t[, <open ended>\nKV Write:\n\t[, <open ended>\n";
    assert_eq!((outcome.code, outcome.output.as_str()), (0, all));
    // `endpoint status --cluster` logs in before it requests the member list. A failed login is not a connection error.
    assert_eq!(run("--user root:WRONG endpoint status --cluster").code, 1);
    let refused = run("--user root:SECRET --auth-jwt-token WRONG get k");
    assert_eq!(refused.errors, "Error: etcdserver: invalid auth token\n");
    assert_eq!(refused.code, 1);
}
