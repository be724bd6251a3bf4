//! Users identified by their certificates, with `--client-cert-auth`, and the JSON gateway, which does not identify
//! users by their certificates.

use quorate_tests::pki::{Credentials, Leaf};
use quorate_tests::{
    Kind, Response, Server, Tool, Visitor, on_both_servers, on_quorate, request_with,
};
use serde_json::{Value, json};

use super::tls::{Files, ctl, tools};

on_both_servers! {
    alone:
    the_common_name_of_a_client_certificate_is_the_user,
    a_certificate_without_client_cert_auth_identifies_no_user,
    the_gateway_refuses_certificates_with_a_common_name,
}

on_quorate! {
    alone:
    a_certificate_does_not_replace_an_invalid_token,
    the_gateway_does_not_present_the_servers_certificate,
}

const DENIED: &str = "etcdserver: permission denied";
const NOBODY: &str = "etcdserver: user name is empty";

/// Runs a tool with a certificate. Returns its output, or the error text after `Error: `.
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
        _ => panic!("unexpected result of {line}: {done:?}"),
    }
}

/// Creates root and ann, and enables authentication. Ann can read and write the prefix `a`, and has no password.
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

async fn the_common_name_of_a_client_certificate_is_the_user(kind: Kind) {
    let files = Files::new();
    let Some(server) = guarded(kind, &files, &["--client-cert-auth"]).await else { return };
    for tool in tools() {
        let run = |certificate: &str, line: &str| run(&files, &server, tool, certificate, line);
        for (certificate, line, output) in [
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
            // A certificate without a name is still accepted for the connection.
            ("none", "get a1", DENIED),
            ("none", "user list", NOBODY),
            // A token takes precedence over a certificate.
            ("ann", "--user root:SECRET user list", "ann\nroot\n"),
            ("none", "--user root:SECRET get a1", "a1\nv\n"),
        ] {
            assert_eq!(run(certificate, line), output, "{tool:?} {certificate}: {line}");
        }
        let output = run("other", "user list");
        assert!(output.ends_with("user name not found"), "{output}");
        // Role changes take effect immediately for a user who is identified by a certificate.
        run("root", "user revoke-role ann app");
        assert_eq!(run("ann", "get a1"), DENIED);
        run("root", "user grant-role ann app");
        assert_eq!(run("ann", "get a1"), "a1\nv\n");
    }
}

async fn a_certificate_without_client_cert_auth_identifies_no_user(kind: Kind) {
    let files = Files::new();
    let Some(server) = guarded(kind, &files, &[]).await else { return };
    for tool in tools() {
        for line in ["get a1", "put a1 v", "user list"] {
            assert_eq!(run(&files, &server, tool, "root", line), NOBODY, "{tool:?} {line}");
        }
        let output = run(&files, &server, tool, "root", "--user root:SECRET user list");
        assert_eq!(output, "ann\nroot\n");
    }
}

async fn a_certificate_does_not_replace_an_invalid_token(kind: Kind) {
    let files = Files::new();
    let Some(server) = guarded(kind, &files, &["--client-cert-auth"]).await else { return };
    for line in ["get a1", "put a1 v", "user list", "member list"] {
        let line = format!("--auth-jwt-token nobodygavethisout.1 {line}");
        let output = run(&files, &server, Tool::QuorateCtl, "root", &line);
        assert_eq!(output, "etcdserver: invalid auth token", "{line}");
    }
}

/// A gateway client that presents a certificate.
struct GatewayClient(Visitor);

impl GatewayClient {
    fn new(files: &Files, server: &Server, certificate: &str) -> Self {
        let read = |name: &str| std::fs::read_to_string(files.path(name)).unwrap();
        let (cert, key) = (read(certificate), read(&format!("{certificate}.key")));
        let credentials = Credentials { cert, key };
        Self(server.visitor(&credentials, &files.authority.pem()))
    }

    fn post(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Response {
        request_with(self.0.port(), "POST", path, headers, body.to_string().as_bytes())
    }

    /// Returns root's token.
    fn token(&self) -> String {
        let body = json!({"name": "root", "password": "SECRET"});
        let answer = self.post("/v3/auth/authenticate", &[], &body);
        let answer: Value = serde_json::from_str(&answer.text()).unwrap();
        answer["token"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }
}

/// Returns gateway requests that need a user with permission, both reads and changes.
fn requests() -> Vec<(&'static str, Value)> {
    let put = json!({"key": "YTE=", "value": "dg=="});
    vec![
        ("/v3/kv/range", json!({"key": "YTE="})),
        ("/v3/kv/put", put.clone()),
        ("/v3/kv/deleterange", json!({"key": "YTE="})),
        ("/v3/kv/txn", json!({"success": [{"requestPut": put}]})),
        ("/v3/auth/user/list", json!({})),
        ("/v3/auth/user/add", json!({"name": "eve", "options": {"no_password": true}})),
        ("/v3/auth/role/list", json!({})),
        ("/v3/auth/disable", json!({})),
        ("/v3/cluster/member/add", json!({"peerURLs": ["http://127.0.0.1:1"]})),
        ("/v3/maintenance/defragment", json!({})),
    ]
}

/// etcd's gateway connects to its own server with the server's certificate, and a request without `Accept` runs as the
/// user that the certificate names. With etcd, if that user is root, every client has root's permissions.
async fn the_gateway_does_not_present_the_servers_certificate(kind: Kind) {
    let files = Files::new();
    files.write("server", &Leaf::new("root"));
    let Some(server) = guarded(kind, &files, &["--client-cert-auth"]).await else { return };
    let client = GatewayClient::new(&files, &server, "none");
    for (path, body) in requests() {
        for headers in [&[][..], &[("Accept", "*/*")], &[("Grpcgateway-Accept", "x")]] {
            let answer = client.post(path, headers, &body);
            let output = answer.text();
            assert!(
                answer.status != 200 && output.contains(NOBODY),
                "{path} {headers:?}: {output}"
            );
        }
        let wrong = client.post(path, &[("Authorization", "nobodygavethisout.1")], &body);
        let output = wrong.text();
        assert!(output.contains("etcdserver: invalid auth token"), "{path}: {output}");
    }
    let token = client.token();
    let answer = client.post("/v3/auth/user/list", &[("Authorization", &token)], &json!({}));
    let output = answer.text();
    assert_eq!(answer.status, 200, "{output}");
    // None of the requests above has had an effect.
    assert!(output.contains("ann") && !output.contains("eve"), "{output}");
}

async fn the_gateway_refuses_certificates_with_a_common_name(kind: Kind) {
    let files = Files::new();
    let Some(server) = guarded(kind, &files, &["--client-cert-auth"]).await else { return };
    let token = GatewayClient::new(&files, &server, "none").token();
    for certificate in ["ann", "root", "other"] {
        let client = GatewayClient::new(&files, &server, certificate);
        for headers in [&[][..], &[("Accept", "*/*")], &[("Authorization", &*token)]] {
            for path in ["/v3/kv/range", "/v3/auth/user/list", "/v3/no/such/path"] {
                let answer = client.post(path, headers, &json!({"key": "YTE="}));
                let output = answer.text();
                assert_eq!(answer.status, 400, "{certificate} {path}: {output}");
                assert!(output.contains("CommonName of client sending a request"), "{output}");
            }
        }
        assert_eq!(request_with(client.0.port(), "GET", "/version", &[], b"").status, 200);
    }
}
