//! Names, paths and variables of the command-line tools that are not valid UTF-8.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

use quorate_tests::{Ctl, Kind, Server, Tool, on_quorate, run_to_end, with_both_tools};

with_both_tools! {
    a_snapshot_is_saved_under_a_name_that_is_not_utf8,
    a_watch_takes_a_key_that_is_not_utf8_from_its_variable,
}

on_quorate! {
    a_security_variable_that_is_not_utf8_is_refused_before_a_connection_is_opened,
}

const NOT_UTF8: &[u8] = b"b\xe9";

async fn a_snapshot_is_saved_under_a_name_that_is_not_utf8(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let path = server.scratch().join(OsStr::from_bytes(NOT_UTF8));
    let mut command = ctl.command(&["snapshot", "save"]);
    command.arg(&path);
    let ended = run_to_end(command, "");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(path.exists(), "{ended:?}");
    let mut status = Command::new(Kind::Quorate.program());
    status.args(["utl", "snapshot", "status"]).arg(&path);
    assert_eq!(run_to_end(status, "").code, Some(0));
}

async fn a_watch_takes_a_key_that_is_not_utf8_from_its_variable(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    server.client().write(NOT_UTF8, "v").await;
    let mut command = ctl.command(&["watch", "--rev=1", "--hex", "--", "false"]);
    command.env("ETCDCTL_WATCH_KEY", OsStr::from_bytes(NOT_UTF8));
    // The watch ends because its command fails.
    let ended = run_to_end(command, "");
    assert_eq!((ended.code, &*ended.stdout), (Some(1), "PUT\n\\x62\\xe9\n\\x76\n"), "{ended:?}");
}

async fn a_security_variable_that_is_not_utf8_is_refused_before_a_connection_is_opened(kind: Kind) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let endpoint = format!("--endpoints={}", listener.local_addr().unwrap());
    for name in [
        "AUTH_JWT_TOKEN",
        "CACERT",
        "CERT",
        "DISCOVERY_SRV",
        "DISCOVERY_SRV_NAME",
        "INSECURE_DISCOVERY",
        "INSECURE_SKIP_TLS_VERIFY",
        "INSECURE_TRANSPORT",
        "KEY",
        "PASSWORD",
        "USER",
    ] {
        let mut command = Command::new(kind.program());
        command.args(["ctl", &endpoint, "--command-timeout=1s", "get", "k"]);
        command.env(format!("ETCDCTL_{name}"), OsStr::from_bytes(NOT_UTF8));
        let ended = run_to_end(command, "");
        assert_eq!(ended.code, Some(1), "{name}: {ended:?}");
        assert!(ended.stderr.contains("no request was sent"), "{name}: {ended:?}");
        assert!(listener.accept().is_err(), "{name}: the tool connected");
    }
}
