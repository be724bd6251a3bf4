//! The command-line tools where only the last of their endpoints is alive.

use quorate_tests::{Ctl, Kind, Server, Tool, with_both_tools};

with_both_tools! {
    every_command_finds_the_endpoint_that_lives,
}

/// A port that no program listens on without being root.
const DEAD: &str = "127.0.0.1:1";

async fn every_command_finds_the_endpoint_that_lives(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let ctl = ctl.after(DEAD);
    let lease = ctl.run(&["lease", "grant", "600"]).success();
    let lease = lease.split(' ').nth(1).unwrap();
    for (line, input) in [
        ("put k 1", ""),
        ("put k", "from standard input"),
        ("get k", ""),
        ("txn", "\nput k 2\n\n\n"),
        ("del k", ""),
        ("compaction 3", ""),
        ("lease grant 60", ""),
        ("lease list", ""),
        (&format!("lease timetolive {lease}"), ""),
        (&format!("lease keep-alive --once {lease}"), ""),
        (&format!("lease revoke {lease}"), ""),
        ("lock l -- true", ""),
        ("member list", ""),
        ("alarm list", ""),
        ("auth status", ""),
        ("user list", ""),
        ("role list", ""),
        ("role add r", ""),
        ("role get r", ""),
        ("role delete r", ""),
        ("watch k --rev 4 -- false", ""),
    ] {
        let ended = ctl.run_with_input(&line.split(' ').collect::<Vec<_>>(), input);
        // The command of the watch ends it with its own failure.
        let code = if line.starts_with("watch") { 1 } else { 0 };
        assert_eq!(ended.code, Some(code), "{line}: {ended:?}");
    }
}
