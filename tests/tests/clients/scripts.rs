//! The Python and JavaScript clients, run by the scripts in `tests/clients`. Their output must be the same on both
//! servers.

use std::process::Command;

use quorate_tests::{Kind, Server, on_both_servers, skipped};

use crate::installed::{folder, node_modules, python};
use crate::servers::{plain, secured, with_users};

/// Timeout of a script, in seconds.
const LIMIT_SECS: &str = "90";

on_both_servers! {
    the_pypi_client_etcd3_works_with_tls_and_authentication,
    the_pypi_client_etcd3gw_works_with_tls_and_authentication,
    the_pypi_client_aetcd_works_with_authentication,
    the_npm_client_etcd3_works_with_tls_and_authentication,
}

/// A script with its interpreter.
pub(crate) struct Script {
    name: &'static str,
    command: Box<dyn Fn() -> Command>,
}

impl Script {
    /// Returns a Python script. `protobuf` selects the implementation that the client needs.
    fn python(name: &'static str, protobuf: &'static str) -> Option<Self> {
        let python = python().inspect_err(|why| missing(why)).ok()?;
        let command = move || {
            let mut command = Command::new(&python);
            command.env("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", protobuf);
            // The machine's CA settings would take precedence over the script's settings.
            command.env_remove("REQUESTS_CA_BUNDLE").env_remove("CURL_CA_BUNDLE");
            command
        };
        Some(Self { name, command: Box::new(command) })
    }

    /// Returns a JavaScript script.
    pub(crate) fn javascript(name: &'static str) -> Option<Self> {
        let modules = node_modules().inspect_err(|why| missing(why)).ok()?;
        let command = move || {
            let mut command = Command::new("node");
            command.env("NODE_PATH", &modules);
            command
        };
        Some(Self { name, command: Box::new(command) })
    }

    /// Returns the command with the script and its arguments.
    pub(crate) fn command(&self) -> Command {
        let command = (self.command)();
        let mut limited = Command::new("timeout");
        limited.args(["--kill-after=10", LIMIT_SECS]).arg(command.get_program());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => limited.env(name, value),
                None => limited.env_remove(name),
            };
        }
        limited.arg(folder().join(self.name));
        limited
    }

    /// Runs the script with `form` as its first argument, and compares its output with the recorded output on etcd.
    fn run(&self, form: &str, server: &Server, files: &[String]) {
        let mut command = self.command();
        command.args([form, "127.0.0.1", &server.port().to_string()]).args(files);
        let said = command.output().unwrap();
        let [stdout, stderr] =
            [&said.stdout, &said.stderr].map(|said| String::from_utf8_lossy(said));
        let seen = folder().join(format!("{}.{form}.txt", self.name));
        let expected = std::fs::read_to_string(seen).unwrap();
        let [lines, expected] = [&stdout, &*expected].map(|text| text.lines().collect::<Vec<_>>());
        let context = format!("{} {form}: {}\n{stderr}", self.name, said.status);
        assert_eq!(lines, expected, "{context}");
        assert!(said.status.success(), "{context}");
    }
}

fn missing(why: &str) {
    skipped(&format!("tests of a client library, which cannot be installed ({why})"));
}

async fn the_pypi_client_etcd3_works_with_tls_and_authentication(kind: Kind) {
    let Some(script) = Script::python("of_etcd3.py", "python") else { return };
    script.run("plain", &plain(kind).await, &[]);
    let secured = secured(kind).await;
    script.run("tls", &secured.server, &secured.files);
    with_users(&secured.server, &secured.files);
    script.run("auth", &secured.server, &secured.files);
}

async fn the_pypi_client_etcd3gw_works_with_tls_and_authentication(kind: Kind) {
    let Some(script) = Script::python("of_etcd3gw.py", "upb") else { return };
    let server = plain(kind).await;
    script.run("plain", &server, &[]);
    with_users(&server, &[]);
    script.run("auth", &server, &[]);
    let secured = secured(kind).await;
    script.run("tls", &secured.server, &secured.files);
}

async fn the_pypi_client_aetcd_works_with_authentication(kind: Kind) {
    let Some(script) = Script::python("of_aetcd.py", "upb") else { return };
    let server = plain(kind).await;
    script.run("plain", &server, &[]);
    with_users(&server, &[]);
    script.run("auth", &server, &[]);
}

async fn the_npm_client_etcd3_works_with_tls_and_authentication(kind: Kind) {
    let Some(script) = Script::javascript("of_etcd3.js") else { return };
    let server = plain(kind).await;
    script.run("plain", &server, &[]);
    with_users(&server, &[]);
    script.run("auth", &server, &[]);
    let secured = secured(kind).await;
    script.run("tls", &secured.server, &secured.files);
}
