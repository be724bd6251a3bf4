//! Runs every command in every format. The output must equal the output of etcdctl 3.5 byte for byte, except where 3.7
//! prints something different. In these cases, the output of 3.7 is expected.
//!
//! The completeness test fails for a command that is in none of the lists.

use std::collections::BTreeSet;

use super::{Outcome, Pair, Server, bin_dir};

const FORMATS: [&str; 5] = ["simple", "json", "fields", "table", "protobuf"];

/// Commands to run in each format; `|` separates a command line from its input. Names of created objects
/// contain the format.
const LINES: &[&str] = &[
    "put k FORMAT",
    "put k FORMAT --prev-kv",
    "put leased v --lease <LEASE>",
    "put k --ignore-value",
    "get k",
    "get k --keys-only",
    "get --prefix k --count-only",
    "get --prefix k --print-value-only",
    "get none",
    "get leased",
    "get k --rev 1000000",
    "txn | mod(\"k\") > \"0\"\n\nput z 1\nget k\ndel z\n\nput y 1\n\n",
    "txn | mod(\"none\") > \"0\"\n\nput z 1\n\nget --prefix k\nput z 2\n\n",
    "del z --prev-kv",
    "del z",
    "lease list",
    "lease timetolive <LEASE> --keys",
    "lease timetolive 7777",
    "lease keep-alive --once <LEASE>",
    "lease keep-alive --once 7777",
    "lease revoke 7777",
    "member list",
    "member add taken --peer-urls http://127.0.0.1:1",
    "member remove 7777",
    "member update 7777 --peer-urls http://127.0.0.1:2",
    "member update <MEMBER> --peer-urls http://127.0.0.1:1",
    "member promote <MEMBER>",
    "move-leader 7777",
    "move-leader <MEMBER>",
    "alarm list",
    "alarm disarm",
    "compaction 3",
    "compaction 1000000",
    "user add of-FORMAT:SECRET",
    "user list",
    "user get of-FORMAT",
    "role add of-FORMAT",
    "role grant-permission of-FORMAT readwrite k",
    "role get of-FORMAT",
    "role list",
    "user grant-role of-FORMAT of-FORMAT",
    "user get of-FORMAT --detail",
    "user revoke-role of-FORMAT of-FORMAT",
    "user passwd of-FORMAT --interactive=false | OTHER\n",
    "role revoke-permission of-FORMAT k",
    "user delete of-FORMAT",
    "role delete of-FORMAT",
    "auth status",
    "auth disable",
    "auth enable",
    "check perf --load none",
    "check datascale --load none",
    "watch k --rev 1",
    "lock locked true",
    "lock locked false",
];

/// Commands for which etcdctl 3.5 and 3.7 print different output: the beginning of the command line, the formats, and
/// whether the output differs only with `--hex`.
const OTHERWISE: &[(&str, &[&str], bool)] = &[
    // etcdctl 3.5 prints only the header.
    ("lease list", &["protobuf"], false),
    ("lease timetolive", &["protobuf"], false),
    ("lease keep-alive", &["protobuf"], false),
    // etcdctl 3.7 prints no revision, because the header of a member reply has none, and draws tables with other
    // borders.
    ("member list", &["fields", "table"], false),
    ("member update", &["json"], true),
    ("member list", &["json"], true),
    // etcdctl 3.7 prints why a watch was cancelled, and distinguishes a missing list from an empty list.
    ("watch", &["json", "fields"], false),
    // etcdctl 3.5 crashes on this command.
    ("alarm disarm", &["fields"], false),
    // etcdctl 3.5 prints decimal numbers even with `--hex`.
    ("", &["fields"], true),
];

/// Commands that do not exit, and commands with times, sizes or versions in their output, each with the test that
/// covers the command.
const ELSEWHERE: &[(&str, &str)] = &[
    ("endpoint health", "output_follows_etcdctl_3_7_where_it_differs_from_3_5"),
    ("endpoint status", "output_follows_etcdctl_3_7_where_it_differs_from_3_5"),
    ("endpoint hashkv", "output_follows_etcdctl_3_7_where_it_differs_from_3_5"),
    ("defrag", "health_and_status_are_printed_for_each_endpoint"),
    ("version", "local_commands_work_without_a_server"),
    ("help", "local_commands_work_without_a_server"),
    ("options", "global_flags_match_etcdctl"),
    ("completion", "quorate: tests/completion"),
    ("lease grant", "leases_are_granted_renewed_and_revoked"),
    ("snapshot save", "etcd_tools_accept_saved_snapshots"),
    ("elect", "blackbox: tool_queues"),
    ("make-mirror", "blackbox: tool_checks"),
    ("diff", "blackbox: diff"),
    ("console", "blackbox: console"),
    ("top", "blackbox: tool_top"),
    (
        "downgrade cancel",
        "output_follows_etcdctl_3_7_where_it_differs_from_3_5; migration: versions",
    ),
    (
        "downgrade enable",
        "output_follows_etcdctl_3_7_where_it_differs_from_3_5; migration: versions",
    ),
    (
        "downgrade validate",
        "output_follows_etcdctl_3_7_where_it_differs_from_3_5; migration: versions",
    ),
];

fn differs_from_3_5(line: &str, format: &str, is_hex: bool) -> bool {
    OTHERWISE.iter().any(|(command, formats, only_hex)| {
        line.starts_with(command) && formats.contains(&format) && (is_hex || !only_hex)
    })
}

/// Returns the words of a command line for a format, and the command's input.
fn parts(line: &str, format: &str, is_hex: bool) -> (Vec<String>, String) {
    let line = line.replace("FORMAT", &format!("{format}{is_hex}"));
    let (words, input) = line.split_once(" | ").unwrap_or((&line, ""));
    let mut words: Vec<_> = words.split_whitespace().map(str::to_owned).collect();
    words.extend(["-w".to_owned(), format.to_owned()]);
    words.extend(is_hex.then(|| "--hex".to_owned()));
    (words, input.to_owned())
}

/// Grants a lease on each server, which chooses the id.
fn grant(pair: &mut Pair) {
    for server in [&mut pair.theirs, &mut pair.ours] {
        let granted = server.ours(&["lease", "grant", "6000"], "");
        let id = granted.output.split(' ').nth(1).unwrap().to_owned();
        let decimal = i64::from_str_radix(&id, 16).unwrap();
        server.names.push((id, "LEASE".to_owned()));
        server.names.push((decimal.to_string(), "LEASE".to_owned()));
    }
}

#[test]
fn every_command_prints_the_same_as_etcdctl_in_every_format() {
    let Some(bin) = bin_dir() else { return };
    let mut pair = Pair::start(bin);
    grant(&mut pair);
    for (format, is_hex) in FORMATS.into_iter().flat_map(|format| [(format, false), (format, true)])
    {
        for line in LINES {
            let (words, input) = parts(line, format, is_hex);
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            // The output of this command is not compared, because the encoded length of a record's lease id depends on
            // the id.
            let has_lease = *line == "get leased" && format == "protobuf";
            if has_lease || differs_from_3_5(line, format, is_hex) {
                // Every command must leave both servers in the same state.
                let codes =
                    [pair.theirs.ours(&words, &input).code, pair.ours.ours(&words, &input).code];
                assert_eq!(codes[0], codes[1], "{words:?}");
            } else if line.starts_with("lease timetolive <LEASE>") {
                // The remaining time is printed in seconds and may change between the two runs.
                let theirs = pair.theirs.plain(pair.theirs.real(&pair.bin, &words, &input));
                let ours = pair.ours.plain(pair.ours.ours(&words, &input));
                let timeless =
                    |outcome: Outcome| (outcome.code, unnumbered(&outcome.output), outcome.errors);
                assert_eq!(timeless(ours), timeless(theirs), "{words:?}");
            } else {
                pair.check(&words, &input);
            }
        }
        // etcdctl 3.5 leaves the leases of locks behind.
        for server in [&pair.theirs, &pair.ours] {
            end_other_leases(server);
        }
    }
    pair.check_no_differences();
}

fn end_other_leases(server: &Server) {
    let listed = server.plain(server.ours(&["lease", "list"], ""));
    for lease in listed.output.lines().skip(1).filter(|line| *line != "LEASE") {
        assert_eq!(server.ours(&["lease", "revoke", lease], "").code, 0);
    }
}

#[test]
fn every_ctl_command_is_listed_as_tested() {
    let reference = quorate_ctl::reference();
    let headings = reference.lines().filter_map(|line| line.strip_prefix("### `quorate ctl "));
    let names: BTreeSet<String> = headings
        .map(|usage| {
            let words = usage.split([' ', '`']);
            let is_name = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase());
            words.take_while(is_name).collect::<Vec<_>>().join(" ")
        })
        .collect();
    assert!(names.len() > 40, "{names:?}");
    let is_listed = |name: &str| {
        let begins = |line: &&str| {
            line.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        LINES.iter().any(begins) || ELSEWHERE.iter().any(|(command, _)| *command == name)
    };
    let forgotten: Vec<_> = names.iter().filter(|name| !is_listed(name)).collect();
    assert!(forgotten.is_empty(), "{forgotten:?}");
    let is_command = |command: &&(&str, &str)| !names.contains(command.0);
    assert_eq!(ELSEWHERE.iter().find(is_command), None);
}

/// Replaces each number, and the unit after it, with a placeholder.
fn unnumbered(text: &str) -> String {
    let mut plain = String::new();
    for letter in text.chars() {
        match letter {
            '0'..='9' | '.' if plain.ends_with('#') => {}
            '0'..='9' => plain.push('#'),
            _ => plain.push(letter),
        }
    }
    [" kB", " B", "%", "ms", "µs"]
        .into_iter()
        .fold(plain, |plain, unit| plain.replace(&format!("#{unit}"), "#"))
}

/// Output of etcdctl 3.7, taken from its source code. It has columns that 3.5 lacks, and lacks header fields that 3.5
/// has.
const OF_3_7: &[(&str, &str)] = &[
    ("endpoint status", "ENDPOINT, MEMBER, #, , #, #, #, #, true, false, #, #, #, , , false\n"),
    (
        "endpoint status -w fields",
        "\"ClusterID\" : CLUSTER\n\"MemberID\" : MEMBER\n\"Revision\" : #\n\"RaftTerm\" : #\n\"Version\" : \"#\"\n\
         \"StorageVersion\" : \"\"\n\"DBSize\" : #\n\"DBSizeInUse\" : #\n\"DBSizeQuota\" : #\n\"Leader\" : MEMBER\n\
         \"IsLearner\" : false\n\"RaftIndex\" : #\n\"RaftTerm\" : #\n\"RaftAppliedIndex\" : #\n\"Errors\" : []\n\
         \"Endpoint\" : \"ENDPOINT\"\n\"DowngradeTargetVersion\" : \"\"\n\"DowngradeEnabled\" : false\n\n",
    ),
    ("endpoint hashkv", "ENDPOINT, #, #\n"),
    (
        "endpoint hashkv -w fields",
        "\"ClusterID\" : CLUSTER\n\"MemberID\" : MEMBER\n\"Revision\" : #\n\"RaftTerm\" : #\n\"Endpoint\" : \"ENDPOINT\"\n\
         \"Hash\" : #\n\"HashRevision\" : #\n\n",
    ),
    ("endpoint health", "ENDPOINT is healthy: successfully committed proposal: took = #\n"),
    (
        "endpoint health -w fields",
        "\"Endpoint\" : \"ENDPOINT\"\n\"Health\" : true\n\"Took\" : #\n\"Error\" : \n\n",
    ),
    ("endpoint health -w json", "[{\"endpoint\":\"ENDPOINT\",\"health\":true,\"took\":\"#\"}]\n"),
    (
        "member list -w fields",
        "\"ClusterID\" : CLUSTER\n\"MemberID\" : MEMBER\n\"RaftTerm\" : #\n\"ID\" : MEMBER\n\"Name\" : \"default\"\n\
         \"PeerURL\" : \"http://#:#\"\n\"ClientURL\" : \"http://ENDPOINT\"\n\"IsLearner\" : false\n\n",
    ),
    (
        "member list -w json --hex",
        "{\"header\":{\"cluster_id\":\"CLUSTER\",\"member_id\":\"MEMBER\",\"raft_term\":#},\"members\":[{\"ID\":\"MEMBER\",\
         \"name\":\"default\",\"peerURLs\":[\"http://#:#\"],\"clientURLs\":[\"http://ENDPOINT\"]}]}\n",
    ),
    ("downgrade validate 3.4", "Downgrade validate success, cluster version #\n"),
    (
        "downgrade validate 3.4 -w json",
        "{\"header\":{\"cluster_id\":CLUSTER,\"member_id\":MEMBER,\"revision\":#,\"raft_term\":#},\"version\":\"#\"}\n",
    ),
    (
        "put k v -w fields --hex",
        "\"ClusterID\" : CLUSTER\n\"MemberID\" : MEMBER\n\"Revision\" : #\n\"RaftTerm\" : #\n",
    ),
];

#[test]
fn output_follows_etcdctl_3_7_where_it_differs_from_3_5() {
    let Some(bin) = bin_dir() else { return };
    let server = Server::start(&bin);
    for (line, expected) in OF_3_7 {
        let words: Vec<_> = line.split(' ').collect();
        let outcome = server.plain(server.ours(&words, ""));
        assert_eq!((outcome.code, unnumbered(&outcome.output).as_str()), (0, *expected), "{line}");
    }
    let refused = server.plain(server.ours(&["downgrade", "cancel"], ""));
    assert_eq!(
        (refused.code, &*refused.errors),
        (1, "Error: etcdserver: no inflight downgrade job\n")
    );
    for (command, heads) in [
        ("member list", "ID|STATUS|NAME|PEER ADDRS|CLIENT ADDRS|IS LEARNER"),
        ("endpoint health", "ENDPOINT|HEALTH|TOOK|ERROR"),
        ("endpoint hashkv", "ENDPOINT|HASH|HASH REVISION"),
        (
            "endpoint status",
            "ENDPOINT|ID|VERSION|STORAGE VERSION|DB SIZE|IN USE|PERCENTAGE NOT IN USE|QUOTA|IS LEADER|IS LEARNER|\
             RAFT TERM|RAFT INDEX|RAFT APPLIED INDEX|ERRORS|DOWNGRADE TARGET VERSION|DOWNGRADE ENABLED",
        ),
    ] {
        let words: Vec<_> = command.split(' ').chain(["-w", "table"]).collect();
        let outcome = server.ours(&words, "").output;
        let lines: Vec<_> = outcome.lines().collect();
        assert!(
            lines.len() == 5 && lines[0].starts_with('┌') && lines[4].ends_with('┘'),
            "{outcome}"
        );
        let shown: Vec<_> = lines[1].trim_matches('│').split('│').map(str::trim).collect();
        assert_eq!(shown.join("|"), heads);
    }
}

#[test]
fn global_flags_match_etcdctl() {
    let Some(bin) = bin_dir() else { return };
    let server = Server::start(&bin);
    let flags = |text: String| -> BTreeSet<String> {
        let words = text.split_whitespace().filter(|word| word.starts_with("--"));
        words.map(|word| word.split(['=', '[']).next().unwrap_or(word).to_owned()).collect()
    };
    // etcdctl 3.5 lists the global flags below every help text.
    let mut theirs = flags(server.real(&bin, &["--help"], "").output);
    theirs.remove("--help");
    let ours = flags(server.ours(&["options"], "").output);
    assert!(theirs.contains("--endpoints"), "{theirs:?}");
    assert_eq!(theirs.difference(&ours).collect::<Vec<_>>(), Vec::<&String>::new());
}
