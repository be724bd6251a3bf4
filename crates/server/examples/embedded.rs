//! A program with an embedded member. It starts the member, writes and reads as any client does, reads the member's
//! status, and stops the member.
//!
//! Run `cargo run --package quorate-server --example embedded`, with a data directory as an argument to keep the data.
#![expect(clippy::print_stdout, reason = "the example prints its results")]

use std::error::Error;
use std::net::TcpListener;
use std::time::Duration;

use quorate_api::etcdserverpb::kv_client::KvClient;
use quorate_api::etcdserverpb::{PutRequest, RangeRequest};
use quorate_server::{End, Member};
use tonic::transport::Endpoint;

fn main() -> Result<(), Box<dyn Error>> {
    let temporary = tempfile::tempdir()?;
    let folder = std::env::args().nth(1);
    let folder = folder.unwrap_or_else(|| temporary.path().join("data").display().to_string());
    run(&folder)
}

/// Starts a member in a directory and uses it.
pub(crate) fn run(folder: &str) -> Result<(), Box<dyn Error>> {
    let client_url = format!("http://127.0.0.1:{}", free_port()?);
    let peer_url = format!("http://127.0.0.1:{}", free_port()?);

    // These are a server's flags, as on its command line.
    let member = Member::start([
        "--name=embedded".to_owned(),
        format!("--data-dir={folder}"),
        format!("--listen-client-urls={client_url}"),
        format!("--advertise-client-urls={client_url}"),
        format!("--listen-peer-urls={peer_url}"),
        format!("--initial-advertise-peer-urls={peer_url}"),
        format!("--initial-cluster=embedded={peer_url}"),
    ])?;
    member.wait_ready(Duration::from_secs(30))?;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(write_and_read(client_url))?;
    // Dropping the runtime closes the client's connection, so that the member need not wait for it.
    drop(runtime);

    println!("member {:x} leads: {}", member.id(), member.leader() == Some(member.id()));
    println!("revision {}, applied index {}", member.revision(), member.applied());
    let metrics = member.metrics();
    let puts = metrics.lines().find(|line| line.starts_with("etcd_mvcc_put_total"));
    println!("{}", puts.ok_or("the metrics do not contain etcd_mvcc_put_total")?);

    // Dropping the member would stop it as well, but would not return the result.
    match member.stop() {
        End::Stopped => Ok(()),
        end => Err(format!("{end:?}").into()),
    }
}

async fn write_and_read(url: String) -> Result<(), Box<dyn Error>> {
    let mut client = KvClient::new(Endpoint::from_shared(url)?.connect().await?);
    let (key, value) = ("greeting".into(), "hello".into());
    client.put(PutRequest { key, value, ..PutRequest::default() }).await?;
    let request = RangeRequest { key: "greeting".into(), ..RangeRequest::default() };
    let response = client.range(request).await?.into_inner();
    println!("keys returned: {}, keys in range: {}", response.kvs.len(), response.count);
    Ok(())
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
