//! The state shared by the tasks of a running display, which all run on one thread: drawing, collecting,
//! counting and watching.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::prefixes::{Catalog, Shape};
use super::text::span;
use crate::client::Client;

/// The state of the watch on changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Watching {
    Off,
    /// It is active; the number is the percentage of the last window in which it was.
    On(u32),
    Refused(String),
}

/// The shared state.
pub(super) struct Shared {
    pub(super) shape: Shape,
    pub(super) catalog: RefCell<Catalog>,
    /// When the displayed counts were completed.
    pub(super) counted_at: Cell<Option<Instant>>,
    /// Why keys cannot be counted.
    pub(super) uncounted: RefCell<Option<String>>,
    pub(super) watching: RefCell<Watching>,
    /// A member that serves reads, if one is known.
    pub(super) reader: RefCell<Option<Rc<Client>>>,
    pub(super) interval: Cell<Duration>,
    pub(super) is_paused: Cell<bool>,
    /// Notified at the end of a window (that is, of a refresh), and when the display is paused or resumed or
    /// its interval changes.
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

    /// The member to read from; `None` while the display is paused.
    pub(super) fn may_read(&self) -> Option<Rc<Client>> {
        self.reader.borrow().clone().filter(|_| !self.is_paused.get())
    }

    /// The time since the displayed counts were completed.
    pub(super) fn age(&self) -> Option<Duration> {
        self.counted_at.get().map(|at| at.elapsed())
    }

    /// The note about prefixes for the user.
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
