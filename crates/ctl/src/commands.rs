//! The commands, one module each: its flags, its request, its run, and the tests of these.

pub(crate) mod alarm;
pub(crate) mod compaction;
pub(crate) mod defrag;
pub(crate) mod del;
pub(crate) mod downgrade;
pub(crate) mod endpoint;
pub(crate) mod get;
pub(crate) mod help;
pub(crate) mod lease;
pub(crate) mod member;
pub(crate) mod move_leader;
pub(crate) mod put;
pub(crate) mod snapshot;
pub(crate) mod txn;
pub(crate) mod version;
pub(crate) mod watch;

use crate::command::{Command, group};
use crate::failure::{Failure, exit};
use crate::gotext::{parse_int, parse_uint, quote};
use crate::security::SECURITY_FLAGS;
use crate::session::GLOBAL_FLAGS;

/// All commands.
pub(crate) const ROOT: Command = Command {
    usage: "etcdctl",
    short: "A simple command line client for etcd3.",
    groups: &[group::KEY_VALUE, group::MAINTENANCE, group::UTILITY],
    inherited: GLOBAL_FLAGS,
    hidden: SECURITY_FLAGS,
    children: &[
        &alarm::ALARM,
        &compaction::COMPACTION,
        &defrag::DEFRAG,
        &del::DEL,
        &downgrade::DOWNGRADE,
        &endpoint::ENDPOINT,
        &get::GET,
        &help::HELP,
        &lease::LEASE,
        &member::MEMBER,
        &move_leader::MOVE_LEADER,
        &help::OPTIONS,
        &put::PUT,
        &snapshot::SNAPSHOT,
        &txn::TXN,
        &version::VERSION,
        &watch::WATCH,
    ],
    ..Command::EMPTY
};

/// Reads a member's id from an argument.
fn member_id(text: &str) -> Result<u64, Failure> {
    parse_uint(text, 16).map_err(|error| {
        Failure::bad_args(format!("bad member ID arg ({error}), expecting ID in Hex"))
    })
}

/// Reads a lease's id from an argument.
fn lease_id(text: &str) -> Result<i64, Failure> {
    parse_int(text, 16).map_err(|error| {
        Failure::bad_args(format!("bad lease ID arg ({error}), expecting ID in Hex"))
    })
}

/// Whether `--consistency` asks for a serializable answer.
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

/// The keys that a command is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct KeyRange {
    key: Vec<u8>,
    end: Vec<u8>,
}

impl KeyRange {
    /// All keys that begin with `key`; every key if it is empty.
    fn prefix(key: Vec<u8>) -> Self {
        if key.is_empty() {
            return Self { key: vec![0], end: vec![0] };
        }
        let mut end = key.clone();
        while let Some(last) = end.pop() {
            if last < 0xff {
                end.push(last + 1);
                return Self { key, end };
            }
        }
        // Nothing follows a key of nothing but 0xff.
        Self { key, end: vec![0] }
    }

    /// All keys from `key` on.
    fn from(key: Vec<u8>) -> Self {
        Self { key: if key.is_empty() { vec![0] } else { key }, end: vec![0] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_its_successor() {
        for (key, end) in
            [(&b"a"[..], &b"b"[..]), (b"a\xff", b"b"), (b"\xff\xff", b"\0"), (b"ab", b"ac")]
        {
            let range = KeyRange::prefix(key.to_vec());
            assert_eq!((&range.key[..], &range.end[..]), (key, end));
        }
        let all = KeyRange { key: vec![0], end: vec![0] };
        assert_eq!(KeyRange::prefix(Vec::new()), all);
        assert_eq!(KeyRange::from(Vec::new()), all);
    }

    #[test]
    fn ids_are_hexadecimal() {
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
