//! The decisions of a member for which the simulator must use production code.
//!
//! Each decision is implemented once. An entry of [`DECISIONS`] is a function or a type of production code, with its
//! file. The file must declare the entry's name. The simulator must use the name, and must not declare it itself.

use super::source::{Source, is_test_file, production, words};

/// The simulator's sources.
const SIMULATOR: &str = "crates/sim/src/";

/// Functions and types that make decisions, each with the file that declares it.
pub(super) const DECISIONS: &[(&str, &str)] = &[
    // The start of a member.
    ("classify_directory", "crates/core/src/bootstrap.rs"),
    ("check_members", "crates/core/src/bootstrap.rs"),
    ("begin_again", "crates/core/src/bootstrap/restart.rs"),
    ("go_on", "crates/core/src/bootstrap/restart.rs"),
    ("is_blank", "crates/core/src/bootstrap/restart.rs"),
    ("create_log", "crates/core/src/bootstrap/found.rs"),
    ("Identity", "crates/core/src/bootstrap.rs"),
    ("Refusal", "crates/core/src/bootstrap.rs"),
    // Messages and snapshots from other members.
    ("Sender", "crates/core/src/incoming.rs"),
    ("Snapshot", "crates/core/src/incoming.rs"),
    ("Depot", "crates/core/src/incoming.rs"),
    ("Arriving", "crates/core/src/incoming.rs"),
    // Membership changes.
    ("check_has_caught_up", "crates/core/src/promotion.rs"),
    // Leadership, leases and requests.
    ("LeadershipState", "crates/core/src/leadership.rs"),
    ("LeaseTask", "crates/core/src/lease_task.rs"),
    ("LeaseCare", "crates/core/src/lease_care.rs"),
    ("Course", "crates/core/src/request.rs"),
    ("QuotaHeadroom", "crates/core/src/request.rs"),
    ("no_space_alarm", "crates/core/src/request.rs"),
    ("Disarming", "crates/core/src/request.rs"),
    ("due_for_disk", "crates/state/src/alarm.rs"),
    ("AppliedWaits", "crates/core/src/applied_waits.rs"),
    ("Pending", "crates/core/src/pending.rs"),
    // The order of a member's steps.
    ("Consensus", "crates/core/src/consensus.rs"),
    ("Intervals", "crates/core/src/consensus/turn.rs"),
    ("begin_turn", "crates/core/src/consensus/turn.rs"),
    ("end_turn", "crates/core/src/consensus/turn.rs"),
    ("oversleeps", "crates/core/src/consensus/turn.rs"),
    ("Log", "crates/core/src/log.rs"),
    ("StateMachine", "crates/core/src/state_machine.rs"),
    ("BackendWriter", "crates/core/src/backend_writer.rs"),
    ("Purger", "crates/core/src/snapshot.rs"),
    ("StopStep", "crates/core/src/stop.rs"),
    ("extension_millis", "crates/core/src/lease_rules.rs"),
];

/// Keywords that precede a declared name.
const DECLARING: [&str; 5] = ["fn", "struct", "enum", "trait", "type"];

/// Reports decisions that the simulator reimplements or does not use.
pub(super) fn check_decisions(sources: &[Source], complaints: &mut Vec<String>) {
    let simulator: Vec<&Source> = sources
        .iter()
        .filter(|source| source.path.starts_with(SIMULATOR) && !is_test_file(&source.path))
        .collect();
    if simulator.is_empty() {
        return;
    }
    for (name, path) in DECISIONS {
        let owner = sources.iter().find(|source| source.path == *path);
        if !owner.is_some_and(|owner| declares(owner, name)) {
            complaints.push(format!(
                "{path}: the item {name}, which makes decisions for a member, is not declared"
            ));
        }
        for source in simulator.iter().filter(|source| declares(source, name)) {
            complaints.push(format!(
                "{}: {name} is a copy of a production decision ({path})",
                source.path
            ));
        }
        if !simulator.iter().any(|source| names(source, name)) {
            complaints.push(format!("{SIMULATOR}: the simulator does not use {name} ({path})"));
        }
    }
}

fn declares(source: &Source, name: &str) -> bool {
    production(&source.text).any(|(_, line)| {
        let mut words = words(line).map(|(_, word)| word);
        words.any(|word| DECLARING.contains(&word)) && words.next() == Some(name)
    })
}

fn names(source: &Source, name: &str) -> bool {
    production(&source.text).any(|(_, line)| words(line).any(|(_, word)| word == name))
}
