//! Limits the length of keys and names.
//!
//! The tables are indexed by key. PostgreSQL refuses an index entry of more than a third of a page, but
//! only when the tables are written, which happens after the request has been acknowledged. Therefore a
//! request with a longer key is refused before it is applied.

use quorate_api::etcdserverpb::{RequestOp, TxnRequest, request_op::Request};
use quorate_state::apply::{AuthCommand, Command};

use crate::error::{EngineError, Indexed};

/// Maximum length in bytes of a key, and of the name of a user or role. PostgreSQL limits an index entry
/// to 2,704 bytes, and the entry contains two numbers in addition to the key.
pub(crate) const KEY_BYTES_MAX: usize = 2_048;

/// Checks every key and name that a request may store.
pub(crate) fn check_command(command: &Command) -> Result<(), EngineError> {
    match command {
        Command::Put(put) => check_key(Indexed::Key, &put.key),
        Command::Txn(txn) => check_txn(txn),
        Command::Auth(AuthCommand::UserAdd(add)) => {
            check_key(Indexed::UserName, add.name.as_bytes())
        }
        Command::Auth(AuthCommand::RoleAdd(add)) => {
            check_key(Indexed::RoleName, add.name.as_bytes())
        }
        // These commands add no key or name to an index.
        Command::Range(_)
        | Command::DeleteRange(_)
        | Command::Compaction(_)
        | Command::LeaseGrant(_)
        | Command::LeaseRevoke(_)
        | Command::LeaseCheckpoint(_)
        | Command::Alarm(_)
        | Command::Auth(_)
        | Command::Cluster(_)
        | Command::Nothing => Ok(()),
    }
}

/// Checks the length of a key or name.
pub(crate) const fn check_key(what: Indexed, key: &[u8]) -> Result<(), EngineError> {
    let (bytes, bytes_max) = (key.len(), KEY_BYTES_MAX);
    if bytes > bytes_max { Err(EngineError::KeyTooLong { what, bytes, bytes_max }) } else { Ok(()) }
}

fn check_txn(txn: &TxnRequest) -> Result<(), EngineError> {
    for RequestOp { request } in txn.success.iter().chain(&txn.failure) {
        match request {
            Some(Request::RequestPut(put)) => check_key(Indexed::Key, &put.key)?,
            Some(Request::RequestTxn(txn)) => check_txn(txn)?,
            Some(Request::RequestRange(_) | Request::RequestDeleteRange(_)) | None => {}
        }
    }
    Ok(())
}
