//! `diff`: prints the differences between the keys of two clusters, or of a cluster and a snapshot.
//!
//! # Guarantees
//!
//! * Each side is read at a single revision, however long this takes. If that revision is compacted before the whole
//!   side has been read, the command fails and explains why. Differences are printed in key order as they are found.
//! * Both sides are read in pages, and at most three pages per side are in memory (see `side`).
//! * Like diff(1), the command exits with 0 if there are no differences, 1 if there are, and 2 on an error.
//!
//! # Not here
//!
//! Comparison of users, roles, members, alarms and lease TTLs. Only keys are compared.

mod difference;
mod side;

use std::cmp::Ordering;

use quorate_cli::start::BROKEN_PIPE;

use self::difference::{Difference, Totals};
use self::side::{Side, Source};
use crate::command::{Command, group};
use crate::destination::{self, Names};
use crate::failure::{Failure, exit};
use crate::flags::Flag;
use crate::key_range::KeyRange;
use crate::output::Format;
use crate::progress::Progress;
use crate::session::Session;

pub(crate) const DIFF: Command = Command {
    usage: "diff [options] [<destination endpoints>]",
    short: "Lists the keys that differ between two clusters, or between a cluster and a snapshot",
    long: LONG,
    group: Some(group::UTILITY),
    flags: FLAGS,
    failure_code: Some(TROUBLE),
    is_own: true,
    run: Some(|session| Box::pin(run(session))),
    ..Command::EMPTY
};

const LONG: &str = "\
Compares the keys in a cluster (the source) with the keys in another cluster, a snapshot, or a member's backend file
(the destination), each at one revision. Each line of the output contains '-' and a key that exists only in
the source, '+' and a key that exists only in the destination, or '~' and a key that differs, with the differences.
Exits with 0 if there are no differences, with 1 if there are differences, and with 2 if the comparison failed.

Compares values and, with --metadata, also revisions, versions and leases. These are the same in a member and in
a snapshot of it, but not in a mirror. To compare a snapshot with the cluster that it was taken from, pass
the snapshot's revision as --rev. The last line of the output shows both revisions.
";

const FLAGS: &[Flag] = &[
    Flag::bytes("prefix", "Compare only keys with this prefix"),
    Flag::int("rev", "Revision of the source (0 for the newest)"),
    Flag::int("dest-rev", "Revision of the destination (0 for the newest)"),
    Flag::bytes(
        "snapshot",
        "Compare with this snapshot, or with a backend file that is not in use by a member",
    ),
    Flag::bool("metadata", "Also compare revisions, versions and leases"),
    Flag::uint("limit", "0", "Maximum number of differences to print (0 for all)"),
    Flag::bool("count-only", "Print only the number of differing keys"),
    Flag {
        usage: "prefix of the keys in the destination, if it differs from --prefix",
        ..destination::PREFIX
    },
    Flag {
        usage: "compare with destination keys from which --prefix was removed",
        ..destination::NO_PREFIX
    },
    destination::CERT,
    destination::KEY,
    destination::CACERT,
    destination::INSECURE_TRANSPORT,
    destination::USER,
    destination::PASSWORD,
];

const DIFFERENT: u8 = 1;
const TROUBLE: u8 = 2;

async fn run(session: &Session) -> Result<(), Failure> {
    let totals = compare(session).await.map_err(|failure| match failure.code {
        BROKEN_PIPE => failure,
        _ => Failure { code: TROUBLE, ..failure },
    })?;
    if totals.differences() == 0 { Ok(()) } else { Err(Failure::silent(DIFFERENT)) }
}

async fn compare(session: &Session) -> Result<Totals, Failure> {
    let shown = Shown::of(session)?;
    let names = Names::of(&session.matches)?;
    let (mut source, mut destination) = sides(session, &names).await?;
    let mut progress = Progress::begin(session);
    let mut totals = Totals::default();
    let (mut left, mut right) = (source.next().await?, destination.next().await?);
    loop {
        let order = match (&left, &right) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(left), Some(right)) => {
                names.rest(left.key()).cmp(names.rest_at_destination(right.key()))
            }
        };
        let found = match (&left, &right) {
            (Some(left), _) if order == Ordering::Less => Some(Difference::OnlyAtSource(left)),
            (_, Some(right)) if order == Ordering::Greater => {
                Some(Difference::OnlyAtDestination(right))
            }
            (Some(left), Some(right)) => Difference::between(left, right, shown.metadata),
            _ => None,
        };
        totals.count(found.as_ref());
        if let Some(difference) = found.filter(|_| totals.differences() <= shown.limit) {
            session.print(&difference.text(shown.is_json))?;
        }
        if totals.keys().is_multiple_of(KEYS_BETWEEN_REPORTS) {
            progress.tell(|| format!("{} keys, {} differ", totals.keys(), totals.differences()));
        }
        if order != Ordering::Greater {
            left = source.next().await?;
        }
        if order != Ordering::Less {
            right = destination.next().await?;
        }
    }
    drop(progress);
    let revisions = (source.revision(), destination.revision());
    session.print(&totals.text(revisions, shown.is_json))?;
    Ok(totals)
}

/// Number of keys after which `diff` checks whether a progress update is due.
const KEYS_BETWEEN_REPORTS: u64 = 1_000;

/// Options for comparison and output.
struct Shown {
    metadata: bool,
    is_json: bool,
    /// Maximum number of differences to print.
    limit: u64,
}

impl Shown {
    fn of(session: &Session) -> Result<Self, Failure> {
        let matches = &session.matches;
        let is_json = match session.format()? {
            Format::Simple => false,
            Format::Json => true,
            _ => {
                return Err(Failure::new(
                    exit::BAD_FEATURE,
                    "diff supports only the formats simple and json",
                ));
            }
        };
        let limit = match matches.uint("limit") {
            _ if matches.bool("count-only") => 0,
            0 => u64::MAX,
            limit => limit,
        };
        Ok(Self { metadata: matches.bool("metadata"), is_json, limit })
    }
}

/// Opens the source and the destination.
async fn sides(session: &Session, names: &Names) -> Result<(Side, Side), Failure> {
    let matches = &session.matches;
    let other = match (matches.path("snapshot"), matches.arg(0), matches.args.len()) {
        (Some(path), None, _) => {
            let ranges = session.open_file(path).map_err(Failure::error)?;
            Source::File(ranges)
        }
        (None, Some(endpoints), 1) => {
            let endpoints = endpoints.split(',').map(str::to_owned).collect();
            Source::Cluster(Box::new(session.destination(endpoints)?.logged_in().await?))
        }
        _ => {
            let text = "diff takes either destination endpoints or --snapshot";
            return Err(Failure::bad_args(text));
        }
    };
    let timeout = session.timeout();
    let side = |name, source, prefix: &[u8], revision| {
        Side::open(name, source, KeyRange::prefix(prefix.to_vec()), revision, timeout)
    };
    let source = Source::Cluster(Box::new(session.client().await?));
    let source = side("source", source, &names.prefix, matches.int("rev"));
    let destination = side("destination", other, &names.replacement, matches.int("dest-rev"));
    Ok((source, destination))
}
