//! Scripts for the configuration changer.
//!
//! The commands are `simple`, `enter-joint [autoleave=<bool>]` and `leave-joint`, with changes as
//! input: `v1` makes node 1 a voter, `l1` makes it a learner, `r1` removes it, `u1` updates it. The
//! output is the configuration and its members' progress.

use std::fmt::Write as _;

use quorate_raft::confchange::Changer;
use quorate_raft::{
    ConfChangeKind, ConfChangeStep, Configuration, InflightLimits, LogIndex, ProgressMap,
};

use quorate_test_support::script::{Command, Interpreter};

pub(crate) fn interpreter() -> Interpreter {
    let limits = InflightLimits { count_max: 10, bytes_max: u64::MAX };
    let config = Configuration::default();
    let mut changer =
        Changer { config, progress: ProgressMap::new(), last_index: LogIndex(0), limits };
    Box::new(move |command| {
        let output = run(&mut changer, command);
        changer.last_index += 1;
        output.unwrap_or_else(|error| error)
    })
}

fn run(changer: &mut Changer, command: &Command) -> Result<String, String> {
    let steps = parse_steps(&command.input)?;
    let current = changer.clone();
    let changed = match command.name.as_str() {
        "simple" => current.simple(&steps),
        "enter-joint" => {
            current.enter_joint(command.value("autoleave").unwrap_or_default(), &steps)
        }
        "leave-joint" if !steps.is_empty() => {
            return Err("this command takes no input".to_owned());
        }
        "leave-joint" => current.leave_joint(),
        _ => return Err("unknown command".to_owned()),
    };
    *changer = changed.map_err(|error| error.to_string())?;
    Ok(format!("{}\n{}", changer.config, describe_progress(&changer.progress)))
}

/// Returns one line for each member.
pub(crate) fn describe_progress(progress: &ProgressMap) -> String {
    let mut out = String::new();
    for (id, progress) in progress {
        writeln!(out, "{id}: {progress}").unwrap();
    }
    out
}

/// Parses changes such as `v1 l2 r3`.
pub(crate) fn parse_steps(input: &str) -> Result<Vec<ConfChangeStep>, String> {
    let parse = |token: &str| {
        let unknown = || format!("unknown token {token}");
        let (letter, id) = token.split_at_checked(1).ok_or_else(unknown)?;
        let kind = match letter {
            "v" => ConfChangeKind::AddNode,
            "l" => ConfChangeKind::AddLearnerNode,
            "r" => ConfChangeKind::RemoveNode,
            "u" => ConfChangeKind::UpdateNode,
            _ => return Err(format!("unknown input: {token}")),
        };
        let node_id = id.parse().map_err(|_| unknown())?;
        Ok(ConfChangeStep { kind, node_id })
    };
    input.split_whitespace().map(parse).collect()
}
