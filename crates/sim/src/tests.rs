//! Tests of whole runs: a run is repeatable, and a run can fail.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use quorate_raft::{Entry, EntryKind, LogIndex, Term};

use crate::judge::Judge;
use crate::plan::{Less, Plan};
use crate::run::run;

fn traced(seed: u64) -> (u64, Vec<String>) {
    let lines = Rc::new(RefCell::new(Vec::new()));
    let kept = Rc::clone(&lines);
    let sink = Box::new(move |line| kept.borrow_mut().push(line));
    let less = Less { seconds_max: Some(10), ..Less::default() };
    let run = run(seed, &less, Instant::now(), Some(sink));
    assert_eq!(run.wrong, None, "seed {seed}");
    let lines = lines.take();
    (run.sum, lines)
}

#[test]
fn a_seed_gives_the_same_run_each_time_and_another_seed_another() {
    let (first, second) = (traced(1), traced(1));
    assert!(first.1.len() > 20, "something happens");
    assert_eq!(first, second);
    assert_ne!(first.0, traced(2).0);
}

#[test]
fn what_a_run_leaves_out_changes_nothing_else_of_its_plan() {
    for seed in 0..100 {
        let whole = Plan::draw(seed, &Less::default());
        let Some(kind) = whole.kinds.first().copied() else { continue };
        let less = Less { without: [kind].into(), seconds_max: None };
        let fewer = Plan::draw(seed, &less);
        assert!(!fewer.has(kind) && fewer.kinds.len() + 1 == whole.kinds.len());
        assert_eq!(
            (fewer.founders, fewer.keys, fewer.delay),
            (whole.founders, whole.keys, whole.delay)
        );
    }
}

fn entry(index: u64, term: u64) -> Entry {
    Entry { term: Term(term), index: LogIndex(index), kind: EntryKind::Normal, data: Bytes::new() }
}

#[test]
fn the_judge_objects_to_members_that_contradict_each_other() {
    let mut judge = Judge::new(1);
    judge.note_committed(0, &[entry(1, 1), entry(2, 2)]);
    judge.note_committed(1, &[entry(1, 1)]);
    judge.note_leader(Term(2), 7, LogIndex::ZERO);
    judge.note_leader(Term(2), 7, LogIndex::ZERO);
    assert_eq!(judge.verdict(), None);
    judge.note_committed(1, &[entry(2, 3)]);
    assert!(judge.verdict().unwrap().contains("another entry 2"));

    let mut judge = Judge::new(1);
    judge.note_leader(Term(2), 7, LogIndex::ZERO);
    judge.note_leader(Term(2), 8, LogIndex::ZERO);
    assert!(judge.verdict().unwrap().contains("both lead in term 2"));
}
