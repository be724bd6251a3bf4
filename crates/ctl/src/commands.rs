//! The commands. Each module contains one command: its flags, request, run function and tests.

pub(crate) mod alarm;
pub(crate) mod auth;
pub(crate) mod check;
pub(crate) mod compaction;
pub(crate) mod completion;
pub(crate) mod console;
pub(crate) mod defrag;
pub(crate) mod del;
pub(crate) mod diff;
pub(crate) mod downgrade;
pub(crate) mod elect;
pub(crate) mod endpoint;
pub(crate) mod get;
pub(crate) mod help;
pub(crate) mod lease;
pub(crate) mod lock;
pub(crate) mod make_mirror;
pub(crate) mod member;
pub(crate) mod move_leader;
pub(crate) mod put;
pub(crate) mod role;
pub(crate) mod snapshot;
pub(crate) mod top;
pub(crate) mod txn;
pub(crate) mod user;
pub(crate) mod version;
pub(crate) mod watch;

use crate::command::{Command, group};
use crate::failure::{Failure, exit};
use crate::gotext::{parse_int, parse_uint, quote};
use crate::security::SECURITY_FLAGS;
use crate::session::GLOBAL_FLAGS;

/// The root of the command tree.
pub(crate) const ROOT: Command = Command {
    usage: "etcdctl",
    short: "A simple command line client for etcd3.",
    own_example: "  # Write a key, and read all keys with the prefix app/
  quorate ctl put app/greeting hello
  quorate ctl get --prefix app/

  # Print the status of all members of another cluster, logged in as root
  quorate ctl --endpoints https://10.0.0.1:2379 --cacert ca.pem --user root endpoint status --cluster -w table

  # Save a backup
  quorate ctl snapshot save backup.db",
    groups: &[
        group::KEY_VALUE,
        group::MAINTENANCE,
        group::CONCURRENCY,
        group::AUTHENTICATION,
        group::UTILITY,
    ],
    inherited: GLOBAL_FLAGS,
    hidden: SECURITY_FLAGS,
    children: &[
        &alarm::ALARM,
        &auth::AUTH,
        &check::CHECK,
        &compaction::COMPACTION,
        &completion::COMPLETION,
        &console::CONSOLE,
        &defrag::DEFRAG,
        &del::DEL,
        &diff::DIFF,
        &downgrade::DOWNGRADE,
        &elect::ELECT,
        &endpoint::ENDPOINT,
        &get::GET,
        &help::HELP,
        &lease::LEASE,
        &lock::LOCK,
        &make_mirror::MAKE_MIRROR,
        &member::MEMBER,
        &move_leader::MOVE_LEADER,
        &help::OPTIONS,
        &put::PUT,
        &role::ROLE,
        &snapshot::SNAPSHOT,
        &top::TOP,
        &txn::TXN,
        &user::USER,
        &version::VERSION,
        &watch::WATCH,
    ],
    ..Command::EMPTY
};

/// Parses a member id.
fn member_id(text: &str) -> Result<u64, Failure> {
    parse_uint(text, 16).map_err(|error| {
        Failure::bad_args(format!("bad member ID arg ({error}), expecting ID in Hex"))
    })
}

/// Parses a lease id.
fn lease_id(text: &str) -> Result<i64, Failure> {
    parse_int(text, 16).map_err(|error| {
        Failure::bad_args(format!("bad lease ID arg ({error}), expecting ID in Hex"))
    })
}

/// Returns whether `--consistency` requests a serializable read.
fn serializable(consistency: &str) -> Result<bool, Failure> {
    match consistency {
        "s" => Ok(true),
        "l" => Ok(false),
        other => {
            let text = format!("unknown consistency flag {}", quote(other.as_bytes()));
            Err(Failure::new(exit::BAD_FEATURE, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_and_member_ids_are_parsed_as_hexadecimal() {
        assert_eq!(lease_id("7b"), Ok(123));
        assert_eq!(
            lease_id("x").unwrap_err(),
            Failure::bad_args(
                r#"bad lease ID arg (strconv.ParseInt: parsing "x": invalid syntax), expecting ID in Hex"#
            )
        );
        assert_eq!(member_id("8e9e05c52164694d"), Ok(10_276_657_743_932_975_437));
    }
}
