//! Normal load for a long time: no request fails, and the use of resources does not grow.
//!
//! Clients write, leases are granted and end, watchers reconnect, the history is compacted, snapshots are taken,
//! members are defragmented in turn, and log files are rotated. Once each of these has happened a few times, the use of
//! resources must no longer grow: the maximum memory, descriptors, threads and files of a member in the last quarter of
//! the run may exceed the maximum of the previous quarter only within a tolerance. In addition there are idle watchers
//! and idle leases, ten thousand of each in a long run, which takes an hour:
//!
//! ```text
//! cargo xtask test --long soak
//! ```

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Client, Cluster, ClusterOptions, Kind, Random, Server, Watch, delete, is_long, notice, prefix,
    put, put_leased, put_op, txn, watch_prefix,
};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::on_clusters_of_quorate;

on_clusters_of_quorate! {
    resource_usage_does_not_grow_under_load,
}

const MEMBERS: usize = 3;

const WRITERS: u64 = 4;
const WATCHERS: u64 = 20;
const KEYS: u64 = 2_000;
const VALUE_BYTES_MAX: u64 = 2_048;

/// Size of a log file from an earlier run. It is full, so it is rotated at once.
const LOG_BYTES_BEFORE: usize = 1 << 20;

/// Times and sizes of a run.
#[derive(Clone, Copy, Debug)]
struct Times {
    whole: Duration,
    between_samples: Duration,
    between_defragmentations: Duration,
    /// Time for which the history is kept.
    retention: &'static str,
    /// Number of watchers without events, and of leases without renewals.
    idle: usize,
}

const SHORT: Times = Times {
    whole: Duration::from_secs(24),
    between_samples: Duration::from_millis(250),
    between_defragmentations: Duration::from_millis(1_300),
    retention: "2s",
    idle: 1_000,
};

/// Times and sizes of a long run.
const LONG: Times = Times {
    whole: Duration::from_secs(3_600),
    between_samples: Duration::from_secs(5),
    between_defragmentations: Duration::from_secs(100),
    retention: "1m",
    idle: 10_000,
};

/// Resources that a member uses.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    memory_bytes: u64,
    descriptors: u64,
    threads: u64,
    files: u64,
    file_bytes: u64,
}

/// Growth within these limits is ignored: one more batch, log segment or blocking thread, and the snapshots taken in
/// the half minute between two removals of old snapshots.
const LEEWAY: Held =
    Held { memory_bytes: 16 << 20, descriptors: 24, threads: 4, files: 16, file_bytes: 160 << 20 };

impl Held {
    fn by(server: &Server, logs: &Path) -> Self {
        let process = |what: &str| {
            let path = format!("/proc/{}/{what}", server.pid());
            std::fs::read_dir(path).unwrap().count() as u64
        };
        let mut held = Self {
            memory_bytes: server.memory("VmRSS"),
            descriptors: process("fd"),
            threads: process("task"),
            ..Self::default()
        };
        for dir in
            [logs.to_owned(), server.data().join("member/wal"), server.data().join("member/snap")]
        {
            // A file that has just been renamed or removed may be missing.
            for size in
                std::fs::read_dir(dir).unwrap().filter_map(|file| file.ok()?.metadata().ok())
            {
                held.files += 1;
                held.file_bytes += size.len();
            }
        }
        held
    }

    /// Returns the maximum of each resource.
    fn most<'a>(samples: impl IntoIterator<Item = &'a Self>) -> Self {
        samples.into_iter().fold(Self::default(), |most, held| Self {
            memory_bytes: most.memory_bytes.max(held.memory_bytes),
            descriptors: most.descriptors.max(held.descriptors),
            threads: most.threads.max(held.threads),
            files: most.files.max(held.files),
            file_bytes: most.file_bytes.max(held.file_bytes),
        })
    }

    /// Returns the resources that have grown by more than the limits.
    fn growth_since(&self, before: &Self) -> Vec<&'static str> {
        let pairs = [
            ("memory", self.memory_bytes, before.memory_bytes + LEEWAY.memory_bytes),
            ("descriptors", self.descriptors, before.descriptors + LEEWAY.descriptors),
            ("threads", self.threads, before.threads + LEEWAY.threads),
            ("files", self.files, before.files + LEEWAY.files),
            ("bytes of files", self.file_bytes, before.file_bytes + LEEWAY.file_bytes),
        ];
        pairs.into_iter().filter(|(_, now, bound)| now > bound).map(|(name, ..)| name).collect()
    }
}

/// A client that works until it is stopped.
#[derive(Clone, Debug)]
struct Worker {
    members: Vec<Client>,
    random: Random,
}

impl Worker {
    /// Returns a client of a random member.
    fn member(&mut self) -> Client {
        let chosen = self.random.below(self.members.len() as u64);
        self.members[usize::try_from(chosen).unwrap()].clone()
    }

    fn key(&mut self) -> String {
        format!("soak/{}/{}", self.random.below(10), self.random.below(KEYS / 10))
    }

    fn value(&mut self) -> Vec<u8> {
        vec![b'v'; usize::try_from(self.random.below(VALUE_BYTES_MAX)).unwrap()]
    }

    async fn write(mut self) -> Infallible {
        let mut pace = paced(Duration::from_millis(10));
        loop {
            pace.tick().await;
            let (client, key, value) = (self.member(), self.key(), self.value());
            match self.random.below(10) {
                0 => drop(client.delete_range(delete(key, "")).await.unwrap()),
                1 => {
                    let operations = vec![put_op(key, value), put_op(self.key(), "again")];
                    // A transaction with a duplicate key is refused.
                    drop(client.txn(txn(operations)).await);
                }
                2 => drop(client.range(prefix(key)).await.unwrap()),
                _ => drop(client.put(put(key, value)).await.unwrap()),
            }
        }
    }

    /// Grants leases, of which some are renewed for a while, some are revoked, and some expire.
    async fn lease(mut self) -> Infallible {
        let mut pace = paced(Duration::from_millis(100));
        loop {
            pace.tick().await;
            let client = self.member();
            let lease = client.grant(0, 1).await;
            client.put(put_leased(format!("leased/{lease}"), "v", lease)).await.unwrap();
            match self.random.below(3) {
                0 => drop(client.renew(lease).await.unwrap()),
                1 => drop(client.lease_revoke(pb::LeaseRevokeRequest { id: lease }).await.unwrap()),
                _ => {}
            }
        }
    }

    /// Watches part of the keys for a while, then resumes through another member.
    async fn watch(mut self) -> Infallible {
        let of = format!("soak/{}", self.random.below(10));
        let mut next_revision = 0;
        loop {
            let mut watch = Watch::open(&self.member());
            let request =
                pb::WatchCreateRequest { start_revision: next_revision, ..watch_prefix(&of) };
            watch.create(request).await;
            for _ in 0..=self.random.below(50) {
                let response = watch.next().await;
                if response.canceled {
                    // The start revision was compacted in the meantime.
                    assert!(response.compact_revision > 0, "{response:?}");
                    next_revision = response.compact_revision;
                    break;
                }
                next_revision = response.header.unwrap().revision + 1;
            }
        }
    }
}

/// Number of idle watchers per stream.
const IDLE_ON_A_STREAM: usize = 100;

/// TTL of an idle lease, in seconds. It is longer than any run.
const IDLE_TTL_SECS: i64 = 86_400;

/// Creates idle watchers and leases, distributed over the members.
async fn idle(cluster: &Cluster, count: usize) -> Vec<Watch> {
    let mut streams = Vec::new();
    for stream in 0..count / IDLE_ON_A_STREAM {
        let client = cluster.client(stream % MEMBERS);
        let mut watch = Watch::open(&client);
        for number in 0..IDLE_ON_A_STREAM {
            watch.create(watch_prefix(format!("idle/{stream}/{number}"))).await;
            client.grant(0, IDLE_TTL_SECS).await;
        }
        streams.push(watch);
    }
    streams
}

fn paced(period: Duration) -> Interval {
    let mut pace = interval(period);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pace
}

async fn resource_usage_does_not_grow_under_load(kind: Kind) {
    let times = if is_long() { LONG } else { SHORT };
    if is_long() {
        notice("this test applies normal load for an hour");
    }
    let logs = TempDir::new().unwrap();
    let (cluster, log_dirs) = start(kind, times, logs.path()).await;
    let mut random = Random::by_chance();
    let mut work = JoinSet::new();
    let mut worker = || {
        let members = (0..MEMBERS).map(|member| cluster.client(member)).collect();
        Worker { members, random: Random::new(random.below(u64::MAX)) }
    };
    for _ in 0..WRITERS {
        work.spawn(worker().write());
    }
    for _ in 0..WATCHERS {
        work.spawn(worker().watch());
    }
    work.spawn(worker().lease());

    let mut idle = idle(&cluster, times.idle).await;
    let samples = observe(&cluster, &log_dirs, times, &mut work).await;
    work.shutdown().await;
    for (member, samples) in samples.iter().enumerate() {
        let (early, late) = samples[samples.len() / 2..].split_at(samples.len() / 4);
        let (early, late) = (Held::most(early), Held::most(late));
        let growth = late.growth_since(&early);
        assert!(growth.is_empty(), "m{member}: {growth:?} increased from {early:?} to {late:?}");
        has_seen_everything(&cluster, member, &log_dirs[member]);
    }
    cluster.settle().await;
    for (number, watch) in idle.iter_mut().enumerate() {
        let key = format!("idle/{number}/0");
        cluster.client(0).put(put(&*key, "v")).await.unwrap();
        assert_eq!(watch.next().await.events[0].kv.as_ref().unwrap().key(), key.as_bytes());
    }
}

async fn start(kind: Kind, times: Times, logs: &Path) -> (Cluster, Vec<PathBuf>) {
    let mut options = ClusterOptions::new(kind, MEMBERS)
        .flag("--auto-compaction-mode=periodic")
        .flag(format!("--auto-compaction-retention={}", times.retention))
        .flag("--snapshot-count=1000")
        .flag("--max-snapshots=2")
        .flag("--max-wals=2")
        // This flag makes the server log enough to rotate its log file.
        .flag("--warning-apply-duration=1ns")
        .flag("--enable-log-rotation")
        .flag(r#"--log-rotation-config-json={"maxsize":1,"maxbackups":2,"compress":true}"#);
    let mut log_dirs = Vec::new();
    for member in 0..MEMBERS {
        let dir = logs.join(format!("m{member}"));
        std::fs::create_dir(&dir).unwrap();
        let log = dir.join("member.log");
        std::fs::write(&log, "a line of an earlier run\n".repeat(LOG_BYTES_BEFORE / 25 + 1))
            .unwrap();
        let flag = format!("--log-outputs=stderr,{}", log.display());
        options = options.member(member, |options| options.flag(flag));
        log_dirs.push(dir);
    }
    (options.start().await, log_dirs)
}

/// Measures all members, and defragments them in turn, for this duration.
async fn observe(
    cluster: &Cluster,
    log_dirs: &[PathBuf],
    times: Times,
    work: &mut JoinSet<Infallible>,
) -> Vec<Vec<Held>> {
    let (begun, mut samples) = (Instant::now(), vec![Vec::new(); MEMBERS]);
    let mut sampling = paced(times.between_samples);
    let mut defragmenting = paced(times.between_defragmentations);
    let mut next = 0;
    while begun.elapsed() < times.whole {
        tokio::select! {
            _ = sampling.tick() => {
                for (member, samples) in samples.iter_mut().enumerate() {
                    samples.push(Held::by(cluster.server(member), &log_dirs[member]));
                }
            }
            _ = defragmenting.tick() => {
                let request = pb::DefragmentRequest {};
                cluster.client(next).defragment(request).await.unwrap();
                next = (next + 1) % MEMBERS;
            }
            failed = work.join_next() => match failed.unwrap().unwrap() {},
        }
    }
    samples
}

/// Checks that compactions, defragmentations, snapshots, lease revocations and log rotation have happened on this
/// member, and that the log of the member contains no errors.
fn has_seen_everything(cluster: &Cluster, member: usize, log_dir: &Path) {
    let server = cluster.server(member);
    let has = |series: &str| {
        let value = server.metric(series).unwrap();
        assert!(value > 0.0, "m{member}: {series} is {value}");
    };
    has("etcd_debugging_mvcc_db_compaction_keys_total");
    has("etcd_disk_backend_defrag_duration_seconds_count");
    has("etcd_debugging_snap_save_total_duration_seconds_count");
    has("etcd_debugging_lease_revoked_total");
    let backups = std::fs::read_dir(log_dir).unwrap().count() - 1;
    assert!((1..=2).contains(&backups), "m{member}: {backups} log files set aside");
    let log = server.log();
    let complaint = log.lines().find(|line| {
        ["error", "dpanic", "panic", "fatal"]
            .iter()
            .any(|level| line.starts_with(&format!(r#"{{"level":"{level}""#)))
    });
    assert_eq!(complaint, None, "m{member}");
}
