//! A client that knows the addresses of three members, which are restarted and killed.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Stdio};

use quorate_tests::{Cluster, Kind, run_cluster};

use crate::scripts::Script;

/// A process that is killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process may already have exited.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

async fn the_npm_client_etcd3_survives_restarts_of_members(kind: Kind) {
    let Some(script) = Script::javascript("of_etcd3_members.js") else { return };
    let mut cluster = Cluster::start(kind, 3).await;
    let mut command = script.command();
    command.args(cluster.members().iter().map(|member| cluster.server(*member).port().to_string()));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = Running(command.spawn().unwrap());
    let mut said = BufReader::new(client.0.stdout.take().unwrap());
    let mut first = String::new();
    said.read_line(&mut first).unwrap();
    assert_eq!(first, "going: []\n");

    // Each member in turn is stopped cleanly, and then the leader is killed.
    for member in cluster.members() {
        cluster.stop(member).await;
        let others: Vec<usize> = cluster.running();
        cluster.leader_among(&others).await;
        cluster.restart(member).await;
    }
    let leader = cluster.leader().await;
    cluster.kill(leader);
    let others = cluster.running();
    cluster.leader_among(&others).await;
    cluster.restart(leader).await;

    client.0.stdin.take().unwrap().write_all(b"end\n").unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "seen: [true,true]\nread: [true]\nlease: [[],\"v\"]\n");
    assert!(client.0.wait().unwrap().success());
}

#[test]
fn the_npm_client_etcd3_survives_restarts_of_quorate_members() {
    run_cluster(Kind::Quorate, the_npm_client_etcd3_survives_restarts_of_members);
}

#[test]
fn the_npm_client_etcd3_survives_restarts_of_etcd_members() {
    run_cluster(Kind::Etcd, the_npm_client_etcd3_survives_restarts_of_members);
}
