//! `make-mirror`: copies keys to another cluster, and then replicates every change to them until an error occurs.
//!
//! # Guarantees
//!
//! * The changes of one revision are applied to the mirror in one transaction, or in several if the revision has more
//!   than `--max-txn-ops` changes or changes a key twice. Revisions are applied in order.
//! * The copy is made at one revision, and the watch starts at the next revision, so that no change is missed.
//! * At most one page of the copy, or one response of the watch, is in memory.
//!
//! # Not here
//!
//! Leases. Keys are copied without their leases, as in etcdctl.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use quorate_api::etcdserverpb::request_op::Request;
use quorate_api::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, WatchCreateRequest,
};
use quorate_api::mvccpb::Event;
use quorate_api::mvccpb::event::EventType;

use crate::client::{Client, Repeat};
use crate::command::{Command, group};
use crate::destination::{self, Names};
use crate::events::{Events, Leader, cancel_text};
use crate::failure::{Failure, status_text};
use crate::flags::Flag;
use crate::key_range::KeyRange;
use crate::queue::get;
use crate::session::Session;

pub(crate) const MAKE_MIRROR: Command = Command {
    usage: "make-mirror [options] <destination>",
    short: "Makes a mirror at the destination etcd cluster",
    group: Some(group::UTILITY),
    flags: FLAGS,
    run: Some(|session| Box::pin(run(session))),
    ..Command::EMPTY
};

const FLAGS: &[Flag] = &[
    Flag::bytes("prefix", "Key-value prefix to mirror"),
    Flag::int("rev", "Specify the kv revision to start to mirror"),
    Flag::uint(
        "max-txn-ops",
        "128",
        "Maximum number of operations permitted in a transaction during syncing updates",
    ),
    destination::PREFIX,
    destination::NO_PREFIX,
    destination::CERT,
    destination::KEY,
    destination::CACERT,
    destination::INSECURE_TRANSPORT,
    destination::USER,
    destination::PASSWORD,
];

/// Maximum number of keys that each range request returns while the existing keys are copied.
const PAGE_KEYS: i64 = 1000;
/// Interval at which the number of operations applied so far is printed.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);

/// The destination cluster and the mapping of keys to it.
struct Mirror<'a> {
    client: &'a Client,
    names: Names,
    operations_max: usize,
    /// Number of operations applied to the mirror.
    total: Cell<u64>,
}

async fn run(session: &Session) -> Result<(), Failure> {
    let matches = &session.matches;
    let (Some(destination), 1) = (matches.arg(0), matches.args.len()) else {
        return Err(Failure::bad_args("make-mirror takes one destination argument"));
    };
    let names = Names::of(matches)?;
    let operations_max = usize::try_from(matches.uint("max-txn-ops")).unwrap_or(usize::MAX).max(1);
    let destination = session.destination(vec![destination])?.logged_in().await?;
    let source = session.client().await?;
    let mirror = Mirror { client: &destination, names, operations_max, total: Cell::new(0) };
    tokio::select! {
        ended = mirror.follow(&source, matches.int("rev")) => ended,
        failed = report(session, &mirror.total) => failed,
    }
}

/// Periodically prints the number of operations applied so far.
async fn report(session: &Session, total: &Cell<u64>) -> Result<(), Failure> {
    loop {
        tokio::time::sleep(REPORT_INTERVAL).await;
        session.print(&format!("{}\n", total.get()))?;
    }
}

impl Mirror<'_> {
    /// Copies the existing keys, unless a start revision above 1 is given, and then replicates every change.
    async fn follow(&self, source: &Client, revision: i64) -> Result<(), Failure> {
        let range = KeyRange::prefix(self.names.prefix.clone());
        let start = match revision {
            2.. => revision,
            _ => self.copy(source, &range).await? + 1,
        };
        let create = WatchCreateRequest {
            key: range.key.into(),
            range_end: range.end.into(),
            start_revision: start,
            ..Default::default()
        };
        let mut events = Events::new(source, create, Leader::Awaited);
        loop {
            let response = events.next().await?;
            if response.canceled {
                return Err(Failure::error(cancel_text(&response)));
            }
            for operations in batches(response.events, &self.names, self.operations_max) {
                self.apply(operations).await?;
            }
        }
    }

    /// Copies the keys at one revision. Returns that revision.
    async fn copy(&self, source: &Client, range: &KeyRange) -> Result<i64, Failure> {
        let mut page = RangeRequest {
            key: range.key.clone().into(),
            range_end: range.end.clone().into(),
            limit: PAGE_KEYS,
            ..Default::default()
        };
        loop {
            let reply = get(source, page.clone()).await?;
            if page.revision == 0 {
                page.revision = reply.header.as_ref().map_or(0, |header| header.revision);
            }
            for record in &reply.kvs {
                let fields = record.fields();
                self.put(fields.key, fields.value).await?;
            }
            match reply.kvs.last() {
                Some(last) if reply.more => page.key = [last.fields().key, b"\0"].concat().into(),
                Some(_) | None => return Ok(page.revision),
            }
        }
    }

    async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        let put = async |channel, request| self.client.kv(channel).put(request).await;
        let request = put_request(&self.names, key, value);
        self.client.call(None, Repeat::Never, request, put).await?;
        self.total.set(self.total.get() + 1);
        Ok(())
    }

    async fn apply(&self, operations: Vec<RequestOp>) -> Result<(), Failure> {
        let count = operations.len() as u64;
        let request = TxnRequest { success: operations, ..Default::default() };
        let txn = async |channel, request| self.client.kv(channel).txn(request).await;
        self.client.call(None, Repeat::Never, request, txn).await.map_err(|status| {
            let text = status_text(&status);
            Failure::error(format!("the destination refused a change from the source: {text}"))
        })?;
        self.total.set(self.total.get() + count);
        Ok(())
    }
}

fn put_request(names: &Names, key: &[u8], value: &[u8]) -> PutRequest {
    PutRequest {
        key: names.at_destination(key).into(),
        value: value.to_vec().into(),
        ..Default::default()
    }
}

/// Returns the transactions that apply these events: one per revision, or several if the revision has more than `most`
/// changes or changes a key twice. A single transaction cannot change a key twice.
fn batches(events: Vec<Event>, names: &Names, most: usize) -> Vec<Vec<RequestOp>> {
    let mut batches: Vec<Vec<RequestOp>> = Vec::new();
    let (mut revision, mut keys) = (0, BTreeSet::new());
    for event in events {
        let record = event.kv.unwrap_or_default();
        let fields = record.fields();
        let ends = fields.mod_revision > revision
            || keys.contains(fields.key)
            || batches.last().is_none_or(|batch| batch.len() >= most);
        if ends {
            batches.push(Vec::new());
            keys.clear();
        }
        revision = fields.mod_revision;
        keys.insert(fields.key.to_vec());
        let request = if event.r#type == EventType::Delete as i32 {
            let key = names.at_destination(fields.key).into();
            Request::RequestDeleteRange(DeleteRangeRequest { key, ..Default::default() })
        } else {
            Request::RequestPut(put_request(names, fields.key, fields.value))
        };
        if let Some(batch) = batches.last_mut() {
            batch.push(RequestOp { request: Some(request) });
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use quorate_api::record::{Fields, KeyValue};

    use super::*;
    use crate::flags::Matches;

    fn names() -> Names {
        Names::of(&Matches::parse(FLAGS, &[]).unwrap()).unwrap()
    }

    #[test]
    fn each_revision_is_mirrored_in_one_transaction_if_the_limits_allow_it() {
        let event = |(key, mod_revision): &(&str, i64)| {
            let fields =
                Fields { key: key.as_bytes(), mod_revision: *mod_revision, ..Fields::default() };
            Event { kv: Some(KeyValue::new(&fields)), ..Default::default() }
        };
        let lens = |events: &[(&str, i64)], most| {
            let batches = batches(events.iter().map(event).collect(), &names(), most);
            batches.iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(lens(&[("a", 2), ("b", 2), ("c", 3)], 128), [2, 1]);
        assert_eq!(lens(&[("a", 2), ("b", 2), ("c", 2)], 2), [2, 1]);
        // One transaction in the source has changed the key twice, so the mirror needs two transactions.
        assert_eq!(lens(&[("a", 2), ("b", 2), ("a", 2)], 128), [2, 1]);
        assert!(lens(&[], 128).is_empty());
    }
}
