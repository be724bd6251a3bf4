//! The command-line tools with several endpoints, of which only the last is up, and with an endpoint that closes every
//! other connection.

use std::net::{TcpListener, TcpStream};

use quorate_tests::{Ctl, Kind, Options, Server, Tool, with_both_tools};

with_both_tools! {
    every_command_finds_the_live_endpoint,
    silent_endpoints_do_not_delay_commands_until_their_timeout,
    a_connection_that_fails_before_the_preface_is_retried,
}

/// An endpoint that is down: only root's programs can listen on this port, and none does.
const DEAD: &str = "127.0.0.1:1";

async fn every_command_finds_the_live_endpoint(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    every_command_succeeds(&ctl.after(DEAD));
}

/// Listeners that accept connections but never send anything stand for hosts that hang. The endpoints before the live
/// one must not use up the timeouts of the commands.
async fn silent_endpoints_do_not_delay_commands_until_their_timeout(kind: Kind, tool: Tool) {
    let server = Options::new(kind).unguarded().start().await;
    let Some(mut ctl) = Ctl::of(tool, &server) else { return };
    let silent = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    for listener in &silent {
        ctl = ctl.after(&listener.local_addr().unwrap().to_string());
    }
    every_command_succeeds(&ctl);
    for line in ["--dial-timeout=5s put k 1", "--command-timeout=2s put k 1"] {
        let ended = ctl.run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(ended.code, Some(0), "{line}: {ended:?}");
    }
    for line in ["user add root:pw", "role add root", "user grant-role root root", "auth enable"] {
        drop(ctl.run(&line.split(' ').collect::<Vec<_>>()).success());
    }
    drop(ctl.run(&["--user=root:pw", "get", "k"]).success());
}

#[track_caller]
fn every_command_succeeds(ctl: &Ctl) {
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
        // The watch ends because its command fails.
        let code = if line.starts_with("watch") { 1 } else { 0 };
        assert_eq!(ended.code, Some(code), "{line}: {ended:?}");
    }
}

/// Starts a forwarder to a server. The forwarder closes every other connection immediately, starting with the first.
/// Returns the address of the forwarder.
fn unreliable_path(server: &Server) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let way = listener.local_addr().unwrap().to_string();
    let target = server.url().replace("http://", "");
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let client = client.unwrap();
            if number % 2 == 0 {
                continue;
            }
            let server = TcpStream::connect(&target).unwrap();
            for (mut from, mut to) in
                [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
            {
                std::thread::spawn(move || {
                    // Either side may close the connection.
                    std::io::copy(&mut from, &mut to).ok();
                    to.shutdown(std::net::Shutdown::Write).ok();
                });
            }
        }
    });
    way
}

/// No request has been sent when a connection fails immediately, so even commands that must not be repeated wait for
/// the next connection, and so do commands without a timeout. A dial timeout of zero means no timeout.
async fn a_connection_that_fails_before_the_preface_is_retried(kind: Kind, tool: Tool) {
    let server = Options::new(kind).unguarded().start().await;
    if Ctl::of(tool, &server).is_none() {
        return;
    }
    let way = unreliable_path(&server);
    let file = server.scratch().join("saved").display().to_string();
    for line in [
        "put k v",
        "lease grant 60",
        "auth disable",
        "role add r",
        "user list",
        "lock l -- true",
        &format!("snapshot save {file}"),
        "--dial-timeout=0s put k v",
    ] {
        let ended = super::tls::ctl(tool, &way, &line.split(' ').collect::<Vec<_>>());
        assert_eq!(ended.code, Some(0), "{line}: {ended:?}");
    }
}
