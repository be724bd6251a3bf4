//! `db pages`, `db stats` and `db check`: print the layout of a file and check whether its pages are sound.

use std::path::Path;

use quorate_storage::bolt::{PageFacts, PageUse};

use crate::command::Command;
use crate::failure::Failure;
use crate::files;
use crate::lines::Lines;
use crate::report::{Cell, Column, Report};
use crate::session::Session;
use crate::soundness::check_pages;

pub(super) const PAGES: Command = Command {
    usage: "pages <filename>",
    short: "Lists the pages of a file with their types, item counts and overflow page counts",
    run: Some(pages),
    ..Command::EMPTY
};

pub(super) const STATS: Command = Command {
    usage: "stats <filename>",
    short: "Summarizes the pages of a file",
    run: Some(stats),
    ..Command::EMPTY
};

pub(super) const CHECK: Command = Command {
    usage: "check <filename>",
    short: "Checks that every page of a file is referenced once, well-formed and sorted",
    run: Some(check),
    ..Command::EMPTY
};

const PAGE_COLUMNS: &[Column] = &[
    Column::new("id", "id", "ID"),
    Column::new("type", "type", "Type"),
    Column::new("items", "items", "Items"),
    Column::new("overflow", "overflow", "Overflow"),
];

const STATS_COLUMNS: &[Column] = &[
    Column::new("page size", "pageSize", "PageSize"),
    Column::new("transaction", "transaction", "Transaction"),
    Column::new("size", "size", "Size"),
    Column::new("free", "free", "Free"),
    Column::new("branch pages", "branchPages", "BranchPages"),
    Column::new("leaf pages", "leafPages", "LeafPages"),
    Column::new("overflow pages", "overflowPages", "OverflowPages"),
    Column::new("free pages", "freePages", "FreePages"),
    Column::new("depth", "depth", "Depth"),
];

const fn name(usage: PageUse) -> &'static str {
    match usage {
        PageUse::Meta => "meta",
        PageUse::FreeList => "freelist",
        PageUse::Branch => "branch",
        PageUse::Leaf => "leaf",
        PageUse::Free => "free",
    }
}

fn pages(session: &Session) -> Result<(), Failure> {
    let [path] = session.arguments("db pages requires exactly one argument")?;
    let view = files::open(session, Path::new(&path))?.read();
    let lines = Lines::new(session, PAGE_COLUMNS)?;
    for page in view.transaction().pages()? {
        lines.add(vec![
            Cell::Unsigned(page.id),
            Cell::Text(name(page.usage).to_owned()),
            Cell::Unsigned(page.items as u64),
            Cell::Unsigned(page.overflow),
        ])?;
    }
    lines.finish()
}

fn stats(session: &Session) -> Result<(), Failure> {
    let [path] = session.arguments("db stats requires exactly one argument")?;
    let backend = files::open(session, Path::new(&path))?;
    let stats = backend.stats();
    let pages = backend.read().transaction().pages()?;
    let of = |usage| pages.iter().filter(move |page| page.usage == usage);
    let free: u64 = of(PageUse::Free).map(|page| page.overflow + 1).sum();
    let is_used = |page: &&PageFacts| page.usage != PageUse::Free;
    let overflow: u64 = pages.iter().filter(is_used).map(|page| page.overflow).sum();
    let depth = pages.iter().map(|page| page.depth as u64 + 1).max().unwrap_or_default();
    session.show(&Report::one(
        STATS_COLUMNS,
        vec![
            Cell::Unsigned(stats.page_bytes.into()),
            Cell::Unsigned(stats.txid),
            Cell::Bytes(stats.size_bytes),
            Cell::Bytes(free * u64::from(stats.page_bytes)),
            Cell::Unsigned(of(PageUse::Branch).count() as u64),
            Cell::Unsigned(of(PageUse::Leaf).count() as u64),
            Cell::Unsigned(overflow),
            Cell::Unsigned(free),
            Cell::Unsigned(depth),
        ],
    ))
}

fn check(session: &Session) -> Result<(), Failure> {
    let [path] = session.arguments("db check requires exactly one argument")?;
    let view = files::open(session, Path::new(&path))?.read();
    check_pages(&view.transaction().check())?;
    session.print("OK\n")
}
