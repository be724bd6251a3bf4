//! `txn`: executes several requests atomically, depending on comparisons.
//!
//! The input has three parts, each terminated by an empty line: the comparisons, the requests to execute if all
//! comparisons succeed, and the requests to execute otherwise.

use quorate_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quorate_api::etcdserverpb::request_op::Request;
use quorate_api::etcdserverpb::{Compare, RequestOp, TxnRequest};

use super::del::Del;
use super::get::Get;
use super::put::Put;
use crate::client::Repeat;
use crate::command::{Command, group};
use crate::failure::{Failure, exit};
use crate::flags::{Flag, Matches};
use crate::gotext::{parse_int, quote, unquote};
use crate::output::Reply;
use crate::session::Session;
use crate::words;
use quorate_cli::command::only_match;

pub(crate) const TXN: Command = Command {
    usage: "txn [options]",
    short: "Txn processes all the requests in one transaction",
    long: "\
Txn reads requests from standard input and applies them as one atomic transaction.

A transaction has three parts, each ended by an empty line:
1) a list of conditions,
2) a list of requests to apply if all the conditions are true,
3) a list of requests to apply if any condition is false.

Example:

---
etcdctl txn -i
# compares:
mod(\"key1\") > \"0\"

# success requests (get, put, del):
put key1 \"overwrote-key1\"

# failure requests (get, put, del):
put key1 \"created-key1\"
put key2 \"some extra key\"

---",
    group: Some(group::KEY_VALUE),
    flags: &[Flag::bool("interactive", "Input transaction in interactive mode").short('i')],
    run: Some(|session| Box::pin(run(session))),
    ..Command::EMPTY
};

async fn run(session: &Session) -> Result<(), Failure> {
    if !session.matches.args.is_empty() {
        return Err(Failure::bad_args("txn command does not accept argument"));
    }
    let client = session.client().await?;
    let prompt = |text: &str| {
        if session.matches.bool("interactive") { session.print(text) } else { Ok(()) }
    };
    let mut request = TxnRequest::default();
    prompt("compares:\n")?;
    while let Some(line) = next_line(session)? {
        request.compare.push(comparison(&line)?);
    }
    prompt("success requests (get, put, del):\n")?;
    while let Some(line) = next_line(session)? {
        request.success.push(operation(session, &line).await?);
    }
    prompt("failure requests (get, put, del):\n")?;
    while let Some(line) = next_line(session)? {
        request.failure.push(operation(session, &line).await?);
    }
    let txn = async |channel, request| client.kv(channel).txn(request).await;
    // The call has no timeout, because a user who has typed a transaction wants its result.
    let reply = client.call(None, Repeat::Never, request, txn).await?;
    session.show(&Reply::Txn(reply))
}

/// Reads the next line and strips surrounding spaces. Returns `None` for an empty line, which ends a part.
fn next_line(session: &Session) -> Result<Option<Vec<u8>>, Failure> {
    let line = session.read_line()?;
    if !line.ends_with(b"\n") {
        return Err(invalid("EOF"));
    }
    let line = line.trim_ascii();
    Ok((!line.is_empty()).then(|| line.to_vec()))
}

fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(exit::INVALID_INPUT, text)
}

/// Parses `target("key") operator "value"`.
fn comparison(line: &[u8]) -> Result<Compare, Failure> {
    let text = String::from_utf8_lossy(line);
    let malformed = |reason: String| invalid(format!("malformed comparison: {text}{reason}"));
    let open = line.iter().position(|byte| *byte == b'(');
    let (target, rest) = match open {
        Some(open) => (String::from_utf8_lossy(&line[..open]), &line[open + 1..]),
        None => return Err(malformed(String::new())),
    };
    let (key, operator, value) = parts(rest).map_err(|(key, operator)| {
        let (key, operator) = (quote(&key), String::from_utf8_lossy(&operator).into_owned());
        malformed(format!("; got {target}({key}) {operator} \"\""))
    })?;
    let operator = String::from_utf8_lossy(&operator).into_owned();
    let result = match operator.as_str() {
        "=" => CompareResult::Equal,
        "!=" => CompareResult::NotEqual,
        ">" => CompareResult::Greater,
        "<" => CompareResult::Less,
        _ => return Err(malformed(format!(" (unknown operator {operator})"))),
    };
    let number = |base| {
        parse_int(&String::from_utf8_lossy(&value), base)
            .map_err(|_| invalid(format!("invalid txn compare request: {text}")))
    };
    let (target, target_union) = match &*target {
        "ver" | "version" => (CompareTarget::Version, TargetUnion::Version(number(10)?)),
        "c" | "create" => (CompareTarget::Create, TargetUnion::CreateRevision(number(10)?)),
        "m" | "mod" => (CompareTarget::Mod, TargetUnion::ModRevision(number(10)?)),
        "val" | "value" => (CompareTarget::Value, TargetUnion::Value(value.into())),
        "lease" => (CompareTarget::Lease, TargetUnion::Lease(number(16)?)),
        target => return Err(malformed(format!(" (unknown target {target})"))),
    };
    Ok(Compare {
        result: result as i32,
        target: target as i32,
        key: key.into(),
        target_union: Some(target_union),
        ..Default::default()
    })
}

type Parts = (Vec<u8>, Vec<u8>, Vec<u8>);

/// Splits `"key") operator "value"`. The error contains as much of the key and the operator as could be parsed.
fn parts(rest: &[u8]) -> Result<Parts, (Vec<u8>, Vec<u8>)> {
    let nothing = || (Vec::new(), Vec::new());
    let (key, rest) = quoted(rest).ok_or_else(nothing)?;
    let Some(rest) = rest.strip_prefix(b")") else { return Err((key, Vec::new())) };
    let rest = rest.trim_ascii_start();
    let len = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
    let (operator, rest) = rest.split_at(len);
    match quoted(rest) {
        Some((value, _)) => Ok((key, operator.to_vec(), value)),
        None => Err((key, operator.to_vec())),
    }
}

/// Parses a Go string literal of either kind, skipping leading spaces.
fn quoted(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let text = text.trim_ascii_start();
    if let Some(raw) = text.strip_prefix(b"`") {
        let len = raw.iter().position(|byte| *byte == b'`')?;
        return Some((raw[..len].to_vec(), &raw[len + 1..]));
    }
    unquote(text)
}

/// Parses a request, written like the command line of `get`, `put` or `del`. As on a command line, the name may be
/// abbreviated.
async fn operation(session: &Session, line: &[u8]) -> Result<RequestOp, Failure> {
    let text = String::from_utf8_lossy(line);
    let words = words::split(line)?;
    let [name, args @ ..] = &words[..] else {
        return Err(invalid(format!("invalid txn compare request: {text}")));
    };
    if args.is_empty() {
        return Err(invalid(format!("invalid txn compare request: {text}")));
    }
    let parse = |flags| {
        Matches::parse(flags, args).map_err(|_| invalid(format!("invalid txn request: {text}")))
    };
    let request = match only_match(["put", "get", "del"], &String::from_utf8_lossy(name)) {
        Some("put") => {
            let matches = parse(Put::FLAGS)?;
            Request::RequestPut(Put::new(&matches).request(|| session.read_input())?)
        }
        Some("get") => Request::RequestRange(Get::new(&parse(Get::FLAGS)?).request()?),
        Some("del") => {
            let matches = parse(Del::FLAGS)?;
            let del = Del::new(&matches);
            let request = del.request()?;
            del.warn(session).await;
            Request::RequestDeleteRange(request)
        }
        _ => return Err(invalid(format!("invalid txn request: {text}"))),
    };
    Ok(RequestOp { request: Some(request) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, target: CompareTarget, result: CompareResult, union: TargetUnion) {
        let compare = comparison(line.as_bytes()).unwrap();
        assert_eq!(&compare.key[..], b"k 1", "{line}");
        assert_eq!((compare.target(), compare.result()), (target, result), "{line}");
        assert_eq!(compare.target_union, Some(union), "{line}");
    }

    #[test]
    fn comparisons_are_parsed_with_their_targets_and_operators() {
        let less = CompareResult::Less;
        check(r#"mod("k 1") < "5""#, CompareTarget::Mod, less, TargetUnion::ModRevision(5));
        check(r#"ver("k 1") < "5""#, CompareTarget::Version, less, TargetUnion::Version(5));
        check(r#"c( "k 1")< "5""#, CompareTarget::Create, less, TargetUnion::CreateRevision(5));
        check(r#"lease("k 1") < "ff""#, CompareTarget::Lease, less, TargetUnion::Lease(255));
        let value = TargetUnion::Value("a\nb".into());
        check(r#"val("k 1") != "a\nb""#, CompareTarget::Value, CompareResult::NotEqual, value);
        let value = TargetUnion::Value("a".into());
        check(r#"value(`k 1`)  =  `a`"#, CompareTarget::Value, CompareResult::Equal, value);
    }

    #[test]
    fn errors_for_malformed_comparisons_show_the_parsed_part() {
        for (line, text) in [
            ("mod", "malformed comparison: mod"),
            (r#"mod("k")>"0""#, r#"malformed comparison: mod("k")>"0"; got mod("k") >"0" """#),
            (r#"x("k") > "0""#, r#"malformed comparison: x("k") > "0" (unknown target x)"#),
            (r#"mod("k") > "y""#, r#"invalid txn compare request: mod("k") > "y""#),
        ] {
            assert_eq!(comparison(line.as_bytes()).unwrap_err(), invalid(text), "{line}");
        }
    }
}
