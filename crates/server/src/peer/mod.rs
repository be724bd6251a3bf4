//! Talking to the other members: etcd's peer protocol.
//!
//! # Not here
//!
//! What is said and what follows from it (`raft`, `node`, `driver`).

pub(crate) mod call;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_raft::Message;
use quorate_state::members::Members;
use quorate_storage::bolt::ReadTx;
use quorate_storage::disk::Disk;

use crate::driver::DriverHandle;
use crate::fatal::FaultReports;
use crate::member::Identity;
use crate::metrics::Metrics;
use crate::runtime::Runtimes;

#[derive(Debug)]
pub(crate) struct Peers {
    runtimes: Arc<Runtimes>,
}

pub(crate) struct Parts {
    pub(crate) identity: Identity,
    pub(crate) peer_urls: Vec<String>,
    pub(crate) server_version: String,
    pub(crate) election_timeout: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) read_timeout: Duration,
    pub(crate) write_timeout: Duration,
    pub(crate) driver: DriverHandle,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) snap_dir: PathBuf,
    pub(crate) faults: FaultReports,
    pub(crate) metrics: Arc<Metrics>,
}

pub(crate) struct OutgoingSnapshot {
    pub(crate) message: Message,
    pub(crate) image: ReadTx,
}

impl Peers {
    pub(crate) fn start(_parts: Parts) -> io::Result<Arc<Self>> {
        let runtimes = Runtimes::start(1, |_| std::future::pending())?;
        Ok(Arc::new(Self { runtimes: Arc::new(runtimes) }))
    }

    pub(crate) fn set_members(&self, _members: &Members) {}

    pub(crate) fn add_remote(&self, _id: u64, _peer_urls: Vec<String>) {}

    pub(crate) fn reconnect(&self) {}

    pub(crate) fn send(&self, _messages: Vec<Message>) {}

    pub(crate) fn send_snapshot(&self, _snapshot: OutgoingSnapshot) {}

    pub(crate) fn active_since(&self, _id: u64) -> Option<Instant> {
        None
    }

    pub(crate) fn runtimes(&self) -> &Arc<Runtimes> {
        &self.runtimes
    }

    pub(crate) fn stop(&self) {}
}
