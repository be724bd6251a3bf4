//! Users who are named by their certificates, where `--client-cert-auth` asks for one.

use quorate_tests::pki::Leaf;
use quorate_tests::{Kind, Server, Tool, on_both_servers, on_quorate};

use super::tls::{Files, ctl, tools};

on_both_servers! {
    alone:
    a_certificate_names_a_user,
    a_certificate_that_is_not_asked_for_names_nobody,
}

on_quorate! {
    alone:
    a_bad_token_is_not_made_good_by_a_certificate,
}

const DENIED: &str = "etcdserver: permission denied";
const NOBODY: &str = "etcdserver: user name is empty";

/// Runs a tool with a certificate, and returns its output, or what it says after `Error: `.
fn run(files: &Files, server: &Server, tool: Tool, certificate: &str, line: &str) -> String {
    let ca = format!("--cacert={}", files.text("ca"));
    let cert = format!("--cert={}", files.text(certificate));
    let key = format!("--key={}", files.text(&format!("{certificate}.key")));
    let mut args = vec![&*ca, &cert, &key];
    args.extend(line.split(' '));
    let done = ctl(tool, &server.url(), &args);
    let failure = done.stderr.lines().rev().find_map(|line| line.strip_prefix("Error: "));
    match (done.code, failure) {
        (Some(0), None) => done.stdout,
        (_, Some(text)) => text.to_owned(),
        _ => panic!("{line}: {done:?}"),
    }
}

/// Ann, who may read and write what begins with `a` and has no password, root, and authentication.
async fn guarded(kind: Kind, files: &Files, flags: &[&str]) -> Option<Server> {
    for (file, name) in [("ann", "ann"), ("root", "root"), ("other", "nobody knows"), ("none", "")]
    {
        files.write(file, &Leaf::new(name));
    }
    let tool = tools().pop()?;
    let ca = format!("--trusted-ca-file={}", files.text("ca"));
    let options = files.server(kind).flag("--bcrypt-cost=4").flag(ca);
    let options = flags.iter().fold(options, |options, flag| options.flag(*flag));
    let server = options.start().await;
    for line in [
        "role add app",
        "role grant-permission app readwrite a --prefix",
        "user add ann --no-password",
        "user grant-role ann app",
        "user add root:SECRET",
        "user grant-role root root",
        "auth enable",
    ] {
        run(files, &server, tool, "client", line);
    }
    Some(server)
}

async fn a_certificate_names_a_user(kind: Kind) {
    let files = Files::new();
    let Some(server) = guarded(kind, &files, &["--client-cert-auth"]).await else { return };
    for tool in tools() {
        let run = |certificate: &str, line: &str| run(&files, &server, tool, certificate, line);
        for (certificate, line, told) in [
            ("ann", "put a1 v", "OK\n"),
            ("ann", "get a1", "a1\nv\n"),
            ("ann", "get b", DENIED),
            ("ann", "put b v", DENIED),
            ("ann", "user list", DENIED),
            ("ann", "user get ann", "User: ann\nRoles: app\n"),
            ("root", "user list", "ann\nroot\n"),
            ("root", "put b v", "OK\n"),
            ("other", "get a1", DENIED),
            ("other", "put a1 v", DENIED),
            // A certificate without a name has shown itself all the same.
            ("none", "get a1", DENIED),
            ("none", "user list", NOBODY),
            // A token counts before a certificate.
            ("ann", "--user root:SECRET user list", "ann\nroot\n"),
            ("none", "--user root:SECRET get a1", "a1\nv\n"),
        ] {
            assert_eq!(run(certificate, line), told, "{tool:?} {certificate}: {line}");
        }
        let told = run("other", "user list");
        assert!(told.ends_with("user name not found"), "{told}");
        // It holds for as long as what it is asked about.
        run("root", "user revoke-role ann app");
        assert_eq!(run("ann", "get a1"), DENIED);
        run("root", "user grant-role ann app");
        assert_eq!(run("ann", "get a1"), "a1\nv\n");
    }
}

async fn a_certificate_that_is_not_asked_for_names_nobody(kind: Kind) {
    let files = Files::new();
    let Some(server) = guarded(kind, &files, &[]).await else { return };
    for tool in tools() {
        for line in ["get a1", "put a1 v", "user list"] {
            assert_eq!(run(&files, &server, tool, "root", line), NOBODY, "{tool:?} {line}");
        }
        let told = run(&files, &server, tool, "root", "--user root:SECRET user list");
        assert_eq!(told, "ann\nroot\n");
    }
}

async fn a_bad_token_is_not_made_good_by_a_certificate(kind: Kind) {
    let files = Files::new();
    let Some(server) = guarded(kind, &files, &["--client-cert-auth"]).await else { return };
    for line in ["get a1", "put a1 v", "user list", "member list"] {
        let line = format!("--auth-jwt-token nobodygavethisout.1 {line}");
        let told = run(&files, &server, Tool::QuorateCtl, "root", &line);
        assert_eq!(told, "etcdserver: invalid auth token", "{line}");
    }
}
