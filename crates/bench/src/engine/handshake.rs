//! Operations that each open and close one connection: connect, TLS handshake if configured, HTTP/2 preface, close.
//!
//! A connection counts as established when the server's SETTINGS frame arrives. A TLS server sends this frame only
//! after it has accepted the client's certificate.

use std::time::{Duration, Instant};

use super::{LOOK, Link, Part, Records, Run, Spread, run_parts};
use crate::record::Record;

/// The timeout of an operation.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Opens connections until the pace has no more tickets.
pub(crate) fn run_handshakes(
    spread: &Spread,
    run: &Run,
) -> Result<Records, crate::error::BenchError> {
    // Each client opens one connection after another.
    let spread = Spread { connections: spread.clients, ..spread.clone() };
    let run = run.clone();
    run_parts(&spread, run.kinds, move |part| client(part, run.clone()))
}

async fn client(part: Part, run: Run) -> Result<Records, crate::error::BenchError> {
    let mut record = Record::new();
    while let Some(ticket) = run.pace.draw(Instant::now()) {
        tokio::time::sleep_until(tokio::time::Instant::from_std(ticket.due)).await;
        match tokio::time::timeout(TIMEOUT, greet(part.clone())).await {
            Ok(Ok(())) => {
                let now = Instant::now();
                record.add_latency(now.duration_since(ticket.due));
                run.pulse.beat(now);
            }
            Ok(Err(error)) => record.add_error(error.to_string(), 1),
            Err(_) => record.add_error("the server sent no frame in time".to_owned(), 1),
        }
        run.pace.add_done(1);
        if run.pace.is_interrupted() {
            break;
        }
    }
    Ok(vec![record])
}

async fn greet(part: Part) -> Result<(), crate::error::BenchError> {
    // Other endpoints are not tried: if the endpoint is down, every connection to it must count as an error.
    let mut link: Link<()> = Link::new(part.at_its_endpoint()).await?;
    while !link.has_room() {
        link.exchange(Instant::now() + LOOK, &mut |_| {}).await?;
    }
    Ok(())
}
