//! `etcd gateway`: clients that connect to a member through it, and unsupported invocations.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};

use quorate_tests::{Client, Kind, Server, eventually, on_both_servers};

on_both_servers! {
    alone:
    the_gateway_forwards_requests_and_streams,
    unsupported_calls_are_refused_with_a_reason,
}

struct Gateway(Child);

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn gateway(kind: Kind, flags: &[String]) -> Command {
    let mut command = Command::new(kind.program());
    command.args(["gateway", "start"]).args(flags).stdin(Stdio::null());
    command
}

async fn the_gateway_forwards_requests_and_streams(kind: Kind) {
    let server = Server::start(kind).await;
    // No member listens on the first endpoint, so the gateway skips it.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = TcpListener::bind("127.0.0.1:0").unwrap();
    let [nobody, port] = [nobody, here].map(|it| it.local_addr().unwrap().port());
    let flags = [
        format!("--endpoints=http://127.0.0.1:{nobody},127.0.0.1:{}", server.port()),
        format!("--listen-addr=127.0.0.1:{port}"),
    ];
    let mut command = gateway(kind, &flags);
    let _gateway = Gateway(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    eventually("the gateway listens", async || TcpStream::connect(("127.0.0.1", port)).ok()).await;
    let client = Client::new(port);
    client.write("through", "the gateway").await;
    assert_eq!(server.client().read("through").await.as_deref(), Some(&b"the gateway"[..]));
}

async fn unsupported_calls_are_refused_with_a_reason(kind: Kind) {
    let run = |flags: &[&str]| -> Output {
        let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        gateway(kind, &flags).output().unwrap()
    };
    let own = "SRV or endpoint (127.0.0.1:23790->127.0.0.1:23790) should not resolve to the gateway listen addr \
               (127.0.0.1:23790)\n";
    for (flags, said) in [
        (&["--endpoints=127.0.0.1:23790"][..], own),
        (&["--endpoints=nowhere"], "error parsing endpoint \"nowhere\""),
        (&["--listen-addr=23790"], "failed to validate listen address: 23790\n"),
    ] {
        let output = run(flags);
        assert_eq!(output.status.code(), Some(1), "{flags:?}");
        assert!(String::from_utf8_lossy(&output.stdout).starts_with(said), "{flags:?}: {output:?}");
    }
    let output = run(&["--none"]);
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("unknown flag: --none"), "{errors}");
    let help = Command::new(kind.program()).arg("gateway").output().unwrap();
    assert!(help.status.success());
    assert!(String::from_utf8_lossy(&help.stdout).contains("start"), "{help:?}");
}
