//! The state of a server whose keyspace is in a database.
//!
//! Such a state has one of two roles. The *sequencer's* state applies requests, as a member's applier does, but its
//! store is a working set: the engine loads the keys that a request needs before it applies the request. A server's
//! *replica* does not apply requests. It follows the batches that the sequencer has committed, and publishes the
//! resulting users, leases, alarms and watch events to the server's clients.
//!
//! # Invariants
//!
//! * A replica publishes only committed batches. It publishes them in order, and each batch as a whole.
//!
//! # Not here
//!
//! The database, and the order of loading, applying and committing (`engine`).

use std::sync::Arc;

use bytes::Bytes;

use super::recover::{load_alarms, load_rows, load_versions};
use super::{RecoverError, State, StateOptions};
use crate::auth::View as AuthView;
use crate::backend::{BatchChange, Rows};
use crate::lease::LeaseRecord;
use crate::members::Members;
use crate::mvcc::{ChangeKind, Changes, Store};
use crate::schema::Bucket;
use crate::units::{LeaseId, Millis};
use crate::versions::{Version, Versions};
use crate::watch::Source;

/// Whether the database's tables continue the history that a replica has followed so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumedHistory {
    /// The tables continue that history. Watchers continue from their positions.
    Same,
    /// The tables contain a different history, because the database has lost committed batches. Watchers may have
    /// received the lost changes, so the watchers are cancelled.
    Different,
}

/// A batch that the sequencer has committed.
#[derive(Debug)]
pub struct CommittedBatch<'a> {
    /// The changes to keys, by revision.
    pub changes: Vec<Changes>,
    /// The changes to rows. The rows that the caller passes together with the batch already include these changes.
    pub rows: &'a [BatchChange<'a>],
    /// The tokens that the batch creates, each with its user.
    pub tokens: &'a [(String, String)],
    /// The newest revision after the batch.
    pub revision: i64,
    /// Index and term of the last request in the batch.
    pub applied: (u64, u64),
}

impl State {
    /// Returns the state of a keyspace in a database, with an empty working set. `rows` are the rows as of the newest
    /// revision. `attachments` are the keys of live records that name a lease, each with that lease.
    pub fn of_database(
        rows: &Rows,
        attachments: Vec<(Bytes, LeaseId)>,
        revision: i64,
        applied: (u64, u64),
        options: StateOptions,
    ) -> Result<Self, RecoverError> {
        let versions = versions_in(rows, applied.1)?;
        let store = Store::working_set(revision, rows.compacted_revision()?, options.store);
        let mut loaded = load_rows(rows, versions, store, attachments, applied)?;
        // The rows of an imported snapshot may contain checkpoints, which the engine never updates. If a lease ended
        // after its checkpointed lifetime, it would end earlier than the responses to its renewals have promised.
        loaded.forget_checkpoints();
        Ok(Self::assemble(loaded, options))
    }

    /// Replaces the working set with an empty one.
    pub fn forget_keys(&mut self) {
        let (current, compacted) = (self.store.current_revision(), self.store.compacted_revision());
        self.store = Store::working_set(current, compacted, self.options.store);
    }

    /// Takes the changes to keys that were applied since the last call. The caller publishes them through a replica
    /// once they are committed.
    #[must_use]
    pub fn take_changes(&mut self) -> Vec<Changes> {
        std::mem::take(&mut self.unpublished)
    }

    /// Makes watchers read history from `source`.
    pub fn read_history_from(&self, source: Arc<dyn Source>) {
        self.hub.replace_store(source, self.store.current_revision());
    }

    /// Follows a committed batch and publishes it. `rows` are the rows after the batch. `reveal` is called when the
    /// changes must become visible to readers. `now` is the time at which the lifetimes of new tokens begin.
    pub fn follow(
        &mut self,
        batch: CommittedBatch<'_>,
        rows: &Rows,
        now: Millis,
        reveal: impl FnOnce(),
    ) -> Result<(), RecoverError> {
        let changed = |buckets: &[Bucket]| {
            batch
                .rows
                .iter()
                .any(|change| bucket_of(change).is_some_and(|of| buckets.contains(&of)))
        };
        if changed(&[Bucket::Alarm]) {
            self.alarms = load_alarms(rows)?;
            self.facts_changed = true;
        }
        if changed(&[Bucket::Cluster]) {
            self.versions = versions_in(rows, batch.applied.1)?;
            self.facts_changed = true;
        }
        // The batch does not show whether a token was created before or after a change to its user. Tokens are
        // therefore added first, so that the change revokes them. At worst, a user whose new token is revoked
        // needlessly must log in again.
        for (token, user) in batch.tokens {
            self.published.auth.tokens().add(token, user, now);
        }
        if changed(&[Bucket::Auth, Bucket::AuthRoles, Bucket::AuthUsers]) {
            self.auth.follow(AuthView::load(rows)?.0, batch.rows);
        }
        self.follow_leases(&batch, rows, now);
        self.store.follow(batch.revision, rows.compacted_revision()?);
        self.applied = batch.applied;
        self.unpublished.extend(batch.changes);
        self.publish_with(reveal);
        Ok(())
    }

    /// Replaces the whole state with the rows and the revision of the database. This is necessary if this server has
    /// missed batches, or if the database has lost committed batches.
    pub fn resume(
        &mut self,
        rows: &Rows,
        attachments: Vec<(Bytes, LeaseId)>,
        (revision, applied): (i64, (u64, u64)),
        (source, history): (Arc<dyn Source>, ResumedHistory),
        reveal: impl FnOnce(),
    ) -> Result<(), RecoverError> {
        let versions = versions_in(rows, applied.1)?;
        let store = Store::working_set(revision, rows.compacted_revision()?, self.options.store);
        let loaded = load_rows(rows, versions, store, attachments, applied)?;
        reveal();
        let servers = std::mem::take(&mut self.members);
        self.replace_content(loaded);
        self.members = servers;
        match history {
            ResumedHistory::Same => self.hub.replace_store(source, revision),
            ResumedHistory::Different => self.hub.replace_history(source, revision),
        }
        self.publish();
        Ok(())
    }

    /// Publishes the servers of the keyspace as the members of the cluster.
    pub fn follow_servers(&mut self, servers: Members) {
        if servers != self.members {
            self.members = servers;
            self.facts_changed = true;
            self.publish();
        }
    }

    /// Follows the batch's changes to leases and to the keys attached to them. A lease that ends in the batch keeps its
    /// keys until the replica has followed the batch's changes to keys, as on the sequencer.
    fn follow_leases(&mut self, batch: &CommittedBatch<'_>, rows: &Rows, now: Millis) {
        let mut ended = Vec::new();
        for change in batch.rows {
            match *change {
                BatchChange::Put(Bucket::Lease, _, value) => {
                    // A checkpoint rewrites the row of an existing lease. The checkpointed lifetime matters only to the
                    // sequencer.
                    if let Some(record) = LeaseRecord::decode(value) {
                        let (Ok(_) | Err(_)) = self.lessor.grant(record.id, record.ttl_secs, now);
                    }
                }
                BatchChange::Delete(Bucket::Lease, key) => {
                    if let Some(id) = LeaseRecord::id_of_key(key) {
                        if rows.get(Bucket::Lease, key).is_some() {
                            self.lessor.revoke(id);
                        } else {
                            ended.push(id);
                        }
                    }
                }
                BatchChange::Put(..)
                | BatchChange::Delete(..)
                | BatchChange::PutRecord(..)
                | BatchChange::DeleteRecord(_) => {}
            }
        }
        for change in batch.changes.iter().flat_map(|changes| &changes.events) {
            let fields = change.record.fields();
            match change.kind {
                ChangeKind::Put => self.lessor.attach(fields.key, LeaseId(fields.lease)),
                ChangeKind::Delete => self.lessor.detach(fields.key),
            }
        }
        for id in ended {
            self.lessor.revoke(id);
        }
    }
}

/// Returns the versions in the rows. All servers of a database use the same data format, so this
/// server's version is the cluster version if no row sets it.
fn versions_in(rows: &Rows, term: u64) -> Result<Versions, RecoverError> {
    let mut versions = load_versions(rows, term)?;
    if versions.cluster().is_none() {
        versions.set_cluster(Version::OWN, None);
    }
    Ok(versions)
}

const fn bucket_of(change: &BatchChange<'_>) -> Option<Bucket> {
    match *change {
        BatchChange::Put(bucket, _, _) | BatchChange::Delete(bucket, _) => Some(bucket),
        BatchChange::PutRecord(..) | BatchChange::DeleteRecord(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use quorate_api::etcdserverpb as pb;

    use super::*;
    use crate::apply::{AuthCommand, Command, EntryMeta, Request, Response};
    use crate::backend::Batch;

    /// A sequencer's state, a replica that follows it, and the rows of both.
    struct Pair {
        sequencer: State,
        replica: State,
        rows: Rows,
        index: u64,
        /// The tokens that were created since the last batch, each with its user.
        tokens: Vec<(String, String)>,
    }

    impl Pair {
        fn new() -> Self {
            let rows = Rows::new("test");
            let state = || {
                State::of_database(&rows, Vec::new(), 1, (0, 1), StateOptions::default()).unwrap()
            };
            let (sequencer, replica) = (state(), state());
            Self { sequencer, replica, rows, index: 0, tokens: Vec::new() }
        }

        fn apply(&mut self, command: Command) {
            self.index += 1;
            let entry = EntryMeta { index: self.index, term: 1, ..EntryMeta::default() };
            let (username, auth_revision) = if self.sequencer.auth().view().is_enabled() {
                ("root".to_owned(), self.sequencer.auth().view().revision())
            } else {
                (String::new(), 0)
            };
            let mut user = String::new();
            if let Command::Auth(AuthCommand::Authenticate(request)) = &command {
                user.clone_from(&request.name);
            }
            let request = Request { id: 0, username, auth_revision, command };
            let applied = self.sequencer.apply(entry, request).unwrap();
            let response = applied.outcome.unwrap().unwrap();
            if let Response::Authenticated { response, .. } = response {
                self.tokens.push((response.token, user));
            }
        }

        /// Makes the replica follow, as one batch, everything that the sequencer has applied.
        fn commit(&mut self) {
            let batch: Batch = self.sequencer.take_batch();
            let rows: Vec<_> = batch
                .changes()
                .filter(|change| !matches!(change, BatchChange::PutRecord(..)))
                .collect();
            rows.iter().for_each(|change| self.rows.apply(change));
            let changes = self.sequencer.take_changes();
            let revision = self.sequencer.store().current_revision();
            let tokens = std::mem::take(&mut self.tokens);
            let committed = CommittedBatch {
                changes,
                rows: &rows,
                tokens: &tokens,
                revision,
                applied: (self.index, 1),
            };
            let mut is_revealed = false;
            let reveal = || is_revealed = true;
            self.replica.follow(committed, &self.rows, Millis(1), reveal).unwrap();
            assert!(is_revealed);
        }
    }

    fn put(key: &str, lease: i64) -> Command {
        let key = Bytes::copy_from_slice(key.as_bytes());
        Command::Put(pb::PutRequest { key, lease, ..pb::PutRequest::default() })
    }

    fn grant(id: i64) -> Command {
        Command::LeaseGrant(pb::LeaseGrantRequest { id, ttl: 60 })
    }

    fn revoke(id: i64) -> Command {
        Command::LeaseRevoke(pb::LeaseRevokeRequest { id })
    }

    fn keys_of(state: &State, id: i64) -> Option<Vec<String>> {
        let keys = state.published().leases.keys(LeaseId(id))?;
        Some(keys.iter().map(|key| String::from_utf8(key.to_vec()).unwrap()).collect())
    }

    #[test]
    fn a_replica_has_the_leases_and_attached_keys_of_the_sequencer() {
        let mut pair = Pair::new();
        let batches = [
            vec![grant(1), put("a", 1), put("b", 1), grant(2), put("c", 2)],
            // One batch moves a key to another lease and revokes the key's old lease.
            vec![put("b", 2), revoke(1)],
            // One batch revokes a lease and grants it again.
            vec![revoke(2), grant(2), put("d", 2)],
            // One batch grants a lease, attaches a key to it, and revokes it.
            vec![grant(3), put("e", 3), revoke(3), put("d", 0)],
        ];
        for batch in batches {
            batch.into_iter().for_each(|command| pair.apply(command));
            pair.commit();
            for id in 1..=3 {
                assert_eq!(keys_of(&pair.replica, id), keys_of(&pair.sequencer, id), "lease {id}");
            }
            let revision = pair.sequencer.store().current_revision();
            assert_eq!(pair.replica.store().current_revision(), revision);
        }
        assert_eq!(keys_of(&pair.replica, 2), Some(Vec::new()));
    }

    #[test]
    fn an_auth_change_revokes_tokens_created_earlier_in_the_same_batch() {
        let auth = |command| Command::Auth(command);
        let add = |name: &str| {
            let hashed_password = "aGFzaA==".to_owned();
            let name = name.to_owned();
            let user = pb::AuthUserAddRequest { name, hashed_password, ..Default::default() };
            Command::Auth(AuthCommand::UserAdd(user))
        };
        let login = |number: usize| {
            let (name, simple_token) = ("ann".to_owned(), format!("token{number}"));
            let request =
                pb::InternalAuthenticateRequest { name, simple_token, ..Default::default() };
            Command::Auth(AuthCommand::Authenticate(request))
        };
        let password = pb::AuthUserChangePasswordRequest {
            name: "ann".to_owned(),
            hashed_password: "b3RoZXI=".to_owned(),
            ..Default::default()
        };
        let delete = pb::AuthUserDeleteRequest { name: "ann".to_owned() };
        let (user, role) = ("root".to_owned(), "root".to_owned());
        let grant = pb::AuthUserGrantRoleRequest { user, role };
        let mut pair = Pair::new();
        for command in [
            add("root"),
            auth(AuthCommand::UserGrantRole(grant)),
            add("ann"),
            auth(AuthCommand::Enable),
        ] {
            pair.apply(command);
        }
        pair.commit();
        let find = |pair: &Pair, number: usize| {
            let tokens = pair.replica.published().auth.tokens().count();
            assert!(tokens <= 1, "login {number}");
            tokens == 1
        };
        pair.apply(login(0));
        pair.commit();
        assert!(find(&pair, 0));
        let changes = [
            vec![auth(AuthCommand::UserChangePassword(password))],
            vec![auth(AuthCommand::Disable), auth(AuthCommand::Enable)],
            vec![auth(AuthCommand::UserDelete(delete)), add("ann")],
        ];
        for (number, commands) in (1..).zip(changes) {
            pair.apply(login(number));
            commands.into_iter().for_each(|command| pair.apply(command));
            pair.commit();
            assert!(!find(&pair, number), "the token of login {number} is valid");
        }
    }

    #[test]
    fn a_replica_publishes_roles_versions_and_servers() {
        let mut pair = Pair::new();
        let add = |name: &str| {
            let name = name.to_owned();
            Command::Auth(AuthCommand::RoleAdd(pb::AuthRoleAddRequest { name }))
        };
        pair.apply(add("reader"));
        pair.commit();
        let published = pair.replica.published();
        assert_eq!(published.auth.view().role_names().collect::<Vec<_>>(), ["reader"]);
        assert_eq!(published.facts().versions.cluster(), Some(Version::OWN));
        let server = crate::members::Member::new(crate::units::MemberId(7), Vec::new());
        pair.replica.follow_servers(Members::new([server], []));
        assert_eq!(published.facts().members.iter().count(), 1);
        pair.apply(put("a", 0));
        pair.commit();
        assert_eq!(published.facts().members.iter().count(), 1);
    }
}
