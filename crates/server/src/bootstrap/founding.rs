//! The first members of a cluster: who they are, and what their logs begin with.

use quorate_raft::confchange::wire;
use quorate_raft::{ConfChange, ConfChangeKind, ConfState, Entry, EntryKind, HardState};
use quorate_state::members::{self, Member};
use quorate_storage::wal::{self, Wal};

use super::error::BootError;
use super::{Start, url_texts};
use crate::config::{ClusterState, Config};
use crate::member::Identity;

/// A cluster that is to be, as the flags describe it.
#[derive(Debug)]
pub(super) struct Founding {
    pub(super) identity: Identity,
    founders: Vec<Member>,
}

impl Founding {
    pub(super) fn new(config: &Config) -> Result<Self, BootError> {
        if config.initial_cluster_state == ClusterState::Existing {
            return Err(BootError::JoiningUnsupported);
        }
        let initial = config.initial_members()?;
        if initial.count() > 1 {
            return Err(BootError::ClusterUnsupported { count: initial.count() });
        }
        let advertised = url_texts(&config.initial_advertise_peer_urls);
        let mut founders: Vec<Member> = initial
            .iter()
            .map(|(name, urls)| {
                let peer_urls = url_texts(urls);
                let id = members::member_id(&peer_urls, &config.initial_cluster_token, None);
                Member { name: name.to_owned(), ..Member::new(id, peer_urls) }
            })
            .collect();
        let own = founders
            .iter()
            .find(|member| member.name == config.name)
            .expect("the initial members were checked to hold this one");
        check_advertised(config, &own.peer_urls, &advertised)?;
        let identity = Identity {
            cluster_id: members::cluster_id(founders.iter().map(|member| member.id)),
            member_id: own.id.0,
            name: config.name.clone(),
        };
        founders.sort_by_key(|member| member.id);
        Ok(Self { identity, founders })
    }

    /// Writes the founders into a log that holds nothing else, durably.
    pub(super) fn write(&self, wal: &mut Wal) -> Result<Start, BootError> {
        let entries = self.entries();
        let commit = entries.len() as u64;
        wal.append(
            Some(&wal::HardState { term: 1, vote: 0, commit }),
            entries.iter().map(|entry| wal::EntryRef {
                index: entry.index,
                term: entry.term,
                kind: entry.kind as u8,
                data: &entry.data,
            }),
        )?;
        wal.sync()?;
        let voters = self.founders.iter().map(|member| member.id.0).collect();
        let conf_state = ConfState { voters, ..ConfState::default() };
        let hard_state = HardState { term: 1, vote: 0, commit };
        Ok(Start { hard_state, conf_state, entries, ..Start::default() })
    }

    /// The log that every founder begins with: the founders themselves, in the order of their ids.
    fn entries(&self) -> Vec<Entry> {
        (1..)
            .zip(&self.founders)
            .map(|(index, member)| {
                let change = ConfChange {
                    kind: ConfChangeKind::AddNode,
                    node_id: member.id.0,
                    context: member.to_json().into(),
                    ..ConfChange::default()
                };
                let data = wire::encode_v1(&change);
                Entry { term: 1, index, kind: EntryKind::ConfChange, data }
            })
            .collect()
    }
}

fn check_advertised(
    config: &Config,
    initial: &[String],
    advertised: &[String],
) -> Result<(), BootError> {
    if let Some(url) = initial.iter().find(|url| !advertised.contains(url)) {
        let name = config.name.clone();
        let advertised = advertised.join(",");
        return Err(BootError::NotAdvertised { name, url: url.clone(), advertised });
    }
    if let Some(url) = advertised.iter().find(|url| !initial.contains(url)) {
        let initial_cluster = config.initial_cluster.clone();
        return Err(BootError::NotInitial { url: url.clone(), initial_cluster });
    }
    Ok(())
}
