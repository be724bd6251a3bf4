//! Whom this member talks to: peers, which are members as applied here, and remotes, which only say that they are.
//!
//! # Bound
//!
//! [`REMOTES_MAX`] remotes are kept. When there are so many, one that was not heard from for [`REMOTE_QUIET_MIN`] makes
//! room for whoever comes: of those that are not confirmed to be members, if there are any, the one that has been quiet
//! for longest. Who finds no room gets no answers until it comes again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use quorate_core::incoming::Sender;
use quorate_raft::{MemberId, Message};

use crate::acquaintance::Acquaintances;
use crate::dial;
use crate::local::Local;
use crate::peer::{Peer, PeerKind};
use quorate_telemetry::log;

/// Members that are not known to be in the cluster and are answered all the same.
const REMOTES_MAX: usize = 64;

/// After how long a remote may be given up for another. A member that lags asks for streams more often than that.
const REMOTE_QUIET_MIN: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub(crate) struct Table {
    local: Arc<Local>,
    entries: RwLock<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    peers: BTreeMap<MemberId, Arc<Peer>>,
    remotes: BTreeMap<MemberId, Remote>,
    is_stopped: bool,
}

/// Somebody who says to be a member.
#[derive(Debug)]
struct Remote {
    peer: Arc<Peer>,
    heard: Mutex<Instant>,
}

impl Entries {
    /// Takes one out for whom there is room no longer.
    fn make_room(&mut self, known: &Acquaintances, now: Instant) -> Option<Remote> {
        let rank = |(id, remote): (&MemberId, &Remote)| {
            (known.of(*id) == Sender::Member, *remote.heard.lock(), *id)
        };
        let (_, heard, id) = self.remotes.iter().map(rank).min()?;
        if now.saturating_duration_since(heard) < REMOTE_QUIET_MIN {
            return None;
        }
        self.remotes.remove(&id)
    }

    fn knows(&self, id: MemberId) -> bool {
        self.peers.contains_key(&id) || self.remotes.contains_key(&id)
    }
}

impl Table {
    pub(crate) fn new(local: Arc<Local>) -> Self {
        Self { local, entries: RwLock::default() }
    }

    pub(crate) fn peer(&self, id: MemberId) -> Option<Arc<Peer>> {
        self.entries.read().peers.get(&id).map(Arc::clone)
    }

    /// Begins to talk to a member, or takes over where it is now. What was known of it as a remote is forgotten.
    pub(crate) fn add_member(&self, id: MemberId, peer_urls: &[String]) {
        if !self.is_of_others(id) {
            return;
        }
        let mut entries = self.entries.write();
        if entries.is_stopped {
            return;
        }
        if let Some(peer) = entries.peers.get(&id) {
            if peer.contact.urls.update(peer_urls) {
                log::info!(
                    "updated remote peer",
                    "local-member-id" = self.local.introduction.member,
                    "updated-remote-peer-id" = peer.contact.name,
                    "updated-remote-peer-urls" = peer_urls
                );
            }
            return;
        }
        let peer = self.start(id, peer_urls, PeerKind::Member);
        entries.peers.insert(id, peer);
        if let Some(remote) = entries.remotes.remove(&id) {
            remote.peer.stop();
        }
    }

    /// Begins to answer somebody who says now to be a member at these URLs, if there is room.
    pub(crate) fn add_remote(&self, id: MemberId, peer_urls: &[String], now: Instant) {
        if !self.is_of_others(id) {
            return;
        }
        // Every request of somebody comes by here; most are known.
        {
            let entries = self.entries.read();
            if let Some(remote) = entries.remotes.get(&id) {
                // The first to use this id may not have been its owner.
                remote.peer.contact.urls.update(peer_urls);
                *remote.heard.lock() = now;
            }
            if entries.knows(id) {
                return;
            }
        }
        let mut entries = self.entries.write();
        if entries.is_stopped || entries.knows(id) {
            return;
        }
        if entries.remotes.len() >= REMOTES_MAX {
            let Some(given_up) = entries.make_room(&self.local.acquaintances, now) else { return };
            given_up.peer.stop();
        }
        let peer = self.start(id, peer_urls, PeerKind::Remote);
        entries.remotes.insert(id, Remote { peer, heard: Mutex::new(now) });
    }

    /// Whether this is the id of another who was not removed.
    fn is_of_others(&self, id: MemberId) -> bool {
        id != self.local.id && !self.local.acquaintances.is_removed(id)
    }

    fn start(&self, id: MemberId, peer_urls: &[String], kind: PeerKind) -> Arc<Peer> {
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
        let unusable = peer_urls.iter().find_map(|url| dial::target(url).err());
        if let Some(error) = unusable {
            log::warn!(
                "a peer cannot be dialed",
                "remote-peer-id" = peer.contact.name,
                "error" = error.to_string()
            );
        }
        peer
    }

    /// Asks somebody who has sent a message whether it is a member that this one has not heard of yet.
    pub(crate) fn ask_who_it_is(&self, id: MemberId) {
        let remote = self.entries.read().remotes.get(&id).map(|remote| Arc::clone(&remote.peer));
        let Some(remote) = remote else { return };
        if !self.local.acquaintances.may_ask(id, Instant::now()) {
            return;
        }
        let local = Arc::clone(&self.local);
        self.local.runtime.spawn(async move {
            let (known, cluster) = (&local.acquaintances, &local.introduction.cluster);
            let url = remote.contact.urls.pick();
            if known.is_listed(id, &url, cluster, (&local.dialer, local.dial_timeout)).await {
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

    pub(crate) fn remove(&self, id: MemberId) {
        let (peer, remote) = {
            let mut entries = self.entries.write();
            let remote = entries.remotes.remove(&id).map(|remote| remote.peer);
            (entries.peers.remove(&id), remote)
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

    /// Sends messages in their order; drops what cannot be sent, and reports its recipient as unreachable.
    pub(crate) fn send(&self, messages: Vec<Message>) {
        let (mut wakers, mut unreachable): (Vec<Waker>, Vec<MemberId>) = (Vec::new(), Vec::new());
        let entries = self.entries.read();
        for message in messages {
            let to = message.to;
            let remote = || entries.remotes.get(&to).map(|remote| &remote.peer);
            let Some(peer) = entries.peers.get(&to).or_else(remote) else { continue };
            if !peer.send(message, &mut wakers) && !unreachable.contains(&to) {
                unreachable.push(to);
            }
        }
        drop(entries);
        // Only now, so that a connection finds the whole batch.
        for waker in wakers {
            waker.wake();
        }
        for id in unreachable {
            self.local.consensus.report_unreachable(id);
        }
    }

    /// Ends the streams that peers have opened.
    pub(crate) fn end_streams(&self) {
        for peer in self.entries.read().peers.values() {
            peer.end_streams();
        }
    }

    /// Stops talking to everybody, and begins with nobody any more.
    pub(crate) fn stop(&self) {
        let stopped = Entries { is_stopped: true, ..Entries::default() };
        let entries = std::mem::replace(&mut *self.entries.write(), stopped);
        let remotes = entries.remotes.values().map(|remote| &remote.peer);
        for peer in entries.peers.values().chain(remotes) {
            peer.stop();
        }
    }

    #[cfg(test)]
    pub(crate) fn has_remote(&self, id: MemberId) -> bool {
        self.entries.read().remotes.contains_key(&id)
    }

    /// How many are answered that are not known to be members.
    pub(crate) fn remote_count(&self) -> usize {
        self.entries.read().remotes.len()
    }
}
