//! The transport: what the rest of a member has of its peers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Request, Response};
use hyper::body::Incoming;
use quorate_raft::{MemberId, Message, SnapshotOutcome};
use quorate_state::members::Members;
use quorate_storage::disk::Disk;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use crate::acquaintance::Acquaintances;
use crate::backlog::Backlog;
use crate::body::PeerBody;
use crate::consensus::Consensus;
use crate::dialer::Dialer;
use crate::handshake::Introduction;
use crate::local::Local;
use crate::origin::Origin;
use crate::service::Service;
use crate::settings::SharedSettings;
use crate::snapshot_in::depot;
use crate::snapshot_out::{self, OutgoingSnapshot};
use crate::table::Table;
use quorate_telemetry::log;
use quorate_telemetry::metrics::Metrics;
use quorate_telemetry::throttle::LogThrottle;

/// Added to the election timeout, it is how long a connection may take to come about.
const DIAL_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// Snapshots that may be on their way out at the same time; further ones fail at once.
const SNAPSHOTS_MAX: usize = 16;

/// Everything that [`Peers`] are made of.
#[derive(Debug)]
pub struct Parts {
    /// This member.
    pub member_id: MemberId,
    /// Its cluster; nobody of another is talked to.
    pub cluster_id: u64,
    /// Where this member is, as it tells others.
    pub peer_urls: Vec<String>,
    /// The release this member presents itself as.
    pub server_version: String,
    /// What all members should have alike: names and values, of letters, digits and hyphens.
    pub shared_settings: Vec<(&'static str, String)>,
    /// Settings that the others are told of, which each may have as it likes.
    pub announced_settings: Vec<(&'static str, String)>,
    /// How others are reached.
    pub dialer: Dialer,
    /// How long others wait before they elect anew.
    pub election_timeout: Duration,
    /// How long a peer may be silent while something of it is read.
    pub read_timeout: Duration,
    /// How long a peer may take nothing while something is written to it.
    pub write_timeout: Duration,
    /// What everything is reported to.
    pub consensus: Arc<dyn Consensus>,
    /// Where received snapshots are stored.
    pub disk: Arc<dyn Disk>,
    /// The directory for them.
    pub snap_dir: PathBuf,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The runtime that everything is to run on.
    pub runtime: Handle,
}

/// See the module.
#[derive(Debug)]
pub struct Peers {
    pub(crate) local: Arc<Local>,
    pub(crate) table: Arc<Table>,
    service: Service,
    snapshots: Arc<Semaphore>,
}

/// How full the bounds are on what comes from others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeersLoad {
    /// Bytes that consensus has not taken yet.
    pub waiting_bytes: usize,
    /// Large bodies that are being read.
    pub large_bodies: usize,
    /// Those who are answered and not known to be members.
    pub remotes: usize,
    /// Those of them who were found to be members before the log has told of them.
    pub confirmed: usize,
}

impl Peers {
    /// Makes the transport. There is nobody to talk to before [`Self::set_members`].
    pub fn new(parts: Parts) -> Arc<Self> {
        let local = Arc::new(Local {
            id: parts.member_id,
            introduction: Introduction::new(
                &parts.server_version,
                parts.member_id,
                parts.cluster_id,
                &parts.peer_urls,
            ),
            settings: SharedSettings::new(parts.shared_settings, parts.announced_settings),
            origin: Origin::default(),
            dialer: parts.dialer,
            dial_timeout: DIAL_TIMEOUT_MIN + parts.election_timeout,
            read_timeout: parts.read_timeout,
            write_timeout: parts.write_timeout,
            consensus: parts.consensus,
            metrics: parts.metrics,
            backlog: Backlog::new(),
            runtime: parts.runtime,
            reconnects: watch::Sender::new(0),
            acquaintances: Acquaintances::new(parts.member_id),
            refused_messages: LogThrottle::default(),
        });
        let table = Arc::new(Table::new(Arc::clone(&local)));
        let depot = depot(parts.disk, &parts.snap_dir);
        let service = Service::new(Arc::clone(&local), Arc::clone(&table), depot);
        let snapshots = Arc::new(Semaphore::new(SNAPSHOTS_MAX));
        Arc::new(Self { local, table, service, snapshots })
    }

    /// Takes over who is in the cluster, as applied: begins to talk to new members and stops talking to those
    /// that were removed. Of others the log may only have to tell yet.
    pub fn set_members(&self, members: &Members) {
        let ids = members.iter().map(|member| member.id.0);
        self.local.acquaintances.update(ids, members.removed().map(|id| id.0));
        let known = &self.local.metrics.network.known_peers;
        let own = &self.local.introduction.member;
        for id in members.removed() {
            self.table.remove(id.0);
            self.local.origin.forget(id.0);
            known.with(&[own, &id.to_string()]).set(0);
        }
        for member in members.iter() {
            known.with(&[own, &member.id.to_string()]).set(1);
            self.table.add_member(member.id.0, &member.peer_urls);
        }
    }

    /// Ends all streams; both ends dial again.
    pub fn reconnect(&self) {
        self.local.reconnects.send_modify(|count| *count += 1);
        self.table.end_streams();
    }

    /// How others are reached, also for what is asked of them beside consensus.
    pub fn dialer(&self) -> &Dialer {
        &self.local.dialer
    }

    /// Sends messages in their order. What cannot be sent is dropped, and its recipient reported as
    /// unreachable.
    pub fn send(&self, messages: Vec<Message>) {
        self.table.send(messages);
    }

    /// Sends a snapshot; how that ends is reported.
    pub fn send_snapshot(&self, snapshot: OutgoingSnapshot) {
        let to = snapshot.message.to;
        let report_failure = || self.local.consensus.report_snapshot(to, SnapshotOutcome::Failed);
        let Some(peer) = self.table.peer(to) else {
            report_failure();
            return;
        };
        let Ok(place) = Arc::clone(&self.snapshots).try_acquire_owned() else {
            log::warn!(
                "too many snapshots are being sent",
                "remote-peer-id" = peer.contact.name,
                "snapshots" = SNAPSHOTS_MAX
            );
            report_failure();
            return;
        };
        let local = Arc::clone(&self.local);
        self.local.runtime.spawn(async move {
            snapshot_out::send(&local, &peer.contact, snapshot).await;
            drop(place);
        });
    }

    /// How full the bounds are.
    pub fn load(&self) -> PeersLoad {
        PeersLoad {
            waiting_bytes: self.local.backlog.waiting_bytes(),
            large_bodies: self.service.large_body_count(),
            remotes: self.table.remote_count(),
            confirmed: self.local.acquaintances.confirmed_count(),
        }
    }

    /// Since when the member has been reachable without interruption.
    pub fn active_since(&self, id: MemberId) -> Option<Instant> {
        self.table.peer(id)?.contact.status.active_since()
    }

    /// What a member has said that it has a setting at; `None` of one that says nothing of it, as etcd does.
    pub fn setting_of(&self, id: MemberId, name: &str) -> Option<String> {
        self.local.settings.told_by(id, name)
    }

    /// Takes over the mark of the restore that this member's state comes from, or that there is none.
    pub fn set_origin(&self, mark: Option<String>) {
        self.local.origin.set(mark);
    }

    /// Whether [`Self::set_origin`] was called.
    pub fn has_origin(&self) -> bool {
        self.local.origin.is_known()
    }

    /// Takes over whether this member was restored and is still to be found to hold what the others hold.
    pub fn set_unproven(&self, is_unproven: bool) {
        self.local.origin.set_unproven(is_unproven);
    }

    /// Members that were reached and tell nothing of where their state comes from, as members of etcd.
    pub fn members_without_origin(&self) -> Vec<MemberId> {
        self.local.origin.silent()
    }

    /// Answers a request whose path begins with `/raft`.
    pub async fn handle(&self, request: Request<Incoming>) -> Response<PeerBody> {
        self.service.answer(request).await
    }

    /// Ends all talking. The listener still answers, that nobody is known here.
    pub fn stop(&self) {
        self.table.stop();
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.stop();
    }
}
