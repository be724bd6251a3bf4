//! The state shared by the tasks of a running display: drawing, collecting, counting and watching. All tasks run on one
//! thread.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::prefixes::{Catalog, Shape};
use super::text::span;
use crate::client::Client;

/// The state of the watch that reports changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Watching {
    Off,
    /// The watch is active. The number is the percentage of the last window during which the watch was active.
    On(u32),
    Refused(String),
}

/// The state shared by all tasks.
pub(super) struct Shared {
    pub(super) shape: Shape,
    pub(super) catalog: RefCell<Catalog>,
    /// The time at which the displayed counts were completed.
    pub(super) counted_at: Cell<Option<Instant>>,
    /// The reason why keys cannot be counted.
    pub(super) uncounted: RefCell<Option<String>>,
    pub(super) watching: RefCell<Watching>,
    /// The client of the member to which reads of keys are sent, if a member is available.
    pub(super) reader: RefCell<Option<Rc<Client>>>,
    pub(super) interval: Cell<Duration>,
    pub(super) is_paused: Cell<bool>,
    /// Notified at each refresh, which ends a window, and when the display is paused or resumed or its interval
    /// changes.
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

    /// Returns the client to read with; `None` while the display is paused or no member is available.
    pub(super) fn may_read(&self) -> Option<Rc<Client>> {
        self.reader.borrow().clone().filter(|_| !self.is_paused.get())
    }

    /// Returns the time since the displayed counts were completed.
    pub(super) fn age(&self) -> Option<Duration> {
        self.counted_at.get().map(|at| at.elapsed())
    }

    /// Returns the note on prefixes for the user.
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
            Watching::On(100) => "writes: watched all the time".to_owned(),
            Watching::On(percent) => format!("writes: watched for {percent}% of the time"),
            Watching::Refused(reason) => format!("writes are not watched: {reason}"),
        };
        format!("{counted}; {watched}")
    }
}
