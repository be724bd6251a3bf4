//! Tests that start members from files on disk.

mod founding;
mod joining;
mod lost_log;
mod old_members;
mod power_cuts;
mod restart;
mod srv;

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use prost::Message as _;
use quorate_storage::disk::RealDisk;
use quorate_storage::wal::SnapshotMark;
use tempfile::TempDir;

use super::names::{Lookup, Names};
use super::*;
use quorate_dns::{Service, no_such_host};

fn config(folder: &TempDir) -> Config {
    let data_dir = folder.path().join("data").to_str().unwrap().to_owned();
    Config { data_dir, ..Config::default() }
}

fn real_disk() -> Arc<dyn Disk> {
    Arc::new(RealDisk)
}

/// Creates the data directory of a member that crashed after creating its log and before writing the first entries.
fn begin_log(config: &Config, cluster_id: u64, member_id: u64) {
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    dirs.prepare(&RealDisk).unwrap();
    let identity = Identity { cluster_id, member_id, name: config.name.clone() };
    create_log(&real_disk(), &dirs, &identity, None, wal_options(config)).unwrap();
}

fn log_of(config: &Config) -> wal::Contents {
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    wal::read(&RealDisk, dirs.wal(), &SnapshotMark::default()).unwrap()
}

/// Starts a member that is expected to refuse to start, and returns its error.
fn refusal(config: &Config) -> String {
    log::error_chain(&boot_with(config, &real_disk(), &NoNames).unwrap_err())
}

/// A resolver that cannot resolve any name.
struct NoNames;

impl Names for NoNames {
    fn addresses<'a>(&'a self, _host: &'a str) -> Lookup<'a, Vec<IpAddr>> {
        Box::pin(std::future::ready(Err(no_such_host())))
    }

    fn services<'a>(&'a self, _name: &'a str) -> Lookup<'a, Vec<Service>> {
        Box::pin(std::future::ready(Err(no_such_host())))
    }
}

/// Starts a member with this resolver. Other members are contacted in plaintext.
fn boot_with(
    config: &Config,
    disk: &Arc<dyn Disk>,
    names: &dyn Names,
) -> Result<Booted, BootError> {
    super::boot_with(config, disk, Outside { names, dialer: &Dialer::default() })
}

/// A peer that returns fixed responses until it is dropped.
struct Peer {
    url: String,
    is_done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Peer {
    /// Starts the peer. `answers` receives the peer's URL and returns the body for each path.
    fn new(answers: impl Fn(&str) -> Vec<(&'static str, String)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answers = answers(&url);
        let is_done = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_done);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if seen.load(Ordering::Acquire) {
                    return;
                }
                answer(stream.unwrap(), &answers);
            }
        });
        Self { url, is_done, thread: Some(thread) }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Release);
        drop(TcpStream::connect(self.url.strip_prefix("http://").unwrap()));
        self.thread.take().unwrap().join().unwrap();
    }
}

fn answer(mut stream: TcpStream, answers: &[(&str, String)]) {
    let mut asked = Vec::new();
    while !asked.windows(4).any(|window| window == b"\r\n\r\n") {
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes) {
            Ok(count) if count > 0 => asked.extend_from_slice(&bytes[..count]),
            _ => return,
        }
    }
    let path = String::from_utf8(asked).unwrap();
    let path = path.split(' ').nth(1).unwrap();
    let found = answers.iter().find(|(place, _)| *place == path);
    let (status, body) = found.map_or(("404 Not Found", ""), |(_, body)| ("200 OK", body));
    let head = format!(
        "HTTP/1.1 {status}\r\nx-etcd-cluster-id: {CLUSTER:x}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    // If the client closes the connection early, it already has the response.
    if stream.write_all(head.as_bytes()).is_ok() && stream.write_all(body.as_bytes()).is_ok() {
        drop(stream.shutdown(Shutdown::Write));
    }
}

/// The cluster id that the peers report.
const CLUSTER: u64 = 0xa08f_a521_472b_8d00;

/// Returns the response to `/version`.
fn version(cluster: &str) -> String {
    versions("3.7.1", cluster)
}

/// Returns the response to `/version` of a member with this version of its own.
fn versions(server: &str, cluster: &str) -> String {
    format!(r#"{{"etcdserver":"{server}","etcdcluster":"{cluster}","storage":"unknown"}}"#)
}

/// Returns a URL on which no member listens.
fn silent_url() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}
