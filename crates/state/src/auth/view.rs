//! A snapshot of the authentication state: whether authentication is enabled, the users and roles, and the permissions
//! of each user.
//!
//! # Invariants
//!
//! * The permissions of a user are computed when a role or a user changes, never during a request.
//! * Access is permitted only if a check in this module permits it.
//!
//! # Not here
//!
//! The keys and permissions that a request needs (`apply::permission`).

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use quorate_api::authpb;
use quorate_api::authpb::permission::Type;

use super::AuthRefusal;
use super::key_set::KeySet;
use crate::steps;

/// The name of the role that permits everything, and of the user who cannot lose this role while
/// authentication is enabled.
pub const ROOT: &str = "root";

/// The authenticated user of a request, and the revision of users and roles at which the user was
/// authenticated. Revision 0 means that the request has no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller<'a> {
    /// The user's name.
    pub name: &'a str,
    /// The revision of users and roles at authentication; 0 without a token.
    pub revision: u64,
}

impl Caller<'_> {
    /// A caller without a token.
    pub const UNAUTHENTICATED: Self = Caller { name: "", revision: 0 };
}

/// The kind of access to keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Keys are read.
    Read,
    /// Keys are put or deleted.
    Write,
}

/// A user, with the permissions of all the user's roles.
#[derive(Clone, PartialEq)]
pub struct User {
    /// The stored record.
    pub(super) record: authpb::User,
    is_root: bool,
    reads: KeySet,
    writes: KeySet,
}

impl User {
    /// Returns the bcrypt hash of the password. It is empty if no password can match.
    #[must_use]
    pub fn password_hash(&self) -> &[u8] {
        &self.record.password
    }

    /// Returns whether the user was created without a password.
    #[must_use]
    pub fn has_no_password(&self) -> bool {
        self.record.options.is_some_and(|options| options.no_password)
    }

    /// Returns the roles granted to the user, in ascending order.
    #[must_use]
    pub fn roles(&self) -> &[String] {
        &self.record.roles
    }

    /// Returns the user's row in the file.
    #[cfg(test)]
    pub(crate) fn to_row(&self) -> Vec<u8> {
        prost::Message::encode_to_vec(&self.record)
    }

    fn may(&self, access: Access, key: &[u8], range_end: &[u8]) -> bool {
        self.is_root || self.keys(access).covers(key, range_end)
    }

    fn permitted_end(&self, access: Access, key: &[u8]) -> Option<Bound<&[u8]>> {
        if self.is_root { Some(Bound::Unbounded) } else { self.keys(access).end_after(key) }
    }

    const fn keys(&self, access: Access) -> &KeySet {
        match access {
            Access::Read => &self.reads,
            Access::Write => &self.writes,
        }
    }
}

/// Omits the password hash.
impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User")
            .field("roles", &self.record.roles)
            .field("has_no_password", &self.has_no_password())
            .finish_non_exhaustive()
    }
}

/// A snapshot of users, roles and permissions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    pub(super) is_enabled: bool,
    pub(super) revision: u64,
    pub(super) users: BTreeMap<String, Arc<User>>,
    pub(super) roles: BTreeMap<String, authpb::Role>,
}

impl View {
    /// Returns whether authentication is enabled.
    #[must_use]
    pub const fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Returns the revision of users and roles.
    #[must_use]
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns a user by name.
    #[must_use]
    pub fn user(&self, name: &str) -> Option<&User> {
        self.users.get(name).map(|user| &**user)
    }

    /// Returns the names of all users, in ascending order.
    pub fn user_names(&self) -> impl Iterator<Item = &str> {
        self.users.keys().map(String::as_str)
    }

    /// Returns the names of all roles, in ascending order.
    pub fn role_names(&self) -> impl Iterator<Item = &str> {
        self.roles.keys().map(String::as_str)
    }

    /// Returns the permissions of a role, as listed in responses. The root role always has exactly
    /// one permission.
    #[must_use]
    pub fn role_permissions(&self, name: &str) -> Option<Vec<authpb::Permission>> {
        let role = self.roles.get(name)?;
        if name != ROOT {
            return Some(role.key_permission.clone());
        }
        Some(vec![authpb::Permission {
            perm_type: Type::Readwrite.into(),
            key: bytes::Bytes::new(),
            range_end: bytes::Bytes::from_static(&[0]),
        }])
    }

    /// Returns whether the caller has a role.
    #[must_use]
    pub fn has_role(&self, caller: Caller<'_>, role: &str) -> bool {
        self.user(caller.name).is_some_and(|user| user.roles().iter().any(|held| held == role))
    }

    /// Checks that the caller has this access to all keys of a range.
    pub fn check_keys(
        &self,
        caller: Caller<'_>,
        access: Access,
        key: &[u8],
        range_end: &[u8],
    ) -> Result<(), AuthRefusal> {
        steps::count();
        if !self.is_enabled || self.current_user(caller)?.may(access, key, range_end) {
            Ok(())
        } else {
            Err(AuthRefusal::PermissionDenied)
        }
    }

    /// Returns the end of the range that contains the key and to which the caller has this access.
    /// Without authentication, that range is unbounded.
    pub fn permitted_end(
        &self,
        caller: Caller<'_>,
        access: Access,
        key: &[u8],
    ) -> Result<Bound<&[u8]>, AuthRefusal> {
        steps::count();
        if !self.is_enabled {
            return Ok(Bound::Unbounded);
        }
        let end = self.current_user(caller)?.permitted_end(access, key);
        end.ok_or(AuthRefusal::PermissionDenied)
    }

    /// Returns the caller's user. The caller must have been authenticated at the current revision.
    fn current_user(&self, caller: Caller<'_>) -> Result<&User, AuthRefusal> {
        if caller.revision == 0 {
            return Err(AuthRefusal::UserEmpty);
        }
        if caller.revision < self.revision {
            return Err(AuthRefusal::OldRevision);
        }
        self.user(caller.name).ok_or(AuthRefusal::PermissionDenied)
    }

    /// Checks that the caller is an administrator, that is, a user with the root role. The caller's
    /// revision is ignored.
    pub fn check_admin(&self, caller: Caller<'_>) -> Result<(), AuthRefusal> {
        if !self.is_enabled {
            return Ok(());
        }
        if caller.name.is_empty() {
            return Err(AuthRefusal::UserEmpty);
        }
        match self.user(caller.name) {
            None => Err(AuthRefusal::UserNotFound),
            Some(user) if user.is_root => Ok(()),
            Some(_) => Err(AuthRefusal::PermissionDenied),
        }
    }

    /// Checks that the caller is authenticated.
    pub const fn check_authenticated(&self, caller: Caller<'_>) -> Result<(), AuthRefusal> {
        if self.is_enabled && caller.revision == 0 { Err(AuthRefusal::UserEmpty) } else { Ok(()) }
    }

    /// Inserts a user, with the permissions of the user's roles.
    pub(super) fn insert_user(&mut self, name: String, record: authpb::User) {
        let user = self.with_permissions(record);
        self.users.insert(name, Arc::new(user));
    }

    /// Recomputes the permissions of all users that have this role.
    pub(super) fn refresh_holders(&mut self, role: &str) {
        let holders: Vec<(String, authpb::User)> = self
            .users
            .iter()
            .filter(|(_, user)| user.roles().iter().any(|held| held == role))
            .map(|(name, user)| (name.clone(), user.record.clone()))
            .collect();
        for (name, record) in holders {
            self.insert_user(name, record);
        }
    }

    /// Computes the permissions of a user. Roles that do not exist and unknown kinds of permissions
    /// permit nothing.
    fn with_permissions(&self, record: authpb::User) -> User {
        let roles = record.roles.iter().filter_map(|role| self.roles.get(role));
        let permissions: Vec<_> = roles.flat_map(|role| &role.key_permission).collect();
        let keys_of = |kind: Type| {
            let both = Type::Readwrite as i32;
            let of_kind = permissions
                .iter()
                .filter(|held| held.perm_type == kind as i32 || held.perm_type == both);
            KeySet::union(of_kind.map(|held| (&held.key[..], &held.range_end[..])))
        };
        let (reads, writes) = (keys_of(Type::Read), keys_of(Type::Write));
        User { is_root: record.roles.iter().any(|role| role == ROOT), record, reads, writes }
    }
}
