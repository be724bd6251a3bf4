//! Operations that are one message each way on a long-lived stream, one stream per client.

use std::time::Instant;

use super::{Link, Part, Records, Run, Spread, run_parts};
use crate::error::BenchError;
use crate::record::Record;
use crate::wire::connection::{Event, Replies, Status, StreamId};

/// Runs exchanges on streams of the call `path` until the pace has no more tickets. Client `n` of all
/// clients sends `requests[n]` each time.
pub(crate) fn run_streams(
    spread: &Spread,
    run: &Run,
    path: &'static str,
    requests: Vec<Vec<u8>>,
) -> Result<Records, BenchError> {
    let run = run.clone();
    let connections = spread.connections.clamp(1, spread.clients.max(1));
    run_parts(spread, 1, move |part| {
        let mine = requests.iter().skip(part.index).step_by(connections).cloned().collect();
        connection(part, run.clone(), path, mine)
    })
}

async fn connection(
    part: Part,
    run: Run,
    path: &'static str,
    requests: Vec<Vec<u8>>,
) -> Result<Records, BenchError> {
    let mut record = Record::new();
    let mut link: Link<usize> = Link::new(part)?;
    while !link.wire.has_room() {
        link.turn(None, &mut |_| {}).await?;
    }
    let streams: Vec<StreamId> =
        (0..requests.len()).map(|client| link.wire.open(path, Replies::Collect, client)).collect();
    let mut started = vec![Instant::now(); streams.len()];
    let mut idle: Vec<usize> = (0..streams.len()).collect();
    let (mut held, mut over, mut lost) = (None, false, 0);
    loop {
        let now = Instant::now();
        let mut due = None;
        while !over && let Some(client) = idle.last().copied() {
            let Some(ticket) = held.take().or_else(|| run.pace.draw(now)) else {
                over = true;
                break;
            };
            if ticket.due > now {
                due = Some(ticket.due);
                held = Some(ticket);
                break;
            }
            idle.pop();
            started[client] = ticket.due;
            link.wire.send(streams[client], &requests[client]);
        }
        if idle.len() + lost == streams.len() && (over || lost == streams.len()) {
            return Ok(vec![record]);
        }
        let before = record.count();
        let mut each = |event: Event<'_, usize>| match event {
            Event::Message { tag, body } => {
                let now = Instant::now();
                let latency = now.duration_since(started[*tag]);
                run.pulse.beat(now);
                record.add(latency, &Status::default(), body.len() as u64);
                idle.push(*tag);
            }
            Event::Closed { tag, status, .. } => {
                let text =
                    format!("the stream ended: {} (gRPC code {})", status.message, status.code);
                record.add_error(text, 1);
                idle.retain(|client| *client != tag);
                lost += 1;
            }
        };
        link.turn(due, &mut each).await?;
        run.pace.add_done(record.count() - before);
    }
}
