//! Reads and writes the rows of users and roles. A row contains the exact bytes of each name, which need not be valid
//! UTF-8 ([`any_text`]).

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use quorate_api::{any_text, authpb};

use super::View;
use crate::backend::{Batch, Fault, Rows};
use crate::schema::{Bucket, auth};

/// The highest auth revision that is loaded. No cluster reaches it by changing users and roles.
const REVISION_MAX: u64 = u64::MAX / 2;

/// Why a stored user or role is invalid.
type RecordFault = &'static str;

pub(super) fn put_user(user: &authpb::User, batch: &mut Batch) {
    let encoded = user.encode_to_vec();
    let row = any_text::make_exact::<authpb::User>(&encoded).unwrap_or(encoded);
    batch.put(Bucket::AuthUsers, user.name.clone(), row);
}

pub(super) fn put_role(role: &authpb::Role, batch: &mut Batch) {
    batch.put(Bucket::AuthRoles, role.name.clone(), role.encode_to_vec());
}

impl View {
    /// Loads users and roles. Also returns whether there is a row with the auth revision, which is
    /// missing until a server opens the file for the first time.
    pub(crate) fn load(rows: &Rows) -> Result<(Self, bool), Fault> {
        let mut view = Self::empty();
        let enabled = rows.get(Bucket::Auth, auth::ENABLED);
        view.is_enabled = enabled.is_some_and(|value| value[..] == [1]);
        let revision = rows.get(Bucket::Auth, auth::REVISION);
        let has_revision = revision.is_some();
        if let Some(value) = revision {
            let bytes = value[..].try_into().map_err(|_| {
                rows.corrupt(Bucket::Auth, None, auth::REVISION, "the value is not a number")
            })?;
            view.revision = u64::from_be_bytes(bytes);
            if view.revision > REVISION_MAX {
                return Err(rows.corrupt(
                    Bucket::Auth,
                    None,
                    auth::REVISION,
                    "the number is too high",
                ));
            }
        }
        for (position, (key, value)) in (0..).zip(rows.entries(Bucket::AuthRoles)) {
            let (name, role) = read_role(key, value)
                .map_err(|problem| rows.corrupt(Bucket::AuthRoles, position, key, problem))?;
            view.roles.insert(name, role);
        }
        let mut users = BTreeMap::new();
        for (position, (key, value)) in (0..).zip(rows.entries(Bucket::AuthUsers)) {
            let (name, user) = read_user(key, value)
                .map_err(|problem| rows.corrupt(Bucket::AuthUsers, position, key, problem))?;
            users.insert(name, user);
        }
        for (name, user) in users {
            view.insert_user(name, user);
        }
        Ok((view, has_revision))
    }
}

/// Decodes a user. The name in the value must equal the key.
fn read_user(key: &Bytes, value: &Bytes) -> Result<(String, authpb::User), RecordFault> {
    let user = authpb::User::decode(value.clone()).or_else(|error| {
        let valid = any_text::make_valid::<authpb::User>(value).ok_or(error)?;
        authpb::User::decode(Bytes::from(valid))
    });
    let user = user.map_err(|_| "the value is not a user")?;
    let name = read_name(key, &user.name)?;
    Ok((name, user))
}

fn read_role(key: &Bytes, value: &Bytes) -> Result<(String, authpb::Role), RecordFault> {
    let role = authpb::Role::decode(value.clone()).map_err(|_| "the value is not a role")?;
    let name = read_name(key, &role.name)?;
    Ok((name, role))
}

fn read_name(key: &Bytes, stored: &Bytes) -> Result<String, RecordFault> {
    if key != stored {
        return Err("the name in the value differs from the key");
    }
    Ok(any_text::from_bytes(key))
}
