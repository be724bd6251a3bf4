//! The threads of this process and their states, read from `/proc/self/task`.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, SystemTime};

use crate::encoding::{FunctionNames, Location, Profile, Row, ValueType};

/// A thread of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// The thread id assigned by the kernel.
    pub id: u32,
    /// The thread's name, of which the kernel stores at most 15 bytes.
    pub name: String,
    /// A short description of the state, such as `sleeping`.
    pub state: &'static str,
}

/// Returns all threads, sorted by id.
#[must_use]
pub fn threads() -> Vec<Thread> {
    let mut threads: Vec<Thread> = ids().into_iter().filter_map(thread).collect();
    threads.sort_by_key(|thread| thread.id);
    threads
}

/// Returns the ids of all threads.
pub(crate) fn ids() -> Vec<u32> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the id of the calling thread; 0 if the system does not report it.
pub(crate) fn own_id() -> u32 {
    let own = fs::read_link("/proc/thread-self").unwrap_or_default();
    own.file_name().and_then(|name| name.to_str()?.parse().ok()).unwrap_or_default()
}

/// Returns the name of a thread, if the thread exists.
pub(crate) fn name(id: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/self/task/{id}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

fn thread(id: u32) -> Option<Thread> {
    let line = fs::read_to_string(format!("/proc/self/task/{id}/stat")).ok()?;
    Some(Thread { id, name: name(id)?, state: state(&line) })
}

/// Parses the state in a line of `stat`. The state follows the name, which may contain any character.
fn state(line: &str) -> &'static str {
    let behind = line.rsplit_once(')').map_or("", |(_, behind)| behind.trim_start());
    match behind.chars().next() {
        Some('R') => "running",
        Some('S') => "sleeping",
        Some('D') => "waiting for the disk",
        Some('T' | 't') => "stopped",
        Some('Z' | 'X') => "ended",
        Some('I') => "idle",
        _ => "unknown",
    }
}

/// Returns a profile of the threads, with one row for each combination of name and state. `what` is the name of the
/// value type.
#[must_use]
pub fn threads_profile(what: &'static str) -> Vec<u8> {
    profile(what, &threads(), &[], SystemTime::now()).encode()
}

/// Returns a profile of the change in the number of threads since `before`.
#[must_use]
pub fn threads_profile_since(what: &'static str, before: &[Thread]) -> Vec<u8> {
    profile(what, &threads(), before, SystemTime::now()).encode()
}

fn profile(what: &'static str, threads: &[Thread], before: &[Thread], now: SystemTime) -> Profile {
    let mut counts: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    for (all, one) in [(threads, 1), (before, -1)] {
        for thread in all {
            *counts.entry((&thread.name, thread.state)).or_default() += one;
        }
    }
    counts.retain(|_, count| *count != 0);
    let mut functions: Vec<FunctionNames> = Vec::new();
    let mut number = |text: &str| {
        let known = functions.iter().position(|function| function.name == text);
        known.unwrap_or_else(|| {
            functions.push(FunctionNames { name: text.to_owned(), symbol: text.to_owned() });
            functions.len() - 1
        }) as u64
            + 1
    };
    let rows = counts
        .into_iter()
        .map(|((name, state), count)| Row {
            locations: vec![number(state), number(name)],
            values: vec![count.cast_unsigned()],
            labels: vec![("thread", name.to_owned()), ("state", state.to_owned())],
        })
        .collect();
    let value = ValueType { what, unit: "count" };
    // Names and states are encoded as functions.
    let location = |function| Location { mapping: 0, address: 0, function };
    Profile {
        types: vec![value],
        rows,
        mappings: Vec::new(),
        locations: (1..=functions.len() as u64).map(location).collect(),
        functions,
        began: now,
        lasted: Duration::ZERO,
        period: Some((value, 1)),
        comments: vec!["threads by name and state; there are no goroutines".to_owned()],
        shown_first: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::tests::{ReadRow, decode};

    #[test]
    fn the_thread_state_is_found_whatever_the_thread_name_contains() {
        assert_eq!(state("7 (conn-0) S 1 7 7"), "sleeping");
        assert_eq!(state("7 (a) R (b) D 1"), "waiting for the disk");
        assert_eq!(state(""), "unknown");
    }

    #[test]
    fn threads_are_grouped_by_name_and_state() {
        let thread = |id, name: &str, state| Thread { id, name: name.to_owned(), state };
        let threads =
            [thread(1, "main", "sleeping"), thread(2, "w", "running"), thread(3, "w", "running")];
        let read = decode(&profile("threads", &threads, &[], SystemTime::now()).encode());
        assert_eq!(read.types, [("threads", "count")].map(|(a, b)| (a.to_owned(), b.to_owned())));
        let seen: Vec<_> =
            read.rows.iter().map(|row| (row.stack.join(" of "), row.values[0])).collect();
        let expected = [("sleeping of main".to_owned(), 1), ("running of w".to_owned(), 2)];
        assert_eq!(seen, expected);
    }

    #[test]
    fn the_difference_of_thread_profiles_contains_started_and_ended_threads() {
        let thread = |id, name: &str| Thread { id, name: name.to_owned(), state: "sleeping" };
        let before = [thread(1, "stays"), thread(2, "goes")];
        let now = [thread(1, "stays"), thread(3, "comes"), thread(4, "comes")];
        let read = decode(&profile("threads", &now, &before, SystemTime::now()).encode());
        let row = |row: &ReadRow| (row.stack.join(" of "), row.values[0].cast_signed());
        let seen: Vec<_> = read.rows.iter().map(row).collect();
        assert_eq!(
            seen,
            [("sleeping of comes".to_owned(), 2), ("sleeping of goes".to_owned(), -1)]
        );
    }

    #[test]
    fn the_calling_thread_is_listed() {
        let own = std::thread::Builder::new().name("to-be-found".to_owned());
        let found = own.spawn(|| threads().into_iter().any(|thread| thread.name == "to-be-found"));
        assert!(found.unwrap().join().unwrap());
    }
}
