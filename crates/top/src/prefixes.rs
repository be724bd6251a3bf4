//! The prefixes of the keyspace: the number of keys in each, their approximate size, and their write rates.
//!
//! Counting does not read all keys. A `Walk` reads a page of keys, asks the cluster to count the keys with the prefix
//! in which the page ends, and continues after that prefix. A small prefix that lies within a page needs no count
//! request. Sizes are extrapolated from the keys in the pages. Write rates are computed from the events of a bounded
//! watch (`Window`), relative to the time for which the watch was active.
//!
//! # Guarantees
//!
//! - If the keyspace does not change, a walk that is not cut off counts each key exactly once.
//! - A walk stops once it has found `PREFIXES_MAX` prefixes; its last page may contain a few more. A window records
//!   writes to at most `PREFIXES_MAX` prefixes.
//!
//! # Not here
//!
//! The requests (`walking`, `watching`) and their pacing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::text::escaped;
use crate::key_range::{KeyRange, prefix_end};

/// The maximum number of prefixes. A walk that reaches this number stops, and the note for the user reports this.
pub(super) const PREFIXES_MAX: usize = 4096;
/// The maximum number of keys in a page.
const PAGE_KEYS_MAX: usize = 32;
/// The target size of the keys and values in a page. The number of keys to request is estimated from the previous page.
const PAGE_BYTES: usize = 128 << 10;
/// If at least this many consecutive keys have fewer separators than [`Shape::depth`], they are grouped by their common
/// beginning.
const STEM_KEYS_MIN: usize = 8;

/// The rules by which keys are grouped.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The common prefix of all keys that are counted.
    pub base: Vec<u8>,
    /// The separator; not empty.
    pub separator: Vec<u8>,
    /// The number of separators in a prefix after the base. A separator directly after the base is not counted.
    pub depth: usize,
}

/// The kind of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// Keys that begin with the group's name, which has the full number of separators.
    Full,
    /// Keys with fewer separators. The group's name ends at their last separator.
    Short,
    /// Keys as in `Short`, but grouped by their common beginning, because there are many of them.
    Stem,
}

/// A group of keys: a prefix, or keys that share a beginning.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// The common beginning of the group's keys.
    pub name: Vec<u8>,
    /// The kind of the group.
    pub form: Form,
}

impl Group {
    /// Returns the text to display for this group.
    pub(super) fn label(&self) -> String {
        let name = escaped(&self.name);
        match self.form {
            Form::Full => name,
            Form::Short => format!("{name}(keys)"),
            Form::Stem => format!("{name}*"),
        }
    }
}

/// A group and its measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct Prefix {
    /// The group of keys.
    pub group: Group,
    /// The number of keys.
    pub keys: Option<u64>,
    /// The estimated total size of keys and values, in bytes.
    pub bytes: Option<f64>,
    /// The number of puts per second.
    pub puts_per_sec: Option<f64>,
    /// The number of deletions per second.
    pub deletes_per_sec: Option<f64>,
    /// The number of bytes written per second.
    pub bytes_per_sec: Option<f64>,
}

impl Shape {
    /// Returns the range of keys to count.
    pub(super) fn range(&self) -> KeyRange {
        KeyRange::prefix(self.base.clone())
    }

    /// Returns the group of a key.
    fn group(&self, key: &[u8]) -> Group {
        let mut end = self.base.len().min(key.len());
        if key[end..].starts_with(&self.separator) {
            end += self.separator.len();
        }
        for _ in 0..self.depth {
            match find(&key[end..], &self.separator) {
                Some(at) => end += at + self.separator.len(),
                None => return Group { name: key[..end].to_vec(), form: Form::Short },
            }
        }
        Group { name: key[..end].to_vec(), form: Form::Full }
    }

    /// Returns the group of a key, given the known common beginnings.
    fn group_among(&self, key: &[u8], stems: &BTreeSet<Vec<u8>>) -> Group {
        let group = self.group(key);
        let stem = stems.range(..=key.to_vec()).next_back().filter(|stem| key.starts_with(stem));
        match stem {
            Some(stem) if group.form == Form::Short => {
                Group { name: stem.clone(), form: Form::Stem }
            }
            _ => group,
        }
    }
}

fn find(text: &[u8], separator: &[u8]) -> Option<usize> {
    text.windows(separator.len()).position(|window| window == separator)
}

/// Returns the common beginning of keys with the same parent. Trailing decimal or hexadecimal digits are not part of
/// the result, because they only number the keys. The common beginning is at least one byte longer than the parent.
fn stem(parent: &[u8], first: &[u8], last: &[u8]) -> Vec<u8> {
    let common = first.iter().zip(last).take_while(|(one, other)| one == other).count();
    let named = first[..common].iter().rposition(|byte| !byte.is_ascii_hexdigit());
    let len = named.map_or(0, |at| at + 1).max(parent.len() + 1).min(first.len());
    first[..len].to_vec()
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Found {
    keys: u64,
    sampled_keys: u64,
    sampled_bytes: u64,
}

/// The next request of a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Read the first keys of a range with their values. The number is the maximum number of keys.
    Page(KeyRange, usize),
    /// Count the keys of a range.
    Count(KeyRange),
    Over,
}

/// One pass over the keyspace.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    shape: Shape,
    rest: KeyRange,
    limit: usize,
    /// The group being counted, with its range.
    counting: Option<(Group, KeyRange)>,
    found: BTreeMap<Group, Found>,
    is_over: bool,
}

impl Walk {
    fn new(shape: Shape) -> Self {
        let rest = shape.range();
        let (counting, found) = (None, BTreeMap::new());
        Self { shape, rest, limit: 1, counting, found, is_over: false }
    }

    fn step(&self) -> Step {
        match &self.counting {
            _ if self.is_over => Step::Over,
            Some((_, range)) => Step::Count(range.clone()),
            None => Step::Page(self.rest.clone(), self.limit),
        }
    }

    /// Processes a page: the keys, each with the size of the key and its value in bytes, and whether more keys follow.
    fn page(&mut self, keys: &[(Vec<u8>, usize)], more: bool) {
        let (Some(first), Some(last)) = (keys.first(), keys.last()) else {
            self.is_over = true;
            return;
        };
        let bytes: usize = keys.iter().map(|(_, bytes)| bytes).sum();
        let fitting = PAGE_BYTES / (bytes / keys.len()).max(1);
        self.limit = fitting.clamp(1, PAGE_KEYS_MAX.min(self.limit * 2));
        let group = |key: &[u8]| self.shape.group(key);
        let runs: Vec<_> = keys.chunk_by(|one, other| group(&one.0) == group(&other.0)).collect();
        let cut = if more { runs.last().copied().unwrap_or_default() } else { &[] };
        let whole = &runs[..runs.len() - usize::from(more)];
        let groups: Vec<_> = whole.iter().map(|run| (group(&run[0].0), *run)).collect();
        let of_cut = cut.first().map(|(key, _)| group(key));
        for (group, run) in groups {
            self.sampled(&group, run).keys += run.len() as u64;
        }
        match of_cut {
            None => self.is_over = true,
            Some(group) if group.form == Form::Full => {
                self.sampled(&group, cut);
                let range = KeyRange::prefix(group.name.clone());
                self.counting = Some((group, range));
            }
            Some(group) if whole.is_empty() && keys.len() >= STEM_KEYS_MIN => {
                let name = stem(&group.name, &first.0, &last.0);
                // The keys of this group before `first` have already been counted.
                let range = KeyRange { key: first.0.clone(), end: prefix_end(&name) };
                let group = Group { name, form: Form::Stem };
                self.sampled(&group, cut);
                self.counting = Some((group, range));
            }
            Some(group) => {
                self.sampled(&group, cut).keys += cut.len() as u64;
                let next = [&last.0[..], &[0]].concat();
                self.go_on(next);
            }
        }
        self.is_over |= self.was_cut();
    }

    /// Processes the result of a count request.
    fn counted(&mut self, keys: u64) {
        if let Some((group, range)) = self.counting.take() {
            self.found.entry(group).or_default().keys += keys;
            self.go_on(range.end);
        }
    }

    fn go_on(&mut self, next: Vec<u8>) {
        let is_behind = |end: &[u8]| end != [0] && &next[..] >= end;
        self.is_over = next == [0] || is_behind(&self.rest.end);
        self.rest.key = next;
    }

    fn sampled(&mut self, group: &Group, run: &[(Vec<u8>, usize)]) -> &mut Found {
        let found = self.found.entry(group.clone()).or_default();
        found.sampled_keys += run.len() as u64;
        found.sampled_bytes += run.iter().map(|(_, bytes)| *bytes as u64).sum::<u64>();
        found
    }

    /// Returns whether the walk stopped at `PREFIXES_MAX`.
    fn was_cut(&self) -> bool {
        self.found.len() >= PREFIXES_MAX
    }
}

/// The events of one time window.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    groups: BTreeMap<Group, Written>,
    pub(super) events: usize,
    pub(super) bytes: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Written {
    puts: u64,
    deletes: u64,
    bytes: u64,
}

/// The known prefixes, with the progress of the current count and the events of the current watch window.
#[derive(Debug)]
pub(super) struct Catalog {
    shape: Shape,
    walk: Walk,
    /// The result of the last complete walk.
    last: Option<BTreeMap<Group, Found>>,
    stems: BTreeSet<Vec<u8>>,
    window: Window,
    rates: Option<BTreeMap<Group, [f64; 3]>>,
}

impl Catalog {
    pub(super) fn new(shape: Shape) -> Self {
        let walk = Walk::new(shape.clone());
        let (stems, window) = (BTreeSet::new(), Window::default());
        Self { shape, walk, last: None, stems, window, rates: None }
    }

    /// Returns the next request of the walk.
    pub(super) fn step(&self) -> Step {
        self.walk.step()
    }

    pub(super) fn page(&mut self, keys: &[(Vec<u8>, usize)], more: bool) {
        self.walk.page(keys, more);
        let stems = self.walk.found.keys().filter(|group| group.form == Form::Stem);
        self.stems.extend(stems.map(|group| group.name.clone()));
    }

    pub(super) fn counted(&mut self, keys: u64) {
        self.walk.counted(keys);
    }

    /// Starts the next walk.
    pub(super) fn begin(&mut self) {
        let walk = std::mem::replace(&mut self.walk, Walk::new(self.shape.clone()));
        let stems = walk.found.keys().filter(|group| group.form == Form::Stem);
        self.stems = stems.map(|group| group.name.clone()).collect();
        self.last = Some(walk.found);
    }

    /// Records a change that the watch reported.
    pub(super) fn changed(&mut self, key: &[u8], bytes: usize, is_put: bool) {
        self.window.events += 1;
        self.window.bytes += bytes;
        let group = self.shape.group_among(key, &self.stems);
        if self.window.groups.len() >= PREFIXES_MAX && !self.window.groups.contains_key(&group) {
            return;
        }
        let written = self.window.groups.entry(group).or_default();
        if is_put {
            written.puts += 1;
            written.bytes += bytes as u64;
        } else {
            written.deletes += 1;
        }
    }

    /// Returns the number of events and of bytes in this window.
    pub(super) const fn received(&self) -> (usize, usize) {
        (self.window.events, self.window.bytes)
    }

    /// Ends a window, during which the watch was active for `listening`. If the watch was not active at all, the
    /// previous rates are kept.
    pub(super) fn end_window(&mut self, listening: Duration) {
        let window = std::mem::take(&mut self.window);
        if listening.is_zero() {
            return;
        }
        let per_sec = |count: u64| count as f64 / listening.as_secs_f64();
        let rates = window.groups.into_iter().map(|(group, written)| {
            let rates = [written.puts, written.deletes, written.bytes].map(per_sec);
            (group, rates)
        });
        self.rates = Some(rates.collect());
    }

    /// Drops the rates, because the watch no longer reports changes.
    pub(super) fn forget_rates(&mut self) {
        self.rates = None;
    }

    /// Returns all prefixes with their measurements.
    pub(super) fn rows(&self) -> Vec<Prefix> {
        let nothing = BTreeMap::new();
        let last = self.last.as_ref().unwrap_or(&nothing);
        let written = self.rates.iter().flat_map(BTreeMap::keys);
        let groups: BTreeSet<&Group> =
            self.walk.found.keys().chain(last.keys()).chain(written).collect();
        groups.into_iter().map(|group| self.row(group, last)).collect()
    }

    fn row(&self, group: &Group, last: &BTreeMap<Group, Found>) -> Prefix {
        let is_being_counted =
            self.walk.counting.as_ref().is_some_and(|(counting, _)| counting == group);
        let found = self.walk.found.get(group).filter(|_| !is_being_counted);
        let found = found.or_else(|| last.get(group));
        let rates = self.rates.as_ref().map(|rates| rates.get(group).copied().unwrap_or_default());
        Prefix {
            group: group.clone(),
            keys: found.map(|found| found.keys),
            bytes: found.filter(|found| found.sampled_keys > 0).map(|found| {
                found.keys as f64 * found.sampled_bytes as f64 / found.sampled_keys as f64
            }),
            puts_per_sec: rates.map(|rates| rates[0]),
            deletes_per_sec: rates.map(|rates| rates[1]),
            bytes_per_sec: rates.map(|rates| rates[2]),
        }
    }

    /// Returns the progress of the count, as a string for the user.
    pub(super) fn progress(&self) -> String {
        let found = if self.walk.is_over { Some(&self.walk.found) } else { self.last.as_ref() };
        let Some(found) = found else {
            return format!("counting, {} so far", self.walk.found.len());
        };
        let keys: u64 = found.values().map(|found| found.keys).sum();
        if found.len() >= PREFIXES_MAX {
            return format!(
                "at least {PREFIXES_MAX}, so the count stopped; reduce their number with --prefix-depth or --prefix"
            );
        }
        format!("{keys} keys in {}", found.len())
    }
}

#[cfg(test)]
mod tests;
