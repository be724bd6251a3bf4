//! The first members of a cluster: who they are, and what their logs begin with.
//!
//! # Invariants
//!
//! * Every founder comes to the same log, entry for entry: it is made of the flags alone, in the order of the ids.
//! * Nobody founds a cluster that is at work already.

use std::time::Duration;

use quorate_core::start::Start;
use quorate_raft::{ConfState, Entry, EntryKind, HardState, LogIndex, Term};
use quorate_state::members::{FOUNDING_TERM, Founders, Member};
use quorate_state::units::MemberId;
use quorate_storage::wal::{self, Wal};

use super::discovery;
use super::error::BootError;
use super::initial::{Initial, peer_urls_of_others, url_texts};
use super::names::{Names, Outside};
use super::remote::{self, has_published};
use super::same_urls::Comparison;
use quorate_config::{Config, InitialMembers};
use quorate_member::Identity;

/// How long names may take to be resolved.
pub(super) const RESOLVE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the others may take to say that they know this member.
const BOOTSTRAPPED_TIMEOUT: Duration = Duration::from_secs(1);

/// A cluster that is to be, as the flags describe it.
#[derive(Debug)]
pub(super) struct Founding {
    pub(super) identity: Identity,
    founders: Founders,
}

impl Founding {
    /// Finds out who founds the cluster, and whether it may be founded.
    pub(super) async fn prepare(config: &Config, outside: Outside<'_>) -> Result<Self, BootError> {
        let Outside { names, dialer } = outside;
        let initial = Initial::find(config, names).await?;
        let members = &initial.members;
        members.check_holds(&config.name)?;
        check_advertised(config, members, names).await?;
        members.check_urls()?;
        let founding = Self::of(config, members, &initial.token);
        let id = MemberId(founding.identity.member_id);
        let others = peer_urls_of_others(members, &config.name);
        let way = (dialer, BOOTSTRAPPED_TIMEOUT);
        if remote::row_of(others, id, has_published, way).await.is_some() {
            return Err(BootError::Bootstrapped(id));
        }
        if !config.discovery.is_asked_for() {
            return Ok(founding);
        }
        let met =
            discovery::join(&config.discovery, id, members).await.map_err(BootError::Discovery)?;
        met.check_urls().map_err(|_| BootError::DiscoveredTwice(met.to_string()))?;
        met.check_holds(&config.name)?;
        Ok(Self::of(config, &met, &initial.token))
    }

    /// The cluster of these members, this one among them.
    pub(super) fn of(config: &Config, initial: &InitialMembers, token: &str) -> Self {
        let members = initial.iter().map(|(name, urls)| (name, url_texts(urls)));
        let founders = Founders::new(members, token);
        let own = founders
            .named(&config.name)
            .expect("the initial members were checked to hold this one");
        let identity = Identity {
            cluster_id: founders.cluster_id(),
            member_id: own.id.0,
            name: config.name.clone(),
        };
        Self { identity, founders }
    }

    /// Whether it is that member's founding of that cluster.
    pub(super) fn is_of(&self, identity: &Identity) -> bool {
        (self.identity.cluster_id, self.identity.member_id)
            == (identity.cluster_id, identity.member_id)
    }

    /// The founders besides this one.
    pub(super) fn others(&self) -> Vec<Member> {
        let own = self.identity.member_id;
        self.founders.iter().filter(|member| member.id.0 != own).cloned().collect()
    }

    /// Writes the founders into a log that holds nothing else, durably.
    pub(super) fn write(&self, wal: &mut Wal) -> Result<Start, BootError> {
        let entries = self.entries();
        let commit = entries.len() as u64;
        append(wal, Some(&wal::HardState { term: FOUNDING_TERM, vote: 0, commit }), &entries)?;
        let voters = self.founders.iter().map(|member| member.id.0).collect();
        let conf_state = ConfState { voters, ..ConfState::default() };
        let hard_state = HardState { term: Term(FOUNDING_TERM), vote: 0, commit: LogIndex(commit) };
        Ok(Start { hard_state, conf_state, entries, ..Start::default() })
    }

    /// The log that every founder begins with: the founders themselves, in the order of their ids.
    fn entries(&self) -> Vec<Entry> {
        (1..)
            .zip(self.founders.conf_changes())
            .map(|(index, data)| Entry {
                term: Term(FOUNDING_TERM),
                index: LogIndex(index),
                kind: EntryKind::ConfChange,
                data,
            })
            .collect()
    }
}

/// Appends to the log and waits for the disk.
pub(super) fn append(
    wal: &mut Wal,
    hard_state: Option<&wal::HardState>,
    entries: &[Entry],
) -> Result<(), BootError> {
    wal.append(
        hard_state,
        entries.iter().map(|entry| wal::EntryRef {
            index: entry.index.get(),
            term: entry.term.get(),
            kind: entry.kind as u8,
            data: &entry.data,
        }),
    )?;
    wal.sync()?;
    Ok(())
}

/// The others are told the advertised URLs by the initial cluster, so the two must agree: as they stand, or
/// once names are resolved.
async fn check_advertised(
    config: &Config,
    initial: &InitialMembers,
    names: &dyn Names,
) -> Result<(), BootError> {
    let name = &config.name;
    let advertised = url_texts(&config.initial_advertise_peer_urls);
    let own = url_texts(initial.urls_of(name).unwrap_or_default());
    let mut comparison = Comparison::new(names, RESOLVE_TIMEOUT);
    let Err(difference) = comparison.check_same(&advertised, &own).await else { return Ok(()) };
    let difference = Box::new(difference);
    let missing = |from: &[String], all: &[String], mark: &str| {
        let missing: Vec<String> = all
            .iter()
            .filter(|url| !from.contains(url))
            .map(|url| format!("{mark}{url}"))
            .collect();
        (!missing.is_empty()).then(|| missing.join(","))
    };
    let mark = format!("{name}=");
    if let Some(missing) = missing(&advertised, &own, &mark) {
        let advertised = advertised.join(",");
        return Err(BootError::NotAdvertised { missing, advertised, difference });
    }
    let initial_cluster = initial.to_string();
    if let Some(missing) = missing(&own, &advertised, "") {
        return Err(BootError::NotInitial { missing, initial_cluster });
    }
    Err(BootError::OtherAdvertised {
        advertised: advertised.join(","),
        initial_cluster,
        difference,
    })
}
