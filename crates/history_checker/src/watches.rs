//! What a watcher is told, held against the chronicle.
//!
//! A watcher has a place in the chronicle: the next event that it has yet to be told. Whatever it is told
//! must be that event; what it is told of its progress must leave none behind. So one walk through both
//! shows what came twice, came late, was left out or is wrong.

use crate::compactions::Compactions;
use crate::contradiction::{Contradiction, Property};
use crate::operation::KeyValue;
use crate::watcher::{Event, Told, WatchRequest, Watcher};
use crate::{Chronicle, History, Moment};

type Outcome = Result<(), Box<Contradiction>>;

/// Checks all watchers.
pub(crate) fn check(history: &History, compactions: &Compactions) -> Outcome {
    for (at, watcher) in history.watchers.iter().enumerate() {
        Walk::new(history, compactions, watcher)
            .through(watcher)
            .map_err(|why| why.of_watcher(history, at))?;
    }
    Ok(())
}

struct Walk<'a> {
    chronicle: &'a Chronicle,
    compactions: &'a Compactions,
    request: &'a WatchRequest,
    /// The next event: its revision, and its place among those of the revision. Nothing before the watcher
    /// knows where it begins.
    next: Option<(i64, usize)>,
    /// The first revision of which the watcher does not know all.
    known: i64,
}

impl<'a> Walk<'a> {
    fn new(history: &'a History, compactions: &'a Compactions, watcher: &'a Watcher) -> Self {
        let request = &watcher.request;
        let start = request.start_revision;
        let next = (start > 0).then_some((start, 0));
        Self { chronicle: &history.chronicle, compactions, request, next, known: start }
    }

    fn through(mut self, watcher: &Watcher) -> Outcome {
        let mut ended = false;
        for (at, told) in &watcher.told {
            if ended {
                let what = format!("a watcher that has ended is told {told:?}");
                return Err(Contradiction::new(Property::Watched, what));
            }
            match told {
                Told::Created { revision } => {
                    if self.next.is_none() {
                        (self.next, self.known) = (Some((revision + 1, 0)), revision + 1);
                    }
                }
                Told::Events { events, is_fragment } => self.events(*at, events, *is_fragment)?,
                Told::Progress { revision } => self.progress(*revision)?,
                Told::Compacted { revision } => {
                    self.compacted(*at, *revision)?;
                    ended = true;
                }
                Told::Cancelled => ended = true,
            }
        }
        if let Some(complete_to) = watcher.complete_to
            && let Some(missing) = self.upcoming()
            && missing.revision() <= complete_to
        {
            let what = format!("up to {complete_to} all was waited for, but not told: {missing:?}");
            return Err(Contradiction::new(Property::Watched, what));
        }
        Ok(())
    }

    fn events(&mut self, at: Moment, events: &[Event], is_fragment: bool) -> Outcome {
        for event in events {
            let Some(due) = self.upcoming() else {
                let what = format!("an event that never was, or came before: {event:?}");
                return Err(Contradiction::new(Property::Watched, what));
            };
            if event.kv != due.kv || event.is_delete != due.is_delete {
                return Err(Contradiction::new(Property::Watched, self.wrong(event, due)));
            }
            self.previous(at, event)?;
            let (revision, place) = self.next.expect("an event is due");
            (self.next, self.known) = (Some((revision, place + 1)), revision);
        }
        let Some(last) = events.last().map(Event::revision) else { return Ok(()) };
        if !is_fragment {
            self.known = last + 1;
            if let Some(due) = self.upcoming()
                && due.revision() == last
            {
                let what = format!("revision {last} is told without {due:?}");
                return Err(Contradiction::new(Property::Watched, what));
            }
        }
        Ok(())
    }

    /// What is wrong with an event where another is due.
    fn wrong(&self, event: &Event, due: &Event) -> String {
        let (revision, due_revision) = (event.revision(), due.revision());
        let is_known = self.chronicle.events(revision).iter().any(|known| known.kv == event.kv);
        if !is_known {
            format!("an event that never was: {event:?}, where {due:?} is due")
        } else if revision < due_revision {
            format!("an event again, or out of order: {event:?}, where {due:?} is due")
        } else if !self.matches(event) {
            format!("an event that was not asked for: {event:?}")
        } else {
            format!("{event:?} comes next, and skips {due:?}")
        }
    }

    /// What was there before is told when it was asked for, unless it has been forgotten.
    fn previous(&self, at: Moment, event: &Event) -> Outcome {
        let before = event.revision() - 1;
        let due: Option<&KeyValue> =
            if self.request.prev_kv { self.chronicle.at(&event.kv.key, before) } else { None };
        let is_forgotten =
            || event.previous.is_none() && self.compactions.may_have_passed(before, at);
        if event.previous.as_ref() == due || is_forgotten() {
            return Ok(());
        }
        let what = format!("{event:?} should tell that there was {due:?} before");
        Err(Contradiction::new(Property::Watched, what))
    }

    fn progress(&mut self, revision: i64) -> Outcome {
        if let Some(missing) = self.upcoming()
            && missing.revision() <= revision
        {
            let what = format!("told to have seen all up to {revision}, but not {missing:?}");
            return Err(Contradiction::new(Property::Progress, what));
        }
        let start = self.request.start_revision;
        if revision + 1 < start {
            let what = format!("told of progress to {revision}, before it begins at {start}");
            return Err(Contradiction::new(Property::Progress, what));
        }
        self.known = self.known.max(revision + 1);
        Ok(())
    }

    fn compacted(&self, at: Moment, revision: i64) -> Outcome {
        let next = self.known;
        let what = if !self.compactions.may_be_at(revision, at) {
            format!("ended by a compaction at {revision}, which nobody asked for")
        } else if next >= revision {
            format!("ended by a compaction at {revision}, which forgot nothing from {next} on")
        } else {
            return Ok(());
        };
        Err(Contradiction::new(Property::Compacted, what))
    }

    /// The next event that the watcher is due, and puts its place there.
    fn upcoming(&mut self) -> Option<&'a Event> {
        let (mut revision, mut place) = self.next?;
        while revision <= self.chronicle.last() {
            let events = self.chronicle.events(revision);
            while let Some(event) = events.get(place) {
                if self.matches(event) {
                    self.next = Some((revision, place));
                    return Some(event);
                }
                place += 1;
            }
            (revision, place) = (revision + 1, 0);
        }
        self.next = Some((revision, place));
        None
    }

    fn matches(&self, event: &Event) -> bool {
        let is_filtered =
            if event.is_delete { self.request.no_delete } else { self.request.no_put };
        !is_filtered && self.request.keys.contains(&event.kv.key)
    }
}
