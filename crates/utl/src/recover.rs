//! `recover`: creates a new cluster from the remaining directories of a cluster that has permanently lost its quorum.
//!
//! ```text
//! directories ─► source (locked, verified) ─► choice (which one) ─► replay (dry run) ─► plan (printed)
//!                                                              └─ with --yes ─► replay (onto a copy) ─► new_member
//! ```
//!
//! # Invariants
//!
//! * The given directories are never modified. They are locked while the command runs, so that no member can start on
//!   them.
//! * Nothing is created without `--yes`, or before the plan is printed. The result always matches the plan.
//! * If acknowledged changes may be missing, the user must accept that with a separate flag.
//! * The same directories always lead to the same state, so the members of the new cluster can be created
//!   independently.
//!
//! # Not here
//!
//! The other files of the new member (see `new_member`). Detection of older copies: an older copy of a directory cannot
//! be recognised, so the user must not pass such a copy.

mod choice;
mod outline;
mod plan;
mod replay;
mod source;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use quorate_cli::flags::Flag;
use quorate_raft::joint::JointConfig;
use quorate_state::backend::{Backend, open_image};
use quorate_storage::bolt::Options;
use quorate_storage::disk::{Disk, OpenMode};

use self::choice::Candidate;
use self::outline::Comparison;
use self::plan::{Directory, New, Other, Plan};
use self::replay::{Outcome, replay};
use self::source::{Image, Source};
use crate::command::Command;
use crate::failure::{Failure, RecoveryError, ReplayError, RestoreError};
use crate::files;
use crate::new_member::{self, NewMember, copy, io_error, resolved};
use crate::report::Format;
use crate::session::Session;
use crate::verify::restore_backend;

pub(crate) const RECOVER: Command = Command {
    usage: "recover <data-dir>... [options]",
    short: "Creates a new cluster from the data directories of a cluster that has permanently lost its quorum",
    long: "Creates a new cluster from the data directories of a cluster that has permanently lost its quorum. Pass all
remaining directories, as their members left them, and no older copies. If a log is in a separate directory, write
DATA-DIR=WAL-DIR. The directories are not modified. No member may be running on them.

Among the sound directories, the one with the most up-to-date log is chosen, and its log is applied to the end. With
sound directories of a majority of the voters, the result contains every acknowledged write. Otherwise writes may be
missing, and --accept-data-loss is required. A directory that was restored from a snapshot does not count, unless the
chosen directory was restored from the same snapshot.

The plan is printed first: each directory, and the entries that are kept, carried over, left out and dropped. With
--yes, one member of the new cluster is then created, as with `snapshot restore`. Run the command once for each new
member, with the same directories and the same --initial-cluster, and with its own --name,
--initial-advertise-peer-urls and --data-dir. If the URLs are the same as before, a different --initial-cluster-token
is required, so that members of the old cluster do not join the new one.
",
    flags: &[
        new_member::DATA_DIR,
        new_member::WAL_DIR,
        new_member::INITIAL_CLUSTER,
        new_member::INITIAL_CLUSTER_TOKEN,
        new_member::INITIAL_ADVERTISE_PEER_URLS,
        new_member::NAME,
        new_member::BUMP_REVISION,
        new_member::MARK_COMPACTED,
        Flag::bool("yes", "Create the member's files; without it only the plan is printed"),
        Flag::bool(
            "accept-data-loss",
            "Continue even if acknowledged writes may be missing",
        ),
    ],
    run: Some(run),
    ..Command::EMPTY
};

/// Maximum number of entries described in words.
const DESCRIBED_MAX: u64 = 10;

fn run(session: &Session) -> Result<(), Failure> {
    let arguments: Vec<String> =
        (0..session.matches.args.len()).filter_map(|at| session.matches.arg(at)).collect();
    if arguments.is_empty() {
        return Err(Failure::arguments("recover requires at least one data directory"));
    }
    if session.format()? == Format::Protobuf {
        return Err(Failure::FormatOfThis("protobuf"));
    }
    let member = NewMember::described(session)?;
    let opened = arguments.iter().map(|argument| Source::open(session, argument));
    let mut sources = opened.collect::<Result<Vec<Source>, Failure>>()?;
    let disk = files::disk();
    check_outside(&member, &sources)?;
    if session.matches.bool("yes") {
        member.check_places(&*disk)?;
    }
    choice::check_identities(&candidates(&sources))?;
    let cluster = member.founders().cluster_id();
    if sources.iter().any(|source| source.outline.cluster == Some(cluster)) {
        return Err(RecoveryError::SameCluster { cluster }.into());
    }
    let Some((chosen, outcome)) = choose(&*disk, &mut sources)? else {
        plan::show(session, &directories(&sources, None), None)?;
        // The error message names the image with the highest applied index.
        let images = sources.iter().filter_map(|source| source.image.as_ref());
        let best =
            images.filter(|image| image.revision.is_some()).max_by_key(|image| image.applied);
        let last = best.map(|image| format!(". {}", restore_backend(&image.path)));
        return Err(RecoveryError::NoneSound { last: last.unwrap_or_default() }.into());
    };
    let mut plan = plan(&*disk, &sources, chosen, outcome, &member)?;
    let doubts = plan.doubts();
    let is_refused = !doubts.is_empty() && !session.matches.bool("accept-data-loss");
    plan.new.is_made = session.matches.bool("yes") && !is_refused;
    plan::show(session, &directories(&sources, Some(chosen)), Some(&plan))?;
    if is_refused {
        return Err(RecoveryError::MayLose { reasons: doubts.join("; ") }.into());
    }
    if plan.new.is_made {
        make(session, &disk, &member, &sources[chosen], &plan.outcome)
    } else {
        Ok(())
    }
}

fn candidates(sources: &[Source]) -> Vec<Candidate> {
    sources.iter().map(Source::candidate).collect()
}

/// Checks that the new files are not created inside one of the given directories, which must not be modified.
fn check_outside(member: &NewMember, sources: &[Source]) -> Result<(), Failure> {
    for output in [member.dirs().root(), member.dirs().wal()] {
        let real_output = resolved(output);
        for source in sources {
            for input in [source.dirs.root(), source.dirs.wal()] {
                if real_output.starts_with(resolved(input)) {
                    let (output, input) = (output.to_path_buf(), input.to_path_buf());
                    return Err(RecoveryError::Inside { output, input }.into());
                }
            }
        }
    }
    Ok(())
}

/// Chooses the directory with the most advanced log that can be replayed completely, and returns the result of the
/// replay. A directory whose log cannot be replayed is not sound.
fn choose(
    disk: &dyn Disk,
    sources: &mut [Source],
) -> Result<Option<(usize, Outcome)>, ReplayError> {
    while let Some(chosen) = choice::furthest(&candidates(sources)) {
        let Some(image) = &sources[chosen].image else { break };
        match replay(disk, &sources[chosen], &image.backend, false) {
            Ok(outcome) => return Ok(Some((chosen, outcome))),
            Err(error) => sources[chosen].damage.push(format!("replay: {error}")),
        }
    }
    Ok(None)
}

/// Returns the directories as the plan shows them.
fn directories(sources: &[Source], chosen: Option<usize>) -> Vec<Directory> {
    let chosen_origin = chosen.map(|chosen| &sources[chosen].origin);
    let directory = |(at, source): (usize, &Source)| {
        let log = Some(&source.outline).filter(|_| source.is_log_whole);
        Directory {
            path: source.path().to_path_buf(),
            member: source.outline.member,
            cluster: source.outline.cluster,
            last: log.map(|log| log.last()),
            commit: log.map(|log| log.commit),
            applied: source.image.as_ref().map(|image| image.applied),
            revision: source.image.as_ref().and_then(|image| image.revision),
            damage: source.damage.clone(),
            is_removed: source.is_removed,
            uncounted: chosen_origin.and_then(|chosen| source.origin.difference(chosen)),
            is_chosen: chosen == Some(at),
        }
    };
    sources.iter().enumerate().map(directory).collect()
}

/// Compares the chosen directory with the other directories.
fn plan(
    disk: &dyn Disk,
    sources: &[Source],
    chosen: usize,
    outcome: Outcome,
    member: &NewMember,
) -> Result<Plan, Failure> {
    let source = &sources[chosen];
    let conf_state = outcome.members.conf_state();
    let voters = JointConfig {
        incoming: conf_state.voters.into_iter().collect(),
        outgoing: source.outline.outgoing_voters().into_iter().collect(),
    };
    let at_hand = choice::voters_at_hand(&candidates(sources), &source.origin, &voters);
    let (_, last) = source.outline.last();
    let (mut others, mut contradictions) = (Vec::new(), Vec::new());
    for (at, other) in sources.iter().enumerate().filter(|(at, _)| *at != chosen) {
        if !other.is_log_whole {
            others.push((at, Other::Unreadable));
            continue;
        }
        let (_, other_last) = other.outline.last();
        let path = other.path().display();
        let first = match other.outline.compare(&source.outline) {
            Comparison::Contained => {
                others.push((at, Other::Contained));
                continue;
            }
            Comparison::Before => {
                let indexes = other.outline.commit.saturating_add(1)..=other_last;
                others.push((at, Other::Unknown { indexes }));
                continue;
            }
            Comparison::Differs { from } => from,
            Comparison::Contradicts { index } => {
                if other.is_sound() {
                    contradictions.push(format!(
                        "entry {index} of {path} differs from the entry of the same index and term in the chosen log"
                    ));
                }
                index
            }
        };
        // The log of an unsound directory does not prove that an entry was committed. It may contain entries that no
        // other directory has.
        if other.is_sound() && first <= other.committed() {
            contradictions.push(format!(
                "entry {first} of {path} is committed there, but missing or different in the chosen log"
            ));
        }
        let described = described(disk, other, first, other_last)?;
        others.push((at, Other::Lacking { indexes: first..=other_last, described }));
    }
    let shares_origin = |other: &&Source| other.origin.difference(&source.origin).is_none();
    let sound = sources.iter().filter(|other| other.is_sound()).filter(shares_origin);
    let committed = sound.map(Source::committed).max().unwrap_or_default().min(last);
    let founders = member.founders();
    Ok(Plan {
        chosen,
        has_majority: choice::are_majority(&at_hand, &voters),
        voters,
        at_hand: at_hand.into_iter().collect(),
        contradictions,
        committed,
        uncommitted_described: described(disk, source, committed.saturating_add(1), last)?,
        others,
        outcome,
        new: New {
            cluster: founders.cluster_id(),
            members: founders.iter().map(|member| (member.id.0, member.name.clone())).collect(),
            place: member.dirs().root().to_path_buf(),
            bump_revision: member.bump_revision(),
            is_made: false,
        },
    })
}

/// Describes the first of these entries in words.
fn described(
    disk: &dyn Disk,
    source: &Source,
    first: u64,
    last: u64,
) -> Result<Vec<String>, Failure> {
    if first > last {
        return Ok(Vec::new());
    }
    let indexes = first..=last.min(first.saturating_add(DESCRIBED_MAX - 1));
    Ok(outline::described(disk, source.dirs.wal(), &indexes)?)
}

/// Creates the member's files with a copy of the chosen backend file, onto which the log is replayed.
fn make(
    session: &Session,
    disk: &Arc<dyn Disk>,
    member: &NewMember,
    source: &Source,
    shown: &Outcome,
) -> Result<(), Failure> {
    let path = [("path", source.path().display().to_string())];
    let fields = [&path[..], &member.log_fields()].concat();
    session.log("info", "recovering", &fields);
    let image = source.image.as_ref().expect("a sound directory has a backend image");
    member.make(disk, |database| {
        copy_image(disk, image, database)?;
        let backend = Backend::open(disk, database, Options::default())?;
        let outcome = replay(&**disk, source, &backend, true)?;
        match outcome == *shown {
            true => Ok(()),
            false => Err(RecoveryError::Changed(source.path().to_path_buf()).into()),
        }
    })?;
    member.log_founders(session);
    session.log("info", "recovered", &fields);
    Ok(())
}

fn copy_image(disk: &Arc<dyn Disk>, image: &Image, database: &Path) -> Result<(), RestoreError> {
    let path = &image.path;
    let file = disk.open(path, OpenMode::Read).map_err(io_error("open", path, 0))?;
    let len = file.len().map_err(io_error("read", path, 0))?;
    copy(&**disk, (&*file, path), len, database, |_| {})?;
    open_image(disk, database)
        .map(drop)
        .map_err(|source| RestoreError::Image { snapshot: path.clone(), source })
}
