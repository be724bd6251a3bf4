//! Checks the messages to each watcher against the event log.
//!
//! A watcher has a position in the event log: the next event that it must receive. Each received event must equal the
//! event at this position, and a progress notification must name a revision before the revision of this event. One pass
//! over the messages and the event log finds events that are duplicated, late, missing or wrong.

use crate::compactions::Compactions;
use crate::operation::KeyValue;
use crate::violation::{Property, Violation};
use crate::watcher::{Event, WatchMessage, WatchRequest, Watcher};
use crate::{EventLog, History, Moment};

type Outcome = Result<(), Box<Violation>>;

/// Checks all watchers.
pub(crate) fn check(history: &History, compactions: &Compactions) -> Outcome {
    for (at, watcher) in history.watchers.iter().enumerate() {
        Walk::new(history, compactions, watcher)
            .through(watcher)
            .map_err(|violation| violation.of_watcher(history, at))?;
    }
    Ok(())
}

struct Walk<'a> {
    event_log: &'a EventLog,
    compactions: &'a Compactions,
    request: &'a WatchRequest,
    /// The revision of the next event, and the event's position in that revision. `None` until the start of the watch
    /// is known.
    next: Option<(i64, usize)>,
    /// The first revision whose events the watcher has not received completely.
    known: i64,
}

impl<'a> Walk<'a> {
    fn new(history: &'a History, compactions: &'a Compactions, watcher: &'a Watcher) -> Self {
        let request = &watcher.request;
        let start = request.start_revision;
        let next = (start > 0).then_some((start, 0));
        Self { event_log: &history.event_log, compactions, request, next, known: start }
    }

    fn through(mut self, watcher: &Watcher) -> Outcome {
        let mut ended = false;
        for (at, message) in &watcher.messages {
            if ended {
                let description = format!("the watcher has ended, but received {message:?}");
                return Err(Violation::new(Property::WatchEvents, description));
            }
            match message {
                WatchMessage::Created { revision } => {
                    if self.next.is_none() {
                        (self.next, self.known) = (Some((revision + 1, 0)), revision + 1);
                    }
                }
                WatchMessage::Events { events, is_fragment } => {
                    self.events(*at, events, *is_fragment)?;
                }
                WatchMessage::Progress { revision } => self.progress(*revision)?,
                WatchMessage::Compacted { revision } => {
                    self.compacted(*at, *revision)?;
                    ended = true;
                }
                WatchMessage::Cancelled => ended = true,
            }
        }
        if let Some(complete_to) = watcher.complete_to
            && let Some(missing) = self.upcoming()
            && missing.revision() <= complete_to
        {
            let description = format!(
                "the recorder waited for every event up to revision {complete_to}, but the watcher did not receive \
                 {missing:?}"
            );
            return Err(Violation::new(Property::WatchEvents, description));
        }
        Ok(())
    }

    fn events(&mut self, at: Moment, events: &[Event], is_fragment: bool) -> Outcome {
        for event in events {
            let Some(expected) = self.upcoming() else {
                let description = format!(
                    "received an event that does not exist, or received an event twice: {event:?}"
                );
                return Err(Violation::new(Property::WatchEvents, description));
            };
            if event.kv != expected.kv || event.is_delete != expected.is_delete {
                return Err(Violation::new(Property::WatchEvents, self.wrong(event, expected)));
            }
            self.previous(at, event)?;
            let (revision, place) = self.next.expect("an event is expected");
            (self.next, self.known) = (Some((revision, place + 1)), revision);
        }
        let Some(last) = events.last().map(Event::revision) else { return Ok(()) };
        if !is_fragment {
            self.known = last + 1;
            if let Some(expected) = self.upcoming()
                && expected.revision() == last
            {
                let description = format!("revision {last} was sent without {expected:?}");
                return Err(Violation::new(Property::WatchEvents, description));
            }
        }
        Ok(())
    }

    /// Describes what is wrong with an event that differs from the expected one.
    fn wrong(&self, event: &Event, expected: &Event) -> String {
        let (revision, expected_revision) = (event.revision(), expected.revision());
        let is_known = self.event_log.events(revision).iter().any(|known| known.kv == event.kv);
        if !is_known {
            format!("received an event that does not exist: {event:?} instead of {expected:?}")
        } else if revision < expected_revision {
            format!("received an event twice or out of order: {event:?} instead of {expected:?}")
        } else if !self.matches(event) {
            format!("received an event that the request excludes: {event:?}")
        } else {
            format!("received {event:?} without the preceding {expected:?}")
        }
    }

    /// Checks the previous record of an event. A requested record must be present unless it has been compacted.
    fn previous(&self, at: Moment, event: &Event) -> Outcome {
        let before = event.revision() - 1;
        let expected: Option<&KeyValue> =
            if self.request.prev_kv { self.event_log.at(&event.kv.key, before) } else { None };
        let is_forgotten =
            || event.previous.is_none() && self.compactions.may_have_passed(before, at);
        if event.previous.as_ref() == expected || is_forgotten() {
            return Ok(());
        }
        let description = format!("the previous record of {event:?} should be {expected:?}");
        Err(Violation::new(Property::WatchEvents, description))
    }

    fn progress(&mut self, revision: i64) -> Outcome {
        if let Some(missing) = self.upcoming()
            && missing.revision() <= revision
        {
            let description =
                format!("progress to revision {revision} was reported without {missing:?}");
            return Err(Violation::new(Property::WatchProgress, description));
        }
        let start = self.request.start_revision;
        if revision + 1 < start {
            let description = format!(
                "progress to revision {revision} was reported before the start revision {start}"
            );
            return Err(Violation::new(Property::WatchProgress, description));
        }
        self.known = self.known.max(revision + 1);
        Ok(())
    }

    fn compacted(&self, at: Moment, revision: i64) -> Outcome {
        let next = self.known;
        let description = if !self.compactions.may_be_at(revision, at) {
            format!(
                "ended by a compaction at revision {revision}, but no such compaction was requested"
            )
        } else if next >= revision {
            format!(
                "ended by a compaction at revision {revision}, which removed no event from revision {next} on"
            )
        } else {
            return Ok(());
        };
        Err(Violation::new(Property::Compaction, description))
    }

    /// Returns the next event that the watcher must receive, and advances the position to it.
    fn upcoming(&mut self) -> Option<&'a Event> {
        let (mut revision, mut place) = self.next?;
        while revision <= self.event_log.last() {
            let events = self.event_log.events(revision);
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
