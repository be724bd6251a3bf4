//! Authentication and permissions: users, their roles, and what the roles permit.
//!
//! [`Auth`] belongs to the applier. It stores each change as etcd does, and every member makes the
//! same changes. Other threads use an [`AuthReader`], which provides the published [`View`] and the
//! [`Tokens`] of clients.
//!
//! # Invariants
//!
//! * The revision increases with every change to users and roles, and when authentication is
//!   disabled.
//! * Passwords arrive as hashes from the member that received the request. This module never hashes
//!   a password or draws a random number.
//! * While authentication is enabled, the root user exists and has the root role.
//!
//! # Not here
//!
//! The permissions that a request needs (`apply::permission`), password hashing
//! (`requests::passwords`) and signed tokens (`jwt`).

mod key_set;
mod permission_tree;
mod record;
mod refusal;
mod shared;
mod tokens;
mod view;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use quorate_api::etcdserverpb as pb;
use quorate_api::{any_text, authpb};
use quorate_storage::bolt::KEY_BYTES_MAX;

pub use self::refusal::AuthRefusal;
pub use self::shared::{AuthReader, Stamp};
pub use self::tokens::{Token, Tokens};
pub use self::view::{Access, Caller, ROOT, User, View};
use crate::backend::{Batch, BatchChange};
use crate::schema::{Bucket, auth};

/// The encoding of password hashes in entries. As in Go, unused bits of the last character are
/// ignored.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

/// The revision of users and roles before their first change.
const FIRST_REVISION: u64 = 1;

/// The maximum length of the name of a user or role, in bytes. The name is a key of the backend file. If a longer name
/// were accepted, no member could commit the change, and all members would exit.
pub const NAME_BYTES_MAX: usize = KEY_BYTES_MAX;

/// The log contains a password in plain text, which only members older than etcd 3.5 write.
#[derive(Debug, thiserror::Error)]
#[error("the password is in plain text; only etcd before 3.5 writes plain-text passwords")]
pub struct PlainPassword;

/// The result of a change. A change may be refused, or it may contain a plain-text password, which
/// Quorate cannot apply.
pub(crate) type Changed = Result<Result<(), AuthRefusal>, PlainPassword>;

/// The applier's users and roles, which may be newer than the published ones, and the tokens.
#[derive(Debug)]
pub struct Auth {
    view: Arc<View>,
    is_changed: bool,
    reader: AuthReader,
}

impl Auth {
    /// Creates the state from stored users and roles. A token expires `token_ttl_millis` after its
    /// last use.
    #[must_use]
    pub(crate) fn new(stored: View, token_ttl_millis: u64) -> Self {
        let view = Arc::new(stored);
        let reader = AuthReader::new(Arc::clone(&view), token_ttl_millis);
        Self { view, is_changed: false, reader }
    }

    /// Replaces everything with the content of another file. This member did not apply the entries that led to that
    /// content. If any of them changed users, roles or authentication, it may have revoked tokens, so all tokens are
    /// revoked.
    pub(crate) fn replace(&mut self, stored: View) {
        let before = std::mem::replace(&mut self.view, Arc::new(stored));
        self.is_changed = true;
        if !self.view.is_enabled || self.view.revision != before.revision {
            self.reader.tokens().revoke_all();
        }
    }

    /// Adopts the users and roles as of the end of a batch that was applied elsewhere, and revokes the tokens that the
    /// commands in the batch revoked there: the tokens of deleted users and of users with a new password, and all
    /// tokens if authentication was disabled. If a user was deleted and added again, or authentication was disabled and
    /// enabled again, only `changes` shows it.
    pub(crate) fn follow(&mut self, stored: View, changes: &[BatchChange<'_>]) {
        let before = std::mem::replace(&mut self.view, Arc::new(stored));
        self.is_changed = true;
        let (after, tokens) = (&self.view, self.reader.tokens());
        if before.is_enabled && !after.is_enabled {
            tokens.revoke_all();
            return;
        }
        let password =
            |view: &View, name: &str| view.user(name).map(|user| user.record.password.clone());
        tokens.revoke_where(|name| {
            let password_now = password(after, name);
            password_now.is_none() || password_now != password(&before, name)
        });
        for change in changes {
            match *change {
                BatchChange::Put(Bucket::Auth, key, value) => {
                    if key == auth::ENABLED && value[..] == [0] {
                        tokens.revoke_all();
                    }
                }
                BatchChange::Delete(Bucket::AuthUsers, name) => {
                    tokens.revoke_where(|user| user.as_bytes() == name);
                }
                BatchChange::Put(..)
                | BatchChange::Delete(..)
                | BatchChange::PutRecord(..)
                | BatchChange::DeleteRecord(_) => {}
            }
        }
    }

    /// Returns the users and roles as of the last applied entry.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Returns the handle through which other threads read users, roles and tokens.
    #[must_use]
    pub fn reader(&self) -> AuthReader {
        self.reader.clone()
    }

    /// Makes readers wait if anything has changed, because the published permissions may not match the data that is
    /// about to be published. The caller publishes the data and then calls [`Auth::publish`].
    pub(crate) fn begin_publication(&self) {
        if self.is_changed {
            self.reader.close();
        }
    }

    /// Publishes the changes, which allows waiting readers to continue.
    pub(crate) fn publish(&mut self) {
        if std::mem::take(&mut self.is_changed) {
            self.reader.open(Arc::clone(&self.view));
        }
    }

    pub(crate) fn enable(&mut self, batch: &mut Batch) -> Result<(), AuthRefusal> {
        if self.view.is_enabled {
            return Ok(());
        }
        let root = self.view.user(ROOT).ok_or(AuthRefusal::RootUserNotExist)?;
        if !root.roles().iter().any(|role| role == ROOT) {
            return Err(AuthRefusal::RootRoleNotExist);
        }
        self.change().is_enabled = true;
        batch.put(Bucket::Auth, auth::ENABLED, Bytes::from_static(&[1]));
        Ok(())
    }

    pub(crate) fn disable(&mut self, batch: &mut Batch) {
        if !self.view.is_enabled {
            return;
        }
        self.change().is_enabled = false;
        batch.put(Bucket::Auth, auth::ENABLED, Bytes::from_static(&[0]));
        self.count_change(batch);
        self.reader.tokens().revoke_all();
    }

    pub(crate) fn add_user(
        &mut self,
        request: &pb::AuthUserAddRequest,
        batch: &mut Batch,
    ) -> Changed {
        if request.name.is_empty() {
            return Ok(Err(AuthRefusal::UserEmpty));
        }
        if let Err(refusal) = check_new_name(&request.name) {
            return Ok(Err(refusal));
        }
        if self.view.user(&request.name).is_some() {
            return Ok(Err(AuthRefusal::UserAlreadyExists));
        }
        let options = request.options.unwrap_or_default();
        let password = if options.no_password {
            Bytes::new()
        } else {
            match stored_password(&request.password, &request.hashed_password)? {
                Ok(password) => password,
                Err(refusal) => return Ok(Err(refusal)),
            }
        };
        let name = stored_name(&request.name);
        let user = authpb::User { name, password, roles: Vec::new(), options: Some(options) };
        self.put_user(&request.name, user, batch);
        self.count_change(batch);
        Ok(Ok(()))
    }

    pub(crate) fn delete_user(&mut self, name: &str, batch: &mut Batch) -> Result<(), AuthRefusal> {
        if self.view.is_enabled && name == ROOT {
            return Err(AuthRefusal::InvalidManagement);
        }
        self.view.user(name).ok_or(AuthRefusal::UserNotFound)?;
        self.change().users.remove(name);
        batch.delete(Bucket::AuthUsers, stored_name(name));
        self.count_change(batch);
        self.reader.tokens().revoke_of_user(name);
        Ok(())
    }

    pub(crate) fn change_password(
        &mut self,
        request: &pb::AuthUserChangePasswordRequest,
        batch: &mut Batch,
    ) -> Changed {
        let Some(user) = self.view.user(&request.name) else {
            return Ok(Err(AuthRefusal::UserNotFound));
        };
        let mut record = user.record.clone();
        record.password = if user.has_no_password() {
            Bytes::new()
        } else {
            match stored_password(&request.password, &request.hashed_password)? {
                Ok(password) => password,
                Err(refusal) => return Ok(Err(refusal)),
            }
        };
        self.put_user(&request.name, record, batch);
        self.count_change(batch);
        self.reader.tokens().revoke_of_user(&request.name);
        Ok(Ok(()))
    }

    pub(crate) fn grant_role(
        &mut self,
        name: &str,
        role: &str,
        batch: &mut Batch,
    ) -> Result<(), AuthRefusal> {
        let user = self.view.user(name).ok_or(AuthRefusal::UserNotFound)?;
        if role != ROOT && !self.view.roles.contains_key(role) {
            return Err(AuthRefusal::RoleNotFound);
        }
        if user.roles().iter().any(|held| held == role) {
            return Ok(());
        }
        let mut record = user.record.clone();
        record.roles.push(role.to_owned());
        record.roles.sort_unstable();
        self.put_user(name, record, batch);
        self.count_change(batch);
        Ok(())
    }

    pub(crate) fn revoke_role(
        &mut self,
        name: &str,
        role: &str,
        batch: &mut Batch,
    ) -> Result<(), AuthRefusal> {
        if self.view.is_enabled && name == ROOT && role == ROOT {
            return Err(AuthRefusal::InvalidManagement);
        }
        let user = self.view.user(name).ok_or(AuthRefusal::UserNotFound)?;
        let Some(record) = without_role(&user.record, role) else {
            return Err(AuthRefusal::RoleNotGranted);
        };
        self.put_user(name, record, batch);
        self.count_change(batch);
        Ok(())
    }

    pub(crate) fn add_role(&mut self, name: &str, batch: &mut Batch) -> Result<(), AuthRefusal> {
        if name.is_empty() {
            return Err(AuthRefusal::RoleEmpty);
        }
        check_new_name(name)?;
        if self.view.roles.contains_key(name) {
            return Err(AuthRefusal::RoleAlreadyExists);
        }
        let role = authpb::Role { name: stored_name(name), key_permission: Vec::new() };
        self.put_role(name, role, batch);
        self.count_change(batch);
        Ok(())
    }

    /// Deletes a role and removes it from every user that has it.
    pub(crate) fn delete_role(&mut self, name: &str, batch: &mut Batch) -> Result<(), AuthRefusal> {
        if self.view.is_enabled && name == ROOT {
            return Err(AuthRefusal::InvalidManagement);
        }
        if !self.view.roles.contains_key(name) {
            return Err(AuthRefusal::RoleNotFound);
        }
        self.change().roles.remove(name);
        batch.delete(Bucket::AuthRoles, stored_name(name));
        let losing = |(user_name, user): (&String, &Arc<User>)| {
            Some((user_name.clone(), without_role(&user.record, name)?))
        };
        let changed: Vec<_> = self.view.users.iter().filter_map(losing).collect();
        for (user_name, record) in changed {
            self.put_user(&user_name, record, batch);
        }
        self.count_change(batch);
        Ok(())
    }

    /// If the first permission that begins at the same key covers the same range, replaces that permission. Otherwise,
    /// adds the new permission, so the same range may occur twice, as in etcd.
    pub(crate) fn grant_permission(
        &mut self,
        name: &str,
        permission: Option<&authpb::Permission>,
        batch: &mut Batch,
    ) -> Result<(), AuthRefusal> {
        let permission = permission.ok_or(AuthRefusal::PermissionNotGiven)?;
        check_new_range(permission)?;
        let mut role = self.view.roles.get(name).ok_or(AuthRefusal::RoleNotFound)?.clone();
        let held = &mut role.key_permission;
        let at = held.partition_point(|held| held.key < permission.key);
        match held.get_mut(at) {
            Some(first)
                if first.key == permission.key && first.range_end == permission.range_end =>
            {
                first.perm_type = permission.perm_type;
            }
            Some(_) | None => {
                held.push(authpb::Permission {
                    perm_type: permission.perm_type,
                    // The key is copied, because a slice would keep the request's whole buffer in
                    // memory.
                    key: Bytes::copy_from_slice(&permission.key),
                    range_end: Bytes::copy_from_slice(&permission.range_end),
                });
                held.sort_by(|one, other| one.key.cmp(&other.key));
            }
        }
        self.put_role(name, role, batch);
        self.count_change(batch);
        Ok(())
    }

    pub(crate) fn revoke_permission(
        &mut self,
        request: &pb::AuthRoleRevokePermissionRequest,
        batch: &mut Batch,
    ) -> Result<(), AuthRefusal> {
        let name = &request.role;
        let mut role = self.view.roles.get(name).ok_or(AuthRefusal::RoleNotFound)?.clone();
        let count = role.key_permission.len();
        role.key_permission
            .retain(|held| held.key != request.key || held.range_end != request.range_end);
        if role.key_permission.len() == count {
            return Err(AuthRefusal::PermissionNotGranted);
        }
        self.put_role(name, role, batch);
        self.count_change(batch);
        Ok(())
    }

    fn change(&mut self) -> &mut View {
        self.is_changed = true;
        Arc::make_mut(&mut self.view)
    }

    fn count_change(&mut self, batch: &mut Batch) {
        let view = self.change();
        view.revision += 1;
        let stored = Bytes::copy_from_slice(&view.revision.to_be_bytes());
        batch.put(Bucket::Auth, auth::REVISION, stored);
    }

    fn put_user(&mut self, name: &str, record: authpb::User, batch: &mut Batch) {
        record::put_user(&record, batch);
        self.change().insert_user(name.to_owned(), record);
    }

    fn put_role(&mut self, name: &str, role: authpb::Role, batch: &mut Batch) {
        record::put_role(&role, batch);
        let view = self.change();
        view.roles.insert(name.to_owned(), role);
        view.refresh_holders(name);
    }
}

impl View {
    /// Returns a view without users and roles, with authentication disabled.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            is_enabled: false,
            revision: FIRST_REVISION,
            users: BTreeMap::new(),
            roles: BTreeMap::new(),
        }
    }
}

/// Returns the name of a user or role as the key of its row.
fn stored_name(name: &str) -> Bytes {
    any_text::to_bytes(name).into()
}

/// Refuses the name of a new user or role if it is longer than a key of the backend file.
pub(crate) fn check_new_name(name: &str) -> Result<(), AuthRefusal> {
    if stored_name(name).len() > NAME_BYTES_MAX { Err(AuthRefusal::NameTooLong) } else { Ok(()) }
}

/// Returns the user without the role, or `None` if the user does not have the role.
fn without_role(user: &authpb::User, role: &str) -> Option<authpb::User> {
    let holds = user.roles.iter().any(|held| held == role);
    holds.then(|| {
        let mut user = user.clone();
        user.roles.retain(|held| held != role);
        user
    })
}

/// Refuses a permission unless its range is a single key, all keys from a key on, or a range that contains keys. etcd
/// up to 3.5.7 grants other ranges as well.
pub(crate) fn check_new_range(permission: &authpb::Permission) -> Result<(), AuthRefusal> {
    let (key, range_end) = (&permission.key[..], &permission.range_end[..]);
    if !key.is_empty() && (range_end.is_empty() || range_end == [0] || key < range_end) {
        Ok(())
    } else {
        Err(AuthRefusal::InvalidManagement)
    }
}

/// Decodes the hash in a request into its stored form.
fn stored_password(
    password: &str,
    hashed: &str,
) -> Result<Result<Bytes, AuthRefusal>, PlainPassword> {
    if hashed.is_empty() && !password.is_empty() {
        return Err(PlainPassword);
    }
    // Go's base64 decoder ignores line breaks.
    let hashed: String = hashed.chars().filter(|letter| !matches!(letter, '\r' | '\n')).collect();
    Ok(BASE64.decode(hashed).map(Bytes::from).map_err(|_| AuthRefusal::NoPasswordUser))
}
