//! Tests of whole runs: runs are repeatable, and the judge finds failures.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use quorate_raft::{Entry, EntryKind, LogIndex, Term};

use crate::judge::Judge;
use crate::plan::{Kind, Plan, Reduction};
use crate::rare_states::RareStates;
use crate::run::run;

fn traced(seed: u64) -> (u64, Vec<String>) {
    let lines = Rc::new(RefCell::new(Vec::new()));
    let kept = Rc::clone(&lines);
    let sink = Box::new(move |line| kept.borrow_mut().push(line));
    let reduction = Reduction { seconds_max: Some(10), ..Reduction::default() };
    let run = run(seed, &reduction, Instant::now(), Some(sink));
    assert_eq!(run.failure, None, "seed {seed}");
    let lines = lines.take();
    (run.sum, lines)
}

#[test]
fn runs_with_equal_seeds_are_equal_and_runs_with_different_seeds_differ() {
    let (first, second) = (traced(1), traced(1));
    assert!(first.1.len() > 20, "the run has events");
    assert_eq!(first, second);
    assert_ne!(first.0, traced(2).0);
}

#[test]
fn omitting_a_kind_of_fault_does_not_change_the_rest_of_the_plan() {
    for seed in 0..100 {
        let whole = Plan::draw(seed, &Reduction::default());
        let Some(kind) = whole.kinds.first().copied() else { continue };
        let reduction = Reduction { without: [kind].into(), seconds_max: None };
        let fewer = Plan::draw(seed, &reduction);
        assert!(!fewer.has(kind) && fewer.kinds.len() + 1 == whole.kinds.len());
        assert_eq!(
            (fewer.founders, fewer.keys, fewer.delay),
            (whole.founders, whole.keys, whole.delay)
        );
    }
}

/// If the leader refuses connections, the other members assume that its process has ended, and elect a new leader at
/// once. The runs of this test have no other kinds of faults, so every process that is reported as ended is still
/// running.
#[test]
fn a_running_process_that_refuses_connections_is_reported_as_ended() {
    let without = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Refusal).collect();
    let reduction = Reduction { without, seconds_max: Some(10) };
    let seeds = (1..).filter(|seed| {
        let plan = Plan::draw(*seed, &reduction);
        plan.has(Kind::Refusal) && plan.founders > 1
    });
    let mut reached = RareStates::default();
    for seed in seeds.take(3) {
        let run = run(seed, &reduction, Instant::now(), None);
        assert_eq!(run.failure, None, "seed {seed}");
        reached.merge(&run.rare_states);
    }
    for state in [
        "a host refuses connections while its process runs",
        "a running process is reported as ended",
    ] {
        assert!(reached.iter().any(|(reached, _)| reached == state), "{state}: {reached:?}");
    }
}

fn entry(index: u64, term: u64) -> Entry {
    Entry { term: Term(term), index: LogIndex(index), kind: EntryKind::Normal, data: Bytes::new() }
}

#[test]
fn the_judge_reports_members_that_contradict_each_other() {
    let mut judge = Judge::new(1);
    judge.note_committed(0, &[entry(1, 1), entry(2, 2)]);
    judge.note_committed(1, &[entry(1, 1)]);
    judge.note_leader(Term(2), 7, LogIndex::ZERO);
    judge.note_leader(Term(2), 7, LogIndex::ZERO);
    assert_eq!(judge.failure(), None);
    judge.note_committed(1, &[entry(2, 3)]);
    assert!(judge.failure().unwrap().contains("applies entry 2 of term"));

    let mut judge = Judge::new(1);
    judge.note_leader(Term(2), 7, LogIndex::ZERO);
    judge.note_leader(Term(2), 8, LogIndex::ZERO);
    assert!(judge.failure().unwrap().contains("both lead in term 2"));
}
