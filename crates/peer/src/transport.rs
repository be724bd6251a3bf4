//! The interface between the transport and the rest of the member.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Request, Response};
use quorate_net::listen::IncomingBody;
use quorate_raft::{MemberId, Message, SnapshotOutcome};
use quorate_state::members::Members;
use quorate_storage::disk::Disk;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use crate::backlog::Backlog;
use crate::body::PeerBody;
use crate::consensus::Consensus;
use crate::dialer::Dialer;
use crate::handshake::Introduction;
use crate::known_members::KnownMembers;
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

/// The minimum timeout for connecting, to which the election timeout is added.
const DIAL_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// Maximum number of snapshots that are sent at the same time. Further snapshots fail immediately.
const SNAPSHOTS_MAX: usize = 16;

/// The parameters of [`Peers::new`].
#[derive(Debug)]
pub struct Parts {
    /// This member's id.
    pub member_id: MemberId,
    /// The cluster id. Members of other clusters are refused.
    pub cluster_id: u64,
    /// The URLs that this member advertises.
    pub peer_urls: Vec<String>,
    /// The version that this member reports.
    pub server_version: String,
    /// Settings that should be equal on all members. Names and values consist of letters, digits and hyphens.
    pub shared_settings: Vec<(&'static str, String)>,
    /// Settings that are sent to the other members but may differ from theirs.
    pub announced_settings: Vec<(&'static str, String)>,
    /// Connects to the other members.
    pub dialer: Dialer,
    /// The election timeout.
    pub election_timeout: Duration,
    /// Maximum time that a read waits for data from a peer.
    pub read_timeout: Duration,
    /// Maximum time that a write waits for a peer to accept data.
    pub write_timeout: Duration,
    /// The receiver of the transport's reports.
    pub consensus: Arc<dyn Consensus>,
    /// The disk on which received snapshots are stored.
    pub disk: Arc<dyn Disk>,
    /// The directory in which received snapshots are stored.
    pub snap_dir: PathBuf,
    /// The metrics of this member.
    pub metrics: Arc<Metrics>,
    /// The runtime on which all tasks run.
    pub runtime: Handle,
}

/// The transport to the other members.
#[derive(Debug)]
pub struct Peers {
    pub(crate) local: Arc<Local>,
    pub(crate) table: Arc<Table>,
    service: Service,
    snapshots: Arc<Semaphore>,
}

/// The current use of the limits on data from other members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeersLoad {
    /// Bytes of received messages that the consensus core has not taken yet.
    pub waiting_bytes: usize,
    /// Number of large bodies that are being read.
    pub large_bodies: usize,
    /// Number of senders that receive responses but are not in the applied membership.
    pub remotes: usize,
    /// Number of senders that are confirmed as members but are not in the applied membership yet.
    pub confirmed: usize,
}

impl Peers {
    /// Creates the transport. It has no peers until [`Self::set_members`] is called.
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
            known_members: KnownMembers::new(parts.member_id),
            refused_messages: LogThrottle::default(),
        });
        let table = Arc::new(Table::new(Arc::clone(&local)));
        let depot = depot(parts.disk, &parts.snap_dir);
        let service = Service::new(Arc::clone(&local), Arc::clone(&table), depot);
        let snapshots = Arc::new(Semaphore::new(SNAPSHOTS_MAX));
        Arc::new(Self { local, table, service, snapshots })
    }

    /// Sets the applied membership: adds new members as peers, and drops removed members. Senders outside the
    /// membership are kept, because they may be members that the log does not contain yet.
    pub fn set_members(&self, members: &Members) {
        let ids = members.iter().map(|member| member.id.0);
        self.local.known_members.update(ids, members.removed().map(|id| id.0));
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

    /// Ends all streams. This member and its peers then open them again.
    pub fn reconnect(&self) {
        self.local.reconnects.send_modify(|count| *count += 1);
        self.table.end_streams();
    }

    /// Returns the dialer, which is also used for requests other than consensus messages.
    pub fn dialer(&self) -> &Dialer {
        &self.local.dialer
    }

    /// Sends messages in order. Messages that cannot be sent are dropped, and their recipients are reported
    /// as unreachable.
    pub fn send(&self, messages: Vec<Message>) {
        self.table.send(messages);
    }

    /// Sends a snapshot and reports the result.
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

    /// Returns the current use of the limits.
    pub fn load(&self) -> PeersLoad {
        PeersLoad {
            waiting_bytes: self.local.backlog.waiting_bytes(),
            large_bodies: self.service.large_body_count(),
            remotes: self.table.remote_count(),
            confirmed: self.local.known_members.confirmed_count(),
        }
    }

    /// Returns the time since which the member has been reachable without interruption, if it is reachable.
    pub fn active_since(&self, id: MemberId) -> Option<Instant> {
        self.table.peer(id)?.contact.status.active_since()
    }

    /// Returns whether messages wait for the streams that the member has opened.
    pub fn has_unsent(&self, id: MemberId) -> bool {
        self.table.peer(id).is_some_and(|peer| peer.has_unsent())
    }

    /// Returns a member's value of a setting, or `None` if the member does not send this setting, as etcd members do
    /// not.
    pub fn setting_of(&self, id: MemberId, name: &str) -> Option<String> {
        self.local.settings.announced_by(id, name)
    }

    /// Returns whether a member sends its settings, as Quorate members do and etcd members do not.
    pub fn announces_settings(&self, id: MemberId) -> bool {
        self.local.settings.are_announced_by(id)
    }

    /// Sets the restore mark that identifies the origin of this member's state, or `None` if the state was never
    /// restored.
    pub fn set_origin(&self, mark: Option<String>) {
        self.local.origin.set(mark);
    }

    /// Returns whether the origin of this member's state has been set.
    pub fn has_origin(&self) -> bool {
        self.local.origin.is_known()
    }

    /// Sets whether this member was restored from a snapshot and its state has not yet been compared with the other
    /// members' states.
    pub fn set_unproven(&self, is_unproven: bool) {
        self.local.origin.set_unproven(is_unproven);
    }

    /// Returns the members that have answered without an origin, such as etcd members.
    pub fn members_without_origin(&self) -> Vec<MemberId> {
        self.local.origin.silent()
    }

    /// Answers a request whose path starts with `/raft`.
    pub async fn handle(&self, request: Request<IncomingBody>) -> Response<PeerBody> {
        self.service.answer(request).await
    }

    /// Removes all peers. Every later request on the listener is answered as a request from an unknown sender.
    pub fn stop(&self) {
        self.table.stop();
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.stop();
    }
}
