//! The command-line tools with several endpoints, of which only the last is up, and with an endpoint that closes
//! connections.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use quorate_tests::{Ctl, Kind, Options, Server, Tool, with_both_tools};

with_both_tools! {
    every_command_finds_the_live_endpoint,
    silent_endpoints_do_not_delay_commands_until_their_timeout,
    calls_are_repeated_after_a_connection_breaks,
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
    // With equal timeouts, a silent endpoint that is waited for would use up all the time of the command.
    let patient = ["--dial-timeout=20s", "--command-timeout=20s"];
    drop(ctl.run(&[&patient[..], &["put", "k", "1"]].concat()).success());
    for line in ["user add root:pw", "role add root", "user grant-role root root", "auth enable"] {
        drop(ctl.run(&line.split(' ').collect::<Vec<_>>()).success());
    }
    drop(ctl.run(&[&patient[..], &["--user=root:pw", "get", "k"]].concat()).success());
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

/// Starts a forwarder to a server. The forwarder first passes each connection and its number to `breaks`, and closes
/// the connection if `breaks` returns true. Returns the address of the forwarder.
fn path(server: &Server, breaks: fn(&mut TcpStream, usize) -> bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let way = listener.local_addr().unwrap().to_string();
    let target = server.url().replace("http://", "");
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let mut client = client.unwrap();
            if breaks(&mut client, number) {
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

/// Breaks the first connection when a request arrives on it. To the client, the connection looks like one to a server.
fn breaks_first_request(client: &mut TcpStream, number: usize) -> bool {
    const EMPTY_SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const PREFACE_BYTES: u64 = 24;
    const HEADERS: u8 = 1;
    if number > 0 {
        return false;
    }
    client.write_all(&EMPTY_SETTINGS).unwrap();
    let mut skipped_bytes = PREFACE_BYTES;
    loop {
        std::io::copy(&mut client.take(skipped_bytes), &mut std::io::sink()).unwrap();
        let mut head = [0; 9];
        client.read_exact(&mut head).unwrap();
        if head[3] == HEADERS {
            return true;
        }
        skipped_bytes = u32::from_be_bytes([0, head[0], head[1], head[2]]).into();
    }
}

/// etcd's client repeats these calls, even those that write, because repeating them does no harm.
async fn calls_are_repeated_after_a_connection_breaks(kind: Kind, tool: Tool) {
    let server = Options::new(kind).unguarded().start().await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    drop(ctl.run(&["role", "add", "r"]).success());
    drop(ctl.run(&["user", "add", "u:pw"]).success());
    let lease = ctl.run(&["lease", "grant", "600"]).success();
    let lease = lease.split(' ').nth(1).unwrap();
    for line in [
        "get k",
        "lease grant 60",
        "lease list",
        &format!("lease timetolive {lease}"),
        &format!("lease revoke {lease}"),
        "alarm list",
        "alarm disarm",
        "member list",
        "user list",
        "user get u",
        "role list",
        "role get r",
        "lock l -- true",
    ] {
        let way = path(&server, breaks_first_request);
        let ended = super::tls::ctl(tool, &way, &line.split(' ').collect::<Vec<_>>());
        assert_eq!(ended.code, Some(0), "{line}: {ended:?}");
    }
    // A write whose effect is unknown is not repeated.
    let way = path(&server, breaks_first_request);
    assert_eq!(super::tls::ctl(tool, &way, &["put", "k", "v"]).code, Some(1));
}

/// No request has been sent when a connection fails immediately, so even commands that must not be repeated wait for
/// the next connection, and so do commands without a timeout. A dial timeout of zero means no timeout.
async fn a_connection_that_fails_before_the_preface_is_retried(kind: Kind, tool: Tool) {
    let server = Options::new(kind).unguarded().start().await;
    if Ctl::of(tool, &server).is_none() {
        return;
    }
    let way = path(&server, |_, number| number % 2 == 0);
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
