//! Compares the log with a list of entries after random operations: saving, overwriting, starting
//! new segments, and reopening.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// Saves `count` entries of `bytes` bytes each, which replace the last `back` entries of the
    /// log.
    Save {
        back: u64,
        count: u64,
        bytes: usize,
    },
    Commit,
    Prepare,
    Mark,
    Reopen {
        clean: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u64..3, 0u64..5, 0usize..3000)
            .prop_map(|(back, count, bytes)| Step::Save { back, count, bytes }),
        2 => Just(Step::Commit),
        1 => Just(Step::Prepare),
        1 => Just(Step::Mark),
        1 => any::<bool>().prop_map(|clean| Step::Reopen { clean }),
    ]
}

/// The expected content of the log.
#[derive(Default)]
struct Model {
    entries: Vec<Entry>,
    durable_state: HardState,
    state: HardState,
    marked: u64,
}

impl Model {
    fn save(&mut self, wal: &mut Wal, back: u64, count: u64, bytes: usize) {
        let kept = (self.entries.len() as u64).saturating_sub(back).max(self.marked);
        self.state.term += 1;
        let term = self.state.term;
        let new: Vec<Entry> =
            (1..=count).map(|n| entry(kept + n, term, &vec![n as u8; bytes])).collect();
        if count > 0 {
            self.entries.truncate(kept as usize);
            self.entries.extend(new.iter().cloned());
        }
        assert!(wal.save(Some(&self.state), &new).unwrap().synced);
        self.durable_state = self.state;
    }

    fn commit(&mut self, wal: &mut Wal) {
        self.state.commit = self.entries.len() as u64;
        if !self.state.is_empty() {
            assert!(!wal.save(Some(&self.state), &[]).unwrap().synced);
        }
    }

    fn mark(&mut self, wal: &mut Wal) {
        self.marked = self.entries.len() as u64;
        wal.save_snapshot(&mark(self.marked, self.state.term)).unwrap();
        self.durable_state = self.state;
    }

    fn check(&self, contents: &Contents) {
        assert_eq!(contents.entries, self.entries);
        assert_eq!(contents.hard_state, self.durable_state);
        assert_eq!(contents.metadata, Some(metadata()));
        assert_eq!(contents.repaired, None);
    }
}

fn run(steps: &[Step]) {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("wal");
    let options = Options { segment_bytes: 8192, sync: false, ..small_options() };
    let reopen = || Wal::open(real(), &dir, &SnapshotMark::default(), options.clone()).unwrap();
    let mut wal = Wal::create(real(), &dir, metadata(), options.clone()).unwrap();
    let mut model = Model::default();
    for step in steps {
        match *step {
            Step::Save { back, count, bytes } => model.save(&mut wal, back, count, bytes),
            Step::Commit => model.commit(&mut wal),
            Step::Prepare => drop(wal.prepare(4096).unwrap()),
            Step::Mark if model.entries.is_empty() => {}
            Step::Mark => model.mark(&mut wal),
            Step::Reopen { clean } => {
                if clean {
                    wal.close().unwrap();
                    model.durable_state = model.state;
                } else {
                    drop(wal);
                    model.state = model.durable_state;
                }
                let contents;
                (wal, contents) = reopen();
                model.check(&contents);
            }
        }
    }
    drop(wal);
    model.check(&reopen().1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_log_contains_the_saved_entries_after_random_operations(steps in proptest::collection::vec(step(), 1..60)) {
        run(&steps);
    }
}
