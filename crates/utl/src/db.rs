//! `db`: inspects a backend file, or a snapshot of one, without changing it.
//!
//! It shows what `bbolt` shows of any bbolt file, and decodes the keys of etcd's buckets.

mod entries;
mod pages;

use crate::command::Command;

pub(crate) const DB: Command = Command {
    usage: "db <subcommand>",
    short: "Looks into a backend file or a snapshot, changing nothing",
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
