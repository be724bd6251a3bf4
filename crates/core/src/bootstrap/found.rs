//! The founding members of a cluster, and the first entries of their logs.
//!
//! # Invariants
//!
//! * Every founder writes exactly the same log entries, because they depend only on the flags and are sorted by member
//!   id.

use std::sync::Arc;

use quorate_raft::{Entry, EntryKind, HardState, LogIndex, Term};
use quorate_state::members::{FOUNDING_TERM, Founders, Member};
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::Disk;
use quorate_storage::wal::{self, Wal, WalError};

use super::{Identity, InitialCluster, Refusal};
use crate::start::Start;

/// A cluster that this member founds.
#[derive(Clone, Debug)]
pub struct Founding {
    /// The identity of this member in the cluster.
    pub identity: Identity,
    founders: Founders,
}

impl Founding {
    /// Prepares the founding of a cluster with these members. `own` is this member's name.
    pub fn of(initial: &InitialCluster, own: &str) -> Result<Self, Refusal> {
        let members = initial.members.iter().map(|(name, urls)| (name.as_str(), urls.clone()));
        let founders = Founders::new(members, &initial.token);
        let member = founders.named(own).ok_or_else(|| Refusal::NotInitial(own.to_owned()))?;
        let (cluster_id, member_id) = (founders.cluster_id(), member.id.0);
        let identity = Identity { cluster_id, member_id, name: own.to_owned() };
        Ok(Self { identity, founders })
    }

    /// Returns whether this founding results in the given identity.
    pub(super) fn is_of(&self, identity: &Identity) -> bool {
        (self.identity.cluster_id, self.identity.member_id)
            == (identity.cluster_id, identity.member_id)
    }

    /// Returns the founders except this member.
    #[must_use]
    pub fn others(&self) -> Vec<Member> {
        let own = self.identity.member_id;
        self.founders.iter().filter(|member| member.id.0 != own).cloned().collect()
    }

    /// Writes the founders durably into a log that contains no other entries.
    pub fn write(&self, wal: &mut Wal) -> Result<Start, WalError> {
        let entries: Vec<Entry> = (1..)
            .zip(self.founders.conf_changes())
            .map(|(index, data)| Entry {
                term: Term(FOUNDING_TERM),
                index: LogIndex(index),
                kind: EntryKind::ConfChange,
                data,
            })
            .collect();
        let commit = entries.len() as u64;
        let hard_state = wal::HardState { term: FOUNDING_TERM, vote: 0, commit };
        append_entries(wal, Some(&hard_state), &entries)?;
        let hard_state = HardState { term: Term(FOUNDING_TERM), vote: 0, commit: LogIndex(commit) };
        Ok(Start { hard_state, entries, ..Start::default() })
    }
}

/// Creates the log of a new member, and writes the founders into it if this member is a founder. Without founders, the
/// leader has to send all entries or a snapshot.
pub fn create_log(
    disk: &Arc<dyn Disk>,
    dirs: &DataDir,
    identity: &Identity,
    founding: Option<&Founding>,
    options: wal::Options,
) -> Result<(Wal, Start), WalError> {
    let mut wal = Wal::create(Arc::clone(disk), dirs.wal(), identity.to_metadata(), options)?;
    let start = founding.map(|founding| founding.write(&mut wal)).transpose()?;
    Ok((wal, start.unwrap_or_default()))
}

/// Appends entries durably to the log of a member that is not running yet.
pub fn append_entries(
    wal: &mut Wal,
    hard_state: Option<&wal::HardState>,
    entries: &[Entry],
) -> Result<(), WalError> {
    let entries = entries.iter().map(|entry| wal::EntryRef {
        index: entry.index.get(),
        term: entry.term.get(),
        kind: entry.kind as u8,
        data: &entry.data,
    });
    wal.append(hard_state, entries)?;
    wal.sync()?;
    Ok(())
}
