//! Commands about keys: puts, deletions, transactions, ranges, compactions and hashes.

use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quorate_api::etcdserverpb::range_request::{SortOrder, SortTarget};
use quorate_api::etcdserverpb::request_op::Request as Op;
use quorate_api::etcdserverpb::response_op::Response as Answer;
use quorate_api::record::KeyValue;
use quorate_state::apply::{self, Response};
use quorate_test_support::script::Command;

use crate::member::{Member, bytes, number, refused, shown, word};

/// The maximum number of operations in a transaction.
const TXN_OPS_MAX: usize = 128;

impl Member {
    pub(crate) fn keyspace(&mut self, name: &str, command: &Command) -> Option<String> {
        Some(match name {
            // put a 1 lease=5 prev-kv ignore-value ignore-lease
            "put" => {
                let request = put(command);
                match apply::check_put(&request) {
                    Ok(()) => self.write(apply::Command::Put(request)),
                    Err(refusal) => refused(refusal.into()),
                }
            }
            // delete a b prev-kv
            "delete" => {
                let request = delete(command);
                match apply::check_delete_range(&request) {
                    Ok(()) => self.write(apply::Command::DeleteRange(request)),
                    Err(refusal) => refused(refusal.into()),
                }
            }
            // txn, followed by lines such as `if version a = 0`, `then put a 1` and `else range a`
            "txn" => {
                let request = txn(&command.input);
                match apply::check_txn(&request, TXN_OPS_MAX) {
                    Ok(()) => self.write(apply::Command::Txn(request)),
                    Err(refusal) => refused(refusal.into()),
                }
            }
            // range a b revision=3 limit=2 keys-only count-only sort=(descend,mod) min-mod=4 max-create=5
            "range" => {
                let request = range(command);
                match apply::read_range(&self.state.published().view(), &request).unwrap() {
                    Ok(response) => range_text(&response),
                    Err(refusal) => refused(refusal),
                }
            }
            // compact 5
            "compact" => {
                let revision = number(command, 0);
                let request = pb::CompactionRequest { revision, physical: false };
                self.write(apply::Command::Compaction(request))
            }
            // clear-garbage 2: deletes up to two records that compactions have made obsolete
            "clear-garbage" => {
                let step = self.state.compaction_step(number(command, 0));
                self.state.publish();
                let end = step.finished.map_or(String::new(), |at| format!(", finished {at}"));
                let more = if step.more { ", more to do" } else { "" };
                format!("deleted {}{end}{more}", step.deleted_count)
            }
            // hash 5: prints the HashKV of a revision; 0 is the newest
            "hash" => match self.state.published().view().hash_kv(number(command, 0)) {
                Ok(found) => {
                    let (hash, at) = (found.hash, found.hash_revision);
                    format!("{hash} at {at}, compacted {}", found.compact_revision)
                }
                Err(error) => format!("refused: {error}"),
            },
            _ => return None,
        })
    }

    fn write(&mut self, command: apply::Command) -> String {
        self.apply(command, |response| response_text(&response))
    }
}

fn put(command: &Command) -> pb::PutRequest {
    pb::PutRequest {
        key: bytes(word(command, 0)),
        value: if command.has("ignore-value") && word(command, 1) == Some("ignore-value") {
            bytes(None)
        } else {
            bytes(word(command, 1))
        },
        lease: command.value("lease").unwrap_or(0),
        prev_kv: command.has("prev-kv"),
        ignore_value: command.has("ignore-value"),
        ignore_lease: command.has("ignore-lease"),
    }
}

/// Returns the second word of the command as the range end. It is empty if that word is an option.
fn range_end(command: &Command) -> bytes::Bytes {
    let options = ["prev-kv", "keys-only", "count-only"];
    bytes(word(command, 1).filter(|word| !options.contains(word)))
}

fn delete(command: &Command) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest {
        key: bytes(word(command, 0)),
        range_end: range_end(command),
        prev_kv: command.has("prev-kv"),
    }
}

fn range(command: &Command) -> pb::RangeRequest {
    let sort = |word: &str| command.values("sort").iter().any(|value| value == word);
    let orders = [("ascend", SortOrder::Ascend), ("descend", SortOrder::Descend)];
    let targets = [
        ("version", SortTarget::Version),
        ("create", SortTarget::Create),
        ("mod", SortTarget::Mod),
        ("value", SortTarget::Value),
    ];
    let order = orders.into_iter().find(|(word, _)| sort(word)).map_or(0, |found| found.1 as i32);
    let target = targets.into_iter().find(|(word, _)| sort(word)).map_or(0, |found| found.1 as i32);
    let number = |key| command.value(key).unwrap_or(0);
    pb::RangeRequest {
        key: bytes(word(command, 0)),
        range_end: range_end(command),
        limit: number("limit"),
        revision: number("revision"),
        sort_order: order,
        sort_target: target,
        keys_only: command.has("keys-only"),
        count_only: command.has("count-only"),
        min_mod_revision: number("min-mod"),
        max_mod_revision: number("max-mod"),
        min_create_revision: number("min-create"),
        max_create_revision: number("max-create"),
        ..pb::RangeRequest::default()
    }
}

fn txn(input: &str) -> pb::TxnRequest {
    let mut request = pb::TxnRequest::default();
    for line in input.lines() {
        let (part, rest) = line.split_once(' ').unwrap();
        match part {
            "if" => request.compare.push(compare(rest)),
            "then" => request.success.push(operation(rest)),
            "else" => request.failure.push(operation(rest)),
            part => panic!("{part}: expected if, then or else"),
        }
    }
    request
}

/// Parses a condition such as `version a = 0`. A range end may follow the key.
fn compare(line: &str) -> pb::Compare {
    let words: Vec<&str> = line.split(' ').collect();
    let (what, key) = (words[0], bytes(Some(words[1])));
    let [.., sign, operand] = &words[..] else {
        panic!("{line}: expected a target, a key, an operator and an operand")
    };
    let range_end = bytes((words.len() == 5).then(|| words[2]));
    let result = match *sign {
        "=" => CompareResult::Equal,
        ">" => CompareResult::Greater,
        "<" => CompareResult::Less,
        "!=" => CompareResult::NotEqual,
        sign => panic!("{sign} is not a comparison operator"),
    };
    let number = || operand.parse().unwrap();
    let (target, union) = match what {
        "version" => (CompareTarget::Version, TargetUnion::Version(number())),
        "create" => (CompareTarget::Create, TargetUnion::CreateRevision(number())),
        "mod" => (CompareTarget::Mod, TargetUnion::ModRevision(number())),
        "lease" => (CompareTarget::Lease, TargetUnion::Lease(number())),
        "value" => (CompareTarget::Value, TargetUnion::Value(bytes(Some(operand)))),
        what => panic!("{what} is not a comparison target"),
    };
    let (result, target) = (result as i32, target as i32);
    pb::Compare { result, target, key, target_union: Some(union), range_end }
}

fn operation(line: &str) -> pb::RequestOp {
    let command = Command::parse(line);
    let request = match command.name.as_str() {
        "put" => Op::RequestPut(put(&command)),
        "delete" => Op::RequestDeleteRange(delete(&command)),
        "range" => Op::RequestRange(range(&command)),
        name => panic!("{name} is not an operation"),
    };
    pb::RequestOp { request: Some(request) }
}

fn revision(header: Option<&pb::ResponseHeader>) -> i64 {
    header.unwrap().revision
}

fn response_text(response: &Response) -> String {
    match response {
        Response::Put(put) => put_text(put),
        Response::DeleteRange(delete) => delete_text(delete),
        Response::Range(range) => range_text(range),
        Response::Txn(txn) => txn_text(txn),
        Response::Compaction(done) => format!("revision {}", revision(done.header.as_ref())),
        other => format!("{other:?}"),
    }
}

fn put_text(put: &pb::PutResponse) -> String {
    let before = put.prev_kv.as_ref().map(|kv| format!("\nbefore: {}", record_text(kv)));
    format!("revision {}{}", revision(put.header.as_ref()), before.unwrap_or_default())
}

fn delete_text(delete: &pb::DeleteRangeResponse) -> String {
    let mut text =
        format!("revision {}, deleted {}", revision(delete.header.as_ref()), delete.deleted);
    for kv in &delete.prev_kvs {
        text += &format!("\nbefore: {}", record_text(kv));
    }
    text
}

fn range_text(range: &pb::RangeResponse) -> String {
    let more = if range.more { ", more" } else { "" };
    let revision = revision(range.header.as_ref());
    let mut text = format!("revision {revision}, count {}{more}", range.count);
    for kv in &range.kvs {
        text += &format!("\n{}", record_text(kv));
    }
    text
}

fn txn_text(txn: &pb::TxnResponse) -> String {
    let branch = if txn.succeeded { "then" } else { "else" };
    let mut text = format!("revision {}, {branch}", revision(txn.header.as_ref()));
    for operation in &txn.responses {
        let answer = match operation.response.as_ref().unwrap() {
            Answer::ResponsePut(put) => format!("put: {}", put_text(put)),
            Answer::ResponseDeleteRange(delete) => format!("delete: {}", delete_text(delete)),
            Answer::ResponseRange(range) => format!("range: {}", range_text(range)),
            Answer::ResponseTxn(txn) => format!("txn: {}", txn_text(txn)),
        };
        text += &format!("\n- {}", answer.replace('\n', "\n  "));
    }
    text
}

/// Returns a record as text, such as `a=1 create=2 mod=3 version=2`, with the lease if it has one.
pub(crate) fn record_text(kv: &KeyValue) -> String {
    let kv = kv.fields();
    let lease = if kv.lease == 0 { String::new() } else { format!(" lease={}", kv.lease) };
    format!(
        "{}={} create={} mod={} version={}{lease}",
        shown(kv.key),
        shown(kv.value),
        kv.create_revision,
        kv.mod_revision,
        kv.version,
    )
}
