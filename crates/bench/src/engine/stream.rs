//! Operations that consist of one message in each direction on a long-lived stream. Each client has its own stream.

use std::time::Instant;

use super::{GracePeriod, LOOK, Link, Part, Records, Run, Spread, run_parts};
use crate::error::BenchError;
use crate::record::Record;
use crate::wire::connection::{Event, Replies, Status, StreamId};

/// Opens streams with the call `path`, and exchanges messages on them until the pace has no more tickets. Client `n`,
/// counted over all connections, always sends `requests[n]`.
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

/// A client of the load. `stream` is opened when the client sends a request and has no open stream. `started` is set
/// while the client waits for a reply.
#[derive(Default)]
struct Client {
    stream: Option<StreamId>,
    started: Option<Instant>,
}

async fn connection(
    part: Part,
    run: Run,
    path: &'static str,
    requests: Vec<Vec<u8>>,
) -> Result<Records, BenchError> {
    let mut record = Record::new();
    let mut link: Link<usize> = Link::new(part).await?;
    let mut clients: Vec<Client> = requests.iter().map(|_| Client::default()).collect();
    let mut idle: Vec<usize> = (0..clients.len()).collect();
    let (mut held, mut over, mut grace_period) = (None, false, GracePeriod::default());
    loop {
        let now = Instant::now();
        let mut until = now + LOOK;
        while !over
            && link.has_room()
            && let Some(client) = idle.last().copied()
        {
            let Some(ticket) = held.take().or_else(|| run.pace.draw(now)) else {
                over = true;
                break;
            };
            if ticket.due > now {
                until = until.min(ticket.due);
                held = Some(ticket);
                break;
            }
            idle.pop();
            let Client { stream, started } = &mut clients[client];
            *started = Some(ticket.due);
            let stream =
                *stream.get_or_insert_with(|| link.wire.open(path, Replies::Collect, client));
            link.wire.send(stream, &requests[client]);
        }
        // The end of the run is normally noticed when a ticket is drawn. Without a connection, no ticket is drawn, so
        // the end is checked here.
        over |= held.is_none() && run.pace.is_over(now);
        if idle.len() == clients.len() && (over || !link.is_connected() && run.pace.is_over(now)) {
            if held.is_some() {
                record.add_error("request not sent: no connection".to_owned(), 1);
            }
            return Ok(vec![record]);
        }
        let before = record.count();
        let mut each = |event: Event<'_, usize>| match event {
            Event::Message { tag, body } => {
                let Some(started) = clients[*tag].started.take() else { return };
                let now = Instant::now();
                run.pulse.beat(now);
                let latency = now.duration_since(started);
                record.add(latency, &Status::default(), body.len() as u64);
                idle.push(*tag);
            }
            Event::Closed { tag, status, .. } => {
                // The client's next request opens a new stream.
                clients[tag].stream = None;
                if clients[tag].started.take().is_some() {
                    let Status { message, code } = status;
                    record.add_error(format!("the stream ended: {message} (gRPC code {code})"), 1);
                    idle.push(tag);
                }
            }
        };
        if grace_period.is_over(&run.pace) {
            link.lose(&BenchError::Interrupted, &mut each);
        }
        if let Err(error) = link.turn(until, &mut each).await {
            run.pace.give_up(error.to_string());
        }
        run.pace.add_done(record.count() - before);
    }
}
