//! Watches changes in order to compute write rates. The events and bytes in a window (one refresh interval) are
//! limited, and a watch that reaches a limit is closed for a while. Rates are relative to the time for which the watch
//! was active.

use std::rc::Rc;
use std::time::Duration;

use quorate_api::etcdserverpb::{WatchCreateRequest, WatchResponse};
use quorate_api::mvccpb::event::EventType;
use tokio::time::{Instant, sleep, sleep_until};

use super::shared::{Shared, Watching};
use crate::client::Client;
use crate::events::{Events, Leader, cancel_text};
use crate::failure::status_text;

/// The maximum number of events in a window.
const EVENTS_MAX: usize = 5_000;
/// The maximum number of bytes of events in a window.
const BYTES_MAX: usize = 1 << 20;
/// The minimum time between the starts of two watches if the first watch reached a limit. With authentication, each
/// watch needs a login.
const REST: Duration = Duration::from_secs(5);
/// The pause after the cluster has refused the watch.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);
/// The pause after any other error.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Measures for how long the watch has been active since rates were last computed.
#[derive(Debug)]
pub(super) struct Clock {
    /// The start of the period to which the percentage refers; `None` until the watch is first active.
    began: Option<Instant>,
    since: Option<Instant>,
    before: Duration,
}

impl Clock {
    pub(super) const fn new() -> Self {
        Self { began: None, since: None, before: Duration::ZERO }
    }

    fn begin(&mut self, now: Instant) {
        self.began.get_or_insert(now);
        self.since.get_or_insert(now);
    }

    fn end(&mut self, now: Instant) {
        self.before += self.since.take().map_or(Duration::ZERO, |since| now - since);
    }

    /// Ends a window. Returns how long the watch was active, as a duration and as a percentage of the time since the
    /// end of the last window with an active watch.
    fn turn(&mut self, now: Instant) -> (Duration, u32) {
        let is_there = self.since.is_some();
        self.end(now);
        self.since = is_there.then_some(now);
        let listened = std::mem::take(&mut self.before);
        let Some(began) = self.began.filter(|_| !listened.is_zero()) else {
            return (Duration::ZERO, 0);
        };
        self.began = Some(now);
        let share = listened.as_secs_f64() / (now - began).as_secs_f64().max(f64::EPSILON) * 100.0;
        let percent = format!("{share:.0}").parse().unwrap_or(100).clamp(1, 100);
        (listened, percent)
    }
}

/// Ends a window, and wakes the tasks that wait for the next window.
pub(super) fn turn(shared: &Shared, clock: &std::cell::RefCell<Clock>) {
    let (listened, percent) = clock.borrow_mut().turn(Instant::now());
    shared.catalog.borrow_mut().end_window(listened);
    if let Watching::On(share) = &mut *shared.watching.borrow_mut()
        && !listened.is_zero()
    {
        *share = percent;
    }
    shared.turned.notify_waiters();
}

/// Watches changes until the future is dropped.
pub(super) async fn watch(shared: &Shared, clock: &std::cell::RefCell<Clock>) {
    loop {
        let Some(client) = shared.may_read().filter(|_| !is_spent(shared)) else {
            shared.turned.notified().await;
            continue;
        };
        let made = Instant::now();
        let refused = listen(shared, clock, &client).await;
        clock.borrow_mut().end(Instant::now());
        if is_spent(shared) {
            sleep_until(made + REST).await;
        }
        if let Some(reason) = refused {
            shared.catalog.borrow_mut().forget_rates();
            shared.watching.replace(Watching::Refused(reason));
            sleep(REFUSED_PAUSE).await;
        }
    }
}

/// Reads events until a limit of the window is reached, another member is chosen, or the watch ends. Returns the reason
/// if the cluster refuses the watch.
async fn listen(
    shared: &Shared,
    clock: &std::cell::RefCell<Clock>,
    client: &Rc<Client>,
) -> Option<String> {
    let range = shared.shape.range();
    let create = WatchCreateRequest {
        key: range.key.into(),
        range_end: range.end.into(),
        fragment: true,
        ..Default::default()
    };
    let mut events = Events::new(client, create, Leader::Awaited);
    loop {
        let response = tokio::select! {
            response = events.next() => response,
            () = shared.turned.notified() => {
                match shared.may_read() {
                    Some(reader) if Rc::ptr_eq(&reader, client) => continue,
                    Some(_) | None => return None,
                }
            }
        };
        match response {
            Err(status) if status.code() == tonic::Code::PermissionDenied => {
                return Some(status_text(&status));
            }
            Err(_) => {
                sleep(RETRY_PAUSE).await;
                return None;
            }
            // A watch without a start revision is never cancelled because of a compaction, so this cancellation is a
            // refusal.
            Ok(response) if response.canceled => return Some(cancel_text(&response)),
            Ok(response) => {
                if response.created {
                    shared.watching.replace(Watching::On(100));
                    clock.borrow_mut().begin(Instant::now());
                }
                take(shared, &response);
            }
        }
        if is_spent(shared) {
            return None;
        }
    }
}

fn is_spent(shared: &Shared) -> bool {
    let (events, bytes) = shared.catalog.borrow().received();
    events >= EVENTS_MAX || bytes >= BYTES_MAX
}

fn take(shared: &Shared, response: &WatchResponse) {
    let mut catalog = shared.catalog.borrow_mut();
    for event in &response.events {
        let Some(record) = &event.kv else { continue };
        let fields = record.fields();
        let is_put = event.r#type == EventType::Put as i32;
        catalog.changed(fields.key, fields.key.len() + fields.value.len(), is_put);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_with_an_active_watch_is_counted() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let at = |secs: u32| start + second * secs;
        let mut clock = Clock::new();
        assert_eq!(clock.turn(at(1)).0, Duration::ZERO);
        clock.begin(at(2));
        clock.end(at(3));
        assert_eq!(clock.turn(at(4)), (second, 50));
        // Windows without a watch count as inactive time.
        assert_eq!(clock.turn(at(5)).0, Duration::ZERO);
        clock.begin(at(7));
        clock.begin(at(8));
        assert_eq!(clock.turn(at(8)), (second, 25));
        assert_eq!(clock.turn(at(9)), (second, 100));
    }
}
