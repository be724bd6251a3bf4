//! The plan that is printed before anything is created: each directory, the chosen directory and the reason for the
//! choice, the entries that are kept, carried over, left out or dropped, and whether acknowledged changes may be
//! missing.
//!
//! For people, the plan is printed as sentences, or as tables with `-w table`. For programs, the plan is printed as one
//! object (`-w json`) or as fields.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use quorate_raft::joint::JointConfig;
use serde_json::{Value, json};

use super::replay::Outcome;
use crate::failure::Failure;
use crate::report::{Cell, Column, Format, Report};
use crate::session::Session;

const DIRECTORY_COLUMNS: &[Column] = &[
    Column::new("directory", "directory", "Directory"),
    Column::new("member", "member", "Member"),
    Column::new("cluster", "cluster", "Cluster"),
    Column::new("term", "term", "Term"),
    Column::new("last index", "lastIndex", "LastIndex"),
    Column::new("commit", "commit", "Commit"),
    Column::new("applied", "applied", "Applied"),
    Column::new("revision", "revision", "Revision"),
    Column::new("verdict", "verdict", "Verdict"),
    Column::new("reason", "reason", "Reason"),
];

const SAYING_COLUMNS: &[Column] =
    &[Column::new("of", "of", "Of"), Column::new("says", "says", "Says")];

/// One of the given directories.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    pub(super) path: PathBuf,
    pub(super) member: Option<u64>,
    pub(super) cluster: Option<u64>,
    /// Term and index of the last log entry; `None` if the log cannot be read to its end.
    pub(super) last: Option<(u64, u64)>,
    /// Commit index in the log.
    pub(super) commit: Option<u64>,
    pub(super) applied: Option<u64>,
    pub(super) revision: Option<i64>,
    /// Damage found in the directory.
    pub(super) damage: Vec<String>,
    pub(super) is_removed: bool,
    /// Reason why a sound directory does not count as a voter, if its state has another origin than the chosen state.
    pub(super) uncounted: Option<&'static str>,
    pub(super) is_chosen: bool,
}

/// Relation of another directory to the chosen directory.
#[derive(Clone, Debug)]
pub(super) enum Other {
    /// All entries of the directory are also in the chosen directory.
    Contained,
    /// The directory has entries that the chosen directory lacks.
    Lacking {
        /// Indexes of the entries that the chosen directory lacks.
        indexes: RangeInclusive<u64>,
        /// Descriptions of the first of these entries.
        described: Vec<String>,
    },
    /// The directory's log cannot be read to the end.
    Unreadable,
    /// The last entries of the directory's log cannot be compared with the chosen log.
    Unknown {
        /// Indexes of the entries that cannot be compared.
        indexes: RangeInclusive<u64>,
    },
}

/// The plan to recover from the chosen directory.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Position of the chosen directory in the list.
    pub(super) chosen: usize,
    /// Newest configuration, after all membership changes in the log.
    pub(super) voters: JointConfig,
    /// Voters of the newest configuration whose sound logs are given.
    pub(super) at_hand: Vec<u64>,
    pub(super) has_majority: bool,
    /// Descriptions of the contradictions between the directories, for example committed entries that the chosen
    /// directory lacks.
    pub(super) contradictions: Vec<String>,
    /// Highest index that the directories prove to be committed.
    pub(super) committed: u64,
    /// Descriptions of the first entries that are carried over although they are not known to be committed.
    pub(super) uncommitted_described: Vec<String>,
    /// Relation of each other directory to the chosen directory, with the other directory's position in the list.
    pub(super) others: Vec<(usize, Other)>,
    /// The resulting state.
    pub(super) outcome: Outcome,
    /// What will be created: the new cluster, its members, and the paths of this member's files.
    pub(super) new: New,
}

/// The new cluster and its members, and the paths of this member's files.
#[derive(Clone, Debug)]
pub(super) struct New {
    pub(super) cluster: u64,
    /// Id and name of each member.
    pub(super) members: Vec<(u64, String)>,
    pub(super) place: PathBuf,
    pub(super) bump_revision: u64,
    /// Whether this run creates the member: `--yes` is set, and the recovery is not refused.
    pub(super) is_made: bool,
}

impl Plan {
    /// Returns the reasons why acknowledged changes may be missing. The list is empty if no acknowledged change can be
    /// missing.
    pub(super) fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        if !self.has_majority {
            doubts.push(format!(
                "sound directories that count are given for only {} of the {} voters in the newest configuration, \
                 which is not a majority: acknowledged writes may be missing",
                self.at_hand.len(),
                self.voters.ids().len()
            ));
        }
        doubts.extend(self.contradictions.iter().cloned());
        doubts
    }

    /// Returns the indexes of entries that are carried over although they are not known to be committed.
    fn uncommitted(&self, directories: &[Directory]) -> RangeInclusive<u64> {
        let last = directories[self.chosen].last.map_or(0, |(_, index)| index);
        self.committed.saturating_add(1)..=last
    }

    fn name_of(&self, id: u64) -> String {
        let mut members = self.outcome.members.iter();
        match members.find(|member| member.id.0 == id) {
            Some(member) if member.is_started() => format!("{id:x} ({})", member.name),
            Some(_) | None => format!("{id:x}"),
        }
    }
}

/// Prints the directories and, if one of them is sound, the plan.
pub(super) fn show(
    session: &Session,
    directories: &[Directory],
    plan: Option<&Plan>,
) -> Result<(), Failure> {
    let format = session.format()?;
    let table = Report::list(DIRECTORY_COLUMNS, directories.iter().map(row).collect());
    let statements = plan.map(|plan| statements(directories, plan)).unwrap_or_default();
    let text = match format {
        Format::Simple => {
            let statements = statements.iter().map(|(of, says)| format!("{of}: {says}\n"));
            directories.iter().map(sentence).chain(statements).collect()
        }
        Format::Json => {
            let plan = plan.map(|plan| object(directories, plan));
            let (directories, plan) = (format.render(&table)?, json!(plan));
            format!("{{\"directories\":{},\"plan\":{plan}}}\n", directories.trim_end())
        }
        Format::Fields | Format::Table => {
            let cells = |(of, says): &(&str, String)| {
                vec![Cell::Text((*of).to_owned()), Cell::Text(says.clone())]
            };
            let said = Report::list(SAYING_COLUMNS, statements.iter().map(cells).collect());
            [format.render(&table)?, format.render(&said)?].concat()
        }
        Format::Protobuf => return Err(Failure::FormatOfThis("protobuf")),
    };
    session.print(&text)
}

fn row(directory: &Directory) -> Vec<Cell> {
    let number = |number: Option<u64>| number.map_or(Cell::Unknown, Cell::Unsigned);
    let id = |id: Option<u64>| id.map_or(Cell::Unknown, |id| Cell::Text(format!("{id:x}")));
    vec![
        Cell::Text(directory.path.display().to_string()),
        id(directory.member),
        id(directory.cluster),
        number(directory.last.map(|(term, _)| term)),
        number(directory.last.map(|(_, index)| index)),
        number(directory.commit),
        number(directory.applied),
        directory.revision.map_or(Cell::Unknown, Cell::Number),
        Cell::Text(verdict(directory).to_owned()),
        Cell::Text(reason(directory)),
    ]
}

fn verdict(directory: &Directory) -> &'static str {
    match (directory.is_chosen, directory.damage.is_empty(), directory.uncounted) {
        (true, _, _) => "sound, chosen",
        (false, false, _) => "UNSOUND",
        (false, true, Some(_)) => "sound, does not count",
        (false, true, None) => "sound",
    }
}

fn reason(directory: &Directory) -> String {
    if directory.damage.is_empty() && directory.is_removed {
        return "the member was removed from its cluster, so it does not vote".to_owned();
    }
    match directory.uncounted {
        Some(reason) if directory.damage.is_empty() => {
            format!("{reason}, so acknowledged writes may be missing in it")
        }
        Some(_) | None => directory.damage.join("; "),
    }
}

/// Describes a directory in one line.
fn sentence(directory: &Directory) -> String {
    let mut says = format!("{}: ", directory.path.display());
    match (directory.member, directory.cluster) {
        (Some(member), Some(cluster)) => {
            says.push_str(&format!("member {member:x} of cluster {cluster:x}"));
        }
        (None, _) | (_, None) => says.push_str("unknown member"),
    }
    if let Some((term, index)) = directory.last {
        says.push_str(&format!(", last entry {index} of term {term}"));
    }
    if let Some(commit) = directory.commit {
        says.push_str(&format!(", committed up to {commit}"));
    }
    if let Some(applied) = directory.applied {
        says.push_str(&format!(", applied up to {applied}"));
    }
    if let Some(revision) = directory.revision {
        says.push_str(&format!(" (revision {revision})"));
    }
    let reason = Some(reason(directory)).filter(|reason| !reason.is_empty());
    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("{says}: {}{reason}\n", verdict(directory))
}

/// Returns the statements of a plan, each with its topic.
fn statements(directories: &[Directory], plan: &Plan) -> Vec<(&'static str, String)> {
    let chosen = &directories[plan.chosen];
    let mut says = Vec::new();
    let (term, index) = chosen.last.unwrap_or_default();
    says.push((
        "chosen",
        format!(
            "{}, which has the most up-to-date log of all sound directories: it ends with entry {index} of term {term}",
            chosen.path.display()
        ),
    ));
    says.push(("voters", voters(directories, plan)));
    says.extend(plan.contradictions.iter().map(|text| ("contradiction", text.clone())));
    says.push(("carried over", carried_over(directories, plan)));
    for (at, other) in &plan.others {
        says.push(("left out", left_out(&directories[*at], other)));
    }
    says.extend(kept(&plan.outcome).into_iter().map(|text| ("kept", text)));
    says.push(("dropped", dropped(chosen, plan)));
    says.push(("new", new(plan)));
    says
}

fn voters(directories: &[Directory], plan: &Plan) -> String {
    let is_uncounted =
        |id: u64| directories.iter().any(|it| it.member == Some(id) && it.uncounted.is_some());
    let voter = |id: u64| {
        let state = match plan.at_hand.contains(&id) {
            true => "here",
            false if is_uncounted(id) => "does not count",
            false => "missing or not sound",
        };
        format!("{} {state}", plan.name_of(id))
    };
    let voters = plan.voters.ids().into_iter().map(voter).collect::<Vec<_>>().join(", ");
    let joint = match plan.voters.is_joint() {
        true => format!(", and the configuration is joint: {}", plan.voters),
        false => String::new(),
    };
    let verdict = match plan.has_majority {
        true if !plan.contradictions.is_empty() => {
            "a majority, but the directories contradict each other: WRITES MAY BE MISSING"
        }
        true => "a majority, so the chosen log contains every acknowledged write",
        false => "no majority: ACKNOWLEDGED WRITES MAY BE MISSING",
    };
    format!("{voters}{joint}: {verdict}")
}

fn carried_over(directories: &[Directory], plan: &Plan) -> String {
    let replayed = match plan.outcome.entry_count {
        0 => "the backend file contains the whole log".to_owned(),
        count => format!("{count} entries that the backend file does not contain yet"),
    };
    let uncommitted = plan.uncommitted(directories);
    if uncommitted.is_empty() {
        return format!("{replayed}; all entries are known to be committed");
    }
    let list = list(&uncommitted, &plan.uncommitted_described);
    format!("{replayed}; not known to be committed: {list}")
}

fn left_out(directory: &Directory, other: &Other) -> String {
    let path = directory.path.display();
    match other {
        Other::Contained => format!("no entries of {path}"),
        Other::Lacking { indexes, described } => {
            format!("from {path}: {}", list(indexes, described))
        }
        Other::Unreadable => {
            format!("the whole log of {path}, which cannot be read to the end")
        }
        Other::Unknown { indexes } => format!(
            "the log of {path}, which ends before the chosen log begins and therefore cannot be compared: {}",
            list(indexes, &[])
        ),
    }
}

/// Describes entries: their number and indexes, and the first entries in words.
fn list(indexes: &RangeInclusive<u64>, described: &[String]) -> String {
    let (first, last) = (indexes.start(), indexes.end());
    let count = last.saturating_sub(*first).saturating_add(1);
    let which = match count {
        1 => format!("entry {first}"),
        _ => format!("{count} entries, {first} to {last}"),
    };
    let more = if (described.len() as u64) < count && !described.is_empty() { "; ..." } else { "" };
    let described = described.join("; ");
    if described.is_empty() { which } else { format!("{which} ({described}{more})") }
}

fn kept(outcome: &Outcome) -> Vec<String> {
    let Outcome { revision, compacted, key_count, hash, lease_count, .. } = outcome;
    let auth = if outcome.is_auth_enabled { "enabled" } else { "disabled" };
    let alarm = |(name, member): &(String, u64)| format!("{name} of member {member:x}");
    let alarms: Vec<String> = outcome.alarms.iter().map(alarm).collect();
    let alarms = match alarms.is_empty() {
        true => "no alarms".to_owned(),
        false => format!("alarms, active until disarmed: {}", alarms.join(", ")),
    };
    vec![
        format!(
            "{key_count} keys at revision {revision}, compacted at {compacted}, HashKV {hash}; {lease_count} leases"
        ),
        format!(
            "{} users and {} roles, authentication {auth}; {alarms}",
            outcome.user_count, outcome.role_count
        ),
        match &outcome.cluster_version {
            Some(version) => format!("cluster version {version}"),
            None => "no cluster version is set".to_owned(),
        },
    ]
}

fn dropped(chosen: &Directory, plan: &Plan) -> String {
    let members = plan.outcome.members.iter().map(|member| plan.name_of(member.id.0));
    let members = members.collect::<Vec<_>>().join(", ");
    format!("cluster {:x} with its members {members}", chosen.cluster.unwrap_or_default())
}

fn new(plan: &Plan) -> String {
    let New { cluster, members, place, bump_revision, is_made } = &plan.new;
    let members = members.iter().map(|(id, name)| format!("{id:x} ({name})"));
    let members = members.collect::<Vec<_>>().join(", ");
    let bumped = match bump_revision {
        0 => String::new(),
        by => format!(", at a revision raised by {by}"),
    };
    let next = match (is_made, plan.doubts().is_empty()) {
        (true, _) => "the member's files are created in",
        (false, true) => "nothing has been written yet; use --yes to create the member's files in",
        (false, false) => {
            "nothing has been written yet; use --yes and --accept-data-loss to create the member's files in"
        }
    };
    format!("cluster {cluster:x} with the members {members}{bumped}: {next} {}", place.display())
}

/// Returns the plan as an object, for programs.
fn object(directories: &[Directory], plan: &Plan) -> Value {
    let ids = |ids: Vec<u64>| ids.iter().map(|id| format!("{id:x}")).collect::<Vec<_>>();
    let indexes = |indexes: &RangeInclusive<u64>| match indexes.is_empty() {
        true => Value::Null,
        false => json!({ "first": indexes.start(), "last": indexes.end() }),
    };
    let other = |(at, other): &(usize, Other)| {
        let directory = directories[*at].path.display().to_string();
        match other {
            Other::Contained => json!({ "directory": directory, "contained": true }),
            Other::Lacking { indexes: range, described } => {
                json!({ "directory": directory, "entries": indexes(range), "says": described })
            }
            Other::Unreadable => json!({ "directory": directory, "unreadable": true }),
            Other::Unknown { indexes: range } => {
                json!({ "directory": directory, "notComparable": indexes(range) })
            }
        }
    };
    let outcome = &plan.outcome;
    let alarm =
        |(name, member): &(String, u64)| json!({ "alarm": name, "member": format!("{member:x}") });
    let members = plan.new.members.iter();
    json!({
        "chosen": directories[plan.chosen].path.display().to_string(),
        "voters": ids(plan.voters.incoming.0.iter().copied().collect()),
        "votersOutgoing": ids(plan.voters.outgoing.0.iter().copied().collect()),
        "votersHere": ids(plan.at_hand.clone()),
        "hasMajority": plan.has_majority,
        "contradictions": plan.contradictions,
        "committed": plan.committed,
        "replayed": outcome.entry_count,
        "notKnownToBeCommitted": indexes(&plan.uncommitted(directories)),
        "leftOut": plan.others.iter().map(other).collect::<Vec<_>>(),
        "kept": {
            "revision": outcome.revision,
            "compactRevision": outcome.compacted,
            "keys": outcome.key_count,
            "hash": outcome.hash,
            "leases": outcome.lease_count,
            "users": outcome.user_count,
            "roles": outcome.role_count,
            "authEnabled": outcome.is_auth_enabled,
            "alarms": outcome.alarms.iter().map(alarm).collect::<Vec<_>>(),
            "clusterVersion": outcome.cluster_version,
        },
        "droppedMembers": ids(outcome.members.iter().map(|member| member.id.0).collect()),
        "newCluster": format!("{:x}", plan.new.cluster),
        "newMembers": members.map(|(id, name)| json!({ "id": format!("{id:x}"), "name": name })).collect::<Vec<_>>(),
        "dataDir": plan.new.place.display().to_string(),
        "made": plan.new.is_made,
    })
}
