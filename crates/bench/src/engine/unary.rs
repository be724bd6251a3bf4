//! Operations that consist of a single unary call.

use std::time::Instant;

use super::{GracePeriod, LOOK, Link, Part, Records, Run, Source, Spread, run_parts};
use crate::error::BenchError;
use crate::record::Record;
use crate::wire::connection::{Event, Replies};

/// An in-flight call.
struct Call {
    started: Instant,
    kind: usize,
}

/// Runs unary calls until the pace has no more tickets and every call has ended. `source` creates the request source
/// for the connection with the given index.
pub(crate) fn run_unary<S: Source>(
    spread: &Spread,
    run: &Run,
    source: impl Fn(usize) -> S + Send + Sync + 'static,
) -> Result<Records, BenchError> {
    let run = run.clone();
    let kinds = run.kinds;
    run_parts(spread, kinds, move |part| {
        let source = source(part.index);
        connection(part, run.clone(), source)
    })
}

async fn connection<S: Source>(part: Part, run: Run, mut source: S) -> Result<Records, BenchError> {
    let mut records = vec![Record::new(); run.kinds];
    let clients = part.clients;
    let mut link = Link::new(part).await?;
    let mut message = Vec::new();
    let (mut in_flight, mut held, mut over) = (0, None, false);
    let mut grace_period = GracePeriod::default();
    loop {
        let now = Instant::now();
        let mut until = now + LOOK;
        while in_flight < clients && !over && link.has_room() {
            let Some(ticket) = held.take().or_else(|| run.pace.draw(now)) else {
                over = true;
                break;
            };
            if ticket.due > now {
                until = until.min(ticket.due);
                held = Some(ticket);
                break;
            }
            let (path, kind) = source.request(ticket.number, &mut message);
            link.wire.unary(path, &message, Replies::Discard, Call { started: ticket.due, kind });
            in_flight += 1;
        }
        // The end of the run is normally noticed when a ticket is drawn. Without a connection, no ticket is drawn, so
        // the end is checked here.
        over |= held.is_none() && run.pace.is_over(now);
        if in_flight == 0 && (over || !link.is_connected() && run.pace.is_over(now)) {
            if held.is_some() {
                records[0].add_error("request not sent: no connection".to_owned(), 1);
            }
            return Ok(records);
        }
        let before = in_flight;
        let (mut now, mut succeeded) = (None, None);
        let mut each = |event: Event<'_, Call>| {
            if let Event::Closed { tag, status, reply_bytes } = event {
                // One clock reading is enough for all replies received in one read.
                let now = *now.get_or_insert_with(Instant::now);
                if status.code == 0 {
                    succeeded = Some(now);
                }
                records[tag.kind].add(now.duration_since(tag.started), &status, reply_bytes);
                in_flight -= 1;
            }
        };
        if grace_period.is_over(&run.pace) {
            link.lose(&BenchError::Interrupted, &mut each);
        }
        if let Err(error) = link.turn(until, &mut each).await {
            run.pace.give_up(error.to_string());
        }
        if let Some(now) = succeeded {
            run.pulse.beat(now);
        }
        run.pace.add_done((before - in_flight) as u64);
    }
}
