//! What the parts of a running display share: who draws, who asks, who counts and who watches are one thread.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::prefixes::{Catalog, Shape};
use super::text::span;
use crate::client::Client;

/// How the watch on what is written fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Watching {
    Off,
    /// It tells everything, or in the last window only for this share of the time, in hundredths.
    On(u32),
    Refused(String),
}

/// See the module.
pub(super) struct Shared {
    pub(super) shape: Shape,
    pub(super) catalog: RefCell<Catalog>,
    /// When the counts that are shown were complete.
    pub(super) counted_at: Cell<Option<Instant>>,
    /// Why keys cannot be counted.
    pub(super) uncounted: RefCell<Option<String>>,
    pub(super) watching: RefCell<Watching>,
    /// A member that serves reads, if one is known.
    pub(super) reader: RefCell<Option<Rc<Client>>>,
    pub(super) interval: Cell<Duration>,
    pub(super) is_paused: Cell<bool>,
    /// Told when a window has ended, and with it a refresh, or the display was paused, goes on, or has another interval.
    pub(super) turned: Notify,
}

impl Shared {
    pub(super) fn new(shape: Shape, interval: Duration) -> Self {
        Self {
            catalog: RefCell::new(Catalog::new(shape.clone())),
            shape,
            counted_at: Cell::new(None),
            uncounted: RefCell::new(None),
            watching: RefCell::new(Watching::Off),
            reader: RefCell::new(None),
            interval: Cell::new(interval),
            is_paused: Cell::new(false),
            turned: Notify::new(),
        }
    }

    /// The member to read from, unless nothing is to be asked.
    pub(super) fn may_read(&self) -> Option<Rc<Client>> {
        self.reader.borrow().clone().filter(|_| !self.is_paused.get())
    }

    /// How long ago the counts that are shown were complete.
    pub(super) fn age(&self) -> Option<Duration> {
        self.counted_at.get().map(|at| at.elapsed())
    }

    /// What there is to say about prefixes.
    pub(super) fn note(&self) -> String {
        let counted = match &*self.uncounted.borrow() {
            Some(reason) => format!("keys are not counted: {reason}"),
            None => {
                let age = self.age().map(|age| format!(", counted {} ago", span(age)));
                format!("prefixes: {}{}", self.catalog.borrow().progress(), age.unwrap_or_default())
            }
        };
        let watched = match &*self.watching.borrow() {
            Watching::Off => "writes are not watched".to_owned(),
            Watching::On(100) => "writes: all seen".to_owned(),
            Watching::On(percent) => format!("writes: seen for {percent}% of the time"),
            Watching::Refused(reason) => format!("writes are not watched: {reason}"),
        };
        format!("{counted}; {watched}")
    }
}
