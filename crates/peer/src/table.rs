//! The table of peers, which are members according to the applied membership, and of remotes, which claim to be
//! members.
//!
//! # Bound
//!
//! The table holds at most [`REMOTES_MAX`] remotes. When the table is full, a new remote replaces a remote whose identity
//! check has failed, or else the remote that has been silent longest, provided that the silence has lasted at least
//! [`REMOTE_QUIET_MIN`]. Remotes that are confirmed as members are replaced only if all remotes are confirmed, because
//! otherwise active unknown senders could replace a member that is unreachable for a while. If no remote can be
//! replaced, the new sender is not added, and the identity of an unconfirmed remote is checked. Each further request
//! from the new sender is another attempt.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use quorate_core::incoming::Sender;
use quorate_raft::{MemberId, Message};

use crate::dial;
use crate::known_members::KnownMembers;
use crate::local::Local;
use crate::peer::{Peer, PeerKind, Woken};
use quorate_telemetry::log;

/// Maximum number of remotes.
const REMOTES_MAX: usize = 64;

/// How long a remote must be silent before it may be replaced. A lagging member requests streams more often than that.
const REMOTE_QUIET_MIN: Duration = Duration::from_secs(10);

/// The peers and remotes of this member.
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

/// A sender that claims to be a member.
#[derive(Debug)]
struct Remote {
    peer: Arc<Peer>,
    heard: Mutex<Instant>,
    /// Whether the last identity check failed.
    is_refuted: Arc<AtomicBool>,
}

/// How readily a remote is replaced; the lowest value is replaced first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// The identity check has failed.
    Refuted,
    /// The identity was not checked yet.
    Unchecked,
    /// The remote is confirmed as a member.
    Confirmed,
}

impl Remote {
    fn standing(&self, id: MemberId, known: &KnownMembers) -> Standing {
        match known.of(id) {
            Sender::Member => Standing::Confirmed,
            Sender::Removed | Sender::Unknown if self.is_refuted.load(Ordering::Relaxed) => {
                Standing::Refuted
            }
            Sender::Removed | Sender::Unknown => Standing::Unchecked,
        }
    }
}

impl Entries {
    /// Removes and returns the remote that is replaced first. Returns its id if it must not be replaced yet.
    fn make_room(&mut self, known: &KnownMembers, now: Instant) -> Result<Remote, MemberId> {
        let rank = |(id, remote): (&MemberId, &Remote)| {
            (remote.standing(*id, known), *remote.heard.lock(), *id)
        };
        let first = self.remotes.iter().map(rank).min();
        let (standing, heard, id) = first.expect("the table is full of remotes");
        let is_quiet = now.saturating_duration_since(heard) >= REMOTE_QUIET_MIN;
        if standing != Standing::Refuted && !is_quiet {
            return Err(id);
        }
        self.remotes.remove(&id).ok_or(id)
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

    /// Adds a member, or updates its URLs. A remote that becomes a member is removed from the remotes.
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

    /// Adds a sender that claims to be a member at these URLs, if there is space.
    pub(crate) fn add_remote(&self, id: MemberId, peer_urls: &[String], now: Instant) {
        if !self.is_of_others(id) {
            return;
        }
        // Every request takes this path and most senders are known, so a read lock is tried first.
        {
            let entries = self.entries.read();
            if let Some(remote) = entries.remotes.get(&id) {
                // The URLs are updated, because an earlier sender may have used this id without being its owner.
                if remote.peer.contact.urls.update(peer_urls) {
                    remote.is_refuted.store(false, Ordering::Relaxed);
                }
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
            match entries.make_room(&self.local.known_members, now) {
                Ok(replaced) => replaced.peer.stop(),
                Err(first) => {
                    drop(entries);
                    self.probe_identity(first);
                    return;
                }
            }
        }
        let peer = self.start(id, peer_urls, PeerKind::Remote);
        let remote = Remote { peer, heard: Mutex::new(now), is_refuted: Arc::default() };
        entries.remotes.insert(id, remote);
    }

    /// Returns whether this id belongs to another member and that member was not removed.
    fn is_of_others(&self, id: MemberId) -> bool {
        id != self.local.id && !self.local.known_members.is_removed(id)
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
                "invalid peer URL",
                "remote-peer-id" = peer.contact.name,
                "error" = error.to_string()
            );
        }
        peer
    }

    /// Asks the host at a remote's URL whether the remote is a member that is not in this member's log yet. If so, its
    /// messages are accepted from then on.
    pub(crate) fn probe_identity(&self, id: MemberId) {
        let remote = self
            .entries
            .read()
            .remotes
            .get(&id)
            .map(|remote| (Arc::clone(&remote.peer), Arc::clone(&remote.is_refuted)));
        let Some((remote, is_refuted)) = remote else { return };
        if !self.local.known_members.may_ask(id, Instant::now()) {
            return;
        }
        let local = Arc::clone(&self.local);
        self.local.runtime.spawn(async move {
            let (known, cluster) = (&local.known_members, &local.introduction.cluster);
            let url = remote.contact.urls.pick();
            if known.is_listed(id, &url, cluster, (&local.dialer, local.dial_timeout)).await {
                known.confirm(id);
                log::info!(
                    "accepting messages from a member whose addition is not in this member's log yet",
                    "remote-peer-id" = remote.contact.name,
                    "remote-peer-url" = url
                );
            } else {
                is_refuted.store(true, Ordering::Relaxed);
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

    /// Sends messages in order. Messages that cannot be sent are dropped, and their recipients are reported
    /// as unreachable. Messages to unknown members are dropped without a report.
    pub(crate) fn send(&self, messages: Vec<Message>) {
        let (mut woken, mut unreachable): (Vec<Woken>, Vec<MemberId>) = (Vec::new(), Vec::new());
        let entries = self.entries.read();
        for message in messages {
            let to = message.to;
            let remote = || entries.remotes.get(&to).map(|remote| &remote.peer);
            let Some(peer) = entries.peers.get(&to).or_else(remote) else { continue };
            if !peer.send(message, &mut woken) && !unreachable.contains(&to) {
                unreachable.push(to);
            }
        }
        drop(entries);
        // Streams are flushed after the whole batch is queued, so that each stream sends all of its messages together.
        for stream in woken {
            stream.flush();
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

    /// Removes all peers and remotes, and prevents adding new ones.
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

    /// Returns the number of remotes.
    pub(crate) fn remote_count(&self) -> usize {
        self.entries.read().remotes.len()
    }
}
