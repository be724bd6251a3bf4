//! Scripts for the quorum computations.
//!
//! `committed cfg=(1,2,3) idx=(10,_,12)` draws the acknowledged indexes and prints the committed
//! index; `vote cfg=(1,2,3) votes=(y,n,_)` prints the result of a vote. `cfgj` is a second set of
//! voters (`zero` for an empty one). Values are assigned to the voters in the order in which the
//! voters first occur; `_` means no value. Each result is also computed in other ways that must
//! give the same result.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use quorate_raft::MemberId;
use quorate_raft::joint::JointConfig;
use quorate_raft::quorum::MajorityConfig;

use quorate_test_support::script::{Command, Interpreter};

pub(crate) fn interpreter() -> Interpreter {
    Box::new(run)
}

fn run(command: &Command) -> String {
    let ids = |key| -> Vec<MemberId> {
        let values = command.values(key).iter().filter(|value| *value != "zero");
        values.map(|value| value.parse().unwrap()).collect()
    };
    let (incoming, outgoing) = (ids("cfg"), ids("cfgj"));
    let is_joint = !command.values("cfgj").is_empty();
    let config = JointConfig {
        incoming: incoming.iter().copied().collect(),
        outgoing: outgoing.iter().copied().collect(),
    };
    let values = command.values(if command.name == "vote" { "votes" } else { "idx" });
    if config.ids().len() != values.len() {
        return format!("error: mismatched input for voters {:?}: {values:?}", config.ids());
    }
    let mut given = BTreeMap::new();
    let mut remaining = values.iter();
    for id in incoming.into_iter().chain(outgoing) {
        given.entry(id).or_insert_with(|| remaining.next().unwrap().as_str());
    }
    given.retain(|_, value| *value != "_");
    match command.name.as_str() {
        "committed" => {
            let acked = given.iter().map(|(id, index)| (*id, index.parse().unwrap()));
            committed(&config, is_joint, &acked.collect())
        }
        "vote" => {
            let votes = given.iter().map(|(id, vote)| (*id, *vote == "y")).collect();
            vote(&config, is_joint, &votes)
        }
        name => panic!("unknown command {name}"),
    }
}

fn swapped(config: &JointConfig) -> JointConfig {
    JointConfig { incoming: config.outgoing.clone(), outgoing: config.incoming.clone() }
}

fn with_itself(config: &MajorityConfig) -> JointConfig {
    JointConfig { incoming: config.clone(), outgoing: config.clone() }
}

fn committed(config: &JointConfig, is_joint: bool, acked: &BTreeMap<MemberId, u64>) -> String {
    let index = config.agreed(|id| acked.get(&id).copied());
    let mut out = draw(config, acked);
    let mut check = |other: u64, via: &str| {
        if other != index {
            writeln!(out, "{} <-- via {via}", number(other)).unwrap();
        }
    };
    check(swapped(config).agreed(|id| acked.get(&id).copied()), "symmetry");
    if !is_joint {
        let majority = &config.incoming;
        check(naive_committed(majority, acked), "alternative computation");
        let joint = with_itself(majority);
        check(joint.agreed(|id| acked.get(&id).copied()), "self-joint quorum");
        for (id, own) in acked.iter().filter(|(_, own)| **own < index) {
            // Lowering the index of a voter that is already behind must not change the result.
            for lowered in [own - 1, 0] {
                let overlay = |voter| {
                    if voter == *id { Some(lowered) } else { acked.get(&voter).copied() }
                };
                check(majority.agreed(overlay), &format!("overlaying {id}->{lowered}"));
            }
        }
    }
    writeln!(out, "{}", number(index)).unwrap();
    out
}

/// Counts voters to find the highest index that a majority of them has reached.
fn naive_committed(config: &MajorityConfig, acked: &BTreeMap<MemberId, u64>) -> u64 {
    if config.0.is_empty() {
        return u64::MAX;
    }
    let reach = |index: u64| config.0.iter().filter(|id| acked.get(id) >= Some(&index)).count();
    let agreed = acked.values().copied().filter(|index| reach(*index) > config.0.len() / 2);
    agreed.max().unwrap_or(0)
}

fn number(index: u64) -> String {
    if index == u64::MAX { "∞".to_owned() } else { index.to_string() }
}

/// Draws one bar for each voter. The bar's length is the number of voters that are strictly behind this voter.
fn draw(config: &JointConfig, acked: &BTreeMap<MemberId, u64>) -> String {
    let ids = config.ids();
    if ids.is_empty() {
        return "<empty majority quorum>".to_owned();
    }
    let count = ids.len();
    let index = |id: &MemberId| acked.get(id).copied().unwrap_or(0);
    let mut out = format!("{}    idx\n", " ".repeat(count));
    for id in &ids {
        let bar = if acked.contains_key(id) {
            let ahead = ids.iter().filter(|other| index(other) < index(id)).count();
            format!("{}>{}", "x".repeat(ahead), " ".repeat(count - ahead))
        } else {
            format!("?{}", " ".repeat(count))
        };
        writeln!(out, "{bar} {:>5}    (id={id:x})", index(id)).unwrap();
    }
    out
}

fn vote(config: &JointConfig, is_joint: bool, votes: &BTreeMap<MemberId, bool>) -> String {
    let result = config.vote_result(|id| votes.get(&id).copied());
    let mut out = String::new();
    let mut check = |other: &JointConfig, via: &str| {
        let other = other.vote_result(|id| votes.get(&id).copied());
        if other != result {
            writeln!(out, "{other} <-- via {via}").unwrap();
        }
    };
    check(&swapped(config), "symmetry");
    if !is_joint {
        check(&with_itself(&config.incoming), "self-joint quorum");
    }
    writeln!(out, "{result}").unwrap();
    out
}
