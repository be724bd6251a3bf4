//! `get`: reads a key or a range of keys.

use quorate_api::etcdserverpb::range_request::{SortOrder, SortTarget};
use quorate_api::etcdserverpb::{RangeRequest, RangeResponse};
use tonic::{Response, Status};

use super::serializable;
use crate::client::{Client, Repeat};
use crate::command::{Command, group};
use crate::failure::{Failure, exit};
use crate::flags::{Flag, Matches};
use crate::key_range::KeyRange;
use crate::output::{Format, Reply};
use crate::session::Session;

pub(crate) const GET: Command = Command {
    usage: "get [options] <key> [range_end]",
    short: "Gets the key or a range of keys",
    group: Some(group::KEY_VALUE),
    flags: Get::FLAGS,
    run: Some(|session| Box::pin(run(session))),
    ..Command::EMPTY
};

/// Options of `get`.
#[derive(Debug)]
pub(crate) struct Get<'a> {
    matches: &'a Matches,
}

impl<'a> Get<'a> {
    pub(crate) const FLAGS: &'static [Flag] = &[
        Flag::text("consistency", "l", "Linearizable(l) or Serializable(s)"),
        Flag::text("order", "", "Order of results; ASCEND or DESCEND (ASCEND by default)"),
        Flag::text("sort-by", "", "Sort target; CREATE, KEY, MODIFY, VALUE, or VERSION"),
        Flag::int("limit", "Maximum number of results"),
        Flag::bool("prefix", "Get keys with matching prefix"),
        Flag::bool(
            "from-key",
            "Get keys that are greater than or equal to the given key using byte compare",
        ),
        Flag::int("rev", "Specify the kv revision"),
        Flag::bool("keys-only", "Get only the keys"),
        Flag::bool("count-only", "Get only the count"),
        Flag::bool("print-value-only", "Only write values when using the \"simple\" output format"),
        Flag::int("min-create-rev", "Minimum create revision"),
        Flag::int("max-create-rev", "Maximum create revision"),
        Flag::int("min-mod-rev", "Minimum modification revision"),
        Flag::int("max-mod-rev", "Maximum modification revision"),
        Flag::bool("stream", "Use the RangeStream RPC"),
    ];

    pub(crate) const fn new(matches: &'a Matches) -> Self {
        Self { matches }
    }

    pub(crate) fn request(&self) -> Result<RangeRequest, Failure> {
        let matches = self.matches;
        let both = |one: &str, other: &str| {
            let text =
                format!("`--{one}` and `--{other}` cannot be set at the same time, choose one");
            if matches.bool(one) && matches.bool(other) {
                Err(Failure::bad_args(text))
            } else {
                Ok(())
            }
        };
        let Some(key) = matches.args.first() else {
            let text =
                "get command needs one argument as key and an optional argument as range_end";
            return Err(Failure::bad_args(text));
        };
        both("prefix", "from-key")?;
        both("keys-only", "count-only")?;
        let serializable = serializable(matches.text("consistency"))?;
        let range = self.range(key)?;
        let (sort_order, sort_target) = self.sort()?;
        let (min_create_revision, max_create_revision) = self.bounds("create", "Create")?;
        let (min_mod_revision, max_mod_revision) = self.bounds("mod", "Mod")?;
        Ok(RangeRequest {
            key: range.key.into(),
            range_end: range.end.into(),
            limit: matches.int("limit"),
            revision: matches.int("rev").max(0),
            sort_order: sort_order as i32,
            sort_target: sort_target as i32,
            serializable,
            keys_only: matches.bool("keys-only"),
            count_only: matches.bool("count-only"),
            min_mod_revision,
            max_mod_revision,
            min_create_revision,
            max_create_revision,
        })
    }

    fn range(&self, key: &[u8]) -> Result<KeyRange, Failure> {
        let (prefix, from_key) = (self.matches.bool("prefix"), self.matches.bool("from-key"));
        match self.matches.args.get(1) {
            Some(_) if prefix || from_key => Err(Failure::bad_args(
                "too many arguments, only accept one argument when `--prefix` or `--from-key` is set",
            )),
            Some(end) => Ok(KeyRange { key: key.to_vec(), end: end.clone() }),
            None if prefix => Ok(KeyRange::prefix(key.to_vec())),
            None if from_key => Ok(KeyRange::from(key.to_vec())),
            None => Ok(KeyRange { key: key.to_vec(), end: Vec::new() }),
        }
    }

    fn sort(&self) -> Result<(SortOrder, SortTarget), Failure> {
        let (order, target) = (self.matches.text("order"), self.matches.text("sort-by"));
        let bad = |what: &str, name: &str| {
            Failure::new(exit::BAD_FEATURE, format!("bad sort {what} {name}"))
        };
        let sort_order = match order.to_uppercase().as_str() {
            "ASCEND" => SortOrder::Ascend,
            "DESCEND" => SortOrder::Descend,
            "" => SortOrder::None,
            _ => return Err(bad("order", order)),
        };
        let sort_target = match target.to_uppercase().as_str() {
            "CREATE" => SortTarget::Create,
            "KEY" | "" => SortTarget::Key,
            "MODIFY" => SortTarget::Mod,
            "VALUE" => SortTarget::Value,
            "VERSION" => SortTarget::Version,
            _ => return Err(bad("target", target)),
        };
        // By default, the server returns keys in ascending order, so this order is not requested. An explicit sort
        // order would make the server sort the whole result.
        if sort_target == SortTarget::Key && sort_order == SortOrder::Ascend {
            return Ok((SortOrder::None, sort_target));
        }
        Ok((sort_order, sort_target))
    }

    fn bounds(&self, flag: &str, name: &str) -> Result<(i64, i64), Failure> {
        let bound = |side: &str| self.matches.int(&format!("{side}-{flag}-rev")).max(0);
        let (min, max) = (bound("min"), bound("max"));
        if max > 0 && min > max {
            let text = format!("getMin{name}Rev(={min}) > getMax{name}Rev(={max})");
            return Err(Failure::new(exit::BAD_FEATURE, text));
        }
        Ok((min, max))
    }
}

async fn run(session: &Session) -> Result<(), Failure> {
    let request = Get::new(&session.matches).request()?;
    let client = session.client().await?;
    let timeout = Some(session.timeout());
    let reply = if session.matches.bool("stream") {
        let stream = async |channel, request| joined(&client, channel, request).await;
        client.call(timeout, Repeat::Safe, request, stream).await?
    } else {
        let range = async |channel, request| client.kv(channel).range(request).await;
        client.call(timeout, Repeat::Safe, request, range).await?
    };
    let format = session.format()?;
    if session.matches.bool("count-only") && format != Format::Fields {
        return Err(Failure::bad_args("--count-only is only for `--write-out=fields`"));
    }
    let value_only = session.matches.bool("print-value-only");
    if value_only && format != Format::Simple {
        return Err(Failure::bad_args("print-value-only is only for `--write-out=simple`"));
    }
    session.show(&Reply::Get(reply, value_only))
}

/// Reads a range as a stream and joins its parts.
async fn joined(
    client: &Client,
    channel: tonic::transport::Channel,
    request: tonic::Request<RangeRequest>,
) -> Result<Response<RangeResponse>, Status> {
    let mut stream = client.kv(channel).range_stream(request).await?.into_inner();
    let mut whole = RangeResponse::default();
    while let Some(part) = stream.message().await? {
        let Some(part) = part.range_response else { continue };
        whole.header = part.header.or(whole.header);
        whole.kvs.extend(part.kvs);
        whole.more |= part.more;
        whole.count = whole.count.max(part.count);
    }
    Ok(Response::new(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(line: &[&str]) -> Result<RangeRequest, Failure> {
        let line: Vec<_> = line.iter().map(|word| word.as_bytes().to_vec()).collect();
        Get::new(&Matches::parse(Get::FLAGS, &line).unwrap()).request()
    }

    #[test]
    fn a_range_is_selected_by_an_end_key_a_prefix_or_a_start_key() {
        for (line, key, end) in [
            (&["a"][..], &b"a"[..], &b""[..]),
            (&["a", "c"], b"a", b"c"),
            (&["a", "--prefix"], b"a", b"b"),
            (&["", "--prefix"], b"\0", b"\0"),
            (&["a", "--from-key"], b"a", b"\0"),
            (&["", "--from-key"], b"\0", b"\0"),
        ] {
            let request = request(line).unwrap();
            assert_eq!((&request.key[..], &request.range_end[..]), (key, end), "{line:?}");
        }
    }

    #[test]
    fn ascending_key_order_requests_no_sort() {
        let sort = |line: &[&str]| request(line).map(|r| (r.sort_order(), r.sort_target()));
        assert_eq!(sort(&["a"]), Ok((SortOrder::None, SortTarget::Key)));
        assert_eq!(sort(&["a", "--order", "ascend"]), Ok((SortOrder::None, SortTarget::Key)));
        assert_eq!(
            sort(&["a", "--order=DESCEND", "--sort-by=modify"]),
            Ok((SortOrder::Descend, SortTarget::Mod))
        );
        let failure = Failure::new(exit::BAD_FEATURE, "bad sort order x");
        assert_eq!(sort(&["a", "--order", "x"]), Err(failure));
    }

    #[test]
    fn conflicting_flags_are_refused() {
        for line in [
            &["a", "--prefix", "--from-key"][..],
            &["a", "--keys-only", "--count-only"],
            &["a", "b", "--prefix"],
            &[],
        ] {
            assert_eq!(request(line).unwrap_err().code, exit::BAD_ARGS, "{line:?}");
        }
        let failure = request(&["a", "--min-mod-rev=5", "--max-mod-rev=3"]).unwrap_err();
        assert_eq!(failure.message.unwrap(), "getMinModRev(=5) > getMaxModRev(=3)");
        assert_eq!(request(&["a", "--consistency=x"]).unwrap_err().code, exit::BAD_FEATURE);
    }
}
