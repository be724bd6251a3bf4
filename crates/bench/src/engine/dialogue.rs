//! Operations that consist of several calls, each of which depends on the reply to the previous call.

use std::time::Instant;

use super::{GracePeriod, LOOK, Link, Part, Records, Run, Spread, run_parts};
use crate::error::BenchError;
use crate::record::Record;
use crate::wire::connection::{Event, Replies};

/// A call to be made.
pub(crate) struct Ask<S> {
    pub(crate) path: &'static str,
    /// The kind under which the call is recorded.
    pub(crate) kind: usize,
    pub(crate) message: Vec<u8>,
    /// The state needed to process the reply.
    pub(crate) state: S,
}

/// The logic of operations that consist of several calls. Each connection has its own instance.
pub(crate) trait Dialogue: 'static {
    /// The state needed to process a reply.
    type State: 'static;

    /// Returns the first call of operation `number`.
    fn begin(&mut self, number: u64) -> Ask<Self::State>;

    /// Processes the reply to a successful call, and returns the next call of the operation, if there is one.
    fn answered(&mut self, state: Self::State, answer: &[u8]) -> Option<Ask<Self::State>>;
}

/// An in-flight call.
struct Call<S> {
    started: Instant,
    kind: usize,
    state: S,
    answer: Vec<u8>,
}

/// Runs operations until the pace has no more tickets and every operation has ended. Each call is recorded separately.
/// The latency of an operation's first call is measured from its due time. An operation ends when one of its calls
/// fails.
pub(crate) fn run_dialogues<D: Dialogue>(
    spread: &Spread,
    run: &Run,
    dialogue: impl Fn(usize) -> D + Send + Sync + 'static,
) -> Result<Records, BenchError> {
    let run = run.clone();
    let kinds = run.kinds;
    run_parts(spread, kinds, move |part| {
        let dialogue = dialogue(part.index);
        connection(part, run.clone(), dialogue)
    })
}

async fn connection<D: Dialogue>(
    part: Part,
    run: Run,
    mut dialogue: D,
) -> Result<Records, BenchError> {
    let mut records = vec![Record::new(); run.kinds];
    let clients = part.clients;
    let mut link: Link<Call<D::State>> = Link::new(part).await?;
    // The number of operations in progress, and the follow-up calls of these operations that have not been sent yet.
    let (mut in_flight, mut next): (usize, Vec<Ask<D::State>>) = (0, Vec::new());
    let (mut held, mut over, mut grace_period) = (None, false, GracePeriod::default());
    loop {
        let now = Instant::now();
        let mut until = now + LOOK;
        while link.has_room()
            && let Some(ask) = next.pop()
        {
            send(&mut link, ask, now);
        }
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
            send(&mut link, dialogue.begin(ticket.number), ticket.due);
            in_flight += 1;
        }
        // The end of the run is normally noticed when a ticket is drawn. Without a connection, no ticket is drawn, so
        // the end is checked here.
        over |= held.is_none() && run.pace.is_over(now);
        let is_cut_off = !link.is_connected() && run.pace.is_over(now);
        if is_cut_off {
            in_flight -= next.len();
            let unsent = next.drain(..).map(|ask| ask.kind).chain(held.take().map(|_| 0));
            for kind in unsent {
                records[kind].add_error("request not sent: no connection".to_owned(), 1);
            }
        }
        if in_flight == 0 && (over || is_cut_off) {
            return Ok(records);
        }
        let (mut now, mut succeeded, mut ended) = (None, None, 0);
        let mut each = |event: Event<'_, Call<D::State>>| match event {
            Event::Message { tag, body } => tag.answer.extend_from_slice(body),
            Event::Closed { tag, status, reply_bytes } => {
                // One clock reading is enough for all replies received in one read.
                let now = *now.get_or_insert_with(Instant::now);
                records[tag.kind].add(now.duration_since(tag.started), &status, reply_bytes);
                let follows = if status.code == 0 {
                    succeeded = Some(now);
                    dialogue.answered(tag.state, &tag.answer)
                } else {
                    None
                };
                ended += u64::from(follows.is_none());
                next.extend(follows);
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
        in_flight -= usize::try_from(ended).unwrap_or(in_flight);
        run.pace.add_done(ended);
    }
}

fn send<S>(link: &mut Link<Call<S>>, ask: Ask<S>, started: Instant) {
    let Ask { path, kind, message, state } = ask;
    let call = Call { started, kind, state, answer: Vec::new() };
    link.wire.unary(path, &message, Replies::Collect, call);
}
