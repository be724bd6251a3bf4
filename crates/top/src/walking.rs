//! Counts keys by prefix, with small requests and with pauses between them, so that the load stays low.

use std::time::Duration;

use quorate_api::etcdserverpb::{RangeRequest, RangeResponse};
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;

use super::prefixes::Step;
use super::shared::Shared;
use crate::client::{Client, Repeat};
use crate::failure::status_text;
use crate::key_range::KeyRange;

/// The minimum pause between two requests.
const STEP_PAUSE: Duration = Duration::from_millis(100);
/// The ratio of a pause to the duration of the preceding request or walk. Slow requests thus lead to long pauses.
const STEP_PAUSE_FACTOR: u32 = 10;
/// The minimum pause between two walks. After a slow walk, the pause is longer: a multiple of the duration of that
/// walk.
const WALK_PAUSE: Duration = Duration::from_secs(15);
/// The pause after a failed request.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The pause after a refused request.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);
/// The timeout of a request.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// Walks through the keyspace repeatedly, until the future is dropped.
pub(super) async fn walk(shared: &Shared) {
    let mut begun = Instant::now();
    loop {
        let Some(client) = shared.may_read() else {
            shared.turned.notified().await;
            continue;
        };
        let asked = Instant::now();
        let step = shared.catalog.borrow().step();
        if step == Step::Over {
            shared.counted_at.set(Some(Instant::now()));
            sleep(WALK_PAUSE.max(begun.elapsed() * STEP_PAUSE_FACTOR)).await;
            shared.catalog.borrow_mut().begin();
            begun = Instant::now();
            continue;
        }
        match timeout(ANSWER_TIME, take(shared, &client, step)).await {
            Ok(Ok(())) => {
                shared.uncounted.replace(None);
                sleep(STEP_PAUSE.max(asked.elapsed() * STEP_PAUSE_FACTOR)).await;
            }
            Ok(Err(status)) if is_refusal(&status) => {
                shared.uncounted.replace(Some(status_text(&status)));
                sleep(REFUSED_PAUSE).await;
            }
            Ok(Err(_)) | Err(_) => sleep(RETRY_PAUSE).await,
        }
    }
}

async fn take(shared: &Shared, client: &Client, step: Step) -> Result<(), Status> {
    match step {
        Step::Over => {}
        Step::Page(range, limit) => {
            let limit = i64::try_from(limit).unwrap_or(1);
            let reply = ask(client, range, limit, false).await?;
            let key = |record: &quorate_api::record::KeyValue| {
                let fields = record.fields();
                (fields.key.to_vec(), fields.key.len() + fields.value.len())
            };
            let keys: Vec<_> = reply.kvs.iter().map(key).collect();
            shared.catalog.borrow_mut().page(&keys, reply.more);
        }
        Step::Count(range) => {
            let reply = ask(client, range, 0, true).await?;
            let count = u64::try_from(reply.count).unwrap_or_default();
            shared.catalog.borrow_mut().counted(count);
        }
    }
    Ok(())
}

async fn ask(
    client: &Client,
    range: KeyRange,
    limit: i64,
    count_only: bool,
) -> Result<RangeResponse, Status> {
    let request = RangeRequest {
        key: range.key.into(),
        range_end: range.end.into(),
        limit,
        count_only,
        // Pages and counts need not be linearizable, and a linearizable read would cost a round trip between the
        // members.
        serializable: true,
        ..Default::default()
    };
    let range = async |channel, request| client.kv(channel).range(request).await;
    client.call(None, Repeat::Safe, request, range).await
}

fn is_refusal(status: &Status) -> bool {
    matches!(status.code(), tonic::Code::PermissionDenied | tonic::Code::Unauthenticated)
}
