//! Tests of the stored rows, the published state, and their recovery after a restart.

use std::sync::Arc;

use quorate_storage::bolt::Options;
use quorate_storage::disk::{Disk, RealDisk};

use super::*;
use crate::backend::{Backend, Rows};

fn hashed(name: &str, hash: &str) -> pb::AuthUserAddRequest {
    let (name, hashed_password) = (name.to_owned(), hash.to_owned());
    pb::AuthUserAddRequest { name, hashed_password, ..pb::AuthUserAddRequest::default() }
}

/// Creates the root user and another user, each with a role, and enables authentication.
fn auth_with_users(batch: &mut Batch) -> Auth {
    let mut auth = Auth::new(View::empty(), 0);
    auth.add_user(&hashed("root", "aGFzaA=="), batch).unwrap().unwrap();
    auth.grant_role("root", "root", batch).unwrap();
    auth.add_user(&hashed("ann", ""), batch).unwrap().unwrap();
    auth.add_role("app", batch).unwrap();
    let keys = authpb::Permission {
        perm_type: 2,
        key: Bytes::from_static(b"k"),
        range_end: Bytes::from_static(b"l"),
    };
    auth.grant_permission("app", Some(&keys), batch).unwrap();
    auth.grant_role("ann", "app", batch).unwrap();
    auth.enable(batch).unwrap();
    auth
}

fn stored(batch: &Batch) -> (tempfile::TempDir, Backend) {
    let folder = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let backend = Backend::open(&disk, &folder.path().join("db"), Options::default()).unwrap();
    backend.commit(batch).unwrap();
    (folder, backend)
}

#[test]
fn user_and_role_rows_are_encoded_as_in_etcd() {
    let mut batch = Batch::new();
    auth_with_users(&mut batch);
    let (_folder, backend) = stored(&batch);
    let file = backend.read();
    let rows = |bucket| file.entries(bucket).unwrap();
    // Empty options are stored, too, as in etcd 3.5.
    let ann: &[u8] = b"\x0a\x03ann\x1a\x03app\x22\x00";
    let root: &[u8] = b"\x0a\x04root\x12\x04hash\x1a\x04root\x22\x00";
    assert_eq!(rows(Bucket::AuthUsers), [("ann".into(), ann.into()), ("root".into(), root.into())]);
    let app: &[u8] = b"\x0a\x03app\x12\x08\x08\x02\x12\x01k\x1a\x01l";
    assert_eq!(rows(Bucket::AuthRoles), [(Bytes::from("app"), Bytes::from_static(app))]);
    let switch = [("authEnabled".into(), Bytes::from_static(&[1]))];
    let revision = [("authRevision".into(), Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 7]))];
    assert_eq!(rows(Bucket::Auth), [switch, revision].concat());
}

#[test]
fn a_restart_recovers_users_and_roles() {
    let mut batch = Batch::new();
    let mut auth = auth_with_users(&mut batch);
    let (_folder, backend) = stored(&batch);
    let (view, has_revision) = View::load(&Rows::of_file(&backend.read()).unwrap()).unwrap();
    assert!(has_revision);
    assert_eq!(view, *auth.view());
    let mut batch = Batch::new();
    auth.disable(&mut batch);
    auth.delete_role("app", &mut batch).unwrap();
    auth.delete_user("root", &mut batch).unwrap();
    backend.commit(&batch).unwrap();
    assert_eq!(View::load(&Rows::of_file(&backend.read()).unwrap()).unwrap().0, *auth.view());
    assert_eq!(auth.view().revision(), 10);
}

#[test]
fn names_that_are_not_valid_utf_8_keep_their_bytes() {
    let role = any_text::from_bytes(b"\xff");
    let (mut auth, mut batch) = (Auth::new(View::empty(), 0), Batch::new());
    auth.add_role(&role, &mut batch).unwrap();
    auth.add_role(&any_text::from_bytes(b"\xfe"), &mut batch).unwrap();
    assert_eq!(auth.add_role(&role, &mut batch), Err(AuthRefusal::RoleAlreadyExists));
    auth.add_user(&hashed(&any_text::from_bytes(b"u\xff"), ""), &mut batch).unwrap().unwrap();
    auth.grant_role(&any_text::from_bytes(b"u\xff"), &role, &mut batch).unwrap();
    let (_folder, backend) = stored(&batch);
    // The rows that etcd 3.5 writes.
    let users = backend.read().entries(Bucket::AuthUsers).unwrap();
    let row: &[u8] = b"\x0a\x02u\xff\x1a\x01\xff\x22\x00";
    assert_eq!(users, [(Bytes::from_static(b"u\xff"), Bytes::from_static(row))]);
    let roles = backend.read().entries(Bucket::AuthRoles).unwrap();
    let row = |name: u8| (Bytes::from(vec![name]), Bytes::from(vec![0x0a, 1, name]));
    assert_eq!(roles, [row(0xfe), row(0xff)]);
    let load = || View::load(&Rows::of_file(&backend.read()).unwrap()).unwrap().0;
    assert_eq!(load(), *auth.view());
    let mut batch = Batch::new();
    auth.delete_role(&role, &mut batch).unwrap();
    assert_eq!(auth.delete_user("x", &mut batch), Err(AuthRefusal::UserNotFound));
    backend.commit(&batch).unwrap();
    assert_eq!(load(), *auth.view());
}

#[test]
fn the_error_for_an_invalid_auth_row_states_the_problem() {
    for (bucket, key, value, problem) in [
        (Bucket::AuthUsers, "ann", &b"\xff"[..], "not a user"),
        (Bucket::AuthUsers, "ann", b"\x0a\x03bob", "differs from the key"),
        (Bucket::AuthRoles, "app", b"\x0a", "not a role"),
        (Bucket::AuthRoles, "app", b"", "differs from the key"),
        (Bucket::Auth, "authRevision", b"short", "not a number"),
    ] {
        let mut batch = Batch::new();
        batch.put(bucket, key, value);
        let (_folder, backend) = stored(&batch);
        let fault = View::load(&Rows::of_file(&backend.read()).unwrap()).unwrap_err().to_string();
        assert!(fault.contains(problem), "{fault}");
    }
}

#[test]
fn an_auth_change_is_visible_only_after_publication() {
    let mut auth = auth_with_users(&mut Batch::new());
    let reader = auth.reader();
    let before = reader.stamp().unwrap();
    assert!(!before.is_enabled() && !reader.may_be_enabled());
    auth.begin_publication();
    assert_eq!(reader.stamp(), None, "data and permissions do not match during a publication");
    assert!(reader.may_be_enabled());
    assert!(!reader.view().is_enabled());
    auth.publish();
    let after = reader.stamp().unwrap();
    assert!(after.is_enabled() && after != before);
    assert_eq!(*reader.view().as_ref(), *auth.view());
    // If nothing changed, the stamp stays the same.
    auth.begin_publication();
    auth.publish();
    assert_eq!(reader.stamp(), Some(after));
}

#[test]
fn tokens_are_revoked_by_user_deletion_password_change_and_auth_disable() {
    let mut batch = Batch::new();
    let mut auth = auth_with_users(&mut batch);
    let tokens = auth.reader().tokens().clone();
    let now = crate::units::Millis(1);
    for (text, user) in [("a.1", "ann"), ("r.2", "root")] {
        tokens.add(text, user, now);
    }
    let is_good =
        |text: &str| tokens.find(text.as_bytes()).is_some_and(|t| t.validate(now).is_some());
    auth.revoke_role("ann", "app", &mut batch).unwrap();
    assert!(is_good("a.1"));
    auth.delete_user("ann", &mut batch).unwrap();
    assert!(!is_good("a.1") && is_good("r.2"));
    let request = pb::AuthUserChangePasswordRequest {
        name: "root".into(),
        hashed_password: "aGFzaA==".into(),
        ..pb::AuthUserChangePasswordRequest::default()
    };
    auth.change_password(&request, &mut batch).unwrap().unwrap();
    assert!(!is_good("r.2"));
    tokens.add("r.3", "root", now);
    auth.disable(&mut batch);
    assert!(!is_good("r.3"));
}

#[test]
fn a_snapshot_revokes_all_tokens_if_users_have_changed_or_authentication_was_disabled_in_between() {
    type Change = fn(&mut Auth, &mut Batch);
    let changes: [(Change, bool); 4] = [
        (|_, _| {}, true),
        (|auth, batch| auth.delete_user("ann", batch).unwrap(), false),
        (|auth, batch| auth.disable(batch), false),
        (
            |auth, batch| {
                auth.disable(batch);
                auth.enable(batch).unwrap();
            },
            false,
        ),
    ];
    for (change, expected) in changes {
        let mut batch = Batch::new();
        let mut lagging = auth_with_users(&mut batch);
        lagging.enable(&mut batch).unwrap();
        let mut ahead = Auth::new(lagging.view().clone(), 1000);
        let tokens = lagging.reader().tokens().clone();
        let now = crate::units::Millis(1);
        tokens.add("r.1", "root", now);
        change(&mut ahead, &mut batch);
        lagging.replace(ahead.view().clone());
        let is_good = tokens.find(b"r.1").is_some_and(|token| token.validate(now).is_some());
        assert_eq!(is_good, expected);
    }
}

#[test]
fn a_plain_text_password_is_refused() {
    let mut auth = auth_with_users(&mut Batch::new());
    let request = pb::AuthUserAddRequest {
        name: "old".into(),
        password: "plain".into(),
        ..pb::AuthUserAddRequest::default()
    };
    assert!(auth.add_user(&request, &mut Batch::new()).is_err());
}

#[test]
fn password_hashes_are_decoded_as_in_go() {
    let read = |hashed: &str| stored_password("", hashed).unwrap();
    assert_eq!(read("aGFz\r\naA=="), Ok(Bytes::from_static(b"hash")));
    assert_eq!(read("aGFzaB=="), Ok(Bytes::from_static(b"hash")));
    assert_eq!(read(""), Ok(Bytes::new()));
    for bad in ["aGFzaA", "aGFzaA=", "aGFza-==", "=", "aGFzaA==a"] {
        assert_eq!(read(bad), Err(AuthRefusal::NoPasswordUser), "{bad}");
    }
}

#[test]
fn password_hashes_are_not_printed() {
    let auth = auth_with_users(&mut Batch::new());
    let printed = format!("{auth:?}");
    assert!(printed.contains("ann") && !printed.contains("hash\""), "{printed}");
    assert!(!printed.contains("104, 97, 115, 104"), "{printed}");
}

#[test]
fn names_longer_than_a_key_of_the_backend_file_are_refused() {
    let mut batch = Batch::new();
    let mut auth = auth_with_users(&mut batch);
    let (longest, longer) = ("n".repeat(NAME_BYTES_MAX), "n".repeat(NAME_BYTES_MAX + 1));
    assert_eq!(auth.add_role(&longer, &mut batch), Err(AuthRefusal::NameTooLong));
    let refused = auth.add_user(&hashed(&longer, ""), &mut batch).unwrap();
    assert_eq!(refused, Err(AuthRefusal::NameTooLong));
    auth.add_role(&longest, &mut batch).unwrap();
    auth.add_user(&hashed(&longest, ""), &mut batch).unwrap().unwrap();
    // The file accepts the longest names.
    stored(&batch);
}
