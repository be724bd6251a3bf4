//! `db`: inspects a backend file, or a snapshot of one, without changing it.
//!
//! The commands work on any bbolt file. They also decode the keys of etcd's buckets.

mod entries;
mod pages;

use crate::command::Command;

pub(crate) const DB: Command = Command {
    usage: "db <subcommand>",
    short: "Inspects a backend file or a snapshot without changing it",
    children: &[
        &entries::BUCKETS,
        &pages::CHECK,
        &entries::GET,
        &entries::KEYS,
        &pages::PAGES,
        &pages::STATS,
    ],
    ..Command::EMPTY
};
