//! The search for an order, using the algorithm of Wing and Gong with Lowe's cache of visited states.
//!
//! Calls and returns form a list ordered by time. The search picks a call that comes before the first return, lets the
//! operation take effect, and continues without it. If the first return comes before every call that fits, the last
//! choice was wrong and the next one is tried. The set of operations that have taken effect, together with the
//! resulting state, determines everything that can follow, so no such pair is visited twice. Choosing an operation that
//! only reads the state is never wrong, so backtracking does not stop at such a choice, but also undoes the previous
//! choice.
//!
//! The work is bounded by the given time limit and by the memory for the pairs.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::Operation;
use super::register::{Action, Answer, Value, step};

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Some order explains the history.
    Linearizable,
    /// No order explains the history. The text describes the progress of the search.
    Illegal(String),
    /// The search reached one of its limits first.
    Unknown,
}

/// Maximum size, in 64-bit words, of the cache of visited pairs. The value corresponds to half a gigabyte.
const WORDS_MAX: usize = 64 << 20;
/// Number of choices between two reads of the clock.
const LOOK: u32 = 1024;
/// Maximum number of operations of each kind that a failure prints.
const SHOWN: usize = 12;

/// A call or return in the list, linked by index. The list begins with an empty element.
#[derive(Clone, Copy, Debug)]
struct Entry {
    operation: usize,
    is_call: bool,
    previous: usize,
    next: usize,
}

const HEAD: usize = 0;
const END: usize = usize::MAX;

struct Search<'a> {
    operations: &'a [Operation],
    entries: Vec<Entry>,
    /// Index of each operation's return; `None` if the operation has no answer.
    returns: Vec<Option<usize>>,
    taken: Taken,
    /// Deletions without an answer, in the order of their calls. They are interchangeable, so only the first remaining
    /// deletion is tried, and the deletions that have taken effect always come first in the list.
    deletions: Vec<usize>,
    deleted: usize,
    state: Option<Value>,
    /// Calls that have taken effect, in order, each with the state before it.
    order: Vec<(usize, Option<Value>)>,
    /// Number of answered operations that have not taken effect yet.
    left: usize,
    tried: HashSet<Box<[u64]>>,
    words: usize,
    /// Furthest progress: the remaining operations, the state, the order, and the operation that did not fit.
    furthest: Option<Stuck>,
}

#[derive(Debug)]
struct Stuck {
    left: usize,
    state: Option<Value>,
    order: Vec<usize>,
    operation: usize,
}

/// Searches for an order.
pub(super) fn search(operations: &[Operation], budget: Duration) -> Verdict {
    let start = Instant::now();
    let mut search = Search::new(operations);
    let mut place = search.entries[HEAD].next;
    let mut looks = 0_u32;
    while search.left > 0 {
        looks += 1;
        if looks.is_multiple_of(LOOK) && start.elapsed() > budget || search.words > WORDS_MAX {
            return Verdict::Unknown;
        }
        debug_assert_ne!(place, END, "the list contains a return for each remaining operation");
        let entry = search.entries[place];
        if entry.is_call {
            place = if search.take(place) { search.entries[HEAD].next } else { entry.next };
            continue;
        }
        search.remember_stuck(entry.operation);
        match search.take_back() {
            Some(next) => place = next,
            None => return Verdict::Illegal(search.explain()),
        }
    }
    Verdict::Linearizable
}

impl<'a> Search<'a> {
    fn new(operations: &'a [Operation]) -> Self {
        // If a call and a return have the same time, the call comes first, because the operations then overlap.
        let mut events: Vec<(u64, bool, usize)> = Vec::new();
        for (number, operation) in operations.iter().enumerate() {
            events.push((operation.called, false, number));
            if let Some((returned, _)) = operation.answer {
                assert!(
                    returned >= operation.called,
                    "the answer precedes the call: {operation:?}"
                );
                events.push((returned, true, number));
            }
        }
        events.sort_unstable();
        let mut entries = vec![Entry { operation: 0, is_call: false, previous: END, next: END }];
        let mut returns = vec![None; operations.len()];
        for (_, is_return, operation) in events {
            let place = entries.len();
            if is_return {
                returns[operation] = Some(place);
            }
            entries[place - 1].next = place;
            entries.push(Entry { operation, is_call: !is_return, previous: place - 1, next: END });
        }
        let unanswered = |number: &usize| operations[*number].answer.is_none();
        let mut deletions: Vec<usize> = (0..operations.len())
            .filter(|number| operations[*number].action == Action::Delete)
            .filter(unanswered)
            .collect();
        deletions.sort_by_key(|number| operations[*number].called);
        Self {
            operations,
            entries,
            returns,
            taken: Taken::new(operations),
            deletions,
            deleted: 0,
            state: None,
            order: Vec::new(),
            left: operations.iter().filter(|operation| operation.answer.is_some()).count(),
            tried: HashSet::new(),
            words: 0,
            furthest: None,
        }
    }

    /// Lets a called operation take effect if it fits and the resulting pair has not been visited before.
    fn take(&mut self, place: usize) -> bool {
        let number = self.entries[place].operation;
        let operation = &self.operations[number];
        let answer = operation.answer.map(|(_, answer)| answer);
        let Some(state) = step(self.state, operation.action, answer) else { return false };
        // An operation without an answer need never take effect, so it is tried only where it makes a difference.
        let deletes = answer.is_none() && operation.action == Action::Delete;
        let is_next = self.deletions.get(self.deleted) == Some(&number);
        if answer.is_none() && state == self.state || deletes && !is_next {
            return false;
        }
        self.taken.set(number, true);
        let pair = self.taken.with(state);
        let words = pair.len();
        if !self.tried.insert(pair) {
            self.taken.set(number, false);
            return false;
        }
        self.words += words;
        self.deleted += usize::from(deletes);
        self.order.push((place, self.state));
        self.state = state;
        self.left -= usize::from(answer.is_some());
        self.unlink(place);
        if let Some(returned) = self.returns[number] {
            self.unlink(returned);
        }
        true
    }

    /// Undoes effects back to the last choice that is not a read, and undoes that choice as well. Returns the position
    /// from which to search for another choice.
    fn take_back(&mut self) -> Option<usize> {
        while let Some((place, before)) = self.order.pop() {
            let number = self.entries[place].operation;
            if let Some(returned) = self.returns[number] {
                self.relink(returned);
                self.left += 1;
            }
            self.relink(place);
            self.taken.set(number, false);
            let Operation { action, answer, .. } = &self.operations[number];
            self.deleted -= usize::from(answer.is_none() && *action == Action::Delete);
            let is_read = self.state == before && matches!(answer, Some((_, Answer::Found(_))));
            self.state = before;
            if !is_read {
                return Some(self.entries[place].next);
            }
        }
        None
    }

    fn unlink(&mut self, place: usize) {
        let Entry { previous, next, .. } = self.entries[place];
        self.entries[previous].next = next;
        if next != END {
            self.entries[next].previous = previous;
        }
    }

    /// Undoes the last [`Self::unlink`].
    fn relink(&mut self, place: usize) {
        let Entry { previous, next, .. } = self.entries[place];
        self.entries[previous].next = place;
        if next != END {
            self.entries[next].previous = place;
        }
    }

    fn remember_stuck(&mut self, operation: usize) {
        if self.furthest.as_ref().is_none_or(|furthest| self.left < furthest.left) {
            let order = self.order.iter().map(|(place, _)| self.entries[*place].operation);
            let (left, state) = (self.left, self.state);
            self.furthest = Some(Stuck { left, state, order: order.collect(), operation });
        }
    }

    fn explain(&self) -> String {
        let Some(stuck) = &self.furthest else { return String::new() };
        let mut lines = Vec::new();
        let mut say = |line: String| lines.push(line);
        let line = |number: &usize| {
            let operation = &self.operations[*number];
            let Operation { client, action, called, answer } = operation;
            let answer = match answer {
                Some((returned, Answer::Done)) => format!("{returned}: done"),
                Some((returned, Answer::Found(found))) => format!("{returned}: found {found:?}"),
                None => "?".to_owned(),
            };
            format!("  client {client} {called}..{answer} {action:?}")
        };
        say(format!(
            "longest valid order found: {} operations, the last of them:",
            stuck.order.len()
        ));
        let skipped = stuck.order.len().saturating_sub(SHOWN);
        stuck.order.iter().skip(skipped).map(line).for_each(&mut say);
        say(format!("the resulting state is {:?}, which contradicts this operation:", stuck.state));
        say(line(&stuck.operation));
        say("nor could any of these operations take effect next:".to_owned());
        let limit =
            self.operations[stuck.operation].answer.map_or(u64::MAX, |(returned, _)| returned);
        let others = (0..self.operations.len()).filter(|number| {
            *number != stuck.operation
                && self.operations[*number].called <= limit
                && !stuck.order.contains(number)
        });
        others.take(SHOWN).map(|number| line(&number)).for_each(&mut say);
        lines.join("\n")
    }
}

/// The set of operations that have taken effect. Answered operations are numbered in the order of their calls. Usually,
/// all except the last few answered operations have taken effect. Therefore the set starts with the first answered
/// operation that has not taken effect.
struct Taken {
    /// For each operation, whether it has an answer, and its bit number in `answered` or `unanswered`.
    bits: Vec<(bool, usize)>,
    answered: Vec<u64>,
    /// First answered operation that has not taken effect.
    first: usize,
    unanswered: Vec<u64>,
}

impl Taken {
    fn new(operations: &[Operation]) -> Self {
        let mut by_call: Vec<usize> = (0..operations.len()).collect();
        by_call.sort_by_key(|number| operations[*number].called);
        let mut bits = vec![(false, 0); operations.len()];
        let mut counts = [0_usize; 2];
        for number in by_call {
            let answered = operations[number].answer.is_some();
            let count = &mut counts[usize::from(answered)];
            bits[number] = (answered, *count);
            *count += 1;
        }
        let words = |count: usize| vec![0; count.div_ceil(64)];
        Self { bits, answered: words(counts[1]), first: 0, unanswered: words(counts[0]) }
    }

    fn set(&mut self, number: usize, taken: bool) {
        let (answered, bit) = self.bits[number];
        let words = if answered { &mut self.answered } else { &mut self.unanswered };
        let mask = 1 << (bit % 64);
        if taken {
            words[bit / 64] |= mask;
        } else {
            words[bit / 64] &= !mask;
        }
        if answered {
            if !taken {
                self.first = self.first.min(bit);
            }
            let is_taken = |bit: usize| {
                self.answered.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1)
            };
            while is_taken(self.first) {
                self.first += 1;
            }
        }
    }

    /// Returns the set and the state as a pair for the cache.
    fn with(&self, state: Option<Value>) -> Box<[u64]> {
        let from = self.first / 64;
        let end = self.answered.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        let tail = self.answered.get(from..end.max(from)).unwrap_or_default();
        let mut pair = Vec::with_capacity(3 + self.unanswered.len() + tail.len());
        pair.extend([u64::from(state.is_some()), state.unwrap_or_default(), from as u64]);
        pair.extend_from_slice(&self.unanswered);
        pair.extend_from_slice(tail);
        pair.into_boxed_slice()
    }
}
