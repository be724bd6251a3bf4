//! Talking to the other members: etcd's peer protocol.
//!
//! Each member dials two streams to every other and reads from them; it writes on those that the others have
//! dialed. What finds no stream is sent as a request of its own, and a snapshot always is.
//!
//! ```text
//! consensus thread --send--> peer --> outgoing   --> body of the peer's stream     (frame, wire)
//!                                 \-> pipeline   --> POST /raft
//!                  --send_snapshot--> snapshot_out --> POST /raft/snapshot
//! consensus thread <--Received-- local <-- incoming    <-- streams dialed here
//!                                       <- service     <-- POST /raft
//!                                       <- snapshot_in <-- POST /raft/snapshot
//! ```
//!
//! Everything runs on the runtime that is handed in, which is no client's, so that heartbeats do not wait behind
//! clients. Nothing here blocks the consensus thread, and what cannot be sent is dropped and reported
//! ([`Consensus`]).
//!
//! # Not here
//!
//! What is said and what follows from it (`raft`, `node`); the threads of the member; the peer port's other paths;
//! TLS.

mod acquaintance;
mod backlog;
pub(crate) mod call;
mod consensus;
mod contact;
mod dial;
mod frame;
mod handshake;
mod incoming;
mod local;
mod outgoing;
#[expect(clippy::module_inception, reason = "this is the peer itself")]
mod peer;
mod pipeline;
pub(crate) mod pool;
mod probe;
mod service;
mod snapshot_in;
mod snapshot_out;
mod status;
mod throttle;
mod urls;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use parking_lot::RwLock;
use quorate_raft::{MemberId, Message, SnapshotOutcome};
use quorate_state::members::Members;
use quorate_storage::disk::Disk;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use self::acquaintance::Acquaintances;
use self::backlog::Backlog;
pub(crate) use self::backlog::Received;
pub(crate) use self::consensus::Consensus;
use self::handshake::Introduction;
use self::local::Local;
use self::peer::{Peer, PeerKind};
use self::service::Service;
use self::snapshot_in::Depot;
pub(crate) use self::snapshot_out::OutgoingSnapshot;
use self::throttle::LogThrottle;
use crate::log;
use crate::metrics::Metrics;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of an answer, which may be a stream without end.
pub(crate) type PeerBody = UnsyncBoxBody<Bytes, BoxError>;

/// Added to the election timeout, it is how long a connection may take to come about.
const DIAL_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// Snapshots that may be under way at the same time.
const SNAPSHOTS_MAX: usize = 16;

/// Members that are not known to be in the cluster and are answered all the same.
const REMOTES_MAX: usize = 64;

/// Everything that [`Peers`] are made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) member_id: MemberId,
    pub(crate) cluster_id: u64,
    /// Where this member is, as it tells others.
    pub(crate) peer_urls: Vec<String>,
    /// The release this member presents itself as.
    pub(crate) server_version: String,
    pub(crate) election_timeout: Duration,
    pub(crate) read_timeout: Duration,
    pub(crate) write_timeout: Duration,
    pub(crate) consensus: Arc<dyn Consensus>,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) snap_dir: PathBuf,
    pub(crate) metrics: Arc<Metrics>,
    /// The runtime that everything is to run on.
    pub(crate) runtime: Handle,
}

/// The transport; see the module.
#[derive(Debug)]
pub(crate) struct Peers {
    shared: Arc<Shared>,
}

/// What requests and tasks share.
#[derive(Debug)]
struct Shared {
    local: Arc<Local>,
    table: RwLock<Table>,
    service: Service,
    snapshots: Arc<Semaphore>,
}

/// Whom this member talks to.
#[derive(Debug, Default)]
struct Table {
    peers: BTreeMap<MemberId, Arc<Peer>>,
    remotes: BTreeMap<MemberId, Arc<Peer>>,
    is_stopped: bool,
}

impl Table {
    fn knows(&self, id: MemberId) -> bool {
        self.peers.contains_key(&id) || self.remotes.contains_key(&id)
    }
}

impl Peers {
    /// Makes the transport. There is nobody to talk to before [`Self::set_members`].
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let local = Arc::new(Local {
            id: parts.member_id,
            introduction: Introduction::new(
                &parts.server_version,
                parts.member_id,
                parts.cluster_id,
                &parts.peer_urls,
            ),
            dial_timeout: DIAL_TIMEOUT_MIN + parts.election_timeout,
            read_timeout: parts.read_timeout,
            write_timeout: parts.write_timeout,
            consensus: parts.consensus,
            metrics: parts.metrics,
            backlog: Backlog::new(),
            handle: parts.runtime,
            reconnects: watch::Sender::new(0),
            acquaintances: Acquaintances::new(parts.member_id),
            refused_messages: LogThrottle::default(),
        });
        let shared = Arc::new(Shared {
            local,
            table: RwLock::default(),
            service: Service::new(Depot::new(parts.disk, parts.snap_dir)),
            snapshots: Arc::new(Semaphore::new(SNAPSHOTS_MAX)),
        });
        Arc::new(Self { shared })
    }

    /// Takes over who is in the cluster, as applied: begins to talk to new members and stops talking to those
    /// that were removed. Of others the log may only have to tell yet.
    pub(crate) fn set_members(&self, members: &Members) {
        let shared = &self.shared;
        let ids = members.iter().map(|member| member.id.0);
        shared.local.acquaintances.update(ids, members.removed().map(|id| id.0));
        for id in members.removed() {
            shared.remove(id.0);
        }
        let known = &shared.local.metrics.network.known_peers;
        let own = &shared.local.introduction.member;
        for id in members.removed() {
            known.with(&[own, &id.to_string()]).set(0);
        }
        for member in members.iter() {
            known.with(&[own, &member.id.to_string()]).set(1);
            shared.add(member.id.0, &member.peer_urls, PeerKind::Member);
        }
    }

    /// Ends all streams; both ends dial again.
    pub(crate) fn reconnect(&self) {
        self.shared.local.reconnects.send_modify(|count| *count += 1);
        for peer in self.shared.table.read().peers.values() {
            peer.end_streams();
        }
    }

    /// Sends messages in their order. What cannot be sent is dropped, and its recipient reported as
    /// unreachable.
    pub(crate) fn send(&self, messages: Vec<Message>) {
        self.shared.send(messages);
    }

    /// Sends a snapshot; how that ends is reported.
    pub(crate) fn send_snapshot(&self, snapshot: OutgoingSnapshot) {
        let shared = &self.shared;
        let to = snapshot.message.to;
        let report_failure = || shared.local.consensus.report_snapshot(to, SnapshotOutcome::Failed);
        let Some(peer) = shared.peer(to) else {
            report_failure();
            return;
        };
        let Ok(place) = Arc::clone(&shared.snapshots).try_acquire_owned() else {
            log::warn!(
                "too many snapshots are being sent",
                "remote-peer-id" = peer.contact.name,
                "snapshots" = SNAPSHOTS_MAX
            );
            report_failure();
            return;
        };
        let local = Arc::clone(&shared.local);
        shared.local.handle.spawn(async move {
            snapshot_out::send(&local, &peer.contact, snapshot).await;
            drop(place);
        });
    }

    /// Since when the member has been reachable without interruption.
    pub(crate) fn active_since(&self, id: MemberId) -> Option<Instant> {
        self.shared.peer(id)?.contact.status.active_since()
    }

    /// Answers a request whose path begins with `/raft`.
    pub(crate) async fn handle(self: &Arc<Self>, request: Request<Incoming>) -> Response<PeerBody> {
        self.shared.service.answer(&self.shared, request).await
    }

    /// Ends all talking. The listener still answers, that nobody is known here.
    pub(crate) fn stop(&self) {
        let stopped = Table { is_stopped: true, ..Table::default() };
        let table = std::mem::replace(&mut *self.shared.table.write(), stopped);
        for peer in table.peers.values().chain(table.remotes.values()) {
            peer.stop();
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn peer(&self, id: MemberId) -> Option<Arc<Peer>> {
        self.table.read().peers.get(&id).map(Arc::clone)
    }

    fn add(&self, id: MemberId, peer_urls: &[String], kind: PeerKind) {
        if id == self.local.id || self.local.acquaintances.is_removed(id) {
            return;
        }
        // Every request of somebody comes by here; most are known.
        if kind == PeerKind::Remote {
            let table = self.table.read();
            if let Some(remote) = table.remotes.get(&id) {
                // The first to use this id may not have been its owner.
                remote.contact.urls.update(peer_urls);
            }
            if table.knows(id) {
                return;
            }
        }
        let mut table = self.table.write();
        if table.is_stopped {
            return;
        }
        if let Some(peer) = table.peers.get(&id) {
            if kind == PeerKind::Member && peer.contact.urls.update(peer_urls) {
                log::info!(
                    "updated remote peer",
                    "local-member-id" = self.local.introduction.member,
                    "updated-remote-peer-id" = peer.contact.name,
                    "updated-remote-peer-urls" = peer_urls
                );
            }
            return;
        }
        let is_refused = table.knows(id) || table.remotes.len() >= REMOTES_MAX;
        if kind == PeerKind::Remote && is_refused {
            return;
        }
        let peer = Peer::start(&self.local, id, peer_urls, kind);
        let message = match kind {
            PeerKind::Member => "added remote peer",
            PeerKind::Remote => "added new remote peer",
        };
        log::info!(
            message,
            "local-member-id" = self.local.introduction.member,
            "remote-peer-id" = peer.contact.name,
            "remote-peer-urls" = peer_urls
        );
        let unusable = peer_urls.iter().find_map(|url| dial::authority(url).err());
        if let Some(error) = unusable {
            log::warn!(
                "a peer cannot be dialed",
                "remote-peer-id" = peer.contact.name,
                "error" = error.to_string()
            );
        }
        let replaced = match kind {
            PeerKind::Member => {
                table.peers.insert(id, peer);
                table.remotes.remove(&id)
            }
            PeerKind::Remote => table.remotes.insert(id, peer),
        };
        if let Some(remote) = replaced {
            remote.stop();
        }
    }

    /// Asks somebody who has sent a message whether it is a member that this one has not heard of yet.
    fn ask_who_it_is(&self, id: MemberId) {
        let remote = self.table.read().remotes.get(&id).map(Arc::clone);
        let Some(remote) = remote else { return };
        if !self.local.acquaintances.may_ask(id, Instant::now()) {
            return;
        }
        let local = Arc::clone(&self.local);
        self.local.handle.spawn(async move {
            let (known, cluster) = (&local.acquaintances, &local.introduction.cluster);
            let url = remote.contact.urls.pick();
            if known.is_listed(id, &url, cluster, local.dial_timeout).await {
                known.confirm(id);
                log::info!(
                    "a member that the log has not told of yet is listened to",
                    "remote-peer-id" = remote.contact.name,
                    "remote-peer-url" = url
                );
            } else {
                remote.contact.urls.failed(&url);
            }
        });
    }

    fn remove(&self, id: MemberId) {
        let (peer, remote) = {
            let mut table = self.table.write();
            (table.peers.remove(&id), table.remotes.remove(&id))
        };
        for peer in peer.into_iter().chain(remote) {
            peer.stop();
            log::info!(
                "removed remote peer",
                "local-member-id" = self.local.introduction.member,
                "removed-remote-peer-id" = peer.contact.name
            );
        }
    }

    fn send(&self, messages: Vec<Message>) {
        let (mut wakers, mut unreachable): (Vec<Waker>, Vec<MemberId>) = (Vec::new(), Vec::new());
        let table = self.table.read();
        for message in messages {
            let to = message.to;
            let Some(peer) = table.peers.get(&to).or_else(|| table.remotes.get(&to)) else {
                continue;
            };
            if !peer.send(message, &mut wakers) && !unreachable.contains(&to) {
                unreachable.push(to);
            }
        }
        drop(table);
        // Only now, so that a connection finds the whole batch.
        for waker in wakers {
            waker.wake();
        }
        for id in unreachable {
            self.local.consensus.report_unreachable(id);
        }
    }
}
