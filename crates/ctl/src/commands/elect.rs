//! `elect`: campaigns in an election and leads until a signal arrives, or observes an election.

use quorate_api::etcdserverpb::range_request::{SortOrder, SortTarget};
use quorate_api::etcdserverpb::{
    RangeRequest, RangeResponse, ResponseHeader, WatchCreateRequest, WatchResponse,
};
use quorate_api::mvccpb::Event;
use quorate_api::mvccpb::event::EventType;
use quorate_api::record::KeyValue;

use crate::client::Client;
use crate::command::{Command, group};
use crate::events::{Events, Leader};
use crate::failure::Failure;
use crate::flags::Flag;
use crate::interrupt::Interrupt;
use crate::key_range::prefix_end;
use crate::output::Reply;
use crate::queue::{KeptLease, QueueKey, TTL_SECS_DEFAULT, get, interrupted};
use crate::session::Session;

pub(crate) const ELECT: Command = Command {
    usage: "elect <election-name> [proposal]",
    short: "Observes and participates in leader election",
    group: Some(group::CONCURRENCY),
    flags: &[Flag::bool("listen", "observation mode").short('l')],
    run: Some(|session| Box::pin(run(session))),
    ..Command::EMPTY
};

const EXPIRED: &str = "elect: session expired";
const LOST: &str = "elect: observer lost";

async fn run(session: &Session) -> Result<(), Failure> {
    let listens = session.matches.bool("listen");
    match &session.matches.args[..] {
        [_] if !listens => Err(Failure::bad_args("no proposal argument but -l not set")),
        [_, _] if listens => Err(Failure::bad_args("proposal given but -l is set")),
        [name] => {
            let client = session.client().await?;
            let interrupt = Interrupt::listen()?;
            tokio::select! {
                observed = observe(session, &client, name) => observed,
                () = interrupt.wait() => Ok(()),
            }
        }
        // The future is boxed because it is large.
        [name, proposal] => Box::pin(campaign(session, name, proposal)).await,
        _ => {
            let text = "elect takes one election name argument and an optional proposal argument";
            Err(Failure::bad_args(text))
        }
    }
}

async fn campaign(session: &Session, name: &[u8], proposal: &[u8]) -> Result<(), Failure> {
    let client = session.client().await?;
    let mut kept_lease = KeptLease::begin(&client, TTL_SECS_DEFAULT).await?;
    // Before this point, a signal simply ends the process, because the process has no queue key yet and the server may
    // be unreachable.
    let interrupt = Interrupt::listen()?;
    let led = async {
        let mut queue_key = QueueKey::create(&kept_lease, name, proposal).await?;
        let leading = async {
            tokio::select! {
                // As in etcdctl, a candidate whose key was deleted shows no key and leads nothing.
                waited = queue_key.wait_for_turn(&client) => drop(waited?),
                () = interrupt.wait() => return Err(interrupted()),
            }
            session.show(&Reply::Get(queue_key.read(&client).await?, false))?;
            interrupt.wait().await;
            Ok(())
        };
        kept_lease.during(Box::pin(leading)).await.ok_or_else(|| Failure::error(EXPIRED))?
    };
    let led = led.await;
    let ended = kept_lease.end().await;
    led.and(ended.map_err(Failure::from))
}

/// Prints the current leader and every later leader.
async fn observe(session: &Session, client: &Client, name: &[u8]) -> Result<(), Failure> {
    let queue = [name, b"/"].concat();
    loop {
        let (header, leader) = leader(client, &queue).await?;
        let revision = header.as_ref().map_or(0, |header| header.revision);
        let key = leader.fields().key.to_vec();
        show(session, header, leader)?;
        let create = WatchCreateRequest {
            key: key.into(),
            start_revision: revision + 1,
            ..Default::default()
        };
        let mut events = Events::new(client, create, Leader::Awaited);
        let mut leads = true;
        while leads {
            let response = next(&mut events).await?;
            for event in response.events {
                if event.r#type == EventType::Delete as i32 {
                    leads = false;
                    break;
                }
                show(session, response.header, event.kv.unwrap_or_default())?;
            }
        }
    }
}

/// Returns the current leader, or waits for the next one if there is none.
async fn leader(
    client: &Client,
    queue: &[u8],
) -> Result<(Option<ResponseHeader>, KeyValue), Failure> {
    let range_end = prefix_end(queue);
    let first = RangeRequest {
        key: queue.to_vec().into(),
        range_end: range_end.clone().into(),
        sort_order: SortOrder::Ascend as i32,
        sort_target: SortTarget::Create as i32,
        limit: 1,
        ..Default::default()
    };
    let reply = get(client, first).await?;
    if let Some(leader) = reply.kvs.into_iter().next() {
        return Ok((reply.header, leader));
    }
    let create = WatchCreateRequest {
        key: queue.to_vec().into(),
        range_end: range_end.into(),
        start_revision: reply.header.as_ref().map_or(0, |header| header.revision),
        ..Default::default()
    };
    let mut events = Events::new(client, create, Leader::Awaited);
    loop {
        let response = next(&mut events).await?;
        let is_put = |event: &&Event| event.r#type == EventType::Put as i32;
        if let Some(event) = response.events.iter().find(is_put) {
            let leader = event.kv.clone().unwrap_or_default();
            let revision = leader.fields().mod_revision;
            let header = response.header.map(|header| ResponseHeader { revision, ..header });
            return Ok((header, leader));
        }
    }
}

async fn next(events: &mut Events<'_>) -> Result<WatchResponse, Failure> {
    match events.next().await {
        Ok(response) if !response.canceled => Ok(response),
        Ok(_) | Err(_) => Err(Failure::error(LOST)),
    }
}

fn show(
    session: &Session,
    header: Option<ResponseHeader>,
    leader: KeyValue,
) -> Result<(), Failure> {
    let reply = RangeResponse { header, kvs: vec![leader], ..Default::default() };
    session.show(&Reply::Get(reply, false))
}
